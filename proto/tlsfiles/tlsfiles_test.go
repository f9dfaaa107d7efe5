// SPDX-License-Identifier: Apache-2.0

package tlsfiles_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/proto/tlsfiles"
	"github.com/lockstep-mq/lockstep/test/certs"
)

// mounted is a directory of files like a Secret mounted by Kubernetes: all names resolve through one symbolic link,
// which swap replaces.
type mounted struct {
	t   *testing.T
	dir string
	n   int
}

func mount(t *testing.T) *mounted { return &mounted{t: t, dir: t.TempDir()} }

// swap replaces all files atomically.
func (m *mounted) swap(files map[string]string) {
	m.t.Helper()
	m.n++
	data := filepath.Join(m.dir, "..data"+string(rune('a'+m.n)))
	require.NoError(m.t, os.Mkdir(data, 0o700))
	for name, from := range files {
		raw, err := os.ReadFile(from)
		require.NoError(m.t, err)
		require.NoError(m.t, os.WriteFile(filepath.Join(data, name), raw, 0o600))
		if m.n == 1 {
			require.NoError(m.t, os.Symlink(filepath.Join("..data", name), filepath.Join(m.dir, name)))
		}
	}
	next := filepath.Join(m.dir, "next")
	require.NoError(m.t, os.Symlink(filepath.Base(data), next))
	require.NoError(m.t, os.Rename(next, filepath.Join(m.dir, "..data")))
}

func (m *mounted) files() tlsfiles.Files {
	at := func(name string) string { return filepath.Join(m.dir, name) }
	return tlsfiles.Files{CA: at("ca.pem"), Cert: at("cert.pem"), Key: at("key.pem")}
}

// end is one end of the connections.
type end struct {
	t *testing.T
	*mounted
	*tlsfiles.Source

	notified chan error
}

func newEnd(t *testing.T, by, trusted *certs.CA) *end {
	t.Helper()
	e := &end{t: t, mounted: mount(t), notified: make(chan error, 16)}
	e.install(by, trusted.File)
	var err error
	e.Source, err = tlsfiles.Open(tlsfiles.Options{Files: e.files(), OnChange: func(err error) { e.notified <- err }})
	require.NoError(t, err)
	return e
}

// install replaces the certificate and its key with a new pair issued by a CA, and replaces the trusted CAs.
func (e *end) install(by *certs.CA, trusted string) {
	_, cert, key := by.Issue(e.t, "end")
	e.swap(map[string]string{"ca.pem": trusted, "cert.pem": cert, "key.pem": key})
}

// serve echoes the data of each connection.
func serve(t *testing.T, s *tlsfiles.Source) string {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", s.Server(tls.RequireAndVerifyClientCert, "h2"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return l.Addr().String()
}

// dial connects like gRPC, and exchanges a byte: only then does a TLS 1.3 client detect that the server rejects it.
func dial(t *testing.T, s *tlsfiles.Source, address string, accept func(*x509.Certificate) error) (net.Conn, error) {
	t.Helper()
	raw, err := net.Dial("tcp", address)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, _, err := s.Credentials(accept).ClientHandshake(ctx, address, raw)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn, exchange(conn)
}

func exchange(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte{1}); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, make([]byte, 1))
	return err
}

// In each step of a rotation (both CAs, new certificates, only the new CA), new connections succeed and open
// connections are unaffected. At the end, old certificates are rejected.
func TestRotateCA(t *testing.T) {
	older, newer := certs.New(t, "older"), certs.New(t, "newer")
	server, client := newEnd(t, older, older), newEnd(t, older, older)
	former, err := tlsfiles.Open(tlsfiles.Options{Files: newEnd(t, older, older).files()})
	require.NoError(t, err)
	address := serve(t, server.Source)
	first, err := dial(t, client.Source, address, nil)
	require.NoError(t, err)

	both := filepath.Join(t.TempDir(), "both.pem")
	a, err := os.ReadFile(older.File)
	require.NoError(t, err)
	b, err := os.ReadFile(newer.File)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(both, append(a, b...), 0o600))
	for _, step := range []struct {
		by      *certs.CA
		trusted string
	}{{older, both}, {newer, both}, {newer, newer.File}} {
		server.install(step.by, step.trusted)
		require.NoError(t, server.Reload())
		require.NoError(t, <-server.notified)
		if step.trusted == both {
			_, err := dial(t, client.Source, address, nil)
			require.NoError(t, err, "only the server is in this step")
		}
		client.install(step.by, step.trusted)
		require.NoError(t, client.Reload())
		second, err := dial(t, client.Source, address, nil)
		require.NoError(t, err)
		require.NoError(t, exchange(second))
		require.NoError(t, exchange(first), "connection from before the rotation")
	}
	_, err = dial(t, former, address, nil)
	require.Error(t, err)
	require.Equal(t, "CN=newer", server.Certificates()[0].Subject)
	require.True(t, server.Certificates()[0].Authority)
}

// Changed files are loaded for new connections, without a call of Reload.
func TestChangedFilesAreLoaded(t *testing.T) {
	older, newer := certs.New(t, "older"), certs.New(t, "newer")
	server, client := newEnd(t, older, older), newEnd(t, older, older)
	address := serve(t, server.Source)
	client.install(older, newer.File)
	require.Eventually(t, func() bool {
		_, err := dial(t, client.Source, address, nil)
		return err != nil
	}, time.Minute, 50*time.Millisecond, "client trusts only the new CA")
	server.install(newer, older.File)
	require.Eventually(t, func() bool {
		_, err := dial(t, client.Source, address, nil)
		return err == nil
	}, time.Minute, 50*time.Millisecond, "server has a certificate of the new CA")
}

// Invalid files are rejected and reported once. New connections use the previous files.
func TestInvalidFiles(t *testing.T) {
	ca := certs.New(t, "ours")
	server, client := newEnd(t, ca, ca), newEnd(t, ca, ca)
	address := serve(t, server.Source)
	_, good, goodKey := ca.Issue(t, "good")
	_, _, otherKey := ca.Issue(t, "other")
	_, ended, endedKey := ca.IssueFrom(t, "ended", &x509.Certificate{
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	})
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for want, files := range map[string]map[string]string{
		"no certificate":       {"ca.pem": goodKey, "cert.pem": good, "key.pem": goodKey},
		"cert and key":         {"ca.pem": ca.File, "cert.pem": good, "key.pem": otherKey},
		"failed to find":       {"ca.pem": ca.File, "cert.pem": empty, "key.pem": goodKey},
		"expired at":           {"ca.pem": ca.File, "cert.pem": ended, "key.pem": endedKey},
		syscall.ENOENT.Error(): {"cert.pem": good, "key.pem": goodKey},
	} {
		server.swap(files)
		for _, err := range []error{server.Reload(), <-server.notified, server.Refused()} {
			require.Error(t, err, want)
			require.Contains(t, err.Error(), want)
		}
		require.Error(t, server.Reload())
		require.Empty(t, server.notified, "%s: reported once", want)
		_, err := dial(t, client.Source, address, nil)
		require.NoError(t, err, "connection with the previous files")
	}
	server.swap(map[string]string{"ca.pem": ca.File, "cert.pem": good, "key.pem": goodKey})
	require.NoError(t, server.Reload())
	require.NoError(t, <-server.notified)
	require.NoError(t, server.Refused())
}

// If a certificate and its key are replaced one after the other, no error is reported.
func TestCertificateBeforeKey(t *testing.T) {
	ca := certs.New(t, "ours")
	server := newEnd(t, ca, ca)
	_, next, nextKey := ca.Issue(t, "next")
	for _, step := range [][2]string{{"cert.pem", next}, {"key.pem", nextKey}} {
		raw, err := os.ReadFile(step[1])
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(server.dir, "..data", step[0]), raw, 0o600))
	}
	require.Eventually(t, func() bool {
		server.Check()
		return len(server.notified) > 0
	}, time.Minute, 10*time.Millisecond)
	require.NoError(t, <-server.notified)
}

// A client verifies the CA and the address of the server's certificate, and passes the certificate to accept.
func TestVerifyServerCertificate(t *testing.T) {
	ca, otherCA := certs.New(t, "ours"), certs.New(t, "theirs")
	client := newEnd(t, ca, ca)
	errRejected := errors.New("rejected")
	address := serve(t, newEnd(t, ca, ca).Source)
	_, err := dial(t, client.Source, address, func(c *x509.Certificate) error {
		require.Equal(t, "end", c.Subject.CommonName)
		return errRejected
	})
	require.ErrorIs(t, err, errRejected)
	_, err = dial(t, client.Source, serve(t, newEnd(t, otherCA, ca).Source), nil)
	require.ErrorAs(t, err, new(x509.UnknownAuthorityError))

	elsewhere := newEnd(t, ca, ca)
	_, cert, key := ca.IssueFrom(t, "elsewhere", &x509.Certificate{DNSNames: []string{"elsewhere.test"}})
	elsewhere.swap(map[string]string{"ca.pem": ca.File, "cert.pem": cert, "key.pem": key})
	require.NoError(t, elsewhere.Reload())
	_, err = dial(t, client.Source, serve(t, elsewhere.Source), nil)
	require.ErrorAs(t, err, new(x509.HostnameError), "certificate for another address")
}

// Open rejects missing and mismatched files. Certificate and key are optional.
func TestOpen(t *testing.T) {
	ca := certs.New(t, "ours")
	_, cert, key := ca.Issue(t, "one")
	for want, f := range map[string]tlsfiles.Files{
		"both be set":        {Cert: cert},
		"ca: open /none":     {CA: "/none", Cert: cert, Key: key},
		"no certificate":     {CA: key},
		"cert and key":       {Cert: ca.File, Key: key},
		"cert and key: open": {Cert: cert, Key: "/none"},
	} {
		_, err := tlsfiles.Open(tlsfiles.Options{Files: f})
		require.Error(t, err, want)
		require.Contains(t, err.Error(), want)
	}
	s, err := tlsfiles.Open(tlsfiles.Options{Files: tlsfiles.Files{CA: ca.File}})
	require.NoError(t, err)
	require.Empty(t, s.Dial().Certificates)
	require.Equal(t, uint16(tls.VersionTLS13), s.Dial().MinVersion)
}

// Open waits a short time for the key of a certificate that has been replaced first.
func TestOpenWaitsForKey(t *testing.T) { synctest.Test(t, testOpenWaitsForKey) }

func testOpenWaitsForKey(t *testing.T) {
	ca := certs.New(t, "ca")
	dir := t.TempDir()
	_, cert, former := ca.Issue(t, "former")
	_, next, key := ca.Issue(t, "next")
	at := filepath.Join(dir, "key.pem")
	raw, err := os.ReadFile(former)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(at, raw, 0o600))
	files := tlsfiles.Files{CA: ca.File, Cert: next, Key: at}
	_, err = tlsfiles.Open(tlsfiles.Options{Files: files})
	require.ErrorIs(t, err, tlsfiles.ErrContent, "key of %s", cert)
	replaced := make(chan error, 1)
	go func() {
		raw, err := os.ReadFile(key)
		<-time.After(60 * time.Millisecond)
		replaced <- errors.Join(err, os.WriteFile(at+".new", raw, 0o600), os.Rename(at+".new", at))
	}()
	_, err = tlsfiles.Open(tlsfiles.Options{Files: files})
	require.NoError(t, err)
	require.NoError(t, <-replaced)
}
