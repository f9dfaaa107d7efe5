// SPDX-License-Identifier: Apache-2.0

//go:build unix

package simulation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// network carries bytes between hosts in simulated time, as TCP does: in order, and what a cut link holds back arrives
// when it heals. No write ever waits, so that no goroutine sleeps with a lock held: inside a bubble that would stop the
// clock.
type network struct {
	mu        sync.Mutex // guards all below
	rng       *rand.Rand
	links     map[way]*link
	listeners map[string]*listener
	processes map[*process]struct{}
	off       map[string]bool // hosts without power: nothing answers
	changed   chan struct{}   // closed and replaced whenever a link or a host changes
}

// way is a direction between two hosts.
type way struct{ from, to string }

// link is the state of a direction.
type link struct {
	cut    bool
	delay  time.Duration // of each message
	jitter time.Duration // added to it, drawn anew for each
}

// Delays of a healthy link.
const (
	normalDelay  = 100 * time.Microsecond
	normalJitter = 200 * time.Microsecond
)

func newNetwork(rng *rand.Rand) *network {
	return &network{
		rng: rng, links: map[way]*link{}, listeners: map[string]*listener{}, processes: map[*process]struct{}{},
		off: map[string]bool{}, changed: make(chan struct{}),
	}
}

// link returns the state of a direction. mu is held.
func (n *network) link(w way) *link {
	l := n.links[w]
	if l == nil {
		l = &link{delay: normalDelay, jitter: normalJitter}
		n.links[w] = l
	}
	return l
}

// change changes a direction, and wakes all who wait for it.
func (n *network) change(w way, f func(*link)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f(n.link(w))
	n.tell()
}

// tell wakes all who wait for a change. mu is held.
func (n *network) tell() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// passes tells whether something sent along w arrives now; if not, changed is closed when it is worth another look.
func (n *network) passes(w way) (ok bool, changed <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.link(w).cut && !n.off[w.from] && !n.off[w.to], n.changed
}

// latency draws how long a message along w takes.
func (n *network) latency(w way) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.link(w)
	return l.delay + time.Duration(n.rng.Int64N(int64(l.jitter)+1))
}

// heal makes all links healthy.
func (n *network) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.links)
	n.tell()
}

// process is something with connections on a host. It can be killed.
type process struct {
	n    *network
	host string
	dead chan struct{} // closed by kill

	mu    sync.Mutex // guards conns
	conns map[*conn]struct{}
}

func (n *network) process(host string) *process {
	p := &process{n: n, host: host, dead: make(chan struct{}), conns: map[*conn]struct{}{}}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.processes[p] = struct{}{}
	return p
}

// kill ends all that the process has on the network, at once and for ever: its listeners are gone, its connections
// reset. The other ends learn it when the link lets it through. To be called once.
func (p *process) kill() {
	close(p.dead)
	p.n.mu.Lock()
	for address, l := range p.n.listeners {
		if l.p == p {
			delete(p.n.listeners, address)
			l.shut()
		}
	}
	delete(p.n.processes, p)
	p.n.mu.Unlock()
	p.reset("")
}

// reset breaks the connections with a host; "" is all.
func (p *process) reset(host string) {
	p.mu.Lock()
	conns := maps.Clone(p.conns)
	p.mu.Unlock()
	for c := range conns {
		if host == "" || c.out.way.to == host {
			c.end(syscall.ECONNRESET)
		}
	}
}

// resetLink breaks all connections between two hosts.
func (n *network) resetLink(a, b string) {
	n.mu.Lock()
	processes := maps.Clone(n.processes)
	n.mu.Unlock()
	for p := range processes {
		switch p.host {
		case a:
			p.reset(b)
		case b:
			p.reset(a)
		}
	}
}

// power turns a host off or on. Nothing tells the others when it goes off; when it is back, it answers old connections
// with a reset, which have waited in them since kill.
func (n *network) power(host string, on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.off[host] = !on
	n.tell()
}

// listen binds an address of the process's host.
func (p *process) listen(_ context.Context, address string) (net.Listener, error) {
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	if p.isDead() {
		return nil, errDead
	}
	if p.n.listeners[address] != nil {
		return nil, fmt.Errorf("%w: %s", syscall.EADDRINUSE, address)
	}
	l := &listener{p: p, address: address, queue: make(chan *conn, 64), closed: make(chan struct{})}
	p.n.listeners[address] = l
	return l, nil
}

// errDead is returned to a process that was killed and does not know it.
var errDead = fmt.Errorf("simulation: the process is dead: %w", syscall.ECONNABORTED)

func (p *process) isDead() bool {
	select {
	case <-p.dead:
		return true
	default:
		return false
	}
}

// dial connects to an address "host:port".
func (p *process) dial(ctx context.Context, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	for _, w := range []way{{p.host, host}, {host, p.host}} {
		if err := p.travel(ctx, w); err != nil {
			return nil, fmt.Errorf("dial %s: %w", address, err)
		}
	}
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	l := p.n.listeners[address]
	if l == nil || len(l.queue) == cap(l.queue) {
		return nil, fmt.Errorf("dial %s: %w", address, syscall.ECONNREFUSED)
	}
	there, back := newPipe(p.n, way{p.host, host}), newPipe(p.n, way{host, p.host})
	mine := &conn{p: p, in: back, out: there}
	theirs := &conn{p: l.p, in: there, out: back}
	if !mine.register() || !theirs.register() {
		return nil, errDead
	}
	l.queue <- theirs
	return mine, nil
}

// travel waits until a message along w has arrived.
func (p *process) travel(ctx context.Context, w way) error {
	timer := time.NewTimer(p.n.latency(w))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-p.dead:
		return errDead
	}
	for {
		ok, changed := p.n.passes(w)
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-p.dead:
			return errDead
		}
	}
}

// listener is a bound port.
type listener struct {
	p       *process
	address string
	queue   chan *conn
	once    sync.Once
	closed  chan struct{}
}

func (l *listener) shut() { l.once.Do(func() { close(l.closed) }) }

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. Connections that were not accepted are reset.
func (l *listener) Close() error {
	l.p.n.mu.Lock()
	if l.p.n.listeners[l.address] == l {
		delete(l.p.n.listeners, l.address)
	}
	l.p.n.mu.Unlock()
	l.shut()
	for {
		select {
		case c := <-l.queue:
			c.end(syscall.ECONNRESET)
		default:
			return nil
		}
	}
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return address(l.address) }

// address is a net.Addr.
type address string

func (a address) Network() string { return "simulated" }
func (a address) String() string  { return string(a) }

// conn is one end of a connection.
type conn struct {
	p       *process
	in, out *pipe
}

// register makes the connection one of its process, unless that is dead.
func (c *conn) register() bool {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	if c.p.isDead() {
		return false
	}
	c.p.conns[c] = struct{}{}
	return true
}

// end ends this end with an error for its own user; the other one reads why after what was sent before.
func (c *conn) end(why error) {
	c.p.mu.Lock()
	delete(c.p.conns, c)
	c.p.mu.Unlock()
	here, there := why, why
	if errors.Is(why, io.EOF) {
		here = net.ErrClosed
	}
	c.in.abandon(here)
	c.out.finish(there)
}

func (c *conn) Read(b []byte) (int, error)        { return c.in.read(b) }
func (c *conn) Write(b []byte) (int, error)       { return c.out.write(b) }
func (c *conn) Close() error                      { c.end(io.EOF); return nil }
func (c *conn) LocalAddr() net.Addr               { return address(c.out.way.from) }
func (c *conn) RemoteAddr() net.Addr              { return address(c.out.way.to) }
func (c *conn) SetDeadline(t time.Time) error     { return c.SetReadDeadline(t) } // writes never wait
func (c *conn) SetWriteDeadline(time.Time) error  { return nil }
func (c *conn) SetReadDeadline(t time.Time) error { c.in.setDeadline(t); return nil }

// pipe is one direction of a connection.
type pipe struct {
	n    *network
	way  way
	wake chan struct{} // capacity 1: something below has changed

	mu       sync.Mutex // guards all below
	chunks   []chunk
	last     time.Time // when the newest chunk arrives
	finished error     // the sender's end: read behind all chunks; nil while it lives
	finishAt time.Time
	gone     error // the reader's end: every call fails
	deadline time.Time
}

// chunk is what one write sent.
type chunk struct {
	data []byte
	at   time.Time // when it arrives, if the link is not cut then
}

func newPipe(n *network, w way) *pipe { return &pipe{n: n, way: w, wake: make(chan struct{}, 1)} }

func (p *pipe) signal() {
	select {
	case p.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// arrival draws when something sent now arrives: behind all before it. mu is held.
func (p *pipe) arrival() time.Time {
	at := time.Now().Add(p.n.latency(p.way))
	if at.Before(p.last) {
		at = p.last
	}
	p.last = at
	return at
}

func (p *pipe) write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case errors.Is(p.finished, io.EOF):
		return 0, net.ErrClosed
	case p.finished != nil:
		return 0, p.finished
	case p.gone != nil:
		return len(b), nil // the other end has closed, which is not known here before its last word arrives
	}
	p.chunks = append(p.chunks, chunk{append([]byte(nil), b...), p.arrival()})
	p.signal()
	return len(b), nil
}

// finish is the sender's end.
func (p *pipe) finish(why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.finished == nil {
		p.finished, p.finishAt = why, p.arrival()
	}
	p.signal()
}

// abandon is the reader's end.
func (p *pipe) abandon(why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone == nil {
		p.gone = why
	}
	p.chunks = nil
	p.signal()
}

func (p *pipe) setDeadline(t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deadline = t
	p.signal()
}

// take returns what has arrived, or for how long to wait: 0 for ever.
func (p *pipe) take(b []byte, open bool) (n int, wait time.Duration, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	until := func(t time.Time) {
		if d := t.Sub(now); wait == 0 || d < wait {
			wait = max(d, 1)
		}
	}
	if p.gone != nil {
		return 0, 0, p.gone
	}
	if !p.deadline.IsZero() {
		if !now.Before(p.deadline) {
			return 0, 0, os.ErrDeadlineExceeded
		}
		until(p.deadline)
	}
	switch {
	case !open:
	case len(p.chunks) > 0 && !p.chunks[0].at.After(now):
		n = copy(b, p.chunks[0].data)
		if p.chunks[0].data = p.chunks[0].data[n:]; len(p.chunks[0].data) == 0 {
			p.chunks = p.chunks[1:]
		}
	case len(p.chunks) > 0:
		until(p.chunks[0].at)
	case p.finished != nil && !p.finishAt.After(now):
		err = p.finished
	case p.finished != nil:
		until(p.finishAt)
	}
	return n, wait, err
}

func (p *pipe) read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	for {
		open, changed := p.n.passes(p.way)
		n, wait, err := p.take(b, open)
		if n > 0 || err != nil {
			return n, err
		}
		var after <-chan time.Time
		var timer *time.Timer
		if wait > 0 {
			timer = time.NewTimer(wait)
			after = timer.C
		}
		select {
		case <-p.wake:
		case <-changed:
		case <-after:
		}
		if timer != nil {
			timer.Stop()
		}
	}
}
