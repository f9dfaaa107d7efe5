// SPDX-License-Identifier: Apache-2.0

// Package admission limits the connections to a node's ports. It closes connections that do not authenticate in time,
// send too many control frames, or occupy too much memory with unprocessed data.
//
// A connection is new until one of its calls has passed the auth interceptor. Calls that require no authentication do
// not count. A connection that remains new for Limits.HandshakeTimeout is closed, unless such a call is in progress.
// At a limit, the oldest new connections are evicted. Slots are reserved for the other node of the pair.
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
	// minAge is the minimum age at which a new connection may be evicted.
	minAge = time.Second
	// peerSlots is the number of slots reserved for the other node, in addition to the limits. A connection in such a
	// slot must authenticate as the other node within peerTime.
	peerSlots = 32
	peerTime  = time.Second
	// refillTime is the time in which the number of permitted attempts of an address is refilled from 0 to its maximum.
	refillTime    = 4 * time.Second
	evictInterval = 5 * time.Second // interval at which addresses without connections are removed
	// abandonedFraction determines the charge for a connection that ends before a call is admitted. The address is
	// charged 1/abandonedFraction of its attempts, in addition to one attempt.
	abandonedFraction = 256
	// A listener that refuses connections at a higher rate pauses before each Accept.
	maxRefusals      = 400
	refusedPerSecond = 4000
	refusedPause     = 5 * time.Millisecond
	sampled          = 64 // maximum number of addresses examined to select a connection to evict
	maxFailures      = 16 // maximum number of calls with invalid credentials on a new connection
	// holdTime is the delay before a connection that exceeds the attempts of its address is closed. maxHeldRequests
	// limits the number of connections that are delayed at the same time.
	holdTime        = 500 * time.Millisecond
	maxHeldRequests = 128
	logInterval     = 10 * time.Second // minimum interval between log entries with the same reason
)

// Reason is the reason why a connection was refused or closed.
type Reason uint8

// Reasons to refuse or close a connection.
const (
	Full              Reason = iota // limits.connections is reached
	AddressFull                     // limits.connections-per-address is reached
	TooMany                         // too many recent connections of the address have made no call
	HandshakeTimedOut               // no call passed the auth interceptor within limits.handshake-timeout
	Unauthenticated                 // too many calls had invalid credentials, and no call was admitted
	Flood                           // too many canceled calls, empty frames, SETTINGS frames or pings
	Evicted                         // closed early to free a slot for another connection
	Handshakes                      // limits.handshakes connections have no admitted call yet
	ExcessiveMemory                 // the client has sent too much data that could not be processed
	Expired                         // the client certificate has expired
	reasons
)

var reasonNames = [reasons]string{
	"full", "address-full", "too-many", "handshake-timeout", "unauthenticated", "flood", "evicted", "handshakes",
	"memory", "expired",
}

func (r Reason) String() string { return reasonNames[r] }

// Limits contains the limits of connections.
type Limits struct {
	Connections, PerAddress int // maximum number of open connections, in total and for each address
	// Handshakes limits the number of open connections without an admitted call. For addresses with admitted
	// connections, the limit is 25 % higher.
	Handshakes       int
	HandshakeTimeout time.Duration // maximum time until a call passes the auth interceptor
}

// Options configures New.
type Options struct {
	Limits func() Limits // returns the current limits; called with locks held, so it must not block
	// IsPeer reports whether the host may be the other node. It must not block. It is nil outside a pair.
	IsPeer func(host string) bool
	// Plain reports whether the port has no TLS. The listener then parses the HTTP/2 frames. With TLS, Credentials
	// parses them after decryption.
	Plain bool
	// UnprocessedBytes limits the total size of data that handlers have not processed. Above the limit, connections
	// are read more slowly. RequestBytes is the size of the largest request; it is permitted in addition. If
	// UnprocessedBytes is 0, there is no limit.
	UnprocessedBytes, RequestBytes int64
	Logger                         *zap.Logger // logs refused and closed connections, at most every 10s for each reason
}

// Listener accepts connections within limits. It is safe for concurrent use.
type Listener struct {
	net.Listener

	o        Options
	accepted atomic.Uint64
	held     atomic.Int32 // refused connections that are not yet closed
	ended    [reasons]atomic.Uint64

	refusals    bucket // used only by the goroutine in Accept
	unprocessed unprocessed

	mu        sync.Mutex // guards the fields below
	open      int
	fresh     int              // number of new connections in conns
	conns     map[uint64]*Conn // by number
	lastID    uint64
	reserved  int // number of connections in reserved slots
	sources   map[string]*source
	evictedAt time.Time // time of the last cleanup of sources
	logState  [reasons]logState
}

type logState struct { // of a reason
	at   time.Time
	then uint64 // count at the last log entry
}

// source is an address that has open connections, or had some recently.
type source struct {
	host string
	open int
	new  list.List // of *Conn, oldest first
	// tries is the number of connections without calls that the address could open at time refilled.
	tries    float64
	refilled time.Time
}

// New returns a Listener that accepts connections from l.
func New(l net.Listener, o Options) *Listener {
	if o.IsPeer == nil {
		o.IsPeer = func(string) bool { return false }
	}
	return &Listener{
		Listener: l, o: o, sources: map[string]*source{}, conns: map[uint64]*Conn{},
		unprocessed: unprocessed{limit: o.UnprocessedBytes, most: o.UnprocessedBytes + o.RequestBytes},
	}
}

// Stats contains statistics of a Listener.
type Stats struct {
	Open, Accepted   uint64            // Accepted counts connections since the start
	UnprocessedBytes int64             // data of all clients that handlers have not processed
	Ended            map[string]uint64 // refused and closed connections by reason
}

// Stats returns the current statistics.
func (l *Listener) Stats() Stats {
	s := Stats{
		Accepted: l.accepted.Load(), UnprocessedBytes: l.unprocessed.total.Load(), Ended: make(map[string]uint64, reasons),
	}
	for r := range reasons {
		s.Ended[r.String()] = l.ended[r].Load()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Open = uint64(l.open)
	return s
}

// Accept waits for the next connection that is admitted.
func (l *Listener) Accept() (net.Conn, error) { return l.accept(l.Listener, "", &l.refusals) }

// accept waits for the next connection of a port that is admitted. refusals limits the rate of refused
// connections.
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
		if !refusals.take(maxRefusals, refusedPerSecond) {
			<-time.After(refusedPause)
		}
	}
}

// AddPort returns a listener for another port. Its connections count towards the same limits. List reports them
// with the name of their protocol.
func (l *Listener) AddPort(other net.Listener, protocol string) net.Listener {
	return &sharedPort{Listener: other, l: l, protocol: protocol}
}

type sharedPort struct {
	net.Listener

	l        *Listener
	protocol string
	refusals bucket
}

func (a *sharedPort) Accept() (net.Conn, error) {
	return a.l.accept(a.Listener, a.protocol, &a.refusals)
}

// reset closes a refused connection immediately with a TCP reset, even if data is unread.
func reset(raw net.Conn) {
	if tcp, ok := raw.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // the connection is closed in any case
	}
	_ = raw.Close() // the error is irrelevant, because the connection is refused
}

func (l *Listener) refuse(raw net.Conn, reason Reason) {
	if reason != TooMany || l.held.Add(1) > maxHeldRequests {
		if reason == TooMany {
			l.held.Add(-1)
		}
		reset(raw)
		return
	}
	time.AfterFunc(holdTime, func() {
		l.held.Add(-1)
		reset(raw)
	})
}

// admit applies the limits to a connection. If the connection is refused, admit closes it and returns nil.
func (l *Listener) admit(raw net.Conn, protocol string) net.Conn {
	limits, now := l.o.Limits(), time.Now()
	host := hostOf(raw.RemoteAddr())
	isPeer := protocol == "" && l.o.IsPeer(host)
	l.mu.Lock()
	l.evictIdle(limits, now)
	s := l.source(network(host), limits, now)
	evicted, reason, ok := l.room(s, limits, now)
	reserved := !ok && isPeer && l.reserved < peerSlots
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
		timeout := limits.HandshakeTimeout
		if reserved {
			l.reserved++
			timeout = peerTime
		}
		c.timer = time.AfterFunc(timeout, func() { c.expired(limits.HandshakeTimeout) })
	} else {
		l.evict(s, limits, now)
	}
	l.mu.Unlock()
	if evicted != nil {
		l.refused(Evicted, evicted.source.host, limits)
		_ = evicted.end() // only the free slot is needed
	}
	if c == nil {
		l.refused(reason, host, limits)
		l.refuse(raw, reason)
		return nil
	}
	var seen *wire
	if l.o.Plain && protocol == "" {
		seen = newWire(c)
	}
	if tcp, ok := raw.(*net.TCPConn); ok {
		// Keep the methods of TCP connections, such as vectored writes.
		return &tcpConn{tcp, c, seen}
	}
	return &plainConn{raw, c, seen}
}

// source returns the entry of a host with its tries refilled. It creates the entry if needed. The caller must hold
// mu.
func (l *Listener) source(host string, limits Limits, now time.Time) *source {
	s := l.sources[host]
	if s == nil {
		s = &source{host: host, tries: float64(limits.PerAddress), refilled: now}
		l.sources[host] = s
	}
	s.refill(limits, now)
	return s
}

// charge subtracts 1/share of the maximum number of attempts from those of the address. The balance may become
// negative, but not lower than -PerAddress.
func (s *source) charge(share float64, limits Limits) {
	all := float64(limits.PerAddress)
	s.tries = max(s.tries-all/share, -all)
}

func (s *source) refill(limits Limits, now time.Time) {
	full := float64(limits.PerAddress)
	s.tries = min(full, s.tries+now.Sub(s.refilled).Seconds()/refillTime.Seconds()*full)
	s.refilled = now
}

// room reports whether one more connection of s can be admitted. It returns the connection that must be evicted for
// the new one, if any, or the reason for the refusal. The caller must hold mu.
func (l *Listener) room(s *source, limits Limits, now time.Time) (evicted *Conn, reason Reason, ok bool) {
	if s.tries < 1 {
		return nil, TooMany, false
	}
	if s.open >= limits.PerAddress {
		if evicted = s.oldest(now); evicted == nil {
			return nil, AddressFull, false
		}
		return evicted, 0, true
	}
	handshakes := limits.Handshakes
	if s.open > s.new.Len() { // the address has an authenticated client
		handshakes += handshakes / 4
	}
	switch {
	case l.open-l.reserved >= limits.Connections:
		reason = Full
	case l.fresh-l.reserved >= handshakes:
		reason = Handshakes
	default:
		return nil, 0, true
	}
	if most := l.mostCrowded(now); most != nil {
		return most.oldest(now), 0, true
	}
	return nil, reason, false
}

// mostCrowded samples addresses that have a connection to evict. It returns the sampled address with the most new
// connections, or nil. The caller must hold mu.
func (l *Listener) mostCrowded(now time.Time) (most *source) {
	looked := 0
	for _, s := range l.sources { // random order
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

// oldest returns the oldest new connection if it may be evicted, or else nil. The caller must hold mu.
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

// evict removes s if it has no connections and all its tries. The caller must hold mu.
func (l *Listener) evict(s *source, limits Limits, now time.Time) {
	if s.refill(limits, now); s.open == 0 && s.tries >= float64(limits.PerAddress) {
		delete(l.sources, s.host)
	}
}

// evictIdle removes sources that are no longer needed, at most once per evictInterval. The caller must hold mu.
func (l *Listener) evictIdle(limits Limits, now time.Time) {
	if now.Sub(l.evictedAt) < evictInterval {
		return
	}
	l.evictedAt = now
	for _, s := range l.sources {
		l.evict(s, limits, now)
	}
}

// refused counts a refused or closed connection. It logs at most one of them per reason and logInterval.
func (l *Listener) refused(r Reason, host string, limits Limits) {
	n, now := l.ended[r].Add(1), time.Now()
	l.mu.Lock()
	last := l.logState[r]
	due := now.Sub(last.at) >= logInterval
	if due {
		l.logState[r] = logState{now, n}
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
	Full:        "connections refused: limits.connections reached; raise it, or reduce the number of client connections",
	AddressFull: "connections refused: limits.connections-per-address reached; raise it if many clients share an address",
	TooMany:     "connections refused: too many recent connections without a call from the same address",
	HandshakeTimedOut: "connections closed: no successful call within limits.handshake-timeout; possible causes: " +
		"another protocol, invalid credentials, or unused connections",
	Unauthenticated: "connections closed: too many calls with invalid or expired credentials, and none " +
		"with valid ones",
	Flood: "connections closed: too many canceled calls, empty frames, HTTP/2 SETTINGS frames or pings",
	Handshakes: "connections refused: limits.handshakes reached; too many connections without a call; raise it if " +
		"many clients connect concurrently",
	ExcessiveMemory: "connections closed: clients sent too much data that could not be processed, such as " +
		"partial requests or requests with unread responses; if clients are slow, raise memory.budget",
	Expired: "connections closed: client certificate expired; the client must reconnect with a new one",
	Evicted: "connections without a call closed before limits.handshake-timeout: slots needed for new connections",
}

// network reduces an IPv6 address to its first 64 bits. It returns other addresses unchanged.
func network(host string) string {
	a, err := netip.ParseAddr(host)
	if err != nil || !a.Is6() || a.Is4In6() {
		return host
	}
	return netip.PrefixFrom(a.WithZone(""), 64).Masked().String()
}

func hostOf(a net.Addr) string {
	host, _, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	return host
}
