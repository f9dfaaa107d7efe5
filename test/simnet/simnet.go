// SPDX-License-Identifier: Apache-2.0

// Package simnet implements an in-memory network for tests that run in a testing/synctest bubble: gRPC and HTTP
// clients and servers run over it in simulated time.
//
// Connections behave like TCP connections: bytes arrive in order, and bytes held back by a cut link arrive when the
// link is restored. Links have a latency, and can be cut in one direction. A Process owns listeners and connections;
// killing it closes the listeners and resets the connections. Writes never block. Otherwise, a goroutine could wait
// for the network with a lock held, which would stop the clock of the bubble.
//
// The name of a host is an IP address, or any other string without a colon. Create a Network inside the bubble that
// uses it.
package simnet

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Options configures a Network. The zero value is a network without latency.
type Options struct {
	// Delay and Jitter define the default latency of a link: Delay plus a random part of Jitter.
	Delay, Jitter time.Duration
	// Rand is the source of the jitter. It may be nil if Jitter is 0 on all links.
	Rand *rand.Rand
}

// Network transfers bytes between hosts.
type Network struct {
	o Options

	mu        sync.Mutex // guards the fields below
	links     map[Way]*Link
	listeners map[string]*listener
	processes map[*Process]struct{}
	off       map[string]bool // hosts without power, which do not respond
	lastPort  int             // last port that was assigned
	changed   chan struct{}   // closed and replaced when a link or a host changes
}

// Way is a direction between two hosts.
type Way struct{ From, To string }

// Both returns the two directions between two hosts.
func Both(a, b string) []Way { return []Way{{a, b}, {b, a}} }

// Link is the state of a direction.
type Link struct {
	Cut           bool
	Delay, Jitter time.Duration
	// BytesPerSecond limits the rate of each connection; 0 means no limit.
	BytesPerSecond int
}

// firstPort is the lowest port that the network assigns.
const firstPort = 32768

// New creates a network.
func New(o Options) *Network {
	return &Network{
		o: o, links: map[Way]*Link{}, listeners: map[string]*listener{}, processes: map[*Process]struct{}{},
		off: map[string]bool{}, lastPort: firstPort - 1, changed: make(chan struct{}),
	}
}

// linkLocked returns the state of a direction.
func (n *Network) linkLocked(w Way) *Link {
	l := n.links[w]
	if l == nil {
		l = &Link{Delay: n.o.Delay, Jitter: n.o.Jitter}
		n.links[w] = l
	}
	return l
}

// Change calls f to change the state of a direction. A cut affects bytes in flight; a new latency does not affect
// them.
func (n *Network) Change(w Way, f func(*Link)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f(n.linkLocked(w))
	n.wakeLocked()
}

// SetCut cuts both directions between two hosts, or restores them.
func (n *Network) SetCut(a, b string, cut bool) {
	for _, w := range Both(a, b) {
		n.Change(w, func(l *Link) { l.Cut = cut })
	}
}

// Heal resets all links to the default state: not cut, with the default latency, and without a limit of the rate.
func (n *Network) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.links)
	n.wakeLocked()
}

// wakeLocked wakes all goroutines that wait for a change.
func (n *Network) wakeLocked() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// passes reports whether bytes along w can arrive now. If not, changed is closed when the caller must check again.
func (n *Network) passes(w Way) (ok bool, changed <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.linkLocked(w).Cut && !n.off[w.From] && !n.off[w.To], n.changed
}

// latency returns the latency of a message along w.
func (n *Network) latency(w Way) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.linkLocked(w)
	if l.Jitter == 0 {
		return l.Delay
	}
	return l.Delay + time.Duration(n.o.Rand.Int64N(int64(l.Jitter)+1))
}

// transmission returns how long a connection along w is busy with a message of the given size.
func (n *Network) transmission(w Way, bytes int) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	rate := n.linkLocked(w).BytesPerSecond
	if rate == 0 {
		return 0
	}
	return time.Duration(bytes) * time.Second / time.Duration(rate)
}

// portLocked returns an unused port.
func (n *Network) portLocked() string {
	n.lastPort++
	return strconv.Itoa(n.lastPort)
}

// ResetLink resets all connections between two hosts.
func (n *Network) ResetLink(a, b string) {
	n.mu.Lock()
	processes := maps.Clone(n.processes)
	n.mu.Unlock()
	for p := range processes {
		switch p.host {
		case a:
			p.Reset(b)
		case b:
			p.Reset(a)
		}
	}
}

// SetPower turns a host off or on. Other hosts are not notified of a power-off. The resets sent by Kill arrive when
// the host is on again.
func (n *Network) SetPower(host string, on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.off[host] = !on
	n.wakeLocked()
}

// Process owns listeners and connections on a host.
type Process struct {
	n    *Network
	host string
	dead chan struct{} // closed by Kill

	mu    sync.Mutex // guards conns
	conns map[*conn]struct{}
}

// NewProcess creates a process on a host.
func (n *Network) NewProcess(host string) *Process {
	p := &Process{n: n, host: host, dead: make(chan struct{}), conns: map[*conn]struct{}{}}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.processes[p] = struct{}{}
	return p
}

// Kill closes the listeners of the process and resets its connections. The resets reach the other ends; over a cut
// link, they arrive when the link is restored. Kill must be called at most once.
func (p *Process) Kill() {
	close(p.dead)
	p.n.mu.Lock()
	for at, l := range p.n.listeners {
		if l.p == p {
			delete(p.n.listeners, at)
			l.shut()
		}
	}
	delete(p.n.processes, p)
	p.n.mu.Unlock()
	p.Reset("")
}

// Connections returns the number of open connections of the process.
func (p *Process) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// Dead returns a channel that is closed by Kill.
func (p *Process) Dead() <-chan struct{} { return p.dead }

// Reset resets the connections of the process with a host; "" means all hosts.
func (p *Process) Reset(host string) {
	p.mu.Lock()
	conns := maps.Clone(p.conns)
	p.mu.Unlock()
	for c := range conns {
		if host == "" || c.out.way.To == host {
			c.end(syscall.ECONNRESET)
		}
	}
}

func (p *Process) isDead() bool {
	select {
	case <-p.dead:
		return true
	default:
		return false
	}
}

// errDead is returned by methods of a Process after Kill.
var errDead = fmt.Errorf("simnet: process was killed: %w", syscall.ECONNABORTED)

// Listen binds an address of the form "host:port". It assigns a port if port is 0.
func (p *Process) Listen(_ context.Context, at string) (net.Listener, error) {
	host, port, err := net.SplitHostPort(at)
	if err != nil {
		return nil, err
	}
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	if p.isDead() {
		return nil, errDead
	}
	if port == "0" {
		at = net.JoinHostPort(host, p.n.portLocked())
	}
	if p.n.listeners[at] != nil {
		return nil, fmt.Errorf("listen %s: %w", at, syscall.EADDRINUSE)
	}
	l := &listener{p: p, at: at, queue: make(chan *conn, 64), closed: make(chan struct{})}
	p.n.listeners[at] = l
	return l, nil
}

// Dial connects to an address of the form "host:port".
func (p *Process) Dial(ctx context.Context, at string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(at)
	if err != nil {
		return nil, err
	}
	for _, w := range Both(p.host, host) {
		if err := p.travel(ctx, w); err != nil {
			return nil, fmt.Errorf("dial %s: %w", at, err)
		}
	}
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	l := p.n.listeners[at]
	if l == nil || len(l.queue) == cap(l.queue) {
		return nil, fmt.Errorf("dial %s: %w", at, syscall.ECONNREFUSED)
	}
	from := net.JoinHostPort(p.host, p.n.portLocked())
	there, back := newPipe(p.n, Way{p.host, host}), newPipe(p.n, Way{host, p.host})
	mine := &conn{p: p, in: back, out: there, local: addr(from), remote: addr(at)}
	theirs := &conn{p: l.p, in: there, out: back, local: addr(at), remote: addr(from)}
	if !mine.register() || !theirs.register() {
		return nil, errDead
	}
	l.queue <- theirs
	return mine, nil
}

// travel waits until a message sent along w arrives, or ctx or the process ends.
func (p *Process) travel(ctx context.Context, w Way) error {
	if d := p.n.latency(w); d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-p.dead:
			return errDead
		}
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
