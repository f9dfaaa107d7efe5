// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package harness

import (
	"fmt"
	"net"
)

// Port is a port of 127.0.0.1 that was free when it was reserved.
type Port struct{ at string }

// ReservePort returns a free port.
func ReservePort() (*Port, error) { return reserve(0) }

// reserve returns a port of 127.0.0.1, or a free port if number is 0.
func reserve(number int) (*Port, error) {
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", number)) //nolint:noctx // does not block
	if err != nil {
		return nil, fmt.Errorf("reserve a free port: %w", err)
	}
	p := &Port{at: l.Addr().String()}
	if err := l.Close(); err != nil {
		return nil, fmt.Errorf("reserve a free port: %w", err)
	}
	return p, nil
}

// Address returns "127.0.0.1:<port>".
func (p *Port) Address() string { return p.at }

// Close does nothing on this system.
func (p *Port) Close() error { return nil }
