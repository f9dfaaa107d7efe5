// SPDX-License-Identifier: Apache-2.0

// Package admission decides which connections to a node's port are let in, and for how long one may stay that has shown
// nothing: a connection costs memory and a descriptor before its caller is known.
//
// A connection is new until a call of it has passed the gate. One that stays new for Limits.HandshakeTimeout is closed,
// whether it hangs in the TLS handshake, in the preface of HTTP/2, or calls nothing. When a limit is reached, the
// oldest new connections make room, so that half-open ones cannot keep clients out. The other node of the pair has
// places of its own.
package admission

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

const (
	// minAge is how long a connection may be new before it makes room for another one: the time that clients need which
	// come all at once, after a failover.
	minAge = time.Second
	// peerPlaces are kept for the other node, beyond the limits. A connection that has one must show within peerTime
	// that it is the other node: with an address that clients have, too, it may be a client.
	peerPlaces = 32
	peerTime   = time.Second
	// refillTime is how long it takes until an address that has used up its attempts may make as many again.
	refillTime = 4 * time.Second
	// sweepInterval is how often addresses are forgotten that have no connections any more.
	sweepInterval = 5 * time.Second
	// abandonShare is the part of its attempts that a connection costs its address, instead of one of them, which ends
	// before a call of it was let in: with a broken frame, without a handshake, or because nothing came.
	abandonShare = 256
	// A listener that refuses more connections than these looks at new ones more slowly, so that they wait in the
	// system's queue rather than take processor time.
	refusedAtOnce    = 400
	refusedPerSecond = 4000
	refusedPause     = 5 * time.Millisecond
	// sampled is how many addresses are looked at for the one that has to make room.
	sampled = 64
	// maxWrong is how many calls of a new connection may show something that is not true.
	maxWrong = 16
	// holdTime is how long a connection is left waiting that is refused because its address makes too many, so that it
	// makes fewer; heldAtOnce is how many.
	holdTime   = 500 * time.Millisecond
	heldAtOnce = 128
	// tellInterval is how often the log tells of each kind of refusal.
	tellInterval = 10 * time.Second
)

// Reason why a connection was not let in, or was closed.
type Reason uint8

// The reasons.
const (
	// Full: there are as many as limits.connections allows.
	Full Reason = iota
	// AddressFull: its address has as many as limits.connections-per-address allows.
	AddressFull
	// TooMany: its address has made too many in a short time that never made a call.
	TooMany
	// Silent: no call of it passed the gate within limits.handshake-timeout.
	Silent
	// Strangers: none of its calls showed who calls.
	Strangers
	// Flood: it has cancelled calls, changed its settings, or sent pings, too often.
	Flood
	// Displaced: it made room for another one before its time was over.
	Displaced
	// Handshakes: limits.handshakes have made no call yet.
	Handshakes
	// Hoarding: its client has sent much ahead, of which hardly anything could be carried out.
	Hoarding
	// Expired: the certificate of its client is over.
	Expired
	reasons
)

var reasonNames = [reasons]string{
	"full", "address-full", "too-many", "silent", "strangers", "flood", "displaced", "handshakes", "hoarding",
	"expired",
}

// String gives the name that metrics use.
func (r Reason) String() string { return reasonNames[r] }

// Limits of connections.
type Limits struct {
	// Connections that may be open, and those of one address.
	Connections, PerAddress int
	// Handshakes is how many of them may be open of which no call has passed the gate yet. An address that has others
	// has a quarter more.
	Handshakes int
	// HandshakeTimeout is how long a connection may take until a call of it passes the gate.
	HandshakeTimeout time.Duration
}

// Options of New.
type Options struct {
	// Limits as they hold now. It is called for each connection.
	Limits func() Limits
	// IsPeer tells whether the other node may have this host; nil if there is none. It must not block.
	IsPeer func(host string) bool
	// Plain: there is no TLS, so that the listener sees the frames of HTTP/2; with TLS, Credentials shows them.
	Plain bool
	// AheadBytes is how much all clients together may have sent that no handler has taken, before connections are read
	// more slowly, and RequestBytes the largest request, which may come on top of that. 0: as much as they like.
	AheadBytes, RequestBytes int64
	// Logger is told of refusals, a few times a minute at most.
	Logger *zap.Logger
}

// Listener lets connections in. It is safe for concurrent use.
type Listener struct {
	net.Listener

	o        Options
	accepted atomic.Uint64
	held     atomic.Int32 // refused connections that are not closed yet
	ended    [reasons]atomic.Uint64

	refusals bucket // of the goroutine in Accept alone
	ahead    ahead

	mu       sync.Mutex // guards all below
	open     int
	fresh    int              // of them that no call has passed the gate of
	conns    map[uint64]*Conn // by their numbers
	lastID   uint64
	reserved int // of them that have a place of the peer
	sources  map[string]*source
	swept    time.Time // when sources was cleaned last
	told     [reasons]told
}

// told is what the log was told of a reason.
type told struct {
	at   time.Time
	then uint64 // how many there were
}

// source is an address that has connections, or had some shortly before.
type source struct {
	host string
	open int
	new  list.List // of *Conn, oldest first
	// tries is how many connections it may still make that make no call; it was so many at refilled.
	tries    float64
	refilled time.Time
}

// New has the connections of l pass.
func New(l net.Listener, o Options) *Listener {
	if o.IsPeer == nil {
		o.IsPeer = func(string) bool { return false }
	}
	return &Listener{
		Listener: l, o: o, sources: map[string]*source{}, conns: map[uint64]*Conn{},
		ahead: ahead{limit: o.AheadBytes, most: o.AheadBytes + o.RequestBytes},
	}
}

// Stats of a Listener.
type Stats struct {
	// Open connections, and those that were ever let in.
	Open, Accepted uint64
	// AheadBytes is what all clients have sent that no handler is done with.
	AheadBytes int64
	// Ended is how many were not let in, or closed, by the names of the reasons.
	Ended map[string]uint64
}

// Stats counts connections.
func (l *Listener) Stats() Stats {
	s := Stats{Accepted: l.accepted.Load(), AheadBytes: l.ahead.total.Load(), Ended: make(map[string]uint64, reasons)}
	for r := range reasons {
		s.Ended[r.String()] = l.ended[r].Load()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Open = uint64(l.open)
	return s
}

// Accept waits for the next connection that is let in.
func (l *Listener) Accept() (net.Conn, error) { return l.accept(l.Listener, "", &l.refusals) }

// accept waits for the next connection of a port that is let in. refusals bounds how fast that port refuses others.
func (l *Listener) accept(port net.Listener, protocol string, refusals *bucket) (net.Conn, error) {
	for {
		raw, err := port.Accept()
		if err != nil {
			return nil, err //nolint:wrapcheck // the server compares it
		}
		if c := l.admit(raw, protocol); c != nil {
			l.accepted.Add(1)
			return c, nil
		}
		if !refusals.take(refusedAtOnce, refusedPerSecond) {
			<-time.After(refusedPause)
		}
	}
}

// Also has the connections of another port, on which another protocol is spoken, pass the same limits: they are
// counted and listed with the others, under that protocol's name.
func (l *Listener) Also(other net.Listener, protocol string) net.Listener {
	return &also{Listener: other, l: l, protocol: protocol}
}

// also is another port of a Listener.
type also struct {
	net.Listener

	l        *Listener
	protocol string
	refusals bucket
}

// Accept waits for the next connection that is let in.
func (a *also) Accept() (net.Conn, error) { return a.l.accept(a.Listener, a.protocol, &a.refusals) }

// cut closes a connection that is not let in at once, without waiting for what its client still says.
func cut(raw net.Conn) {
	if tcp, ok := raw.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // it is closed in any case
	}
	_ = raw.Close() // it is not let in
}

// refuse closes a connection that is not let in.
func (l *Listener) refuse(raw net.Conn, why Reason) {
	if why != TooMany || l.held.Add(1) > heldAtOnce {
		if why == TooMany {
			l.held.Add(-1)
		}
		cut(raw)
		return
	}
	time.AfterFunc(holdTime, func() {
		l.held.Add(-1)
		cut(raw)
	})
}

// admit makes a connection of raw, or refuses it and returns nil.
func (l *Listener) admit(raw net.Conn, protocol string) net.Conn {
	limits, now := l.o.Limits(), time.Now()
	host := hostOf(raw.RemoteAddr())
	isPeer := protocol == "" && l.o.IsPeer(host)
	l.mu.Lock()
	l.sweep(limits, now)
	s := l.source(network(host), limits, now)
	displaced, why, ok := l.room(s, limits, now)
	reserved := !ok && isPeer && l.reserved < peerPlaces
	var c *Conn
	if ok || reserved {
		c = &Conn{l: l, source: s, reserved: reserved, protocol: protocol}
		c.remote = Remote{Addr: raw.RemoteAddr(), conn: c}
		c.element = s.new.PushBack(c)
		c.since, c.close, c.over = now, raw.Close, make(chan struct{})
		s.open++
		s.tries--
		l.open++
		l.fresh++
		l.lastID++
		c.id = l.lastID
		l.conns[c.id] = c
		patience := limits.HandshakeTimeout
		if reserved {
			l.reserved++
			patience = peerTime
		}
		c.timer = time.AfterFunc(patience, func() { c.expired(limits.HandshakeTimeout) })
	} else {
		l.forget(s, limits, now)
	}
	l.mu.Unlock()
	if displaced != nil {
		l.tell(Displaced, displaced.source.host, limits)
		_ = displaced.end() // its place is what counts
	}
	if c == nil {
		l.tell(why, host, limits)
		l.refuse(raw, why)
		return nil
	}
	var seen *wire
	if l.o.Plain && protocol == "" {
		seen = newWire(c)
	}
	if tcp, ok := raw.(*net.TCPConn); ok {
		// what it can do besides, such as writing several buffers at once, it still can
		return &tcpConn{tcp, c, seen}
	}
	return &plainConn{raw, c, seen}
}

// source finds or makes one, with the tries that it has by now. mu is held.
func (l *Listener) source(host string, limits Limits, now time.Time) *source {
	s := l.sources[host]
	if s == nil {
		s = &source{host: host, tries: float64(limits.PerAddress), refilled: now}
		l.sources[host] = s
	}
	s.refill(limits, now)
	return s
}

// owe takes a part of all attempts away: the address may make no more until they have come back, after twice
// refillTime at most.
func (s *source) owe(share float64, limits Limits) {
	all := float64(limits.PerAddress)
	s.tries = max(s.tries-all/share, -all)
}

func (s *source) refill(limits Limits, now time.Time) {
	full := float64(limits.PerAddress)
	s.tries = min(full, s.tries+now.Sub(s.refilled).Seconds()/refillTime.Seconds()*full)
	s.refilled = now
}

// room tells whether there is a place for one more connection of s, and which one has to go for it. mu is held.
func (l *Listener) room(s *source, limits Limits, now time.Time) (displaced *Conn, why Reason, ok bool) {
	if s.tries < 1 {
		return nil, TooMany, false
	}
	if s.open >= limits.PerAddress {
		if displaced = s.oldest(now); displaced == nil {
			return nil, AddressFull, false
		}
		return displaced, 0, true
	}
	handshakes := limits.Handshakes
	if s.open > s.new.Len() { // a client of the pair is there
		handshakes += handshakes / 4
	}
	switch {
	case l.open-l.reserved >= limits.Connections:
		why = Full
	case l.fresh-l.reserved >= handshakes:
		why = Handshakes
	default:
		return nil, 0, true
	}
	if most := l.crowd(now); most != nil {
		return most.oldest(now), 0, true
	}
	return nil, why, false
}

// crowd is the address with the most connections that have made no call, of some that have one which may make room;
// nil if there is none. mu is held.
func (l *Listener) crowd(now time.Time) (most *source) {
	looked := 0
	for _, s := range l.sources { // in an order that changes
		if s.oldest(now) == nil {
			continue
		}
		if most == nil || s.new.Len() > most.new.Len() {
			most = s
		}
		if looked++; looked == sampled {
			break
		}
	}
	return most
}

// oldest is the oldest new connection that may be displaced; nil if there is none. mu is held.
func (s *source) oldest(now time.Time) *Conn {
	e := s.new.Front()
	if e == nil {
		return nil
	}
	c, _ := e.Value.(*Conn)
	if now.Sub(c.since) < minAge || c.reserved {
		return nil
	}
	return c
}

// forget drops a source of which nothing has to be known any more. mu is held.
func (l *Listener) forget(s *source, limits Limits, now time.Time) {
	if s.refill(limits, now); s.open == 0 && s.tries >= float64(limits.PerAddress) {
		delete(l.sources, s.host)
	}
}

// sweep drops all such sources now and then. mu is held.
func (l *Listener) sweep(limits Limits, now time.Time) {
	if now.Sub(l.swept) < sweepInterval {
		return
	}
	l.swept = now
	for _, s := range l.sources {
		l.forget(s, limits, now)
	}
}

// tell counts, and has the log say so if it has not done so lately.
func (l *Listener) tell(r Reason, host string, limits Limits) {
	n, now := l.ended[r].Add(1), time.Now()
	l.mu.Lock()
	last := l.told[r]
	due := now.Sub(last.at) >= tellInterval
	if due {
		l.told[r] = told{now, n}
	}
	l.mu.Unlock()
	if !due {
		return
	}
	l.o.Logger.Warn(texts[r], zap.String("last_address", host), zap.Uint64("since_the_last_line", n-last.then),
		zap.Uint64("since_the_start", n), zap.Int("limits.connections", limits.Connections),
		zap.Int("limits.connections-per-address", limits.PerAddress), zap.Int("limits.handshakes", limits.Handshakes),
		zap.Duration("limits.handshake-timeout", limits.HandshakeTimeout))
}

var texts = [reasons]string{ //nolint:gochecknoglobals // a table
	Full: "connections are refused: limits.connections are open; raise it, or find out which clients hold so many",
	AddressFull: "connections are refused: their address has limits.connections-per-address open; raise it if many " +
		"clients share that address",
	TooMany: "connections are refused: their address has made too many in a short time that made no call",
	Silent: "connections are closed: no call of them passed within limits.handshake-timeout; a client that speaks " +
		"another protocol, or has no valid credentials, or something that holds connections open",
	Strangers: "connections are closed: many calls of them showed a token or certificate that is wrong or over, and " +
		"none a good one",
	Flood: "connections are closed: their clients cancel calls, change settings of HTTP/2, or ping, far too often",
	Handshakes: "connections are refused: limits.handshakes are open that have made no call yet; something opens far " +
		"too many of them, or raise it if so many clients come at once",
	Hoarding: "connections are closed: their clients have sent far more than what they let the node carry out, such as " +
		"halves of requests, or requests whose answers they do not read; if they are slow, raise memory.budget",
	Expired: "connections are closed: the certificate that their client has shown is over; a client that reads its " +
		"files again connects with the next one",
	Displaced: "new connections that have made no call yet are closed before limits.handshake-timeout: others need " +
		"their places",
}

// network is what counts as one address: of IPv6, the 64 bits that one machine has usually for itself.
func network(host string) string {
	a, err := netip.ParseAddr(host)
	if err != nil || !a.Is6() || a.Is4In6() {
		return host
	}
	return netip.PrefixFrom(a.WithZone(""), 64).Masked().String()
}

// hostOf is the part of an address that connections of one machine share.
func hostOf(a net.Addr) string {
	host, _, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	return host
}
