// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"context"
	"crypto/x509"
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
	"github.com/lockstep-mq/lockstep/test/certs"
	"github.com/lockstep-mq/lockstep/test/simpair"
)

// simulated runs a test with whole nodes in simulated time.
func simulated(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	simpair.Test(t, func(t *testing.T, _ *simpair.World) { test(t) })
}

// startNode runs a node that is in no pair, with a console, until the test ends: in simulated time, if the test is.
func startNode(t *testing.T, change func(*config.Config)) node.Ready {
	t.Helper()
	w := simpair.Of(t)
	if w == nil {
		return startRealNode(t, change)
	}
	cfg := w.Config("a")
	cfg.Console.Listen, cfg.Memory.Budget = net.JoinHostPort(w.Host("a"), "0"), 64<<20
	if change != nil {
		change(&cfg)
	}
	r := w.Start(cfg, node.Options{}).Ready
	if !cfg.TLS.On() {
		waitServing(t, w.Connect(r.Address))
	}
	return r
}

// startRealNode runs a node on real sockets.
func startRealNode(t *testing.T, change func(*config.Config)) node.Ready {
	t.Helper()
	cfg := config.Default()
	cfg.Node.Name, cfg.Data.Dir, cfg.Coordinator.Type = "a", t.TempDir(), config.CoordinatorNone
	cfg.Listen, cfg.Console.Listen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Disk.LowWatermark, cfg.WAL.SegmentBytes, cfg.Memory.Budget = 1<<20, 1<<20, 64<<20
	if change != nil {
		change(&cfg)
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
			conn, err := grpc.NewClient("passthrough:///"+r.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
			require.NoError(t, err)
			defer func() { require.NoError(t, conn.Close()) }()
			waitServing(t, conn)
		}
		return r
	case err := <-done:
		done <- nil
		require.NoError(t, err)
		return node.Ready{}
	}
}

// issue makes a certificate for the hosts of the nodes.
func issue(t *testing.T, authority *certs.Authority, name string) (certFile, keyFile string) {
	t.Helper()
	w := simpair.Of(t)
	_, certFile, keyFile = authority.IssueFrom(t, name, &x509.Certificate{
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.ParseIP(w.Host("a")), net.ParseIP(w.Host("b"))},
	})
	return certFile, keyFile
}

// waitServing waits until a node serves clients.
func waitServing(t *testing.T, conn *grpc.ClientConn) {
	t.Helper()
	require.Eventually(t, func() bool {
		r, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{
			Service: pb.QueueService_ServiceDesc.ServiceName,
		})
		return err == nil && r.GetStatus() == healthpb.HealthCheckResponse_SERVING
	}, time.Minute, 5*time.Millisecond)
}

// browser keeps cookies and follows redirections, as browsers do.
type browser struct {
	t    *testing.T
	base string
	http *http.Client
}

func newBrowser(t *testing.T, base string) *browser {
	t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	b := &browser{t: t, base: strings.TrimSuffix(base, "/"), http: &http.Client{Jar: jar}}
	b.use(&http.Transport{})
	return b
}

// use makes the browser dial with a transport, over the network of the test.
func (b *browser) use(tr *http.Transport) {
	if w := simpair.Of(b.t); w != nil {
		tr.DialContext = func(ctx context.Context, _, address string) (net.Conn, error) { return w.Dial(ctx, address) }
	}
	b.http.Transport = tr
	b.t.Cleanup(tr.CloseIdleConnections)
}

// answer is what a request got.
type answer struct {
	code int
	body string
	head http.Header
	at   string // path at the end of all redirections
}

func (b *browser) do(r *http.Request) answer {
	b.t.Helper()
	resp, err := b.http.Do(r)
	require.NoError(b.t, err)
	defer func() { require.NoError(b.t, resp.Body.Close()) }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(b.t, err)
	return answer{resp.StatusCode, string(body), resp.Header, resp.Request.URL.Path}
}

func (b *browser) request(method, path string, body io.Reader) *http.Request {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), method, b.base+path, body)
	require.NoError(b.t, err)
	return r
}

func (b *browser) get(path string) answer {
	b.t.Helper()
	return b.do(b.request(http.MethodGet, path, nil))
}

// post sends a form as a page of the console does.
func (b *browser) post(path string, form url.Values, change ...func(*http.Request)) answer {
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

// csrf is the secret of the session's forms.
func (b *browser) csrf() string {
	b.t.Helper()
	found := csrfField.FindStringSubmatch(b.get("/pair").body)
	require.Len(b.t, found, 2)
	return found[1]
}

// signIn signs in with a token.
func (b *browser) signIn(token string) answer {
	b.t.Helper()
	found := entryField.FindStringSubmatch(b.get("/sign-in").body)
	require.Len(b.t, found, 2)
	return b.post("/sign-in", url.Values{"entry": {found[1]}, "token": {token}})
}
