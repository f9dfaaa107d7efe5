// SPDX-License-Identifier: Apache-2.0

//go:build unix

package harness

import (
	"errors"
	"fmt"
	"syscall"
)

// Port is a port of 127.0.0.1 that stays ours while no node listens on it: a killed node finds its address free when it
// comes back, and meanwhile a connection to it is refused, as it is when a process dies. It is a socket that is bound
// and never listens. A listener may be bound beside it, as both set SO_REUSEADDR, but the system gives the port to no
// process that asks for a free one.
type Port struct {
	fd     int
	number int
}

// ReservePort takes a free port.
func ReservePort() (*Port, error) { return reserve(0) }

// reserve takes a port of 127.0.0.1; 0: a free one.
func reserve(number int) (_ *Port, err error) {
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("take a free port: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, syscall.Close(fd))
		}
	}()
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return nil, fmt.Errorf("take a free port: %w", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Port: number, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return nil, fmt.Errorf("take port %d (0: a free one): %w", number, err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		return nil, fmt.Errorf("take a free port: %w", err)
	}
	address, ok := name.(*syscall.SockaddrInet4)
	if !ok {
		return nil, fmt.Errorf("take a free port: the system returned a %T", name)
	}
	return &Port{fd: fd, number: address.Port}, nil
}

// Address is 127.0.0.1:port.
func (p *Port) Address() string { return fmt.Sprintf("127.0.0.1:%d", p.number) }

// Close gives the port back.
func (p *Port) Close() error {
	if err := syscall.Close(p.fd); err != nil {
		return fmt.Errorf("give a port back: %w", err)
	}
	return nil
}
