// SPDX-License-Identifier: Apache-2.0

package client

import (
	"time"

	"github.com/cenkalti/backoff/v5"
)

// route determines the pipeline of one queue in a producer. While a route is moving, all publishes to the queue wait
// until the previous pipeline has no request for the queue in flight. They are then sent on the next pipeline, so their
// order is retained. Producer.mu guards the fields.
type route struct {
	pl   *pipeline // pipeline of the publishes that are not in refused or queued
	way  path      // its pair is the one that the queue belongs to
	open int       // entries of the queue that are neither answered nor withdrawn

	moving bool // pl has received a refusal that concerns the owner or the partitions
	wait   bool // wait before the publishes are sent again
	retry  *backoff.ExponentialBackOff
	after  time.Duration // delay requested by the node
	timer  *time.Timer   // waits before the publishes are sent again; nil if not started
	// partitions is the number of partitions, if the queue has turned out to be partitioned: the publishes are then sent
	// to the partitions.
	partitions int
	last       *Error // last DIRECTORY_UNAVAILABLE since the last reset; nil if none
	refused    fifo[*Pending]
	queued     fifo[*Pending] // entries that follow all requests in flight
	reserved   reservation    // part of pl.reserved
}

func (p *Producer) addRoute(queue string, pl *pipeline) *route {
	if p.routes == nil {
		p.routes = make(map[string]*route)
	}
	for other, rt := range p.routes {
		if len(p.routes) < maxOwners {
			break
		}
		if rt.open == 0 && !rt.moving {
			delete(p.routes, other)
		}
	}
	rt := &route{pl: pl, way: p.client.pathTo(pl.pair)}
	p.routes[queue] = rt
	return rt
}

// reset discards the record of earlier refusals, such as after a commit or if the owner may have changed.
func (rt *route) reset() {
	rt.way.progress()
	rt.retry, rt.last = nil, nil
}

// routed assigns a new entry to the route of its queue, if any, and returns its pipeline. It returns nil if the entry
// waits in the route. mu is held.
func (p *Producer) routed(e *Pending) *pipeline {
	rt := p.routes[e.queue]
	if rt == nil || rt.open == 0 && !rt.moving {
		pair := p.client.owners.of(e.queue)
		switch {
		case rt != nil: // the cache may contain a newer owner
			rt.pl = p.pipelineTo(pair)
			rt.way = p.client.pathTo(pair)
			rt.reset()
		case pair == p.home.pair || p.home.holds(e.queue):
			return p.home
		default:
			rt = p.addRoute(e.queue, p.pipelineTo(pair))
		}
	}
	e.route = rt
	rt.open++
	if rt.moving {
		rt.queued.push(e)
		return nil
	}
	return rt.pl
}

// queuedIn returns the pipeline with the entry in pending, or nil if the entry waits in its route. mu is held.
func (p *Producer) queuedIn(e *Pending) *pipeline {
	switch {
	case e.route == nil:
		return p.home
	case e.route.moving:
		return nil
	default:
		return e.route.pl
	}
}

// redirect moves a refused request, and all later publishes to its queue, from pl to the owner or to the partitions of
// the queue. The request is no longer in flight. If the owner cannot be used, redirect returns an error, and the
// request is not moved. mu is held.
func (p *Producer) redirect(pl *pipeline, r *request, e *Error) *Error {
	rt := r.entries[0].route
	if rt == nil {
		rt = p.adopt(pl, r)
	}
	if e.notOwner != nil && (!rt.moving || rt.way.pair == pl.pair) {
		if e = rt.way.follow(e, nil); !e.retry() {
			return e
		}
	}
	switch {
	case e.partitioned != nil:
		rt.partitions, rt.wait = int(e.partitioned.GetCount()), false
	case e.notOwner == nil:
		rt.last = e
	}
	if !rt.moving {
		rt.moving, rt.wait = true, e.partitioned == nil && (!rt.way.moved || e.notOwner == nil)
		for _, waiting := range pl.extract(r.queue) {
			rt.queued.push(waiting)
		}
	}
	rt.after = max(rt.after, e.retryAfter)
	for _, refused := range r.entries {
		refused.taken = false
		rt.refused.push(refused)
	}
	if pl.carries(r.queue) {
		pl.reserve(rt, r)
	}
	p.completeMove(rt, pl)
	return nil
}

// adopt creates the route of a queue after the first refusal, and assigns all entries of the queue to it. mu is held.
func (p *Producer) adopt(pl *pipeline, refused *request) *route {
	rt := p.addRoute(refused.queue, pl)
	take := func(e *Pending) {
		e.route = rt
		rt.open++
	}
	for _, e := range refused.entries {
		take(e)
	}
	for i := range pl.inFlight.len() {
		if r := *pl.inFlight.at(i); r.queue == refused.queue {
			for _, e := range r.entries {
				take(e)
			}
		}
	}
	for i := range pl.pending.len() {
		if e := *pl.pending.at(i); e.queue == refused.queue && !e.withdrawn {
			take(e)
		}
	}
	return rt
}

// completeMoves calls completeMove for all moving routes. mu is held.
func (p *Producer) completeMoves(pl *pipeline) {
	for _, rt := range p.routes {
		if rt.moving {
			p.completeMove(rt, pl)
		}
	}
}

// completeMove sends the publishes of a route on its next pipeline, if the previous one has no request for the queue in
// flight. mu is held.
func (p *Producer) completeMove(rt *route, from *pipeline) {
	if rt.pl != from || rt.timer != nil || p.closed || from.carries(rt.queue()) {
		return
	}
	from.release(rt)
	if rt.partitions > 0 {
		p.divideAll(rt, rt.queue())
		return
	}
	if !rt.wait {
		p.transfer(rt)
		return
	}
	if rt.retry == nil {
		rt.retry = p.client.opts.newBackoff()
	}
	rt.timer = time.AfterFunc(max(rt.retry.NextBackOff(), rt.after), func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.closed {
			p.transfer(rt)
		}
	})
}

// queue returns the name of the queue of a moving route.
func (rt *route) queue() string { return (*rt.refused.at(0)).queue }

// transfer sends the waiting publishes of a route on the pipeline to the owner. mu is held.
func (p *Producer) transfer(rt *route) {
	rt.pl, rt.moving, rt.timer, rt.after = p.pipelineTo(rt.way.pair), false, nil, 0
	entries := rt.take()
	for _, e := range entries {
		rt.pl.add(e)
	}
	if len(entries) > 0 {
		rt.pl.resume(entries[0].queue)
	}
	rt.pl.signal()
}

// take removes the waiting entries of a route and returns them in their order, without withdrawn entries.
func (rt *route) take() []*Pending { return append(live(&rt.refused), live(&rt.queued)...) }

// failQueued completes the publishes that wait in routes with err, after the pipelines have ended.
func (p *Producer) failQueued(err error) {
	p.mu.Lock()
	var entries []*Pending
	for _, rt := range p.routes {
		if rt.timer != nil {
			rt.timer.Stop()
		}
		entries = append(entries, rt.take()...)
	}
	for _, e := range entries {
		e.taken = true
	}
	p.mu.Unlock()
	p.answer(entries, Receipt{}, err)
}

// giveUp returns the error of a caller that no longer waits for a publish.
func (p *Producer) giveUp(e *Pending, cause error, unknown bool) error {
	p.mu.Lock()
	pair, last := p.home.pair, error(nil)
	if rt := e.route; rt != nil {
		pair = rt.way.pair
		if last = rt.way.round; last == nil && rt.last != nil {
			last = rt.last
		}
	}
	p.mu.Unlock()
	return p.client.giveUpAt(pair, "publish to "+e.queue, cause, last, unknown)
}
