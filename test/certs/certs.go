// SPDX-License-Identifier: Apache-2.0

// Package certs creates CAs and certificates for tests.
package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// CA is a certificate authority for tests.
type CA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	// File is the path of the CA's certificate, in PEM.
	File string
}

// New creates a CA. Its certificate file is removed when the test ends.
func New(t *testing.T, name string) *CA {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &CA{cert: cert, key: key, File: pemFile(t, "ca.pem", "CERTIFICATE", der)}
}

// Pool returns a pool with only this CA.
func (a *CA) Pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// Issue creates a certificate for 127.0.0.1 and the given hosts, valid for servers and clients. It also returns the
// paths of PEM files with the certificate and its key.
func (a *CA) Issue(t *testing.T, name string, hosts ...string) (cert tls.Certificate, certFile, keyFile string) {
	t.Helper()
	return a.IssueFrom(t, name, &x509.Certificate{
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: hosts,
	})
}

// IssueURI creates a certificate with URIs as its only alternative names. The certificate is valid for a client or
// peer, but not for a server.
func (a *CA) IssueURI(t *testing.T, name string, uris ...string) (
	cert tls.Certificate, certFile, keyFile string,
) {
	t.Helper()
	template := &x509.Certificate{}
	for _, text := range uris {
		u, err := url.Parse(text)
		require.NoError(t, err)
		template.URIs = append(template.URIs, u)
	}
	return a.IssueFrom(t, name, template)
}

// IssueFrom creates a certificate with the alternative names and the validity period of template. If
// template.NotAfter is zero, the certificate is valid from an hour ago for two hours.
func (a *CA) IssueFrom(t *testing.T, name string, template *x509.Certificate) (
	cert tls.Certificate, certFile, keyFile string,
) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template.SerialNumber, template.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: name}
	if template.NotAfter.IsZero() {
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	require.NoError(t, err)
	keyDER, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	certFile, keyFile = pemFile(t, name+".pem", "CERTIFICATE", der),
		pemFile(t, name+"-key.pem", "EC PRIVATE KEY", keyDER)
	cert, err = tls.LoadX509KeyPair(certFile, keyFile)
	require.NoError(t, err)
	return cert, certFile, keyFile
}

func pemFile(t *testing.T, name, kind string, der []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return file
}
