// SPDX-License-Identifier: Apache-2.0

package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// Values of tls.client-auth.
const (
	ClientAuthRequire = "require"
	ClientAuthNone    = "none"
)

// NodeTLS secures the node's own port: clients, the command line and the other node. The other node is connected to
// with the same files.
type NodeTLS struct {
	Cert       string `key:"cert" usage:"file with this node's certificate, for its port and towards the other node; turns TLS on"`
	Key        string `key:"key" usage:"file with the key of that certificate"`
	CA         string `key:"ca" usage:"file with the authorities that certificates of clients and of the other node are checked against"`
	ClientAuth string `key:"client-auth" usage:"require: a client shows a certificate that tls.ca has issued; none: any client may connect"`
}

// On tells whether TLS is configured.
func (t NodeTLS) On() bool { return t.Cert != "" }

// Server is the configuration of the node's port; nil without TLS. Errors name the file that cannot be used.
func (t NodeTLS) Server() (*tls.Config, error) {
	if !t.On() {
		return nil, nil // no TLS is no error
	}
	out, err := ClientTLS(t.CA, t.Cert, t.Key)
	if err != nil {
		return nil, err
	}
	out.ClientCAs, out.RootCAs = out.RootCAs, nil
	if t.ClientAuth != ClientAuthNone {
		out.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return out, nil
}

// Client is the configuration for connections to the other node; nil without TLS.
func (t NodeTLS) Client() (*tls.Config, error) {
	if !t.On() {
		return nil, nil // no TLS is no error
	}
	return ClientTLS(t.CA, t.Cert, t.Key)
}

// ClientTLS makes the configuration of a connection from files in PEM: ca to check the server's certificate against
// (empty: the system's authorities), cert and key to show (empty: none). It is nil if all are empty. Errors name the
// file that cannot be used.
func ClientTLS(ca, cert, key string) (*tls.Config, error) {
	if ca == "" && cert == "" && key == "" {
		return nil, nil // no TLS is no error
	}
	if (cert == "") != (key == "") {
		return nil, errors.New("cert and key go together; only one of them is set")
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("ca: %w", err)
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca: %s has no certificate in PEM", ca)
		}
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("cert and key: %w", err)
		}
		out.Certificates = []tls.Certificate{pair}
	}
	return out, nil
}

func (c *Config) checkTLS(k *checker) {
	t := &c.TLS
	k.oneOf("tls.client-auth", t.ClientAuth, ClientAuthRequire, ClientAuthNone)
	if (t.Cert == "") != (t.Key == "") {
		k.fail("tls.cert", "cert and key go together; only one of them is set")
	}
	if t.CA != "" && !t.On() {
		k.fail("tls.ca", "it is set, but tls.cert is not: the node has no certificate to show")
	}
	if t.On() && t.CA == "" && t.ClientAuth != ClientAuthNone {
		k.fail("tls.ca", "with tls.client-auth require an authority is needed that the certificates of clients are "+
			"checked against; or set client-auth to none")
	}
}
