// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/failover"
)

// A voter's API is JSON over HTTP, on connections that begin with a hello (see port). It is used by processes of the
// same release or the previous one. Unknown fields are ignored.
const (
	pathHello    = "/v1/hello"
	pathLoad     = "/v1/load"
	pathSwap     = "/v1/swap"
	pathMark     = "/v1/mark"
	pathRenew    = "/v1/renew"
	pathWithdraw = "/v1/withdraw"
	pathWatch    = "/v1/watch"
	pathMembers  = "/v1/members"
	pathChange   = "/v1/change"

	// headerForward requests that a voter forwards the request to the leader.
	headerForward = "Lockstep-Hand-On"

	maxBody     = 256 << 10
	idleServer  = 2 * time.Minute
	idleClient  = time.Minute
	headerLimit = 5 * time.Second
)

type failure struct {
	Code string `json:"code"`
	Text string `json:"text"`
}

type code struct {
	name string
	err  error
}

// codes returns the codes in order of precedence for an error that matches several.
func codes() []code {
	return []code{
		{"uncertain", errUncertain},
		{"not-leader", errNotLeader},
		{"conflict", failover.ErrConflict},
		{"refused", failover.ErrRefused},
		{"not-member", ErrNotMember},
		{"membership", ErrMembership},
	}
}

func coded(name string) error {
	for _, c := range codes() {
		if c.name == name {
			return c.err
		}
	}
	return nil
}

type remoteError struct {
	known error
	text  string
}

func (e remoteError) Error() string { return e.text }

func (e remoteError) Unwrap() error { return e.known }

type api struct {
	srv *http.Server
	wg  sync.WaitGroup
}

func serveAPI(ln net.Listener, v *Voter) *api {
	mux := http.NewServeMux()
	handle(mux, v, pathHello, func(service, context.Context, struct{}) (hello, error) { return v.hello() })
	handle(mux, v, pathLoad, func(s service, ctx context.Context, _ struct{}) (state, error) { return s.load(ctx) })
	handle(mux, v, pathSwap, service.swap)
	handle(mux, v, pathMark, service.mark)
	handle(mux, v, pathRenew, service.renew)
	handle(mux, v, pathWithdraw, func(s service, ctx context.Context, l failover.Live) (struct{}, error) {
		return struct{}{}, s.withdraw(ctx, l)
	})
	handle(mux, v, pathMembers, func(s service, ctx context.Context, _ struct{}) ([]Member, error) {
		return s.members(ctx)
	})
	handle(mux, v, pathChange, service.changeMembers)
	mux.HandleFunc("POST "+pathWatch, func(w http.ResponseWriter, r *http.Request) { streamWatch(w, r, v.serving(r)) })
	a := &api{srv: &http.Server{
		Handler: mux, ReadHeaderTimeout: headerLimit, IdleTimeout: idleServer, ErrorLog: log.New(io.Discard, "", 0),
	}}
	a.wg.Go(func() { _ = a.srv.Serve(ln) })
	return a
}

func (a *api) close() {
	_ = a.srv.Close()
	a.wg.Wait()
}

// serving returns this voter, or the leader if the request must be forwarded. A request is forwarded only once.
func (v *Voter) serving(r *http.Request) service {
	l := v.leaders.Get()
	if r.Header.Get(headerForward) == "" || l.address == "" || l.via != "" || l.id == v.disk.id {
		return v
	}
	return v.peers.at(l.address)
}

func handle[Req, Resp any](
	mux *http.ServeMux, v *Voter, path string, do func(service, context.Context, Req) (Resp, error),
) {
	mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
		var req Req
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&req); err != nil {
			fail(w, fmt.Errorf("read request: %w", err))
			return
		}
		resp, err := do(v.serving(r), r.Context(), req)
		if err != nil {
			fail(w, err)
			return
		}
		_ = json.NewEncoder(w).Encode(resp)
	})
}

func fail(w http.ResponseWriter, err error) {
	w.WriteHeader(http.StatusConflict)
	_ = json.NewEncoder(w).Encode(failureOf(err))
}

func failureOf(err error) failure {
	f := failure{Text: err.Error()}
	for _, c := range codes() {
		if errors.Is(err, c.err) {
			f.Code = c.name
			break
		}
	}
	return f
}

// streamWatch sends each observation as a JSON value, until the client disconnects or the leadership ends.
func streamWatch(w http.ResponseWriter, r *http.Request, s service) {
	flush := http.NewResponseController(w)
	sent := false
	err := s.watch(r.Context(), func(now watchMessage) {
		sent = true
		if json.NewEncoder(w).Encode(now) == nil {
			_ = flush.Flush()
		}
	})
	if err != nil && !sent {
		fail(w, err)
	}
}

type peers struct {
	client *http.Client
	close  func()
}

func newPeers(d *dialer) *peers {
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return d.connect(ctx, kindAPI, "", address)
		},
		MaxIdleConnsPerHost: 4, IdleConnTimeout: idleClient, DisableCompression: true,
	}
	return &peers{client: &http.Client{Transport: t}, close: t.CloseIdleConnections}
}

func (p *peers) at(address string) *remote { return &remote{peers: p, address: address} }

type remote struct {
	peers   *peers
	address string
	forward bool // the voter must forward requests to the leader
}

var _ service = (*remote)(nil)

// post sends a request and returns the response. The caller closes its body.
func (r *remote) post(ctx context.Context, path string, req any) (*http.Response, error) {
	body, err := json.Marshal(req)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	reused := false
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused },
	})
	hr, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+r.address+path, bytes.NewReader(body)) //nolint:gosec // G704: the address is a voter's
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	switch path {
	case pathHello, pathLoad, pathMark, pathRenew, pathMembers, pathWatch:
		// Mark the request as idempotent: net/http then retries it on a new connection if a pooled one was closed. The nil
		// header is not sent (see http.Transport).
		hr.Header["Idempotency-Key"] = nil
	}
	if r.forward {
		hr.Header.Set(headerForward, "1")
	}
	resp, err := r.peers.client.Do(hr) //nolint:gosec // G704: the address is a voter's
	if err != nil {
		// If a pooled connection is broken, the other pooled connections usually are as well, and each would be tried
		// until its timeout. A slow handshake continues after the request, and its connection serves the next request.
		if reused {
			r.peers.client.CloseIdleConnections()
		}
		return nil, err //nolint:wrapcheck // a url.Error includes the address
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound {
		return nil, fmt.Errorf("%w: voter at %s has an older release and does not support %s: upgrade it",
			failover.ErrRefused, r.address, path)
	}
	var f failure
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxBody)).Decode(&f); err != nil {
		return nil, fmt.Errorf("%s at %s: %s", path, r.address, resp.Status)
	}
	return nil, remoteError{known: coded(f.Code), text: f.Text}
}

func call[Resp any](ctx context.Context, r *remote, path string, req any) (Resp, error) {
	var out Resp
	resp, err := r.post(ctx, path, req)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxStateBytes)).Decode(&out); err != nil {
		return out, fmt.Errorf("%s at %s: read response: %w", path, r.address, err)
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxBody)) // so that the connection can be reused
	return out, nil
}

func (r *remote) hello(ctx context.Context) (hello, error) {
	return call[hello](ctx, r, pathHello, struct{}{})
}

func (r *remote) load(ctx context.Context) (state, error) {
	return call[state](ctx, r, pathLoad, struct{}{})
}

func (r *remote) swap(ctx context.Context, c command) (int64, error) {
	return call[int64](ctx, r, pathSwap, c)
}

func (r *remote) mark(ctx context.Context, m failover.Mark) (failover.Mark, error) {
	return call[failover.Mark](ctx, r, pathMark, m)
}

func (r *remote) renew(ctx context.Context, l failover.Live) (time.Duration, error) {
	return call[time.Duration](ctx, r, pathRenew, l)
}

func (r *remote) withdraw(ctx context.Context, l failover.Live) error {
	_, err := call[struct{}](ctx, r, pathWithdraw, l)
	return err
}

func (r *remote) members(ctx context.Context) ([]Member, error) {
	return call[[]Member](ctx, r, pathMembers, struct{}{})
}

func (r *remote) changeMembers(ctx context.Context, c change) (Member, error) {
	return call[Member](ctx, r, pathChange, c)
}

func (r *remote) watch(ctx context.Context, see func(watchMessage)) error {
	resp, err := r.post(ctx, pathWatch, struct{}{})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	dec := json.NewDecoder(resp.Body)
	for {
		var s watchMessage
		if err := dec.Decode(&s); err != nil {
			return fmt.Errorf("watch at %s: %w", r.address, err)
		}
		see(s)
	}
}
