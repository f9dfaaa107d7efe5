// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"crypto/x509"
	"net"
	"time"

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
	var of *Conn
	switch c := raw.(type) {
	case *tcpConn:
		of = c.conn
	case *plainConn:
		of = c.conn
	default:
		return conn, info, nil
	}
	if secured, ok := info.(credentials.TLSInfo); ok && len(secured.State.VerifiedChains) > 0 {
		of.endWith(secured.State.VerifiedChains)
	}
	return &securedConn{conn, newWire(of)}, info, nil
}

// endWith has the connection end when the certificate that its client has shown is over, unless it is the other node:
// what that one holds is worth more, and its certificate has an alarm long before.
func (c *Conn) endWith(chains [][]*x509.Certificate) {
	var last time.Time
	for _, chain := range chains {
		end := chain[0].NotAfter
		for _, certificate := range chain[1:] {
			if certificate.NotAfter.Before(end) {
				end = certificate.NotAfter
			}
		}
		if end.After(last) {
			last = end
		}
	}
	timer := time.AfterFunc(time.Until(last), func() {
		if c.isPeer() {
			return
		}
		c.l.tell(Expired, c.source.host, c.l.o.Limits())
		_ = c.end() // its client finds out
	})
	c.expiry.Store(timer)
	select {
	case <-c.over: // before it could be stopped
		timer.Stop()
	default:
	}
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
