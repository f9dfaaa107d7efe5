// SPDX-License-Identifier: Apache-2.0

package cert_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
)

// pool returns a pool that trusts the certificates in a file.
func pool(t *testing.T, file string) *x509.CertPool {
	t.Helper()
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	p := x509.NewCertPool()
	require.True(t, p.AppendCertsFromPEM(raw))
	return p
}

// leaf reads a certificate and its key, and checks that they match.
func leaf(t *testing.T, dir, name string) *x509.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".pem"), filepath.Join(dir, name+"-key.pem"))
	require.NoError(t, err)
	info, err := os.Stat(filepath.Join(dir, name+"-key.pem"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), "the key of %s", name)
	return pair.Leaf
}

// init creates the certificates for two nodes, a witness and a client, and overwrites no files.
func TestInit(t *testing.T) {
	c := clitest.CLI{T: t}
	dir := filepath.Join(t.TempDir(), "certs")
	text := c.OK("cert", "init", dir, "--node-a", "a.test,10.0.0.1", "--node-b", "b.test", "--days", "30")
	require.Contains(t, text, "node-a")
	roots := pool(t, filepath.Join(dir, "ca.pem"))
	ca := leaf(t, dir, "ca")
	require.True(t, ca.IsCA)
	for name, names := range map[string][]string{
		"node-a": {"a.test", "10.0.0.1"}, "node-b": {"b.test"}, "witness": {"witness", "127.0.0.1"},
	} {
		cert := leaf(t, dir, name)
		for _, n := range names {
			for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
				_, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: n, KeyUsages: []x509.ExtKeyUsage{usage}})
				require.NoError(t, err, "%s as %s", name, n)
			}
		}
		require.Error(t, cert.VerifyHostname("elsewhere.test"))
		require.WithinDuration(t, time.Now().Add(30*24*time.Hour), cert.NotAfter, time.Minute)
	}
	client := leaf(t, dir, "client")
	_, err := client.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	require.NoError(t, err)
	_, err = client.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	require.Error(t, err, "it is not a server certificate")
	require.Error(t, client.VerifyHostname("localhost"), "it is not a node's certificate")

	before, err := os.ReadFile(filepath.Join(dir, "node-b.pem"))
	require.NoError(t, err)
	_, stderr, code := c.Run("", "cert", "init", dir)
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "overwritten")
	after, err := os.ReadFile(filepath.Join(dir, "node-b.pem"))
	require.NoError(t, err)
	require.Equal(t, before, after)
}

// A certificate issued later is signed by the same CA, and does not outlive the CA.
func TestIssue(t *testing.T) {
	c := clitest.CLI{T: t}
	dir := t.TempDir()
	c.OK("cert", "init", dir, "--ca-days", "10")
	roots := pool(t, filepath.Join(dir, "ca.pem"))
	c.OK("cert", "issue", "--dir", dir, "--name", "app", "--client", "--hosts", "spiffe://example.net/orders")
	app := leaf(t, dir, "app")
	require.Equal(t, "spiffe://example.net/orders", app.URIs[0].String())
	_, err := app.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	require.NoError(t, err)
	require.False(t, app.NotAfter.After(leaf(t, dir, "ca").NotAfter))
	c.OK("cert", "issue", "--dir", dir, "--name", "node-c", "--peer", "--hosts", "c.test")
	_, err = leaf(t, dir, "node-c").Verify(x509.VerifyOptions{Roots: roots, DNSName: "c.test"})
	require.NoError(t, err)

	for _, tt := range []struct {
		want string
		args []string
		code int
	}{
		{"is not overwritten", []string{"--name", "app", "--client"}, cli.ExitError},
		{"cert init", []string{"--name", "x", "--client", "--dir", t.TempDir()}, cli.ExitError},
		{"--peer requires --hosts", []string{"--name", "x", "--peer"}, cli.ExitUsage},
		{"--client, --peer", []string{"--name", "x"}, cli.ExitUsage},
		{"--client, --peer", []string{"--name", "x", "--peer", "--client"}, cli.ExitUsage},
		{"is not a valid name", []string{"--name", "../x", "--client"}, cli.ExitUsage},
		{"is not a valid name", []string{"--name", "ca", "--client"}, cli.ExitUsage},
		{"is not a valid name", []string{"--name", "app-key", "--client"}, cli.ExitUsage},
		{"is not a DNS name", []string{"--name", "x", "--client", "--hosts", "a b"}, cli.ExitUsage},
		{"is not a URI", []string{"--name", "x", "--client", "--hosts", "://"}, cli.ExitUsage},
		{"--days 0 must be between", []string{"--name", "x", "--client", "--days", "0"}, cli.ExitUsage},
	} {
		args := append([]string{"cert", "issue", "--dir", dir}, tt.args...)
		_, stderr, code := c.Run("", args...)
		require.Equal(t, tt.code, code, "%v: %s", args, stderr)
		require.Contains(t, stderr, tt.want, "%v", args)
	}
}

// show prints the certificates of a file or a server.
func TestShow(t *testing.T) {
	c := clitest.CLI{T: t}
	dir := t.TempDir()
	c.OK("cert", "init", dir)
	node := filepath.Join(dir, "node-a.pem")
	text := c.OK("cert", "show", node)
	for _, want := range []string{
		"CN=node-a", "node-a, localhost, 127.0.0.1, ::1", "CN=Lockstep development CA", "364 days left", "client, server",
	} {
		require.Contains(t, text, want)
	}
	require.Contains(t, c.OK("cert", "show", filepath.Join(dir, "ca.pem")), "CA\n")

	pair, err := tls.LoadX509KeyPair(node, filepath.Join(dir, "node-a-key.pem"))
	require.NoError(t, err)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
			Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: version,
			MaxVersion: version,
		})
		require.NoError(t, err)
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_ = conn.(*tls.Conn).Handshake() // the server requires a client certificate and receives none
				_ = conn.Close()
			}
		}()
		var got map[string]any
		require.NoError(t, json.Unmarshal([]byte(c.OK("cert", "show", l.Addr().String(), "-o", "json")), &got))
		require.Equal(t, "CN=node-a", got["subject"])
		require.Equal(t, true, got["valid"])
		require.NoError(t, l.Close())
	}

	for _, bad := range []string{filepath.Join(dir, "none.pem"), filepath.Join(dir, "ca-key.pem"), "127.0.0.1:1"} {
		_, stderr, code := c.Run("", "cert", "show", bad)
		require.Equal(t, cli.ExitError, code, bad)
		require.NotEmpty(t, strings.TrimSpace(stderr))
	}
}
