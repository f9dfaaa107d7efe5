//go:build !unix

package pair

import (
	"fmt"
	"net"
)

// port is a port of 127.0.0.1 that was free a moment ago.
type port struct{ at string }

func reservePort() (*port, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it does not wait for anything
	if err != nil {
		return nil, fmt.Errorf("take a free port: %w", err)
	}
	p := &port{at: l.Addr().String()}
	if err := l.Close(); err != nil {
		return nil, fmt.Errorf("take a free port: %w", err)
	}
	return p, nil
}

func (p *port) address() string { return p.at }

func (p *port) close() error { return nil }
