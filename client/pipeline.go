// SPDX-License-Identifier: Apache-2.0

package client

import (
	"sync"

	"github.com/google/uuid"
)

// pipeline sends the publishes of a producer to one pair. It numbers its requests separately, because the sequences of
// a producer must not have gaps at a pair.
type pipeline struct {
	client   *Client
	producer *Producer
	opts     ProducerOptions
	pair     *pairConn
	wake     chan struct{} // capacity 1: data can be sent
	done     chan struct{} // closed when run has returned

	mu      *sync.Mutex    // Producer.mu, guards the fields below
	id      string         // producer ID; replaced after a node evicted it
	next    uint64         // sequence of the next request
	pending fifo[*Pending] // not yet in a request
	count   int            // messages in pending that are not withdrawn
	bytes   int            // size of the bodies of these messages
	// in the order of sending: requests sent on the current stream, then requests to be sent again
	inFlight fifo[*request]
	reserved reservation // of refused requests that can return to inFlight
	// unanswered is the number of messages in inFlight.
	unanswered int
	sent       int            // number of inFlight requests sent on the current stream
	frames     int            // frames of the stream with outstanding requests
	greeted    bool           // the current stream delivered a response
	more       bool           // the node accepts several requests in one frame
	single     map[string]int // publishes to be sent one by one, by queue; nil if empty
	// resumed contains the queues with publishes in pending that a route has sent here after a refusal. nil if empty.
	resumed map[string]struct{}
}

type request struct {
	sequence uint64 // producer sequence, also the correlation ID
	queue    string
	entries  []*Pending
	messages int
	bytes    int  // size of the messages' bodies
	sent     bool // sent under its current identity
	repeated bool // sent more than once under its current identity
	last     bool // last request of its frame
	resumes  bool // first request for the queue after a refusal, if it is not repeated
}

func (p *Producer) newPipeline(pair *pairConn) *pipeline {
	pl := &pipeline{
		client: p.client, producer: p, opts: p.opts, pair: pair, wake: make(chan struct{}, 1), done: make(chan struct{}),
		mu: &p.mu, id: p.opts.ID, next: 1,
	}
	if pl.id == "" {
		pl.id = uuid.NewString()
	}
	return pl
}

// pipelineTo returns the pipeline to a pair, and creates it on first use. mu is held.
func (p *Producer) pipelineTo(pair *pairConn) *pipeline {
	if pair == p.home.pair {
		return p.home
	}
	pl := p.others[pair]
	if pl == nil {
		pl = p.newPipeline(pair)
		if p.others == nil {
			p.others = make(map[*pairConn]*pipeline)
		}
		p.others[pair] = pl
		p.start(pl)
	}
	return pl
}

func (pl *pipeline) signal() { signal(pl.wake) }

// add adds an entry to pending. mu is held.
func (pl *pipeline) add(e *Pending) {
	pl.pending.push(e)
	pl.count += int(e.count)
	pl.bytes += e.bytes
}

// resume marks the next request for a queue: all earlier requests for the queue are answered. mu is held.
func (pl *pipeline) resume(queue string) {
	if pl.resumed == nil {
		pl.resumed = make(map[string]struct{})
	}
	pl.resumed[queue] = struct{}{}
}

// takeResumed reports whether the next request for a queue is marked, and removes the mark. mu is held.
func (pl *pipeline) takeResumed(queue string) bool {
	_, is := pl.resumed[queue]
	delete(pl.resumed, queue)
	return is
}

// dropWithdrawn removes withdrawn entries from the head of pending. mu is held.
func (pl *pipeline) dropWithdrawn() {
	for pl.pending.len() > 0 && (*pl.pending.at(0)).withdrawn {
		pl.pending.pop()
	}
}

func (pl *pipeline) failPending(err error) {
	pl.mu.Lock()
	var entries []*Pending
	for pl.pending.len() > 0 {
		if e := pl.pending.pop(); !e.withdrawn {
			e.taken = true
			entries = append(entries, e)
		}
	}
	pl.count, pl.bytes = 0, 0
	pl.mu.Unlock()
	pl.producer.answer(entries, Receipt{}, err)
}

// takeInFlight removes the n oldest requests from inFlight and returns their entries. mu is held.
func (pl *pipeline) takeInFlight(n int) (entries []*Pending) {
	for range n {
		r := pl.inFlight.pop()
		pl.unanswered -= r.messages
		entries = append(entries, r.entries...)
	}
	return entries
}

// carries reports whether a request for a queue is in flight. mu is held.
func (pl *pipeline) carries(queue string) bool {
	for i := range pl.inFlight.len() {
		if (*pl.inFlight.at(i)).queue == queue {
			return true
		}
	}
	return false
}

// holds reports whether a publish to a queue is in flight or pending. mu is held.
func (pl *pipeline) holds(queue string) bool {
	for i := pl.pending.len() - 1; i >= 0; i-- {
		if (*pl.pending.at(i)).queue == queue {
			return true
		}
	}
	return pl.carries(queue)
}

// extract removes the entries of a queue from pending and returns them in their order, without withdrawn entries. mu is
// held.
func (pl *pipeline) extract(queue string) (out []*Pending) {
	for range pl.pending.len() {
		e := pl.pending.pop()
		switch {
		case e.withdrawn:
		case e.queue == queue:
			pl.count -= int(e.count)
			pl.bytes -= e.bytes
			out = append(out, e)
		default:
			pl.pending.push(e)
		}
	}
	return out
}
