// SPDX-License-Identifier: Apache-2.0

//go:build unix

package harness

import (
	"errors"
	"fmt"
	"syscall"
)

// Port is a port of 127.0.0.1 that is reserved for a node even while the node is not running. In the meantime,
// connections to the port are refused. A Port is a socket that is bound, but never listens. A listener can bind to the
// same port, because both set SO_REUSEADDR, but the system does not assign the port to other processes.
type Port struct {
	fd     int
	number int
}

// ReservePort reserves a free port.
func ReservePort() (*Port, error) { return reserve(0) }

// reserve reserves a port of 127.0.0.1, or a free port if number is 0.
func reserve(number int) (_ *Port, err error) {
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("reserve a free port: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, syscall.Close(fd))
		}
	}()
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return nil, fmt.Errorf("reserve a free port: %w", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Port: number, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return nil, fmt.Errorf("reserve port %d: %w", number, err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		return nil, fmt.Errorf("reserve a free port: %w", err)
	}
	address, ok := name.(*syscall.SockaddrInet4)
	if !ok {
		return nil, fmt.Errorf("reserve a free port: the system returned a %T", name)
	}
	return &Port{fd: fd, number: address.Port}, nil
}

// Address returns "127.0.0.1:<port>".
func (p *Port) Address() string { return fmt.Sprintf("127.0.0.1:%d", p.number) }

// Close releases the port.
func (p *Port) Close() error {
	if err := syscall.Close(p.fd); err != nil {
		return fmt.Errorf("release a port: %w", err)
	}
	return nil
}
