// SPDX-License-Identifier: Apache-2.0

//go:build unix

package simulation

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/memory"
)

// authority is the coordinator, and the way to it of each host.
type authority struct {
	server *memory.Server
	within *memory.Coordinator // where requests are carried out that have got there

	mu      sync.Mutex // guards all below
	rng     *rand.Rand
	hosts   map[string]*reach
	changed chan struct{} // closed and replaced whenever a way to the coordinator changes
	ended   chan struct{} // closed at the end of the simulation
	late    sync.WaitGroup
	leases  bool   // the lease of a process that is killed goes on until it ends; set before the nodes start
	struck  func() // called when the outcome of a swap is kept from its node
}

// reach is a host's way to the coordinator.
type reach struct {
	silent bool     // nothing gets there, and nothing comes back
	next   swapFate // of the next swap from there
	conns  map[*coordinator]struct{}
}

// swapFate is what becomes of a swap.
type swapFate uint8

const (
	swapNormal    swapFate = iota
	swapReplyLost          // done, but the node is not told
	swapLost               // not done, and the node is not told
	swapLate               // done only after the node has given up waiting
)

func newAuthority(rng *rand.Rand) *authority {
	s := memory.NewServer(0)
	return &authority{
		server: s, within: s.Connect(), rng: rng, hosts: map[string]*reach{}, changed: make(chan struct{}),
		ended: make(chan struct{}),
	}
}

// end waits for what is under way.
func (a *authority) end() {
	close(a.ended)
	a.late.Wait()
}

// reach returns a host's way. mu is held.
func (a *authority) reach(host string) *reach {
	r := a.hosts[host]
	if r == nil {
		r = &reach{conns: map[*coordinator]struct{}{}}
		a.hosts[host] = r
	}
	return r
}

// setSilent swallows all between a host and the coordinator, or lets it through again. The host is not told: see
// notice.
func (a *authority) setSilent(host string, silent bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reach(host).silent = silent
	a.tell()
}

// tell wakes all who wait. mu is held.
func (a *authority) tell() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// notice has the host's connections find out that the coordinator can, or cannot be reached.
func (a *authority) notice(host string, reachable bool) {
	a.mu.Lock()
	conns := make([]*coordinator, 0, 1)
	for c := range a.reach(host).conns {
		conns = append(conns, c)
	}
	a.mu.Unlock()
	for _, c := range conns {
		c.inner.SetReachable(reachable)
	}
}

// forsake ends the connections of a host whose process is killed: it says no farewell. Without leases its announcements
// go at once.
func (a *authority) forsake(host string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.leases {
		return
	}
	r := a.reach(host)
	for c := range r.conns {
		c.inner.SetReachable(false)
	}
	clear(r.conns) // nothing makes them reachable again
}

// fate decides over the next swap of a host.
func (a *authority) fate(host string, f swapFate) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reach(host).next = f
}

// connect is one run of a node connecting. gone is closed when its process is killed.
func (a *authority) connect(host string, gone <-chan struct{}) *coordinator {
	c := &coordinator{a: a, host: host, gone: gone, inner: a.server.Connect()}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reach(host).conns[c] = struct{}{}
	return c
}

// coordinator is a node's connection. It implements failover.Coordinator.
type coordinator struct {
	a     *authority
	host  string
	gone  <-chan struct{}
	inner *memory.Coordinator
}

var _ failover.Coordinator = (*coordinator)(nil)

// Name implements failover.Coordinator.
func (c *coordinator) Name() string { return "simulated" }

// travel takes a message to the coordinator or back: false when it does not arrive before ctx ends.
func (c *coordinator) travel(ctx context.Context) bool {
	c.a.mu.Lock()
	delay := 200*time.Microsecond + time.Duration(c.a.rng.Int64N(int64(2*time.Millisecond)))
	c.a.mu.Unlock()
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return false
	}
	for {
		c.a.mu.Lock()
		silent, changed := c.a.reach(c.host).silent, c.a.changed
		c.a.mu.Unlock()
		select {
		case <-c.gone: // neither end sends or listens any more
			<-ctx.Done()
			return false
		default:
		}
		if !silent {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// Load implements failover.Coordinator.
func (c *coordinator) Load(ctx context.Context) (failover.Record, failover.Revision, error) {
	if !c.travel(ctx) {
		return failover.Record{}, 0, failover.ErrUnreachable
	}
	rec, rev, err := c.a.within.Load(ctx)
	if !c.travel(ctx) {
		return failover.Record{}, 0, failover.ErrUnreachable
	}
	return rec, rev, err
}

// Swap implements failover.Coordinator.
func (c *coordinator) Swap(
	ctx context.Context, expect failover.Revision, next failover.Record,
) (failover.Revision, error) {
	next = next.Clone()
	c.a.mu.Lock()
	r := c.a.reach(c.host)
	fate := r.next
	r.next = swapNormal
	c.a.mu.Unlock()
	if fate != swapNormal {
		c.a.struck()
	}
	if !c.travel(ctx) || fate == swapLost || fate == swapLate {
		if fate == swapLate {
			c.later(expect, next)
		}
		return 0, failover.ErrUnknownOutcome
	}
	rev, err := c.a.within.Swap(ctx, expect, next)
	if !c.travel(ctx) || fate == swapReplyLost {
		return 0, failover.ErrUnknownOutcome
	}
	return rev, err
}

// WriteMark implements failover.Coordinator.
func (c *coordinator) WriteMark(ctx context.Context, m failover.Mark) (failover.Mark, error) {
	if !c.travel(ctx) {
		return failover.Mark{}, failover.ErrUnknownOutcome
	}
	before, err := c.a.within.WriteMark(ctx, m)
	if !c.travel(ctx) {
		return failover.Mark{}, failover.ErrUnknownOutcome
	}
	return before, err
}

// LoadMark implements failover.Coordinator.
func (c *coordinator) LoadMark(ctx context.Context) (failover.Mark, error) {
	if !c.travel(ctx) {
		return failover.Mark{}, failover.ErrUnreachable
	}
	m, err := c.a.within.LoadMark(ctx)
	if !c.travel(ctx) {
		return failover.Mark{}, failover.ErrUnreachable
	}
	return m, err
}

// later does a swap that was held up on the way: its node may have settled the matter by then, be replaced, or be dead.
func (c *coordinator) later(expect failover.Revision, next failover.Record) {
	c.a.mu.Lock()
	delay := time.Duration(c.a.rng.Int64N(int64(3 * time.Second)))
	c.a.mu.Unlock()
	c.a.late.Go(func() {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
			_, _ = c.a.within.Swap(context.Background(), expect, next) // no node waits for it
		case <-c.a.ended:
		}
	})
}

// Watch implements failover.Coordinator. Observations travel, too; of those that wait, only the newest is seen.
func (c *coordinator) Watch(ctx context.Context) <-chan failover.Observation {
	in, out := c.inner.Watch(ctx), make(chan failover.Observation)
	go func() {
		defer close(out)
		for o := range in {
			for {
				fresh, newer := c.arrives(ctx, in, o)
				if fresh {
					break
				}
				if newer == nil {
					return
				}
				o = *newer
			}
			select {
			case out <- o:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// arrives waits until an observation has got to the node, or there is a newer one; neither when ctx ends. That nothing
// can be reached is seen by the node itself.
func (c *coordinator) arrives(
	ctx context.Context, in <-chan failover.Observation, o failover.Observation,
) (bool, *failover.Observation) {
	for {
		c.a.mu.Lock()
		silent, changed := c.a.reach(c.host).silent, c.a.changed
		c.a.mu.Unlock()
		if !silent || !o.Reachable {
			return true, nil
		}
		select {
		case newer, ok := <-in:
			if !ok {
				return false, nil
			}
			return false, &newer
		case <-changed:
		case <-ctx.Done():
			return false, nil
		}
	}
}

// Announce implements failover.Coordinator.
func (c *coordinator) Announce(ctx context.Context, live failover.Live) error {
	return c.inner.Announce(ctx, live)
}

// Close implements failover.Coordinator.
func (c *coordinator) Close() error {
	c.a.mu.Lock()
	delete(c.a.reach(c.host).conns, c)
	c.a.mu.Unlock()
	return c.inner.Close()
}
