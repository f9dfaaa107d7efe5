// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"crypto/x509"
	"net"
	"time"

	"google.golang.org/grpc/credentials"
)

// Credentials wraps the TLS credentials of a server behind a Listener. It parses the decrypted HTTP/2 frames, and
// closes a connection when the client's certificate expires.
func Credentials(inner credentials.TransportCredentials) credentials.TransportCredentials {
	return readStats{inner}
}

type readStats struct {
	credentials.TransportCredentials
}

func (s readStats) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := s.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return conn, info, err //nolint:wrapcheck // gRPC reports it
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

// endWith schedules the end of the connection for the time when the last of the client's certificate chains expires.
// The connection of the other node remains open.
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
		if !c.isPeer() {
			c.closeFor(Expired)
		}
	})
	c.expiry.Store(timer)
	select {
	case <-c.over: // the connection was closed before the timer was stored
		timer.Stop()
	default:
	}
}

func (s readStats) Clone() credentials.TransportCredentials {
	return readStats{s.TransportCredentials.Clone()}
}

type securedConn struct {
	net.Conn

	wire *wire
}

func (c *securedConn) Read(b []byte) (int, error) { return c.wire.read(c.Conn, b) }

func (c *securedConn) Write(b []byte) (int, error) { return c.wire.write(c.Conn, b) }
