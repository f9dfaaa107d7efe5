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
	window        = 200 // outstanding requests: nodes retain the last 256 results of a producer
	eagerFrames   = 4   // publish frames in flight from which messages are batched
	maxBatch      = 256
	maxBatchBytes = 256 << 10
	firstPause    = 2 * time.Millisecond // first wait of the backoff while the node cannot accept publishes
	longestPause  = 50 * time.Millisecond
)

type entry struct {
	id      uint32 // delivery ID
	settled bool   // the client does not wait for an outcome
	topic   bool   // type of the queue to create if it does not exist
	alone   bool   // must be sent in its own request
	made    bool   // the queue was already created on demand for this message
	bytes   int
	queue   string
	message *pb.Message
}

// request is one transaction: messages for one queue.
type request struct {
	sequence    uint64
	correlation uint64 // number of the request on its last stream
	entries     []entry
	retry       bool // an earlier attempt may have been committed
	sent        bool
	last        bool // last request of its frame
}

// pipeline stores the messages of a link at one pair, in order. Messages with an unknown outcome are retried with the
// same identity.
type pipeline struct {
	c    *conn
	of   *publisher
	link *session.Link
	to   *pair
	id   string        // producer ID
	wake chan struct{} // capacity 1

	// guarded by conn.mu
	next          uint64
	numbered      uint64    // last correlation
	pending       []entry   // not yet in a request
	inFlight      []request // in the order in which they are sent
	sent          int       // number of inFlight requests sent on the current stream
	publishFrames int       // frames of the current stream with outstanding requests
	missing       string    // queue to create before new messages are sent; may be empty
	more          bool      // the node accepts several requests per frame
	over          bool      // accepts no further messages
	resuming      map[string]bool
}

func newPipeline(c *conn, of *publisher, to *pair) *pipeline {
	return &pipeline{
		c: c, of: of, link: of.link, to: to, id: uuid.NewString(), next: 1, wake: make(chan struct{}, 1),
	}
}

// push adds a message. mu is held.
func (p *pipeline) push(e entry) {
	p.pending = append(p.pending, e)
	p.signal()
}

// ends reports whether no further messages follow. If so, the pipeline accepts none. mu is held.
func (p *pipeline) ends() bool {
	p.over = p.over || p.of.done && p.idle()
	return p.over
}

func (p *pipeline) signal() { p.c.wakeUp(p.wake) }

func (p *pipeline) idle() bool { return len(p.pending) == 0 && len(p.inFlight) == 0 && p.missing == "" }

// run runs until the link has ended and all messages are answered, the link has failed, or the connection has ended.
func (p *pipeline) run() {
	defer p.c.locked(func() { p.over = true })
	pause := firstPause
	for {
		p.c.mu.Lock()
		idle, ends := p.idle(), p.ends()
		p.c.mu.Unlock()
		if ends || p.c.ctx.Err() != nil {
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

// failed handles the end of a stream, and reports whether another stream must be opened.
func (p *pipeline) failed(f failure) bool {
	if f.notActive() && p.to.own() {
		p.c.lost("this node is no longer active")
		return false
	}
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	for i := range p.inFlight {
		r := &p.inFlight[i]
		if r.sent && (f.through == nil || r.correlation <= *f.through) {
			r.retry = true
		}
		r.sent = false
	}
	if f.again() {
		p.of.returnRefused(p)
		return true
	}
	p.link.Detach(true, f.toAMQP())
	p.of.drop()
	p.c.signal()
	return false
}

// drop discards all unanswered messages: their outcome is unknown to the client. mu is held.
func (p *pipeline) drop() {
	for i := range p.inFlight {
		for j := range p.inFlight[i].entries {
			p.c.stored(p.inFlight[i].entries[j].bytes)
		}
	}
	for i := range p.pending {
		p.c.stored(p.pending[i].bytes)
	}
	p.inFlight, p.pending = nil, nil
	p.signal()
}

// stream sends requests on one stream until all messages are answered and no further messages follow. It returns an
// error if the stream breaks.
func (p *pipeline) stream() (progress bool, err error) {
	ctx, cancel := context.WithCancel(p.c.calls)
	defer cancel()
	p.c.mu.Lock()
	p.sent, p.publishFrames, p.more = 0, 0, false
	p.c.mu.Unlock()
	stream, err := p.to.queues.PublishStream(ctx)
	if err != nil {
		return false, err
	}
	received := make(chan error, 1)
	p.c.run(func() {
		err := io.ErrUnexpectedEOF
		defer func() {
			cancel() // unblocks Send
			received <- err
		}()
		err = p.receive(stream, &progress)
	})
	for {
		b, over := p.publishFrame()
		switch {
		case b != nil:
			if stream.Send(b) == nil {
				continue
			}
			return progress, <-received // a failed Send does not return the cause
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

func (p *pipeline) publishFrame() (b *pb.PublishStreamRequest, over bool) {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	first := p.nextRequest(0, 0)
	if first == nil {
		return nil, p.ends()
	}
	b = p.encode(first)
	messages, bytes := first.size()
	at := p.sent - 1 // index of the last request in the frame
	for p.more && len(b.GetMore()) < window/eagerFrames {
		r := p.nextRequest(messages, bytes)
		if r == nil {
			break
		}
		b.More = append(b.More, p.encode(r))
		m, n := r.size()
		messages, bytes, at = messages+m, bytes+n, p.sent-1
	}
	p.inFlight[at].last = true
	p.publishFrames++
	return b, false
}

func (p *pipeline) encode(r *request) *pb.PublishStreamRequest {
	p.numbered++
	r.correlation = p.numbered
	publish := &pb.PublishRequest{
		Queue: r.entries[0].queue, Messages: make([]*pb.Message, len(r.entries)),
		Producer: &pb.Producer{Id: p.id, Epoch: 1, Sequence: r.sequence, Retry: r.retry},
	}
	for i := range r.entries {
		publish.Messages[i] = r.entries[i].message
	}
	return &pb.PublishStreamRequest{
		Correlation: r.correlation, Publish: publish, AcceptsMore: true,
		Resumes: p.resumes(publish.Queue) || len(p.inFlight) == 1, // all earlier requests for the queue are answered
	}
}

func (r *request) size() (messages, bytes int) {
	for i := range r.entries {
		bytes += r.entries[i].bytes
	}
	return len(r.entries), bytes
}

// nextRequest returns the next request for a frame that already contains the given number of messages and bytes, or
// nil. Requests of an earlier stream are returned first, in order, followed by new requests. mu is held.
func (p *pipeline) nextRequest(messages, bytes int) *request {
	if p.sent < len(p.inFlight) {
		r := &p.inFlight[p.sent]
		if m, b := r.size(); messages > 0 && (messages+m > maxBatch || bytes+b > maxBatchBytes) ||
			messages == 0 && p.publishFrames >= eagerFrames {
			return nil
		}
		r.sent, r.last = true, false
		p.sent++
		return r
	}
	if len(p.pending) == 0 || len(p.inFlight) >= window || p.missing != "" {
		return nil
	}
	if messages == 0 && p.publishFrames >= eagerFrames && len(p.pending) < maxBatch && p.c.pending < maxBatchBytes {
		return nil // wait for a full batch or the next response
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
	r := request{sequence: p.next, entries: slices.Clone(p.pending[:n]), sent: true}
	p.next++
	p.pending = p.pending[:copy(p.pending, p.pending[n:])]
	p.inFlight = append(p.inFlight, r)
	p.sent++
	return &p.inFlight[len(p.inFlight)-1]
}

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

var errOrder = errors.New("responses out of order")

// answered handles the response to the oldest request. mu is held.
func (p *pipeline) answered(resp *pb.PublishStreamResponse) error {
	if len(p.inFlight) == 0 || p.inFlight[0].correlation != resp.GetCorrelation() {
		return fmt.Errorf("%w: %d", errOrder, resp.GetCorrelation())
	}
	r := p.inFlight[0]
	if e := resp.GetError(); e != nil {
		return p.failedRequest(&r, ofRequest(e))
	}
	p.take(r)
	p.of.exists = true
	if rt := p.of.routes[r.entries[0].queue]; rt != nil && rt.pipe == p {
		rt.way.progress()
	}
	for i := range r.entries {
		p.c.stored(r.entries[i].bytes)
		if !r.entries[i].settled {
			p.link.Settle(r.entries[i].id, wire.Accepted{})
		} else {
			p.link.Settle(r.entries[i].id, nil)
		}
	}
	p.createMissing()
	p.of.completeMoves(p)
	return nil
}

// failedRequest handles an error of the oldest request. If the stream must end, it returns the error. mu is held.
func (p *pipeline) failedRequest(r *request, f failure) error {
	if f.concernsOwner() && (f.settled || !r.retry) && p.c.fleet != nil {
		p.take(*r)
		if err := p.of.redirect(p, r, &f); err != nil {
			f.text += "; " + err.Error()
			p.refused(r, &f)
		}
		p.createMissing()
		p.of.completeMoves(p)
		return nil
	}
	if f.again() {
		return &f
	}
	p.take(*r)
	p.refused(r, &f)
	p.createMissing()
	p.of.completeMoves(p)
	return nil
}

func (p *pipeline) take(r request) {
	p.inFlight[0] = request{}
	p.inFlight = p.inFlight[1:]
	p.sent--
	if r.last {
		p.publishFrames--
	}
}

// refused handles a refused request. It retries the messages of a batch one by one, because a single message may be
// the cause. A missing queue is created on demand. mu is held.
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
		p.requeue(r.entries)
		return
	}
	var state wire.DeliveryState = &wire.Rejected{Error: f.toAMQP()}
	if !certain { // an earlier attempt may have been committed
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
	if settled || state == nil { // the client is not notified otherwise
		p.link.Detach(true, f.toAMQP())
		p.of.drop()
	}
}

func (p *pipeline) queueDeleted(r *request, f *failure) {
	reason := p.of.resourceDeleted(f)
	for i := range r.entries {
		p.c.stored(r.entries[i].bytes)
		if !r.entries[i].settled && (f.settled || !r.retry) {
			p.link.Settle(r.entries[i].id, &wire.Rejected{Error: reason})
		}
	}
	p.link.Detach(true, reason)
	p.of.drop()
}

// onDemand schedules the creation of a missing queue, and the retry of r. Requests for the queue that were sent after r
// are usually refused as well; they are sent again in order. mu is held.
func (p *pipeline) onDemand(r *request) {
	for i := range r.entries {
		r.entries[i].made = true
	}
	p.requeue(r.entries)
	p.missing = r.entries[0].queue
}

// createMissing creates the missing queue when all sent requests are answered. mu is held.
func (p *pipeline) createMissing() {
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
			p.abandon(queue, refusal(err))
		}
		p.signal()
		p.c.signal()
	})
}

// abandon rejects the messages for a queue that could not be created. If the client has settled any of them, it
// receives no outcome for them: the link is detached. mu is held.
func (p *pipeline) abandon(queue string, reason *wire.Error) {
	kept, settled := p.pending[:0], false
	for _, e := range p.pending {
		if e.queue != queue || !e.made {
			kept = append(kept, e)
			continue
		}
		p.c.stored(e.bytes)
		if settled = settled || e.settled; !e.settled {
			p.link.Settle(e.id, &wire.Rejected{Error: reason})
		}
	}
	clear(p.pending[len(kept):])
	p.pending = kept
	if settled {
		p.link.Detach(true, reason)
		p.of.drop()
	}
	p.c.room.Broadcast()
}

// requeue inserts messages that must be sent again before later messages. mu is held.
func (p *pipeline) requeue(entries []entry) {
	at := 0
	for at < len(p.pending) && int32(p.pending[at].id-entries[0].id) < 0 {
		at++
	}
	p.pending = slices.Insert(p.pending, at, entries...)
}
