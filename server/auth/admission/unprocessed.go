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

// Requests that handlers have not processed occupy memory. Therefore the bytes of all calls of all connections are
// counted: the size of received DATA frames minus the size of requests that handlers have finished.
//
// Above the limit, connections are not read if their address has more than its fraction of the data. The connection
// with the most data is still read. A connection is closed if too much of its data cannot be processed. Two exceptions
// apply: a large request over a slow line that keeps growing, and a complete request that waits for the node.

const (
	reliefInterval = 10 * time.Millisecond // interval of checks while the limit is exceeded
	reliefPause    = 5 * time.Millisecond  // interval at which a paused connection checks whether it may be read
	// closeDelay is the time in which a connection must process as much data as it has unprocessed.
	closeDelay = 3 * time.Second
	// The connection with the most unprocessed data may complete its request if it grows by unprocessedGrowth within
	// unprocessedGrowthTime. While no connection is paused, growth by unprocessedGrowthAlone is sufficient.
	unprocessedGrowth      = 1 << 20
	unprocessedGrowthAlone = 64 << 10
	unprocessedGrowthTime  = time.Second
	// Other connections wait for a connection only if it has at least limit/minBlockingFraction of unprocessed data.
	minBlockingFraction = 8
)

type unprocessed struct {
	// Above limit, some connections are not read (see pauseExcess). Above most, no connection with unprocessed data is
	// read. The difference is sufficient for one request of the largest size. If limit is 0, there is no limit.
	limit, most int64
	total       atomic.Int64
	waiting     atomic.Int32 // number of requests that wait for the node, not for their client
	pausing     atomic.Bool  // pauseExcess is scheduled
	since       time.Time    // start of pausing; used only by pauseExcess
}

type connUnprocessed struct {
	bytes   atomic.Int64
	working atomic.Int64  // size of the requests that the node is processing, included in bytes
	taken   atomic.Uint64 // total size of requests that handlers have finished
	slow    atomic.Bool   // the connection is not read while the limit is exceeded
	held    atomic.Bool   // the connection waits in await
	current uint32        // ID of the most recent call; used only by the goroutine that reads the connection

	mu    sync.Mutex // guards calls and ended
	calls map[uint32]*Incoming
	ended bool

	// Used only by pauseExcess: least is the minimum of bytes since watched, and takenSince is the value of taken at
	// watched.
	watched    time.Time
	least      int64
	takenSince uint64
	// Used only by pauseExcess: peak is the maximum of bytes, grown is its time, and takenPeak is the value of taken
	// then.
	grown     time.Time
	peak      int64
	takenPeak uint64
}

// Incoming counts the unprocessed data of one call. It is also the context of the call.
type Incoming struct {
	context.Context //nolint:containedctx // context of the call: one allocation for both

	conn *Conn
	id   uint32

	// The fields below are guarded by conn.unprocessed.mu.
	bytes    int64
	working  int64 // size of the request that the node is processing, included in bytes
	running  bool  // the handler is running
	over     bool  // the call was canceled or answered, so further data is not counted
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

// ServerOptions returns the options for a gRPC server behind a Listener. The data of calls is counted only with
// these options.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		// wire buffers the data instead, to determine which frame gRPC is processing.
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

// IncomingFromContext returns the Incoming of a call. It returns nil if the data of the call is not counted. Begin,
// Received, End, Consumed and Blocked do nothing for a nil Incoming.
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

// Begin records that the handler of the call has started. The data of the call counts until End, even if the
// client cancels the call.
func (in *Incoming) Begin() {
	if in == nil {
		return
	}
	in.conn.unprocessed.mu.Lock()
	defer in.conn.unprocessed.mu.Unlock()
	in.running = true
}

// Received records that the handler of a unary call has received the request. Until the handler ends, the data of
// the request does not count against the client.
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

// End records that the handler has returned.
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

// Consumed records that the handler has finished a request of the given size in bytes.
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

// Blocked records that a request waits for the node until over is called. During that time, no connection is closed
// for unprocessed data.
func (in *Incoming) Blocked() (over func()) {
	if in == nil {
		return func() {}
	}
	waiting := &in.conn.l.unprocessed.waiting
	waiting.Add(1)
	return func() { waiting.Add(-1) }
}

// release stops counting the data of the call. The caller must hold conn.unprocessed.mu.
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
	if in == nil || in.over { // gRPC discards the data
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

// callEnded records that the client or the node has canceled the call, or that the node has responded.
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

// await waits until the connection may be read.
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

// pauseExcess selects the connections to pause. It closes a connection that had too much unprocessed data for too
// long. It reschedules itself until the total does not exceed the limit.
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
		// The largest holder is still read: a large request must be able to complete.
		c.unprocessed.slow.Store(c != first && bySource[c.source] > share)
	}
	if largest != nil {
		largest.CloseForMemory()
	}
	time.AfterFunc(reliefInterval, l.pauseExcess)
}

// connToClose returns the connection to close, or nil. It considers the connections with too much unprocessed data,
// of addresses with at least an equal fraction of the limit. Among these, it selects the address with the most data,
// and then the connection with the most data. If awaited is not nil, its request is growing. In that case, neither
// awaited nor the connections that wait for it are selected. While the node itself is the bottleneck, no connection is
// selected.
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

// largestHolder returns the connection with the most unprocessed data, or nil. It also returns the number of
// bytes by which that connection must grow so that other connections wait for it.
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

// growsBy reports whether the connection has so much unprocessed data that others wait for it, and has grown by
// growth bytes within unprocessedGrowthTime.
func (c *Conn) growsBy(now time.Time, growth int64) bool {
	if c == nil {
		return false
	}
	a := &c.unprocessed
	bytes, taken := a.bytes.Load(), a.taken.Load()
	switch {
	case bytes >= a.peak+growth:
		a.grown, a.peak, a.takenPeak = now, bytes, taken
	case taken-a.takenPeak >= uint64(a.peak): // the peak was processed, so this is the next request
		a.peak, a.takenPeak = bytes, taken
	}
	return now.Sub(a.grown) < unprocessedGrowthTime && bytes >= c.l.unprocessed.limit/minBlockingFraction
}

// CloseForMemory closes a connection that has too much unprocessed data.
func (c *Conn) CloseForMemory() { c.closeAndCharge(ExcessiveMemory, abandonedFraction) }

// holdsMoreThan reports whether the connection has more unprocessed data than other. Connections of different
// addresses are compared by the data of their addresses.
func (c *Conn) holdsMoreThan(other *Conn, bySource map[*source]int64) bool {
	if c.source != other.source {
		return bySource[c.source] > bySource[other.source]
	}
	return c.unprocessed.bytes.Load() > other.unprocessed.bytes.Load()
}

// holdsTooMuch reports whether, during the last closeDelay, the connection always had more unprocessed data than its
// handlers finished in that time. since is the start of pausing.
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
		a.watched = since // report true again until the connection is closed
	}
	return too
}

func (c *Conn) watch(now time.Time) {
	a := &c.unprocessed
	a.watched, a.least, a.takenSince = now, c.heldBytes(), a.taken.Load()
}

// heldBytes returns the size of the unprocessed data, without the requests that the node is processing.
func (c *Conn) heldBytes() int64 {
	return max(0, c.unprocessed.bytes.Load()-c.unprocessed.working.Load())
}
