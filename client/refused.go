// SPDX-License-Identifier: Apache-2.0

package client

import "slices"

// reservation is a part of the window of a pipeline. It is for requests that were refused because of the owner of their
// queue, while later requests for the queue are in flight. If the stream ends, they can return to the pipeline.
type reservation struct{ requests, messages int }

// reserve reserves the space of a refused request. mu is held.
func (pl *pipeline) reserve(rt *route, r *request) {
	for _, to := range []*reservation{&rt.reserved, &pl.reserved} {
		to.requests++
		to.messages += r.messages
	}
}

// release releases the reservations of a route. mu is held.
func (pl *pipeline) release(rt *route) {
	pl.reserved.requests -= rt.reserved.requests
	pl.reserved.messages -= rt.reserved.messages
	rt.reserved = reservation{}
}

// takeRefused moves publishes to their routes if the node has certainly refused them, although the stream has ended
// without these responses. After a node has refused a request because of the owner of its queue, it refuses all later
// requests for the queue on the same stream. If these publishes were sent again, a node to which the queue has returned
// would execute them before the refused request.
//
// Repeated requests may have been executed on an earlier stream. They remain in flight, with all later requests for
// their queue. takeRefused returns the first one for each moving route. mu is held.
func (pl *pipeline) takeRefused() (kept map[*route]*request) {
	sent := pl.sent
	for i := range pl.inFlight.len() {
		r := pl.inFlight.pop()
		rt := r.entries[0].route
		if rt == nil || !rt.moving || rt.pl != pl {
			pl.inFlight.push(r)
			continue
		}
		if i >= sent || r.repeated || kept[rt] != nil {
			pl.inFlight.push(r)
			if kept == nil {
				kept = make(map[*route]*request)
			}
			if kept[rt] == nil {
				kept[rt] = r
			}
			continue
		}
		pl.sent--
		pl.unanswered -= r.messages
		for _, e := range r.entries {
			e.taken = false
			rt.refused.push(e)
		}
	}
	return kept
}

// returnRefused cancels the move of a route, after the stream has ended with requests for its queue in flight. The
// outcome of these requests is unknown, so they are retried at this pair, which may own the queue again. The refused
// publishes precede them, and are therefore sent before first, the first of these requests. mu is held.
func (pl *pipeline) returnRefused(rt *route, first *request) {
	pl.release(rt)
	refused := live(&rt.refused)
	for _, e := range slices.Backward(refused) {
		pl.pending.pushFirst(e)
		pl.count += int(e.count)
		pl.bytes += e.bytes
	}
	var again []*request
	for n := 0; n < len(refused); {
		r := pl.form(0, 0)
		r.sent = false
		n += len(r.entries)
		again = append(again, r)
	}
	for range pl.inFlight.len() {
		r := pl.inFlight.pop()
		if r == first {
			for _, before := range again {
				pl.inFlight.push(before)
				pl.unanswered += before.messages
			}
		}
		pl.inFlight.push(r)
	}
	for _, e := range live(&rt.queued) {
		pl.add(e)
	}
	rt.way = pl.client.pathTo(pl.pair)
	rt.moving, rt.wait, rt.after, rt.partitions = false, false, 0, 0
}

// live removes all entries of a list and returns them in their order, without withdrawn entries.
func live(list *fifo[*Pending]) (entries []*Pending) {
	for list.len() > 0 {
		if e := list.pop(); !e.withdrawn {
			entries = append(entries, e)
		}
	}
	return entries
}
