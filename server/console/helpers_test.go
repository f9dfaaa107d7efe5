// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/node"
	"github.com/lockstep-mq/lockstep/test/simpair"
)

// testTimeout is the timeout of polls. It is in simulated time, except in the test on real sockets.
const testTimeout = time.Minute

// simulated runs a test in simulated time, with an in-memory network and coordinator.
func simulated(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	simpair.Test(t, func(t *testing.T, _ *simpair.World) { test(t) })
}

func dial(t *testing.T) func(ctx context.Context, network, address string) (net.Conn, error) {
	t.Helper()
	if w := simpair.Of(t); w != nil {
		return func(ctx context.Context, _, address string) (net.Conn, error) { return w.Dial(ctx, address) }
	}
	return (&net.Dialer{}).DialContext
}

func connect(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	options := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	if w := simpair.Of(t); w != nil {
		options = append(options, w.ClientOptions()...)
	}
	conn, err := grpc.NewClient("passthrough:///"+address, options...)
	require.NoError(t, err)
	return conn
}

// startNode runs a standalone node with a console until the test ends.
func startNode(t *testing.T, change func(*config.Config)) node.Ready {
	t.Helper()
	cfg := config.Default()
	cfg.Node.Name, cfg.Data.Dir, cfg.Coordinator.Type = "a", t.TempDir(), config.CoordinatorNone
	cfg.Listen, cfg.Console.Listen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Disk.LowWatermark, cfg.WAL.SegmentBytes, cfg.Memory.Budget = 1<<20, 1<<20, 64<<20
	if change != nil {
		change(&cfg)
	}
	if w := simpair.Of(t); w != nil {
		n := w.Start(cfg, node.Options{})
		if !cfg.TLS.On() {
			waitServing(t, n.Ready.Address)
		}
		return n.Ready
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan node.Ready, 1), make(chan error, 1)
	go func() {
		done <- node.Run(ctx, cfg, zaptest.NewLogger(t), node.Options{OnReady: func(r node.Ready) { ready <- r }})
	}()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	select {
	case r := <-ready:
		if !cfg.TLS.On() {
			waitServing(t, r.Address)
		}
		return r
	case err := <-done:
		done <- nil
		require.NoError(t, err)
		return node.Ready{}
	}
}

func waitServing(t *testing.T, address string) {
	t.Helper()
	conn := connect(t, address)
	defer func() { require.NoError(t, conn.Close()) }()
	require.Eventually(t, func() bool {
		r, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{
			Service: pb.QueueService_ServiceDesc.ServiceName,
		})
		return err == nil && r.GetStatus() == healthpb.HealthCheckResponse_SERVING
	}, testTimeout, 5*time.Millisecond)
}

// browser is an HTTP client that stores cookies and follows redirects.
type browser struct {
	t    *testing.T
	base string
	http *http.Client
}

func newBrowser(t *testing.T, base string) *browser {
	t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	return &browser{t: t, base: strings.TrimSuffix(base, "/"), http: &http.Client{Jar: jar, Transport: transport(t, nil)}}
}

func transport(t *testing.T, secure *tls.Config) *http.Transport {
	t.Helper()
	tr := &http.Transport{DialContext: dial(t), TLSClientConfig: secure, ForceAttemptHTTP2: true}
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// response is the response to a request after all redirects.
type response struct {
	code int
	body string
	head http.Header
	at   string // path of the page
}

func (b *browser) do(r *http.Request) response {
	b.t.Helper()
	resp, err := b.http.Do(r)
	require.NoError(b.t, err)
	defer func() { require.NoError(b.t, resp.Body.Close()) }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(b.t, err)
	return response{resp.StatusCode, string(body), resp.Header, resp.Request.URL.Path}
}

func (b *browser) request(method, path string, body io.Reader) *http.Request {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), method, b.base+path, body)
	require.NoError(b.t, err)
	return r
}

func (b *browser) get(path string) response {
	b.t.Helper()
	return b.do(b.request(http.MethodGet, path, nil))
}

// post submits a form like a page of the console.
func (b *browser) post(path string, form url.Values, change ...func(*http.Request)) response {
	b.t.Helper()
	r := b.request(http.MethodPost, path, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Origin", b.base)
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	for _, c := range change {
		c(r)
	}
	return b.do(r)
}

var (
	csrfField  = regexp.MustCompile(`name="csrf" value="([^"]+)"`)
	entryField = regexp.MustCompile(`name="entry" value="([^"]+)"`)
)

// csrf returns the CSRF token of the session.
func (b *browser) csrf() string {
	b.t.Helper()
	found := csrfField.FindStringSubmatch(b.get("/pair").body)
	require.Len(b.t, found, 2)
	return found[1]
}

func (b *browser) signIn(token string) response {
	b.t.Helper()
	found := entryField.FindStringSubmatch(b.get("/sign-in").body)
	require.Len(b.t, found, 2)
	return b.post("/sign-in", url.Values{"entry": {found[1]}, "token": {token}})
}
