//go:build unix

package cluster

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
)

// Port is a loopback port that stays ours while nobody listens on it: a killed node finds its address free when it
// comes back, and meanwhile a connection to it is refused, as it is when a process dies.
//
// It is a socket that is bound but never listens. Linux lets another socket that also set SO_REUSEADDR (Go's listeners
// do) bind and listen beside it, but hands the port to nobody who asks for a free one.
type Port struct {
	fd   int
	port int
}

// ReservePort takes a free port of 127.0.0.1.
func ReservePort() (*Port, error) {
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("reserve a port: socket: %w", err)
	}
	port, err := bindAny(fd)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("reserve a port: %w", err), syscall.Close(fd))
	}
	return &Port{fd: fd, port: port}, nil
}

func bindAny(fd int) (int, error) {
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return 0, fmt.Errorf("setsockopt: %w", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, fmt.Errorf("bind: %w", err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		return 0, fmt.Errorf("getsockname: %w", err)
	}
	in4, ok := name.(*syscall.SockaddrInet4)
	if !ok {
		return 0, fmt.Errorf("getsockname: unexpected %T", name)
	}
	return in4.Port, nil
}

// Address gives 127.0.0.1:port.
func (p *Port) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)) }

// Close gives the port back.
func (p *Port) Close() error { return syscall.Close(p.fd) }
