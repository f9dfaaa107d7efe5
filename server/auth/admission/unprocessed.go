// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/tap"
)

// Requests that handlers have not processed are held in memory. HTTP/2 flow control limits them per call, but a
// connection may have thousands of calls. The bytes are counted over all calls of all connections: received DATA frames
// minus requests that handlers have finished.
//
// Above the limit, connections from addresses with more than their fraction of the data are not read. A connection is
// closed if too much of its data cannot be processed. Exceptions are a large request over a slow line while it keeps
// growing, and a complete request that waits for the node.

const (
	reliefInterval = 10 * time.Millisecond // of the checks while the limit is exceeded
	reliefPause    = 5 * time.Millisecond  // of the checks whether a paused connection may be read
	// closeDelay is the interval in which a connection must process at least as much data as it holds unprocessed.
	closeDelay = 3 * time.Second
	// The largest holder may complete its request as long as it grows by unprocessedGrowth within unprocessedGrowthTime,
	// or by unprocessedGrowthAlone while no other connection is paused.
	unprocessedGrowth      = 1 << 20
	unprocessedGrowthAlone = 64 << 10
	unprocessedGrowthTime  = time.Second
	// Other connections wait only for a connection with at least limit/minBlockingFraction of unprocessed data.
	minBlockingFraction = 8
)

type unprocessed struct {
	// Above limit, connections are read more slowly. Above most, connections with unprocessed data are not read; the
	// difference leaves room for one request of the largest size. 0 means unlimited.
	limit, most int64
	total       atomic.Int64
	waiting     atomic.Int32 // requests that wait for the node, not for their client
	pausing     atomic.Bool  // pauseExcess is scheduled
	since       time.Time    // start of pausing; used only by pauseExcess
}

type connUnprocessed struct {
	bytes   atomic.Int64
	working atomic.Int64  // part of bytes: requests being processed by the node
	taken   atomic.Uint64 // total bytes that handlers have finished
	slow    atomic.Bool   // not read while the limit is exceeded
	held    atomic.Bool   // has data to read, but is paused
	current uint32        // most recent call; used only by the goroutine that reads the connection

	mu    sync.Mutex // guards calls and ended
	calls map[uint32]*Incoming
	ended bool

	// used only by pauseExcess: the minimum of bytes since watched, and taken at that time
	watched    time.Time
	least      int64
	takenSince uint64
	// used only by pauseExcess: the peak of bytes, its time, and taken at that time
	grown     time.Time
	peak      int64
	takenPeak uint64
}

// Incoming counts the unprocessed data of one call, and is its context.
type Incoming struct {
	context.Context //nolint:containedctx // the call's context: one allocation for both

	conn *Conn
	id   uint32

	// guarded by conn.unprocessed.mu
	bytes    int64
	working  int64 // part of bytes: the request being processed
	running  bool  // the handler is running
	over     bool  // all data has arrived
	released bool
}

type incomingKey struct{}

// Value implements context.Context. It returns in for incomingKey.
func (in *Incoming) Value(key any) any {
	if _, ok := key.(incomingKey); ok {
		return in
	}
	return in.Context.Value(key)
}

// ServerOptions returns the options for a gRPC server behind a Listener. They are required for counting the data of
// each call.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		// The connection buffers instead, to determine which frame gRPC is processing.
		grpc.ReadBufferSize(0),
		grpc.InTapHandle(func(ctx context.Context, _ *tap.Info) (context.Context, error) {
			c := FromContext(ctx)
			if c == nil || c.l.unprocessed.limit == 0 {
				return ctx, nil
			}
			return c.begin(ctx), nil
		}),
	}
}

// IncomingFromContext returns the Incoming of a call, or nil if it is not counted. Methods of a nil Incoming do
// nothing.
func IncomingFromContext(ctx context.Context) *Incoming {
	in, _ := ctx.Value(incomingKey{}).(*Incoming)
	return in
}

func (c *Conn) begin(ctx context.Context) *Incoming {
	in := &Incoming{Context: ctx, conn: c, id: c.unprocessed.current}
	c.unprocessed.mu.Lock()
	defer c.unprocessed.mu.Unlock()
	if c.unprocessed.ended {
		in.released = true
		return in
	}
	if c.unprocessed.calls == nil {
		c.unprocessed.calls = make(map[uint32]*Incoming)
	}
	c.unprocessed.calls[in.id] = in
	return in
}

// Begin records that the handler of the call has started. The data counts until End, even if the client cancels the
// call.
func (in *Incoming) Begin() {
	if in == nil {
		return
	}
	in.conn.unprocessed.mu.Lock()
	defer in.conn.unprocessed.mu.Unlock()
	in.running = true
}

// Received records that the handler of a unary call has received the request. Until the handler ends, the data does
// not count against the client.
func (in *Incoming) Received() {
	if in == nil {
		return
	}
	a := &in.conn.unprocessed
	a.mu.Lock()
	defer a.mu.Unlock()
	a.working.Add(in.bytes - in.working)
	in.working = in.bytes
}

// End is called when the handler has returned.
func (in *Incoming) End() {
	if in == nil {
		return
	}
	in.conn.unprocessed.mu.Lock()
	defer in.conn.unprocessed.mu.Unlock()
	in.running = false
	in.conn.unprocessed.working.Add(-in.working)
	in.working = 0
	if in.over {
		in.release()
	}
}

// Consumed records that the handler has finished a request of the given size.
func (in *Incoming) Consumed(bytes int) {
	if in == nil || bytes == 0 {
		return
	}
	c := in.conn
	c.unprocessed.mu.Lock()
	n := min(int64(bytes), in.bytes)
	in.bytes -= n
	c.unprocessed.mu.Unlock()
	c.gone(n)
}

// Blocked records that a request waits for the node until over is called. During that time no client is penalized for
// unprocessed data, since its requests may be queued behind this one.
func (in *Incoming) Blocked() (over func()) {
	if in == nil {
		return func() {}
	}
	waiting := &in.conn.l.unprocessed.waiting
	waiting.Add(1)
	return func() { waiting.Add(-1) }
}

// release stops counting the data of the call. conn.unprocessed.mu is held.
func (in *Incoming) release() {
	if in.released {
		return
	}
	in.released = true
	delete(in.conn.unprocessed.calls, in.id)
	in.conn.gone(in.bytes)
	in.bytes = 0
}

func (c *Conn) gone(bytes int64) {
	if bytes > 0 {
		c.unprocessed.taken.Add(uint64(bytes))
		c.unprocessed.bytes.Add(-bytes)
		c.l.unprocessed.total.Add(-bytes)
	}
}

func (c *Conn) arrived(call uint32, bytes int) {
	c.unprocessed.mu.Lock()
	in := c.unprocessed.calls[call]
	if in == nil || in.over { // gRPC drops it
		c.unprocessed.mu.Unlock()
		return
	}
	in.bytes += int64(bytes)
	c.unprocessed.bytes.Add(int64(bytes))
	total := c.l.unprocessed.total.Add(int64(bytes))
	c.unprocessed.mu.Unlock()
	if total > c.l.unprocessed.limit && !c.l.unprocessed.pausing.Swap(true) {
		time.AfterFunc(0, c.l.pauseExcess)
	}
}

// callEnded records that either end cancelled the call, or that the node has responded.
func (c *Conn) callEnded(call uint32) {
	c.unprocessed.mu.Lock()
	defer c.unprocessed.mu.Unlock()
	in := c.unprocessed.calls[call]
	if in == nil {
		return
	}
	if in.over = true; !in.running {
		in.release()
	}
}

func (c *Conn) connEnded() {
	c.unprocessed.mu.Lock()
	defer c.unprocessed.mu.Unlock()
	c.unprocessed.ended = true
	for _, in := range c.unprocessed.calls {
		if in.over = true; !in.running {
			in.release()
		}
	}
}

// await returns when the connection may be read.
func (c *Conn) await() {
	a := &c.l.unprocessed
	if a.limit == 0 || a.total.Load() <= a.limit || c.isPeer() {
		return
	}
	tick := time.NewTicker(reliefPause)
	defer tick.Stop()
	defer c.unprocessed.held.Store(false)
	for {
		total := a.total.Load()
		if total <= a.limit || !c.unprocessed.slow.Load() && (total <= a.most || c.unprocessed.bytes.Load() == 0) {
			return
		}
		c.unprocessed.held.Store(true)
		select {
		case <-tick.C:
		case <-c.over:
			return
		}
	}
}

func (c *Conn) isPeer() bool {
	caller := c.caller.Load()
	return caller != nil && caller.Peer
}

// pauseExcess selects the connections to pause, and closes a connection with too much unprocessed data for too long. It
// is rescheduled until the total is below the limit.
func (l *Listener) pauseExcess() {
	a := &l.unprocessed
	now := time.Now()
	if a.since.IsZero() {
		a.since = now
	}
	l.mu.Lock()
	holding := make([]*Conn, 0, len(l.conns))
	bySource := make(map[*source]int64)
	for _, c := range l.conns {
		if bytes := c.unprocessed.bytes.Load(); bytes > 0 && !c.isPeer() {
			holding = append(holding, c)
			bySource[c.source] += bytes
		} else {
			c.unprocessed.slow.Store(false)
		}
	}
	l.mu.Unlock()
	if a.total.Load() <= a.limit {
		for _, c := range holding {
			c.unprocessed.slow.Store(false)
		}
		a.since = time.Time{}
		a.pausing.Store(false)
		if a.total.Load() > a.limit && !a.pausing.Swap(true) {
			time.AfterFunc(0, l.pauseExcess)
		}
		return
	}
	share := a.limit / int64(max(1, len(bySource)))
	first, growth := largestHolder(holding, bySource)
	var awaited *Conn
	if first.growsBy(now, growth) {
		awaited = first
	}
	largest := l.connToClose(now, holding, bySource, awaited)
	for _, c := range holding {
		// The largest holder is still read, so that a large request can complete.
		c.unprocessed.slow.Store(c != first && bySource[c.source] > share)
	}
	if largest != nil {
		largest.CloseForMemory()
	}
	time.AfterFunc(reliefInterval, l.pauseExcess)
}

// connToClose returns the connection to close, or nil. Of the connections with too much unprocessed data, it is the one
// with the most, by address and then by connection. awaited, unless nil, has a growing request: neither it nor the
// connections that wait for it qualify. No connection qualifies while the node itself is the bottleneck.
func (l *Listener) connToClose(now time.Time, holding []*Conn, bySource map[*source]int64,
	awaited *Conn,
) (largest *Conn) {
	a := &l.unprocessed
	working := int64(0)
	for _, c := range holding {
		working += c.unprocessed.working.Load()
	}
	forNode := a.total.Load()-working <= a.limit
	share := a.limit / int64(max(1, len(bySource)))
	for _, c := range holding {
		if forNode || awaited != nil && (c == awaited || c.unprocessed.slow.Load()) {
			c.watch(now)
			continue
		}
		if c.holdsTooMuch(now, a.since) && bySource[c.source] >= share &&
			(largest == nil || c.holdsMoreThan(largest, bySource)) {
			largest = c
		}
	}
	return largest
}

// largestHolder returns the connection with the most unprocessed data, or nil, and the growth required so that others
// wait for it.
func largestHolder(holding []*Conn, bySource map[*source]int64) (first *Conn, growth int64) {
	growth = unprocessedGrowthAlone
	for _, c := range holding {
		if first == nil || c.holdsMoreThan(first, bySource) {
			first = c
		}
		if c.unprocessed.held.Load() {
			growth = unprocessedGrowth
		}
	}
	return first, growth
}

// growsBy reports whether the connection has enough unprocessed data to be awaited, and its total grew by growth bytes
// within unprocessedGrowthTime. Since reading stops at the limit, only a request that completes can keep growing.
func (c *Conn) growsBy(now time.Time, growth int64) bool {
	if c == nil {
		return false
	}
	a := &c.unprocessed
	bytes, taken := a.bytes.Load(), a.taken.Load()
	switch {
	case bytes >= a.peak+growth:
		a.grown, a.peak, a.takenPeak = now, bytes, taken
	case taken-a.takenPeak >= uint64(a.peak): // the peak was processed, and the next request arrives
		a.peak, a.takenPeak = bytes, taken
	}
	return now.Sub(a.grown) < unprocessedGrowthTime && bytes >= c.l.unprocessed.limit/minBlockingFraction
}

// CloseForMemory closes a connection because its unprocessed data occupies memory that others need.
func (c *Conn) CloseForMemory() { c.closeAndCharge(ExcessiveMemory, abandonedFraction) }

// holdsMoreThan reports whether the connection has more unprocessed data than another one: by address and, at the same
// address, by connection.
func (c *Conn) holdsMoreThan(other *Conn, bySource map[*source]int64) bool {
	if c.source != other.source {
		return bySource[c.source] > bySource[other.source]
	}
	return c.unprocessed.bytes.Load() > other.unprocessed.bytes.Load()
}

// holdsTooMuch reports whether the connection has, throughout closeDelay, held more unprocessed data than its handlers
// have finished in that time. since is the start of pausing.
func (c *Conn) holdsTooMuch(now, since time.Time) bool {
	a := &c.unprocessed
	if a.watched.Before(since) || c.l.unprocessed.waiting.Load() > 0 {
		c.watch(now)
	}
	a.least = min(a.least, c.heldBytes())
	if now.Sub(a.watched) < closeDelay {
		return false
	}
	too := a.taken.Load()-a.takenSince < uint64(a.least)
	c.watch(now)
	if too {
		a.watched = since // unchanged until it is closed
	}
	return too
}

func (c *Conn) watch(now time.Time) {
	a := &c.unprocessed
	a.watched, a.least, a.takenSince = now, c.heldBytes(), a.taken.Load()
}

// heldBytes returns the unprocessed bytes without requests that the node is processing.
func (c *Conn) heldBytes() int64 {
	return max(0, c.unprocessed.bytes.Load()-c.unprocessed.working.Load())
}
