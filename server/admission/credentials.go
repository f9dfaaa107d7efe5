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
	if tcp, ok := raw.(*tcpConn); ok {
		conn = &securedConn{conn, tcp.conn, newFrames()}
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

	conn   *Conn
	frames frames
}

// Read reads, and looks at the frames.
func (c *securedConn) Read(b []byte) (int, error) { return c.conn.read(c.Conn, &c.frames, b) }
