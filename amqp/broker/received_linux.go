// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// received returns the number of bytes that have arrived, read or not; 0 if unknown.
func received(c net.Conn) (n int64) {
	s, ok := c.(syscall.Conn)
	if !ok {
		return 0
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) { // unknown for a closed connection
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			n = int64(info.Bytes_received)
		}
	})
	return n
}
