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

// What clients have sent that the node's handlers have not taken yet is in memory. HTTP/2's flow control bounds that
// for each call, and not for the thousands of calls that a connection may have. This file counts it for all calls of
// all connections: the frames of data as they come, and the requests as the handlers are done with them. Above the
// limit, connections from addresses that hold more than their share are not read any more, and those are closed whose
// clients hold much and let hardly anything of it be carried out. A large request over a slow line is not that, as long
// as it goes on coming, nor is one that has come whole: what it waits for then is the node.

const (
	// aheadTick is how often the connections are looked at while there is too much.
	aheadTick = 10 * time.Millisecond
	// aheadPause is how often a connection that is not read looks whether it may go on.
	aheadPause = 5 * time.Millisecond
	// aheadPatience is how long a connection may hold more than what of it was carried out in that time.
	aheadPatience = 3 * time.Second
	// The connection that holds most is left to bring its request to its end as long as it brings aheadGrowth within
	// aheadGrowthTime, or aheadGrowthAlone while nobody has to wait for it.
	aheadGrowth      = 1 << 20
	aheadGrowthAlone = 64 << 10
	aheadGrowthTime  = time.Second
	// aheadMuch is which part of the limit a connection must hold for others to wait for it.
	aheadMuch = 8
)

// ahead is what all connections of a Listener have sent ahead.
type ahead struct {
	// limit, beyond which connections are read more slowly, and most, beyond which no connection is read that has sent
	// anything ahead: a request of the largest size can be received beside what others hold. 0: there is none.
	limit, most int64
	total       atomic.Int64
	waiting     atomic.Int32 // requests that wait for the node and not for their client
	relieving   atomic.Bool  // relieve runs again and again
	since       time.Time    // it began; of relieve alone
}

// aheadOf is what one connection has sent ahead.
type aheadOf struct {
	bytes atomic.Int64
	// working is how much of them are requests that the node is carrying out.
	working atomic.Int64
	// taken is how much of what was sent the handlers were done with, ever.
	taken atomic.Uint64
	slow  atomic.Bool // it is not to be read while there is too much
	held  atomic.Bool // it would be read now, and is not
	// current is the call that the client has begun last; of the goroutine that reads the connection alone.
	current uint32

	mu    sync.Mutex // guards calls and ended
	calls map[uint32]*Incoming
	ended bool

	// of relieve alone: what it held at least since then, and what had been taken then
	watched   time.Time
	least     int64
	takenThen uint64
	// of relieve alone: the most that it held, when it came to that, and what had been taken then
	grown     time.Time
	peak      int64
	takenPeak uint64
}

// Incoming is what a client has sent of one call, and no handler is done with. It is the context of the call, too.
type Incoming struct {
	context.Context //nolint:containedctx // it is the call's context: one allocation for both

	conn *Conn
	id   uint32

	// guarded by conn.ahead.mu
	bytes    int64
	working  int64 // of them, those of a request that the node is carrying out
	running  bool  // its handler
	over     bool  // nothing more comes of it
	released bool
}

type incomingKey struct{}

// Value returns the Incoming itself for its own key.
func (in *Incoming) Value(key any) any {
	if _, ok := key.(incomingKey); ok {
		return in
	}
	return in.Context.Value(key)
}

// ServerOptions are for a server of gRPC whose connections a Listener lets in: it sees what each call sends.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		// The connection has a buffer of its own, so that it knows which frame gRPC looks at.
		grpc.ReadBufferSize(0),
		grpc.InTapHandle(func(ctx context.Context, _ *tap.Info) (context.Context, error) {
			c := Of(ctx)
			if c == nil || c.l.ahead.limit == 0 {
				return ctx, nil
			}
			return c.begin(ctx), nil
		}),
	}
}

// IncomingOf returns what a client sends for the call of that context; nil if it is not counted. The methods of a nil
// one do nothing.
func IncomingOf(ctx context.Context) *Incoming {
	in, _ := ctx.Value(incomingKey{}).(*Incoming)
	return in
}

// begin notes the call that the client has begun last.
func (c *Conn) begin(ctx context.Context) *Incoming {
	in := &Incoming{Context: ctx, conn: c, id: c.ahead.current}
	c.ahead.mu.Lock()
	defer c.ahead.mu.Unlock()
	if c.ahead.ended {
		in.released = true
		return in
	}
	if c.ahead.calls == nil {
		c.ahead.calls = make(map[uint32]*Incoming)
	}
	c.ahead.calls[in.id] = in
	return in
}

// Begin is called when the handler of the call begins, and End must be called when it has ended: until then, what the
// client has sent is in memory even if the client has given the call up.
func (in *Incoming) Begin() {
	if in == nil {
		return
	}
	in.conn.ahead.mu.Lock()
	defer in.conn.ahead.mu.Unlock()
	in.running = true
}

// Works is called when the handler of a call with one request has received it: until the handler ends, its client is
// not to blame for what it holds.
func (in *Incoming) Works() {
	if in == nil {
		return
	}
	a := &in.conn.ahead
	a.mu.Lock()
	defer a.mu.Unlock()
	a.working.Add(in.bytes - in.working)
	in.working = in.bytes
}

// End is called when the handler of the call has ended.
func (in *Incoming) End() {
	if in == nil {
		return
	}
	in.conn.ahead.mu.Lock()
	defer in.conn.ahead.mu.Unlock()
	in.running = false
	in.conn.ahead.working.Add(-in.working)
	in.working = 0
	if in.over {
		in.release()
	}
}

// Took notes that the handler is done with a request of so many bytes.
func (in *Incoming) Took(bytes int) {
	if in == nil || bytes == 0 {
		return
	}
	c := in.conn
	c.ahead.mu.Lock()
	n := min(int64(bytes), in.bytes)
	in.bytes -= n
	c.ahead.mu.Unlock()
	c.gone(n)
}

// Waits notes that a request waits for the node itself, until over is called: no client is to blame for what it holds
// meanwhile, neither its own nor those whose requests have to wait for this one.
func (in *Incoming) Waits() (over func()) {
	if in == nil {
		return func() {}
	}
	waiting := &in.conn.l.ahead.waiting
	waiting.Add(1)
	return func() { waiting.Add(-1) }
}

// release has all of it not count any more. conn.ahead.mu is held.
func (in *Incoming) release() {
	if in.released {
		return
	}
	in.released = true
	delete(in.conn.ahead.calls, in.id)
	in.conn.gone(in.bytes)
	in.bytes = 0
}

// gone has bytes not count any more.
func (c *Conn) gone(bytes int64) {
	if bytes > 0 {
		c.ahead.taken.Add(uint64(bytes))
		c.ahead.bytes.Add(-bytes)
		c.l.ahead.total.Add(-bytes)
	}
}

// arrived notes data of a call.
func (c *Conn) arrived(call uint32, bytes int) {
	c.ahead.mu.Lock()
	in := c.ahead.calls[call]
	if in == nil || in.over { // gRPC drops it
		c.ahead.mu.Unlock()
		return
	}
	in.bytes += int64(bytes)
	c.ahead.bytes.Add(int64(bytes))
	total := c.l.ahead.total.Add(int64(bytes))
	c.ahead.mu.Unlock()
	if total > c.l.ahead.limit && !c.l.ahead.relieving.Swap(true) {
		time.AfterFunc(0, c.l.relieve)
	}
}

// over notes that nothing more comes of a call: one end has given it up, or the node has answered.
func (c *Conn) callOver(call uint32) {
	c.ahead.mu.Lock()
	defer c.ahead.mu.Unlock()
	in := c.ahead.calls[call]
	if in == nil {
		return
	}
	if in.over = true; !in.running {
		in.release()
	}
}

// allOver notes that the connection has ended.
func (c *Conn) allOver() {
	c.ahead.mu.Lock()
	defer c.ahead.mu.Unlock()
	c.ahead.ended = true
	for _, in := range c.ahead.calls {
		if in.over = true; !in.running {
			in.release()
		}
	}
}

// await returns when the connection may be read on.
func (c *Conn) await() {
	a := &c.l.ahead
	if a.limit == 0 || a.total.Load() <= a.limit || c.isPeer() {
		return
	}
	tick := time.NewTicker(aheadPause)
	defer tick.Stop()
	defer c.ahead.held.Store(false)
	for {
		total := a.total.Load()
		if total <= a.limit || !c.ahead.slow.Load() && (total <= a.most || c.ahead.bytes.Load() == 0) {
			return
		}
		c.ahead.held.Store(true)
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

// relieve looks which connections are to be read no more for now, and closes one of those that have held too much for
// too long, until there is no longer too much.
func (l *Listener) relieve() {
	a := &l.ahead
	now := time.Now()
	if a.since.IsZero() {
		a.since = now
	}
	l.mu.Lock()
	holding := make([]*Conn, 0, len(l.conns))
	bySource := make(map[*source]int64)
	for _, c := range l.conns {
		if bytes := c.ahead.bytes.Load(); bytes > 0 && !c.isPeer() {
			holding = append(holding, c)
			bySource[c.source] += bytes
		} else {
			c.ahead.slow.Store(false)
		}
	}
	l.mu.Unlock()
	if a.total.Load() <= a.limit {
		for _, c := range holding {
			c.ahead.slow.Store(false)
		}
		a.since = time.Time{}
		a.relieving.Store(false)
		if a.total.Load() > a.limit && !a.relieving.Swap(true) {
			time.AfterFunc(0, l.relieve)
		}
		return
	}
	share := a.limit / int64(max(1, len(bySource)))
	first, growth := firstOf(holding, bySource)
	var awaited *Conn
	if first.growsBy(now, growth) {
		awaited = first
	}
	worst := l.worstOf(now, holding, bySource, awaited)
	for _, c := range holding {
		// The one that holds most goes on, so that a large request comes to its end.
		c.ahead.slow.Store(c != first && bySource[c.source] > share)
	}
	if worst != nil {
		worst.Hoards()
	}
	time.AfterFunc(aheadTick, l.relieve)
}

// worstOf returns the connection to close: the largest holder among those that hold too much, counted per connection
// and per address; nil if no connection qualifies. awaited, if not nil, is the connection whose request is still
// growing: neither it nor the connections that wait for it qualify. None does while the node itself is the bottleneck.
func (l *Listener) worstOf(now time.Time, holding []*Conn, bySource map[*source]int64, awaited *Conn) (worst *Conn) {
	a := &l.ahead
	working := int64(0)
	for _, c := range holding {
		working += c.ahead.working.Load()
	}
	forNode := a.total.Load()-working <= a.limit
	share := a.limit / int64(max(1, len(bySource)))
	for _, c := range holding {
		if forNode || awaited != nil && (c == awaited || c.ahead.slow.Load()) {
			c.watch(now)
			continue
		}
		if c.holdsTooMuch(now, a.since) && bySource[c.source] >= share &&
			(worst == nil || c.holdsMoreThan(worst, bySource)) {
			worst = c
		}
	}
	return worst
}

// firstOf is the connection that holds most, and how much it has to bring so that the others are to wait for it; nil if
// none holds anything.
func firstOf(holding []*Conn, bySource map[*source]int64) (first *Conn, growth int64) {
	growth = aheadGrowthAlone
	for _, c := range holding {
		if first == nil || c.holdsMoreThan(first, bySource) {
			first = c
		}
		if c.ahead.held.Load() {
			growth = aheadGrowth
		}
	}
	return first, growth
}

// growsBy reports whether the connection holds much and its total grew by growth bytes within aheadGrowthTime. That
// cannot last unless the request completes, since reading stops at the limit.
func (c *Conn) growsBy(now time.Time, growth int64) bool {
	if c == nil {
		return false
	}
	a := &c.ahead
	bytes, taken := a.bytes.Load(), a.taken.Load()
	switch {
	case bytes >= a.peak+growth:
		a.grown, a.peak, a.takenPeak = now, bytes, taken
	case taken-a.takenPeak >= uint64(a.peak): // all of that was carried out, and another request comes
		a.peak, a.takenPeak = bytes, taken
	}
	return now.Sub(a.grown) < aheadGrowthTime && bytes >= c.l.ahead.limit/aheadMuch
}

// Hoards closes the connection: its client holds memory that others need, and lets the node carry out hardly anything.
func (c *Conn) Hoards() {
	limits := c.l.o.Limits()
	c.l.mu.Lock()
	c.source.owe(abandonShare, limits)
	c.l.mu.Unlock()
	c.l.tell(Hoarding, c.source.host, limits)
	_ = c.end() // it is given up
}

// holdsMoreThan compares the addresses of two connections first.
func (c *Conn) holdsMoreThan(other *Conn, bySource map[*source]int64) bool {
	if c.source != other.source {
		return bySource[c.source] > bySource[other.source]
	}
	return c.ahead.bytes.Load() > other.ahead.bytes.Load()
}

// holdsTooMuch tells whether the connection has held more for some time than what of it was carried out meanwhile.
// since is when relieve began to look.
func (c *Conn) holdsTooMuch(now, since time.Time) bool {
	a := &c.ahead
	if a.watched.Before(since) || c.l.ahead.waiting.Load() > 0 {
		c.watch(now)
	}
	a.least = min(a.least, c.toBlame())
	if now.Sub(a.watched) < aheadPatience {
		return false
	}
	too := a.taken.Load()-a.takenThen < uint64(a.least)
	c.watch(now)
	if too {
		a.watched = since // it stays so until it is closed
	}
	return too
}

// watch begins anew to look what the connection holds, and what of it is carried out.
func (c *Conn) watch(now time.Time) {
	a := &c.ahead
	a.watched, a.least, a.takenThen = now, c.toBlame(), a.taken.Load()
}

// toBlame is what the connection holds without what the node is carrying out.
func (c *Conn) toBlame() int64 { return max(0, c.ahead.bytes.Load()-c.ahead.working.Load()) }
