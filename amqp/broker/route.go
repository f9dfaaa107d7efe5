// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"slices"
	"time"
)

// maxRoutes limits the routes of a link.
const maxRoutes = 10_000

// route determines the pipeline for the messages of one queue in a link. It is created when a pair has refused a
// request because it does not own the queue, or does not know the owner. While a route is moving, all messages for the
// queue wait until the previous pipeline has no request for the queue in flight. They are then sent on the next
// pipeline, so their order is retained. The fields are guarded by conn.mu.
type route struct {
	queue   string
	pipe    *pipeline // pipeline of the messages that are not in refused or queued
	way     path      // at is the pair that the queue belongs to
	moving  bool
	wait    time.Duration // before the messages are sent again
	resting bool          // waiting
	refused []entry
	queued  []entry // follow all requests in flight
}

// add sends a message on the pipeline of its queue. mu is held.
func (p *publisher) add(e entry) {
	p.c.pending += e.bytes
	rt := p.routes[e.queue]
	switch {
	case rt == nil:
		p.pipeTo(p.c.home).push(e)
	case rt.moving:
		rt.queued = append(rt.queued, e)
	default:
		if rt.pipe.over {
			rt.pipe = p.pipeTo(rt.way.at)
		}
		rt.pipe.push(e)
	}
}

// pipeTo returns the pipeline to a pair. mu is held.
func (p *publisher) pipeTo(to *pair) *pipeline {
	if pl := p.pipes[to.name]; pl != nil && !pl.over {
		return pl
	}
	if p.pipes == nil {
		p.pipes = make(map[string]*pipeline, 1)
	}
	pl := newPipeline(p.c, p, to)
	p.pipes[to.name] = pl
	p.busy.Add(1)
	p.c.run(func() {
		defer p.busy.Done()
		pl.run()
	})
	return pl
}

// redirect moves a refused request, and all later messages for its queue, to the owner. The request is no longer in
// flight. If the owner cannot be used, redirect returns an error, and moves nothing. mu is held.
func (p *publisher) redirect(pl *pipeline, r *request, f *failure) error {
	queue := r.entries[0].queue
	rt := p.routes[queue]
	if rt == nil {
		rt = &route{queue: queue, pipe: pl, way: path{at: pl.to}}
	}
	switch {
	case f.owner != nil && (!rt.moving || rt.way.at.name == pl.to.name):
		wait, err := rt.way.follow(p.c, f.owner)
		if err != nil {
			return err
		}
		rt.wait = wait
	case !rt.moving:
		rt.wait = rt.way.backoff()
	}
	p.addRoute(rt)
	if !rt.moving {
		rt.moving = true
		if p.moves == nil {
			p.moves = make(map[string]*route)
		}
		p.moves[queue] = rt
		p.busy.Add(1)
		rt.queued = append(rt.queued, pl.extract(queue)...)
		if pl.missing == queue {
			pl.missing = "" // it exists
		}
	}
	rt.refused = append(rt.refused, r.entries...)
	return nil
}

// addRoute adds a route. At the limit, it removes routes without messages. mu is held.
func (p *publisher) addRoute(rt *route) {
	if p.routes == nil {
		p.routes = make(map[string]*route)
	}
	for other, old := range p.routes {
		if len(p.routes) < maxRoutes {
			break
		}
		if !old.moving && !old.pipe.has(other) {
			delete(p.routes, other)
		}
	}
	p.routes[rt.queue] = rt
}

// completeMoves sends the messages of the moving routes of a pipeline, if the pipeline has no request for their queue
// in flight. mu is held.
func (p *publisher) completeMoves(pl *pipeline) {
	for _, rt := range p.moves {
		if rt.resting || rt.pipe != pl || pl.carries(rt.queue) {
			continue
		}
		if rt.wait == 0 {
			p.transfer(rt)
			continue
		}
		rt.resting = true
		p.c.run(func() { p.transferLater(rt) })
	}
}

func (p *publisher) transferLater(rt *route) {
	rest(p.c.ctx, rt.wait)
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	if rt.moving { // the messages were not dropped
		p.transfer(rt)
	}
}

// transfer sends the waiting messages of a route on the pipeline to the owner. mu is held.
func (p *publisher) transfer(rt *route) {
	pl := p.pipeTo(rt.way.at)
	rt.pipe, rt.moving, rt.resting, rt.wait = pl, false, false, 0
	for _, waiting := range [][]entry{rt.refused, rt.queued} {
		for i := range waiting {
			pl.push(waiting[i])
		}
	}
	rt.refused, rt.queued = nil, nil
	delete(p.moves, rt.queue)
	pl.resume(rt.queue)
	p.busy.Done()
}

// returnRefused cancels the moves of queues for which the pipeline has requests in flight, after its stream has ended.
// The outcome of these requests is unknown, so they are retried. The refused requests, which precede them, are sent
// again before them: the pair may own the queue again. mu is held.
func (p *publisher) returnRefused(pl *pipeline) {
	for queue, rt := range p.moves {
		if rt.pipe != pl || rt.resting || !pl.carries(queue) {
			continue
		}
		at := slices.IndexFunc(pl.inFlight, func(r request) bool { return r.entries[0].queue == queue })
		pl.inFlight = slices.Insert(pl.inFlight, at, pl.requests(rt.refused)...)
		pl.pending = append(pl.pending, rt.queued...)
		rt.refused, rt.queued, rt.moving, rt.wait, rt.way.at = nil, nil, false, 0, pl.to
		delete(p.moves, queue)
		p.busy.Done()
	}
}

// requests returns new requests with messages for one queue. mu is held.
func (p *pipeline) requests(entries []entry) (list []request) {
	for len(entries) > 0 {
		n, bytes := 0, 0
		for n < len(entries) && n < maxBatch {
			e := &entries[n]
			if n > 0 && (e.alone || entries[0].alone || bytes+e.bytes > maxBatchBytes) {
				break
			}
			bytes += e.bytes
			n++
		}
		list = append(list, request{sequence: p.next, entries: entries[:n:n]})
		p.next++
		entries = entries[n:]
	}
	return list
}

// drop discards all messages of the link without an outcome. mu is held.
func (p *publisher) drop() {
	for _, rt := range p.moves {
		for _, waiting := range [][]entry{rt.refused, rt.queued} {
			for i := range waiting {
				p.c.stored(waiting[i].bytes)
			}
		}
		rt.refused, rt.queued, rt.moving = nil, nil, false
		p.busy.Done()
	}
	clear(p.moves)
	p.done = true
	for _, pl := range p.pipes {
		pl.drop()
	}
	p.c.room.Broadcast()
}

// carries reports whether a request for a queue is in flight. mu is held.
func (p *pipeline) carries(queue string) bool {
	for i := range p.inFlight {
		if p.inFlight[i].entries[0].queue == queue {
			return true
		}
	}
	return false
}

// has reports whether the pipeline has messages for a queue. mu is held.
func (p *pipeline) has(queue string) bool {
	for i := range p.pending {
		if p.pending[i].queue == queue {
			return true
		}
	}
	return p.carries(queue)
}

// extract removes the messages for a queue that are not yet in a request. mu is held.
func (p *pipeline) extract(queue string) (entries []entry) {
	kept := p.pending[:0]
	for _, e := range p.pending {
		if e.queue == queue {
			entries = append(entries, e)
		} else {
			kept = append(kept, e)
		}
	}
	clear(p.pending[len(kept):])
	p.pending = kept
	return entries
}

// resume marks the next request for a queue, so that the node looks up the queue again. mu is held.
func (p *pipeline) resume(queue string) {
	if p.resuming == nil {
		p.resuming = make(map[string]bool)
	}
	p.resuming[queue] = true
}

// resumes reports whether a request is the first one for a queue after resume. mu is held.
func (p *pipeline) resumes(queue string) bool {
	is := p.resuming[queue]
	delete(p.resuming, queue)
	return is
}
