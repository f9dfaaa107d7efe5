// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
)

var errNonPeer = errors.New("certificate does not belong to a voter of this pair")

func (t *TLS) check() error {
	if t != nil && (t.Receive == nil || t.Dial == nil) {
		return errors.New("raft: tls: configurations for incoming and outgoing connections are required")
	}
	return nil
}

// accept checks that a certificate contains one of the accepted names. addresses are the voters' addresses.
func (t *TLS) accept(cert *x509.Certificate, addresses []string) error {
	names := t.Names
	if len(names) == 0 {
		for _, a := range addresses {
			if host, _, err := net.SplitHostPort(a); err == nil && !slices.Contains(names, host) {
				names = append(names, host)
			}
		}
	}
	for _, name := range names {
		if strings.Contains(name, "://") {
			if slices.ContainsFunc(cert.URIs, func(u *url.URL) bool { return u.String() == name }) {
				return nil
			}
		} else if cert.VerifyHostname(name) == nil {
			return nil
		}
	}
	return fmt.Errorf("%w: it has none of the names %s; add one of its names to coordinator.raft.tls.names on all "+
		"voters", errNonPeer, strings.Join(names, ", "))
}

func (t *TLS) client(address string) *tls.Config {
	conf := t.Dial()
	if host, _, err := net.SplitHostPort(address); err == nil {
		conf.ServerName = host
	}
	if t.Shown != nil {
		conf.VerifyConnection = func(s tls.ConnectionState) error {
			t.Shown(address, s.PeerCertificates[0]) // already verified for this address
			return nil
		}
	}
	return conf
}

// cause returns a description of an error that an operator must fix, or "" for any other error. Handshake errors of the
// other side are only available as text.
func cause(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	for _, t := range []struct{ has, means string }{
		{"certificate signed by unknown authority", "its certificate was not issued by the CA in tls.ca"},
		{"certificate is valid for", "its certificate is for a different name than the one in the voter's address"},
		{"cannot validate certificate for", "its certificate does not contain the host in the voter's address"},
		{"certificate has expired", "a certificate has expired or is not valid yet: check both voters' certificates " +
			"and clocks"},
		{"tls: unknown certificate authority", "it does not trust the CA of the certificate in tls.cert"},
		{"tls: bad certificate", "it rejects the certificate in tls.cert"},
		{"tls: certificate required", "it requires a certificate: set tls.cert and tls.key"},
		{"first record does not look like a TLS handshake", "one side uses TLS and the other does not"},
		{textUsesTLS, "one side uses TLS and the other does not"},
		{textNotVoter, "the listener is not a voter of this version"},
	} {
		if strings.Contains(text, t.has) {
			return t.means
		}
	}
	return ""
}
