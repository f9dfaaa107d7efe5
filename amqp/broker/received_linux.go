// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// received is how many bytes have come over a connection, read or not; 0 if that cannot be known.
func received(c net.Conn) (n int64) {
	s, ok := c.(syscall.Conn)
	if !ok {
		return 0
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) { // nothing is known of one that is closed
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			n = int64(info.Bytes_received)
		}
	})
	return n
}
