// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// A pair can be lost permanently, and its queues can get other owners. An operation that is sent to a pair without an
// active node therefore asks the home pair for the owner of its queue periodically.

// lookupProbes is the number of probe intervals that an operation waits for an active node of another pair before it
// asks the home pair, and between two such lookups. With default settings, this time is usually longer than a
// failover.
const lookupProbes = 5

// errNoActive is returned by await if the caller must look up the owner of its queue.
var errNoActive = errors.New("no node of the pair is active")

// errFormerOwner is the cause of the error of a publish with an unknown outcome that can no longer be retried.
var errFormerOwner = errors.New("the queue has another owner, and no node of its former owner is active")

// await is like locator.waitFor. If a pair other than the home pair has no active node for some time, it returns
// errNoActive.
func (c *Client) await(ctx context.Context, pair *pairConn, failFast bool) (*target, error) {
	if pair == c.owners.home {
		return pair.locator.waitFor(ctx, failFast)
	}
	if t, _ := pair.locator.state(); t != nil {
		return t, nil
	}
	limited, cancel := context.WithTimeout(ctx, c.lookupInterval())
	defer cancel()
	t, err := pair.locator.waitFor(limited, failFast)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil, errNoActive
	}
	return t, err
}

// lookupInterval returns a random time of about lookupProbes probe intervals, so that the lookups of many clients are
// distributed over time.
func (c *Client) lookupInterval() time.Duration {
	b := c.opts.newBackoff()
	b.InitialInterval = lookupProbes * c.opts.ProbeInterval
	b.MaxInterval = b.InitialInterval
	return b.NextBackOff()
}

// lookUp asks the home pair for the owner of a queue, and returns the owner after its active node has confirmed it. It
// returns nil if the owner is still the pair lost, which has no active node, or if the owner cannot be determined. The
// error is not nil if the queue is partitioned. Before the request, lookUp removes the entries of the pair lost from
// the cache of owners.
func (c *Client) lookUp(ctx context.Context, lost *pairConn, queue string) (*pairConn, *Error) {
	home := c.owners.home
	if t, _ := home.locator.state(); t == nil {
		return nil, nil
	}
	c.owners.unavailable(lost)
	ctx, cancel := context.WithTimeout(ctx, c.opts.ProbeInterval)
	defer cancel()
	for way := c.pathTo(home); way.pair != lost; {
		t, err := way.pair.locator.waitLong(ctx)
		if err != nil {
			return nil, nil
		}
		err = attempt(ctx, t, func(ctx context.Context, cc *grpc.ClientConn) error {
			_, err := queues(cc).GetQueue(ctx, &pb.GetQueueRequest{Name: queue})
			return err
		})
		if err == nil {
			return way.pair, nil
		}
		e := way.follow(asError(ctx, t.node.address, err), nil)
		if e.partitioned != nil {
			return nil, e
		}
		if !way.moved {
			return nil, nil
		}
	}
	return nil, nil
}

// restart sends the next attempt to the home pair, which returns the owner of the queue. It does nothing if the home
// pair has no active node, if only this pair can execute the request, or if the request has a producer identity and
// an earlier attempt may have been committed.
func (w *path) restart(d *attempts) {
	home := w.client.owners.home
	if t, _ := home.locator.state(); t == nil || d.pinned || d.check != nil || d.move != nil && d.unknown {
		return
	}
	w.client.owners.unavailable(w.pair)
	if d.move != nil {
		d.move(home)
	}
	w.pair = home
	w.progress()
}

// target waits for the active node of the pair that the consumer is or will be attached to.
func (co *Consumer) target(ctx context.Context) (*pairConn, *target, error) {
	for {
		pair := co.pair()
		t, err := co.client.await(ctx, pair, false)
		if !errors.Is(err, errNoActive) {
			return pair, t, err
		}
		owner, refused := co.client.lookUp(ctx, pair, co.queue)
		if refused != nil {
			return pair, nil, refused
		}
		if owner != nil {
			co.mu.Lock()
			co.way = co.client.pathTo(owner)
			co.leavePair()
			co.mu.Unlock()
		}
	}
}

// lookUp looks up the owners of the queues with publishes in the pipeline, while its pair has no active node. It sends
// the publishes to a queue with another owner there.
func (pl *pipeline) lookUp(ctx context.Context) {
	for _, queue := range pl.queues() {
		owner, partitioned := pl.client.lookUp(ctx, pl.pair, queue)
		if owner != nil || partitioned != nil {
			pl.leave(queue, owner, partitioned)
		}
		if t, _ := pl.pair.locator.state(); t != nil || ctx.Err() != nil {
			return
		}
	}
}

// queues returns the queues with publishes in the pipeline.
func (pl *pipeline) queues() (names []string) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	seen := make(map[string]bool)
	add := func(queue string) {
		if !seen[queue] {
			seen[queue] = true
			names = append(names, queue)
		}
	}
	for i := range pl.inFlight.len() {
		add((*pl.inFlight.at(i)).queue)
	}
	for i := range pl.pending.len() {
		if e := *pl.pending.at(i); !e.withdrawn {
			add(e.queue)
		}
	}
	return names
}

// leave sends the publishes to a queue to its new owner, or to its partitions. Requests that were sent may have been
// committed by the pair of this pipeline, so they fail: only this pair could return their outcome. The caller ensures
// that no stream is open.
func (pl *pipeline) leave(queue string, owner *pairConn, partitioned *Error) {
	p := pl.producer
	pl.mu.Lock()
	unknown := pl.takeSent(queue)
	pl.mu.Unlock()
	if len(unknown) > 0 { // before later publishes to the queue are completed
		p.answer(unknown, Receipt{}, &opError{
			op: "publish to " + queue, cause: errFormerOwner, last: pl.pair.locator.explain(), unknown: true,
		})
	}
	pl.mu.Lock()
	defer pl.mu.Unlock()
	rt := p.routes[queue]
	if rt == nil || rt.pl != pl || rt.moving {
		return // the last publish was completed in the meantime
	}
	for _, e := range pl.extract(queue) {
		rt.queued.push(e)
	}
	if partitioned != nil {
		pl.client.partitions.learn(partitioned.partitioned)
		rt.partitions = int(partitioned.partitioned.GetCount())
		p.divideAll(rt, queue)
		return
	}
	rt.way = pl.client.pathTo(owner)
	rt.reset()
	p.transfer(rt)
}

// takeSent removes the requests for a queue from inFlight, and returns the entries of those that were sent. The entries
// of the others are returned to pending. mu is held.
func (pl *pipeline) takeSent(queue string) (sent []*Pending) {
	var unsent []*Pending
	for range pl.inFlight.len() {
		r := pl.inFlight.pop()
		switch {
		case r.queue != queue:
			pl.inFlight.push(r)
			continue
		case r.sent:
			sent = append(sent, r.entries...)
		default:
			unsent = append(unsent, r.entries...)
		}
		pl.unanswered -= r.messages
	}
	for _, e := range slices.Backward(unsent) {
		e.taken = false
		pl.pending.pushFirst(e)
		pl.count += int(e.count)
		pl.bytes += e.bytes
	}
	pl.sent, pl.frames = 0, 0
	return sent
}
