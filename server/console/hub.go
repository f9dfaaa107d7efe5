// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/server/api/inprocgrpc"
)

const (
	liveEvery   = time.Second
	followAgain = 3 * time.Second // delay before the stream of a page with Follow is opened again
	// silenceLimit is the interval at which a comment is sent to keep the connection open.
	silenceLimit  = 15 * time.Second
	eventTimeout  = 10 * time.Second // time limit for writing an event to the browser
	maxEvents     = 128
	maxQueryBytes = 4 << 10
)

// hub renders the live parts of open pages. Each live part is rendered once, at the interval of the page, for all
// browsers that show it to the same identity.
type hub struct {
	server *Server
	ctx    context.Context //nolint:containedctx // ends all topics
	close  context.CancelFunc

	mu     sync.Mutex // guards the fields below
	topics map[topicKey]*topic
	open   int // number of subscribers
}

type topicKey struct {
	identity [sha256.Size]byte
	path     string
	query    string
}

type topic struct {
	subscribers map[chan []byte]struct{}
	last        []byte // last event; nil before the first event
	stop        context.CancelFunc
}

func newHub(s *Server) *hub {
	h := &hub{server: s, topics: make(map[topicKey]*topic)}
	h.ctx, h.close = context.WithCancel(context.Background())
	return h
}

// subscribe subscribes to the events of a page. It returns false if too many pages are open or the hub is closed. If
// it returns true, the caller must call leave.
func (h *hub) subscribe(one *session, from inprocgrpc.Caller, p *Page, query url.Values) (
	events <-chan []byte, leave func(), ok bool,
) {
	key := topicKey{one.identity(), p.Path, query.Encode()}
	events1 := make(chan []byte, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open >= maxEvents || h.ctx.Err() != nil {
		return nil, nil, false
	}
	h.open++
	t := h.topics[key]
	if t == nil {
		ctx, stop := context.WithCancel(h.ctx)
		t = &topic{subscribers: make(map[chan []byte]struct{}), stop: stop}
		h.topics[key] = t
		go h.run(ctx, t, one, from, p, query)
	}
	t.subscribers[events1] = struct{}{}
	if t.last != nil {
		events1 <- t.last
	}
	return events1, sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.open--
		delete(t.subscribers, events1)
		if len(t.subscribers) == 0 {
			t.stop()
			delete(h.topics, key)
		}
	}), true
}

func (h *hub) run(
	ctx context.Context, t *topic, one *session, from inprocgrpc.Caller, p *Page, query url.Values,
) {
	key, leave := h.server.o.Link.Enter(from)
	defer leave()
	every := liveEvery
	if p.Every > 0 {
		every = p.Every
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	if p.Follow != nil {
		h.follow(ctx, t, h.server.view(one, from, key, query, nil), p)
		return
	}
	for {
		h.send(t, h.event(ctx, h.server.view(one, from, key, query, nil), p))
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func (h *hub) event(ctx context.Context, v *View, p *Page) []byte {
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	load := p.Load
	if p.Watch != nil {
		load = p.Watch
	}
	d, err := load(ctx, v)
	return append(h.alarms(ctx, v), h.made(p, d, err)...)
}

// alarms renders the event for the badge. It returns nil if the badge is not shown.
func (h *hub) alarms(ctx context.Context, v *View) []byte {
	counts := v.alarms(ctx)
	if counts == nil {
		return nil
	}
	html, err := h.server.part("error", "alarms", counts)
	if err != nil {
		h.server.o.Logger.Sugar().Errorf("badge: %v", err)
		return nil
	}
	var b bytes.Buffer
	writeEvent(&b, "alarms", html)
	return b.Bytes()
}

func writeEvent(b *bytes.Buffer, name string, html template.HTML) {
	fmt.Fprintf(b, "event: %s\n", name)
	for line := range bytes.Lines([]byte(html)) {
		b.WriteString("data: ")
		b.Write(bytes.ReplaceAll(bytes.TrimRight(line, "\n"), []byte("\r"), nil)) // both characters would end the data line
		b.WriteByte('\n')
	}
	b.WriteByte('\n')
}

func (h *hub) follow(ctx context.Context, t *topic, v *View, p *Page) {
	for ctx.Err() == nil {
		err := p.Follow(ctx, v, func(d any) { h.send(t, h.made(p, d, nil)) })
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			h.send(t, h.made(p, nil, err))
		}
		again := time.NewTimer(followAgain)
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
		}
	}
}

func (h *hub) made(p *Page, d any, err error) []byte {
	name, file, part := "live", p.Template, "live"
	if err != nil {
		f := describe(err)
		name, file, part, d = "failure", "error", "failure", &f
	}
	html, err := h.server.part(file, part, d)
	if err != nil {
		h.server.o.Logger.Sugar().Errorf("page %s: %v", p.Path, err)
		return nil
	}
	var b bytes.Buffer
	if name == "live" {
		b.WriteString("event: failure\ndata:\n\n") // clears an earlier failure
	}
	writeEvent(&b, name, html)
	return b.Bytes()
}

// send sends an event to all subscribers of a topic, unless the event equals the last one. If a subscriber has not
// received the last event yet, the new event replaces it.
func (h *hub) send(t *topic, event []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if event == nil || bytes.Equal(event, t.last) {
		return
	}
	t.last = event
	for s := range t.subscribers {
		select {
		case <-s:
		default:
		}
		s <- event
	}
}

func (s *Server) serveEvents(w http.ResponseWriter, r *http.Request, one *session, p *Page) {
	from := s.callerOf(r)
	if len(r.URL.RawQuery) > maxQueryBytes {
		http.Error(w, "query too long", http.StatusRequestURITooLong)
		return
	}
	//nolint:contextcheck // the topic outlives the request
	events, leave, ok := s.hub.subscribe(one, from, p, r.URL.Query())
	if !ok {
		w.Header().Set("Retry-After", "10")
		http.Error(w, "too many open pages", http.StatusServiceUnavailable)
		return
	}
	defer leave()
	out := http.NewResponseController(w)
	_ = out.SetReadDeadline(time.Time{}) // the whole request was read
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	idle := time.NewTicker(silenceLimit)
	defer idle.Stop()
	event := []byte("retry: 1000\n\n")
	for {
		_ = out.SetWriteDeadline(time.Now().Add(eventTimeout))
		if _, err := w.Write(event); err != nil || out.Flush() != nil {
			return
		}
		select {
		case event = <-events:
		case <-idle.C:
			event = []byte(":\n\n")
		case <-r.Context().Done():
			return
		case <-s.hub.ctx.Done():
			return
		}
		if !s.sessions.alive(one) {
			return
		}
	}
}
