// SPDX-License-Identifier: Apache-2.0

package tlsfiles

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc/credentials"
)

// http2 is what gRPC speaks.
const http2 = "h2"

// errNoCertificate is returned when a server shows nothing that could be checked.
var errNoCertificate = errors.New("the other end shows no certificate")

// Server makes the configuration of a listener: each connection is received with what the files hold when it begins.
// Clients are asked for certificates as auth says; protocols are those of ALPN, such as "h2" for gRPC.
func (s *Source) Server(auth tls.ClientAuthType, protocols ...string) *tls.Config {
	return &tls.Config{
		MinVersion: s.o.MinVersion,
		NextProtos: protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			s.Look()
			return s.received(auth, protocols), nil
		},
	}
}

// Receive is the configuration for one connection that comes in. The one who connects has to show a certificate of the
// authorities.
func (s *Source) Receive() *tls.Config {
	s.Look()
	return s.received(tls.RequireAndVerifyClientCert, nil)
}

func (s *Source) received(auth tls.ClientAuthType, protocols []string) *tls.Config {
	m := s.current.Load()
	c := &tls.Config{
		MinVersion: s.o.MinVersion, NextProtos: protocols, ClientAuth: auth, ClientCAs: m.roots,
		// A session that is resumed is not checked against authorities that have gone meanwhile.
		SessionTicketsDisabled: true,
	}
	if m.certificate != nil {
		c.Certificates = []tls.Certificate{*m.certificate}
	}
	return c
}

// Dial is the configuration for one connection that is made now. It must not be kept for others. ServerName is to be
// set by the caller, unless the address is given to crypto/tls.
func (s *Source) Dial() *tls.Config {
	s.Look()
	m := s.current.Load()
	c := &tls.Config{MinVersion: s.o.MinVersion, RootCAs: m.roots}
	if m.certificate != nil {
		c.Certificates = []tls.Certificate{*m.certificate}
	}
	return c
}

// Credentials are those of gRPC connections that are made: each is made with what the files hold when it begins.
// accept, if not nil, is asked about the certificate of each server, which is valid for its address.
func (s *Source) Credentials(accept func(*x509.Certificate) error) credentials.TransportCredentials {
	return &dialCredentials{source: s, accept: accept}
}

// CheckOnly are Credentials that show no certificate: they only check that of the server.
func (s *Source) CheckOnly() credentials.TransportCredentials {
	return &dialCredentials{source: s, checkOnly: true}
}

// dialCredentials implements credentials.TransportCredentials.
type dialCredentials struct {
	source *Source
	accept func(*x509.Certificate) error
	name   string // in place of the host in the address

	checkOnly bool // no certificate is shown
}

// ClientHandshake secures a connection that was made.
func (c *dialCredentials) ClientHandshake(
	ctx context.Context, authority string, raw net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	config := c.source.Dial()
	config.ServerName = c.name
	if c.checkOnly {
		config.Certificates = nil
	}
	if c.accept != nil {
		config.VerifyConnection = func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return errNoCertificate
			}
			return c.accept(state.PeerCertificates[0])
		}
	}
	conn, info, err := credentials.NewTLS(config).ClientHandshake(ctx, authority, raw)
	if err != nil {
		return nil, nil, err //nolint:wrapcheck // gRPC looks at it, and says which connection
	}
	return conn, info, nil
}

// ServerHandshake is not what these credentials are for.
func (c *dialCredentials) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, fmt.Errorf("tlsfiles: %w", errors.ErrUnsupported)
}

// Info tells gRPC what kind of connection it is.
func (c *dialCredentials) Info() credentials.ProtocolInfo {
	return credentials.NewTLS(&tls.Config{MinVersion: c.source.o.MinVersion, ServerName: c.name}).Info()
}

// Clone gives credentials of their own.
func (c *dialCredentials) Clone() credentials.TransportCredentials {
	d := *c
	return &d
}

// OverrideServerName is there for the interface; gRPC has a dial option instead.
func (c *dialCredentials) OverrideServerName(name string) error {
	c.name = name
	return nil
}

// ServerCredentials are those of a gRPC server.
func (s *Source) ServerCredentials(auth tls.ClientAuthType) credentials.TransportCredentials {
	return credentials.NewTLS(s.Server(auth, http2))
}
