// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"net"

	"google.golang.org/grpc/credentials"
)

// Credentials are those of a server whose connections a Listener lets in: with TLS, it is only behind them that the
// frames can be seen.
func Credentials(inner credentials.TransportCredentials) credentials.TransportCredentials {
	return seeing{inner}
}

type seeing struct {
	credentials.TransportCredentials
}

// ServerHandshake secures a connection, and has what comes over it looked at.
func (s seeing) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := s.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return conn, info, err //nolint:wrapcheck // it is gRPC that reads it
	}
	switch c := raw.(type) {
	case *tcpConn:
		conn = &securedConn{conn, newWire(c.conn)}
	case *plainConn:
		conn = &securedConn{conn, newWire(c.conn)}
	}
	return conn, info, nil
}

// Clone copies it.
func (s seeing) Clone() credentials.TransportCredentials {
	return seeing{s.TransportCredentials.Clone()}
}

// securedConn is what gRPC reads from where there is TLS.
type securedConn struct {
	net.Conn

	wire *wire
}

// Read reads, and looks at the frames.
func (c *securedConn) Read(b []byte) (int, error) { return c.wire.read(c.Conn, b) }

// Write writes, and looks at the frames.
func (c *securedConn) Write(b []byte) (int, error) { return c.wire.write(c.Conn, b) }
