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

const http2 = "h2"

var errNoCertificate = errors.New("server presented no certificate")

// Server returns the configuration of a listener: each connection uses the content of the files at its start.
// Client certificates are requested according to auth; protocols are the ALPN protocols.
func (s *Source) Server(auth tls.ClientAuthType, protocols ...string) *tls.Config {
	return &tls.Config{
		MinVersion: s.o.MinVersion,
		NextProtos: protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			s.Check()
			return s.received(auth, protocols), nil
		},
	}
}

// Receive returns the configuration for one incoming connection. The client must present a certificate issued by
// the CAs.
func (s *Source) Receive() *tls.Config {
	s.Check()
	return s.received(tls.RequireAndVerifyClientCert, nil)
}

func (s *Source) received(auth tls.ClientAuthType, protocols []string) *tls.Config {
	m := s.current.Load()
	c := &tls.Config{
		MinVersion: s.o.MinVersion, NextProtos: protocols, ClientAuth: auth, ClientCAs: m.roots,
		// A resumed session would not be verified against the current CAs.
		SessionTicketsDisabled: true,
	}
	if m.certificate != nil {
		c.Certificates = []tls.Certificate{*m.certificate}
	}
	return c
}

// Dial returns the configuration for one new outgoing connection. The caller must set ServerName, unless crypto/tls
// derives it from the address.
func (s *Source) Dial() *tls.Config {
	s.Check()
	m := s.current.Load()
	c := &tls.Config{MinVersion: s.o.MinVersion, RootCAs: m.roots}
	if m.certificate != nil {
		c.Certificates = []tls.Certificate{*m.certificate}
	}
	return c
}

// Credentials returns the credentials of gRPC clients: each connection uses the content of the files at its start.
// accept, if not nil, is called with the verified certificate of each server.
func (s *Source) Credentials(accept func(*x509.Certificate) error) credentials.TransportCredentials {
	return &dialCredentials{source: s, accept: accept}
}

// CheckOnly returns Credentials that present no certificate and only verify the certificate of the server.
func (s *Source) CheckOnly() credentials.TransportCredentials {
	return &dialCredentials{source: s, checkOnly: true}
}

type dialCredentials struct {
	source *Source
	accept func(*x509.Certificate) error
	name   string // replaces the host of the address

	checkOnly bool // present no certificate
}

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
		return nil, nil, err //nolint:wrapcheck // gRPC checks its type, and adds the connection
	}
	return conn, info, nil
}

func (c *dialCredentials) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, fmt.Errorf("tlsfiles: %w", errors.ErrUnsupported)
}

func (c *dialCredentials) Info() credentials.ProtocolInfo {
	return credentials.NewTLS(&tls.Config{MinVersion: c.source.o.MinVersion, ServerName: c.name}).Info()
}

func (c *dialCredentials) Clone() credentials.TransportCredentials {
	d := *c
	return &d
}

func (c *dialCredentials) OverrideServerName(name string) error {
	c.name = name
	return nil
}

// ServerCredentials returns the credentials of a gRPC server. Client certificates are requested according to auth.
func (s *Source) ServerCredentials(auth tls.ClientAuthType) credentials.TransportCredentials {
	return credentials.NewTLS(s.Server(auth, http2))
}
