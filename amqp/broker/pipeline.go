// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/amqp/session"
	"github.com/lockstep-mq/lockstep/amqp/wire"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const (
	// window is how many requests of a pipeline may be unanswered: the nodes remember the last 256 of a producer.
	window = 200
	// eagerBursts, of requests that were sent together, may be under way before messages are held back to go together.
	eagerBursts = 4
	// maxBatch and maxBatchBytes bound what goes together.
	maxBatch      = 256
	maxBatchBytes = 256 << 10
	// firstPause and longestPause are between two attempts to publish while the node cannot take it.
	firstPause   = 2 * time.Millisecond
	longestPause = 50 * time.Millisecond
)

// entry is one message of a client that is to be stored.
type entry struct {
	id      uint32 // of its delivery
	settled bool   // the client waits for no outcome
	topic   bool   // the kind of queue to make if there is none
	alone   bool   // not to go in one request with others
	made    bool   // its queue was made on demand once
	bytes   int
	queue   string
	message *pb.Message
}

// request is a transaction: messages to one queue that are stored together or not at all.
type request struct {
	sequence uint64
	entries  []entry
	retry    bool // an earlier attempt may have been carried out
	sent     bool
	last     bool // of those that were sent together
}

// pipeline stores the messages of one link, in their order, and sends them again with the same identity when the node
// could not say what has become of them.
type pipeline struct {
	c    *conn
	of   *publisher
	link *session.Link
	id   string        // of the producer
	wake chan struct{} // capacity 1
	// ended is closed when all is answered, or the connection was cut off
	ended chan struct{}

	// guarded by conn.mu
	next     uint64
	pending  []entry   // in no request yet
	inFlight []request // in the order of their sequences
	sent     int       // how many of inFlight were sent on the present stream
	bursts   int       // messages of the present stream that are not wholly answered
	missing  string    // a queue that is to be made on demand, before anything new is sent; empty for none
	more     bool      // the node takes several requests in one message
	done     bool      // no further message comes
}

func newPipeline(c *conn, of *publisher) *pipeline {
	return &pipeline{
		c: c, of: of, link: of.link, id: uuid.NewString(), next: 1, wake: make(chan struct{}, 1),
		ended: make(chan struct{}),
	}
}

// start runs the pipeline until its link is gone and all is answered, or the connection has ended. mu is held.
func (p *pipeline) start() { p.c.run(p.run) }

// add takes a message. mu is held.
func (p *pipeline) add(e entry) {
	p.pending = append(p.pending, e)
	p.c.pending += e.bytes
	p.signal()
}

// finish says that no further message comes. mu is held.
func (p *pipeline) finish() {
	p.done = true
	p.signal()
}

// signal has the pipeline look. mu is held.
func (p *pipeline) signal() { p.c.rouse(p.wake) }

// idle tells whether there is nothing to do. mu is held.
func (p *pipeline) idle() bool { return len(p.pending) == 0 && len(p.inFlight) == 0 && p.missing == "" }

func (p *pipeline) run() {
	defer close(p.ended)
	pause := firstPause
	for {
		p.c.mu.Lock()
		idle, done := p.idle(), p.done
		p.c.mu.Unlock()
		if idle && done || p.c.ctx.Err() != nil {
			return
		}
		if idle {
			select {
			case <-p.wake:
			case <-p.c.ctx.Done():
			}
			continue
		}
		progress, err := p.stream()
		if err == nil || p.c.ctx.Err() != nil {
			return
		}
		if progress {
			pause = firstPause
		}
		if !p.failed(failed(err)) {
			return
		}
		select {
		case <-time.After(pause):
		case <-p.c.ctx.Done():
		}
		pause = min(2*pause, longestPause)
	}
}

// failed takes note of how a stream has ended, and tells whether another one is to be opened.
func (p *pipeline) failed(f failure) bool {
	if f.notActive() {
		p.c.lost("this node is not the active one any more")
		return false
	}
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	for i := range p.inFlight {
		r := &p.inFlight[i]
		if r.sent && (f.through == nil || r.sequence <= *f.through) {
			r.retry = true
		}
		r.sent = false
	}
	if f.again() {
		return true
	}
	p.link.Detach(true, f.toAMQP())
	p.drop()
	p.c.signal()
	return false
}

// drop forgets all that is not stored: its outcome is in doubt for the client. mu is held.
func (p *pipeline) drop() {
	for i := range p.inFlight {
		for j := range p.inFlight[i].entries {
			p.c.stored(p.inFlight[i].entries[j].bytes)
		}
	}
	for i := range p.pending {
		p.c.stored(p.pending[i].bytes)
	}
	p.inFlight, p.pending, p.done = nil, nil, true
	p.c.room.Broadcast()
}

// stream sends what is to be sent over one stream until that breaks (an error), or nothing is left to be done (nil).
func (p *pipeline) stream() (progress bool, err error) {
	ctx, cancel := context.WithCancel(p.c.calls)
	defer cancel()
	p.c.mu.Lock()
	p.sent, p.bursts, p.more = 0, 0, false
	p.c.mu.Unlock()
	stream, err := p.c.queues.PublishStream(ctx)
	if err != nil {
		return false, err
	}
	received := make(chan error, 1)
	p.c.run(func() {
		err := io.ErrUnexpectedEOF
		defer func() {
			cancel() // a Send that waits for room comes back
			received <- err
		}()
		err = p.receive(stream, &progress)
	})
	for {
		b, over := p.burst()
		switch {
		case b != nil:
			if stream.Send(b) == nil {
				continue
			}
			return progress, <-received // a failed Send says nothing of the reason
		case over:
			_ = stream.CloseSend() // it never fails
			if err = <-received; errors.Is(err, io.EOF) {
				err = nil
			}
			return progress, err
		default:
			select {
			case <-p.wake:
				continue
			case err := <-received:
				return progress, err
			case <-p.c.ctx.Done():
				cancel()
				return progress, errors.Join(p.c.ctx.Err(), <-received)
			}
		}
	}
}

// burst is what is to be sent next, as far as there is anything; over: nothing ever will be.
func (p *pipeline) burst() (b *pb.PublishStreamRequest, over bool) {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	first := p.nextRequest(0, 0)
	if first == nil {
		return nil, p.done && p.idle()
	}
	b = p.encode(first)
	messages, bytes := first.size()
	at := p.sent - 1 // the last one
	for p.more && len(b.GetMore()) < window/eagerBursts {
		r := p.nextRequest(messages, bytes)
		if r == nil {
			break
		}
		b.More = append(b.More, p.encode(r))
		m, n := r.size()
		messages, bytes, at = messages+m, bytes+n, p.sent-1
	}
	p.inFlight[at].last = true
	p.bursts++
	return b, false
}

// encode is a request as it is sent.
func (p *pipeline) encode(r *request) *pb.PublishStreamRequest {
	publish := &pb.PublishRequest{
		Queue: r.entries[0].queue, Messages: make([]*pb.Message, len(r.entries)),
		Producer: &pb.Producer{Id: p.id, Epoch: 1, Sequence: r.sequence, Retry: r.retry},
	}
	for i := range r.entries {
		publish.Messages[i] = r.entries[i].message
	}
	return &pb.PublishStreamRequest{Correlation: r.sequence, Publish: publish, AcceptsMore: true}
}

func (r *request) size() (messages, bytes int) {
	for i := range r.entries {
		bytes += r.entries[i].bytes
	}
	return len(r.entries), bytes
}

// nextRequest is the next one to be sent, beside so many messages and bytes: first those of an earlier stream, in their
// order, then new ones. mu is held.
func (p *pipeline) nextRequest(messages, bytes int) *request {
	if p.sent < len(p.inFlight) {
		r := &p.inFlight[p.sent]
		if m, b := r.size(); messages > 0 && (messages+m > maxBatch || bytes+b > maxBatchBytes) ||
			messages == 0 && p.bursts >= eagerBursts {
			return nil
		}
		r.sent, r.last = true, false
		p.sent++
		return r
	}
	if len(p.pending) == 0 || len(p.inFlight) >= window || p.missing != "" {
		return nil
	}
	if messages == 0 && p.bursts >= eagerBursts && len(p.pending) < maxBatch && p.c.pending < maxBatchBytes {
		return nil // more will come before the next answer does
	}
	n := 0
	for n < len(p.pending) {
		e := &p.pending[n]
		if n > 0 && (e.queue != p.pending[0].queue || e.alone || p.pending[0].alone) {
			break
		}
		if messages+n > 0 && (messages+n+1 > maxBatch || bytes+e.bytes > maxBatchBytes) {
			break
		}
		bytes += e.bytes
		n++
	}
	if n == 0 {
		return nil
	}
	r := request{sequence: p.next, entries: append([]entry(nil), p.pending[:n]...), sent: true}
	p.next++
	p.pending = p.pending[:copy(p.pending, p.pending[n:])]
	p.inFlight = append(p.inFlight, r)
	p.sent++
	return &p.inFlight[len(p.inFlight)-1]
}

// receive handles answers until the stream ends.
func (p *pipeline) receive(stream pb.QueueService_PublishStreamClient, progress *bool) error {
	for {
		resp, err := stream.Recv()
		if err != nil {
			return err //nolint:wrapcheck // failed reads it
		}
		if err := p.handle(resp); err != nil {
			return err
		}
		*progress = true
	}
}

// handle handles an answer and those that came with it.
func (p *pipeline) handle(resp *pb.PublishStreamResponse) error {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	defer p.c.signal()
	defer p.signal()
	p.more = p.more || resp.GetAcceptsMore()
	err := p.answered(resp)
	for _, r := range resp.GetMore() {
		if err == nil {
			err = p.answered(r)
		}
	}
	p.c.room.Broadcast()
	return err
}

var errOrder = errors.New("the node has answered out of order")

// answered handles the answer to the oldest request. mu is held.
func (p *pipeline) answered(resp *pb.PublishStreamResponse) error {
	if len(p.inFlight) == 0 || p.inFlight[0].sequence != resp.GetCorrelation() {
		return fmt.Errorf("%w: %d", errOrder, resp.GetCorrelation())
	}
	r := p.inFlight[0]
	if e := resp.GetError(); e != nil {
		f := ofRequest(e)
		if f.again() {
			return &f
		}
		p.take(r)
		p.refused(&r, &f)
		p.makeMissing()
		return nil
	}
	p.take(r)
	p.of.exists = true
	for i := range r.entries {
		p.c.stored(r.entries[i].bytes)
		if !r.entries[i].settled {
			p.link.Settle(r.entries[i].id, wire.Accepted{})
		} else {
			p.link.Settle(r.entries[i].id, nil)
		}
	}
	p.makeMissing()
	return nil
}

// take takes the oldest request out.
func (p *pipeline) take(r request) {
	p.inFlight[0] = request{}
	p.inFlight = p.inFlight[1:]
	p.sent--
	if r.last {
		p.bursts--
	}
}

// refused handles a refusal. Messages that went together are asked about one by one where one of them may be the
// reason, and a queue that is not there is made on demand. mu is held.
func (p *pipeline) refused(r *request, f *failure) {
	certain := f.settled || !r.retry
	if f.reason == "QUEUE_NOT_FOUND" && p.of.deleted() {
		p.queueDeleted(r, f)
		return
	}
	if certain && f.reason == "QUEUE_NOT_FOUND" && !r.entries[0].made && p.c.server.o.AutoCreate() {
		p.onDemand(r)
		return
	}
	if certain && len(r.entries) > 1 {
		for i := range r.entries {
			r.entries[i].alone = true
		}
		p.putBack(r.entries)
		return
	}
	var state wire.DeliveryState = &wire.Rejected{Error: f.toAMQP()}
	if !certain { // an earlier attempt may have been carried out
		state = nil
	}
	settled := false
	for i := range r.entries {
		p.c.stored(r.entries[i].bytes)
		settled = settled || r.entries[i].settled
		if state != nil && !r.entries[i].settled {
			p.link.Settle(r.entries[i].id, state)
		}
	}
	if settled || state == nil { // the client hears of it in no other way
		p.link.Detach(true, f.toAMQP())
		p.drop()
	}
}

// queueDeleted ends the link, whose queue was deleted: it is not created again. mu is held.
func (p *pipeline) queueDeleted(r *request, f *failure) {
	why := p.of.resourceDeleted(f)
	for i := range r.entries {
		p.c.stored(r.entries[i].bytes)
		if !r.entries[i].settled && (f.settled || !r.retry) {
			p.link.Settle(r.entries[i].id, &wire.Rejected{Error: why})
		}
	}
	p.link.Detach(true, why)
	p.drop()
}

// onDemand has the queue made of a request that was refused because there is none. What was sent behind it is refused
// as well: all of it goes again, in its order. mu is held.
func (p *pipeline) onDemand(r *request) {
	for i := range r.entries {
		r.entries[i].made = true
	}
	p.putBack(r.entries)
	p.missing = r.entries[0].queue
}

// makeMissing makes that queue, once everything that was sent is answered. mu is held.
func (p *pipeline) makeMissing() {
	if p.missing == "" || len(p.inFlight) > 0 || len(p.pending) == 0 {
		return
	}
	queue, topic := p.missing, p.pending[0].topic
	p.c.run(func() {
		ctx, cancel := context.WithTimeout(p.c.calls, callLimit)
		defer cancel()
		err := p.c.createQueue(ctx, queue, topic)
		p.c.mu.Lock()
		defer p.c.mu.Unlock()
		p.missing = ""
		if err != nil {
			p.giveUp(queue, refusal(err))
		}
		p.signal()
		p.c.signal()
	})
}

// giveUp refuses the messages to a queue that could not be made. mu is held.
func (p *pipeline) giveUp(queue string, why *wire.Error) {
	kept := p.pending[:0]
	for _, e := range p.pending {
		if e.queue != queue || !e.made {
			kept = append(kept, e)
			continue
		}
		p.c.stored(e.bytes)
		p.link.Settle(e.id, &wire.Rejected{Error: why})
	}
	clear(p.pending[len(kept):])
	p.pending = kept
	p.c.room.Broadcast()
}

// putBack has messages sent again, as new requests, before those that came after them. mu is held.
func (p *pipeline) putBack(entries []entry) {
	at := 0
	for at < len(p.pending) && int32(p.pending[at].id-entries[0].id) < 0 {
		at++
	}
	p.pending = slices.Insert(p.pending, at, entries...)
}
