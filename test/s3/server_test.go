// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package s3

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/lockstep-mq/lockstep/server/objectstore/s3"
	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/test/certs"
	"github.com/lockstep-mq/lockstep/test/harness"
)

const (
	envServer = "LOCKSTEP_S3_SERVER"
	accessKey = "lockstep-test"
	secretKey = "PLANTED-secret-key-6e02"
	bucket    = "backups"
	bound     = 5 * time.Minute
)

// server is a versitygw process that can be killed and restarted on the same port with the same files.
type server struct {
	t    *testing.T
	dir  string
	addr string
	cmd  *exec.Cmd
	more []string
	// cert and key are the files of the certificate of the server. If they are set, the server requires TLS. ca is the
	// file of the CA.
	cert, key, ca string
}

// startServer starts a server without TLS and without buckets. more contains options of its posix backend.
func startServer(t *testing.T, more ...string) *server {
	t.Helper()
	return startWith(t, server{more: more})
}

func startTLS(t *testing.T) *server {
	t.Helper()
	ca := certs.New(t, "CA of the S3 server")
	_, cert, key := ca.Issue(t, "s3")
	return startWith(t, server{cert: cert, key: key, ca: ca.File})
}

func startWith(t *testing.T, like server) *server {
	t.Helper()
	if os.Getenv(envServer) == "" {
		t.Skipf("%s is not set; test/s3/run.sh sets it", envServer)
	}
	port, err := harness.ReservePort()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, port.Close()) })
	s := &like
	s.t, s.dir, s.addr = t, t.TempDir(), port.Address()
	require.NoError(t, os.MkdirAll(filepath.Join(s.dir, "root"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(s.dir, "versions"), 0o755))
	s.start()
	t.Cleanup(s.kill)
	return s
}

func (s *server) endpoint() string {
	if s.cert != "" {
		return "https://" + s.addr
	}
	return "http://" + s.addr
}

// start starts the process and waits until it responds.
func (s *server) start() {
	s.t.Helper()
	args := []string{"--access", accessKey, "--secret", secretKey, "--port", s.addr, "--quiet"}
	if s.cert != "" {
		args = append(args, "--cert", s.cert, "--key", s.key)
	}
	args = append(append(args, "posix"), s.more...)
	s.cmd = exec.Command(os.Getenv(envServer), append(args, filepath.Join(s.dir, "root"))...)
	out, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	require.NoError(s.t, err)
	s.cmd.Stdout, s.cmd.Stderr = out, out
	require.NoError(s.t, s.cmd.Start())
	require.NoError(s.t, out.Close())
	require.Eventually(s.t, func() bool {
		c, err := net.DialTimeout("tcp", s.addr, time.Second)
		if err != nil {
			return false
		}
		return c.Close() == nil
	}, bound, 10*time.Millisecond, "versitygw does not respond")
}

// kill kills the process.
func (s *server) kill() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}

// client returns a client of the minio library.
func (s *server) client() *minio.Client {
	s.t.Helper()
	o := &minio.Options{Creds: credentials.NewStaticV4(accessKey, secretKey, "")}
	if s.cert != "" {
		pem, err := os.ReadFile(s.ca)
		require.NoError(s.t, err)
		pool := x509.NewCertPool()
		require.True(s.t, pool.AppendCertsFromPEM(pem))
		o.Secure = true
		o.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	}
	c, err := minio.New(s.addr, o)
	require.NoError(s.t, err)
	return c
}

func (s *server) makeBucket(o minio.MakeBucketOptions) {
	s.t.Helper()
	require.NoError(s.t, s.client().MakeBucket(s.t.Context(), bucket, o))
}

// options returns the options for the server or proxy at endpoint.
func options(t *testing.T, endpoint string) s3.Options {
	t.Helper()
	dir := t.TempDir()
	key := func(name, content string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(content+"\n"), 0o600))
		return path
	}
	return s3.Options{
		Endpoint: endpoint, PathStyle: true, AccessKeyFile: key("access", accessKey), SecretKeyFile: key("secret", secretKey),
		PartBytes: s3.MinPartBytes, RetryFor: bound,
	}
}

func openStore(t *testing.T, prefix string, o s3.Options) *s3.Store {
	t.Helper()
	p, err := s3.Open(backup.Location{Bucket: bucket, Prefix: prefix}, o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// throttlingProxy is a proxy in front of a server. It limits the rate in bytes per second, and rejects requests like a
// busy server.
type throttlingProxy struct {
	endpoint  string
	busy      atomic.Int64 // percentage of requests that the proxy rejects with 503
	rejected  atomic.Int64 // number of rejected requests
	forwarded atomic.Int64
}

func startThrottlingProxy(t *testing.T, s *server, bytesPerSecond int) *throttlingProxy {
	t.Helper()
	target, err := url.Parse(s.endpoint())
	require.NoError(t, err)
	transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil || bytesPerSecond == 0 {
			return c, err
		}
		return &slowConn{Conn: c, limit: rate.NewLimiter(rate.Limit(bytesPerSecond), 64<<10)}, nil
	}}
	proxy := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host // the signature covers the host
	}}
	b := &throttlingProxy{}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := &http.Server{ReadHeaderTimeout: bound, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n := b.busy.Load(); n > 0 && (b.rejected.Load()+b.forwarded.Load())*n/100 >= b.rejected.Load() {
			b.rejected.Add(1)
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = fmt.Fprint(w, `<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>too much</Message></Error>`)
			return
		}
		b.forwarded.Add(1)
		proxy.ServeHTTP(w, r)
	})}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	b.endpoint = "http://" + l.Addr().String()
	return b
}

// slowConn limits the total rate of both directions, in bytes per second.
type slowConn struct {
	net.Conn
	limit *rate.Limiter
}

func (c *slowConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b[:min(len(b), 16<<10)])
	_ = c.limit.WaitN(context.Background(), max(n, 1))
	return n, err
}

func (c *slowConn) Write(b []byte) (int, error) {
	done := 0
	for done < len(b) {
		piece := b[done:min(len(b), done+16<<10)]
		_ = c.limit.WaitN(context.Background(), len(piece))
		n, err := c.Conn.Write(piece)
		done += n
		if err != nil {
			return done, err
		}
	}
	return done, nil
}
