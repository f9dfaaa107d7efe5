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

// store is the coordinator with a simulated link for each host.
type store struct {
	server *memory.Server
	within *memory.Coordinator // executes the requests that reach the coordinator

	mu      sync.Mutex // guards all fields below
	rng     *rand.Rand
	hosts   map[string]*connectivity
	changed chan struct{} // closed and replaced whenever a link changes
	ended   chan struct{} // closed at the end of the simulation
	delayed sync.WaitGroup
	leases  bool   // the lease of a killed process lasts until it expires; set before the nodes start
	failed  func() // called when a node does not receive the outcome of a swap
}

// connectivity is a host's link to the coordinator.
type connectivity struct {
	unresponsive bool        // drops all requests and responses
	next         swapOutcome // outcome of the next swap
	conns        map[*coordinator]struct{}
}

// swapOutcome is the simulated outcome of a swap.
type swapOutcome uint8

const (
	swapNormal    swapOutcome = iota
	swapReplyLost             // executed, but the response is lost
	swapLost                  // not executed, and no response
	swapDelayed               // no response, and executed up to 3 s later
)

func newRecordStore(rng *rand.Rand) *store {
	s := memory.NewServer(0)
	return &store{
		server: s, within: s.Connect(), rng: rng, hosts: map[string]*connectivity{}, changed: make(chan struct{}),
		ended: make(chan struct{}),
	}
}

// end cancels the delayed swaps.
func (a *store) end() {
	close(a.ended)
	a.delayed.Wait()
}

// connectivityOf returns a host's link. The caller holds mu.
func (a *store) connectivityOf(host string) *connectivity {
	r := a.hosts[host]
	if r == nil {
		r = &connectivity{conns: map[*coordinator]struct{}{}}
		a.hosts[host] = r
	}
	return r
}

// stopResponding drops all traffic between a host and the coordinator, or restores it. The host does not detect the
// change until notify is called.
func (a *store) stopResponding(host string, unresponsive bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.connectivityOf(host).unresponsive = unresponsive
	a.report()
}

// report wakes all waiters. The caller holds mu.
func (a *store) report() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// notify sets whether the host's connections report the coordinator as reachable.
func (a *store) notify(host string, reachable bool) {
	a.mu.Lock()
	conns := make([]*coordinator, 0, 1)
	for c := range a.connectivityOf(host).conns {
		conns = append(conns, c)
	}
	a.mu.Unlock()
	for _, c := range conns {
		c.inner.SetReachable(reachable)
	}
}

// disconnect ends the connections of a host after a kill of its process, if leases is set: the announcements of the
// process then remain until the lease expires. Otherwise it does nothing.
func (a *store) disconnect(host string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.leases {
		return
	}
	r := a.connectivityOf(host)
	for c := range r.conns {
		c.inner.SetReachable(false)
	}
	clear(r.conns) // so that notify cannot make them reachable again
}

// outcome sets the outcome of the next swap of a host.
func (a *store) outcome(host string, f swapOutcome) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.connectivityOf(host).next = f
}

// connect returns the connection of one process of a node. gone is closed when the process is killed.
func (a *store) connect(host string, gone <-chan struct{}) *coordinator {
	c := &coordinator{a: a, host: host, gone: gone, inner: a.server.Connect()}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.connectivityOf(host).conns[c] = struct{}{}
	return c
}

// coordinator is a node's connection. It implements failover.Coordinator.
type coordinator struct {
	a     *store
	host  string
	gone  <-chan struct{}
	inner *memory.Coordinator
}

var _ failover.Coordinator = (*coordinator)(nil)

// Name implements failover.Coordinator.
func (c *coordinator) Name() string { return "simulated" }

// travel simulates one way to or from the coordinator. It returns false if the message does not arrive before ctx is
// done.
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
		unresponsive, changed := c.a.connectivityOf(c.host).unresponsive, c.a.changed
		c.a.mu.Unlock()
		select {
		case <-c.gone: // neither end sends or receives
			<-ctx.Done()
			return false
		default:
		}
		if !unresponsive {
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
	r := c.a.connectivityOf(c.host)
	outcome := r.next
	r.next = swapNormal
	c.a.mu.Unlock()
	if outcome != swapNormal {
		c.a.failed()
	}
	if !c.travel(ctx) || outcome == swapLost || outcome == swapDelayed {
		if outcome == swapDelayed {
			c.later(expect, next)
		}
		return 0, failover.ErrUnknownOutcome
	}
	rev, err := c.a.within.Swap(ctx, expect, next)
	if !c.travel(ctx) || outcome == swapReplyLost {
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

// later executes a swap after a delay. By then, the node may have resolved the outcome, or may have been killed or
// replaced.
func (c *coordinator) later(expect failover.Revision, next failover.Record) {
	c.a.mu.Lock()
	delay := time.Duration(c.a.rng.Int64N(int64(3 * time.Second)))
	c.a.mu.Unlock()
	c.a.delayed.Go(func() {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
			_, _ = c.a.within.Swap(context.Background(), expect, next) // no node receives the outcome
		case <-c.a.ended:
		}
	})
}

// Watch implements failover.Coordinator. While the link drops traffic, observations are delayed. Afterwards, only the
// newest observation is delivered.
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

// arrives waits until an observation can reach the node, and then returns true. If a newer observation replaces it,
// arrives returns false and the newer observation. If ctx or in ends, it returns false and nil. An observation of an
// unreachable coordinator is not delayed, because the node itself makes it.
func (c *coordinator) arrives(
	ctx context.Context, in <-chan failover.Observation, o failover.Observation,
) (bool, *failover.Observation) {
	for {
		c.a.mu.Lock()
		unresponsive, changed := c.a.connectivityOf(c.host).unresponsive, c.a.changed
		c.a.mu.Unlock()
		if !unresponsive || !o.Reachable {
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
	delete(c.a.connectivityOf(c.host).conns, c)
	c.a.mu.Unlock()
	return c.inner.Close()
}
