// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
)

// load reads the files. The result serves for both sides of a connection; nil without TLS.
func (t *TLS) load() (*tls.Config, error) {
	if t == nil {
		return nil, nil // no TLS is no error
	}
	if t.CA == "" || t.Cert == "" || t.Key == "" {
		return nil, errors.New("raft: tls: ca, cert and key go together: voters show each other certificates")
	}
	pem, err := os.ReadFile(t.CA)
	if err != nil {
		return nil, fmt.Errorf("raft: tls: ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("raft: tls: ca: %s has no certificate in PEM", t.CA)
	}
	cert, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return nil, fmt.Errorf("raft: tls: cert and key: %w", err)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
		Certificates: []tls.Certificate{cert},
	}, nil
}

// client is the configuration for a connection to this address.
func tlsClient(conf *tls.Config, address string) *tls.Config {
	conf = conf.Clone()
	if host, _, err := net.SplitHostPort(address); err == nil {
		conf.ServerName = host
	}
	return conf
}

// cause puts an error that only an operator can end into words; empty for any other. What goes wrong in a handshake on
// the other side reaches us only as text.
func cause(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	for _, t := range []struct{ has, means string }{
		{"certificate signed by unknown authority", "its certificate was not issued by the authority in tls.ca"},
		{"certificate is valid for", "its certificate is for another name than the one in the voter's address"},
		{"cannot validate certificate for", "its certificate does not name the host in the voter's address"},
		{"certificate has expired", "a certificate has expired or is not valid yet: check both voters' certificates " +
			"and clocks"},
		{"tls: unknown certificate authority", "it does not trust the authority of the certificate in tls.cert"},
		{"tls: bad certificate", "it does not accept the certificate in tls.cert"},
		{"tls: certificate required", "it wants a certificate: set tls.cert and tls.key"},
		{"first record does not look like a TLS handshake", "one of the two uses TLS and the other does not"},
		{textUsesTLS, "one of the two uses TLS and the other does not"},
		{textNotVoter, "something else than a voter of this version listens there"},
	} {
		if strings.Contains(text, t.has) {
			return t.means
		}
	}
	return ""
}
