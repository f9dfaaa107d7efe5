// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/mutate"
)

// run sends what is to be sent, on one stream after another, until ctx ends.
func (p *Producer) run(ctx context.Context) {
	defer close(p.done)
	retry := p.client.opts.newBackoff()
	refusals := 0 // tokens that were refused one after the other
	for p.waitForWork(ctx) {
		t, err := p.client.locator.waitLong(ctx)
		if refused := (*Error)(nil); errors.As(err, &refused) {
			p.failInFlight(fmt.Errorf("publish: %w", refused), nil)
			p.failPending(fmt.Errorf("publish: %w", refused))
			continue
		}
		if err != nil {
			break
		}
		began := time.Now()
		progress, err := p.session(ctx, t)
		if ctx.Err() != nil {
			break
		}
		if progress {
			retry.Reset()
			refusals = 0
		}
		e := asError(ctx, t.node.address, err)
		if e.reason == pb.ErrorReason_ERROR_REASON_SPLIT && p.split(e.submitted) {
			continue // the same node takes them one by one
		}
		if e.retry() || p.client.opts.tokens.isFresh(ctx, e, began, &refusals) {
			p.takeBack(e.submitted)
		} else {
			// The node refuses the stream as such. Which request it means, if any, is not known.
			p.failInFlight(fmt.Errorf("publish: %w", e), e.submitted)
		}
		if e.blocked() && p.client.failsFast(t) {
			p.failPending(fmt.Errorf("publish: %w", e.refused()))
		}
		p.client.locator.failed(e)
		p.client.locator.pause(ctx, t, max(retry.NextBackOff(), e.retryAfter))
	}
	p.mu.Lock()
	p.closed = true // also when the client was closed while this waited for a node
	p.mu.Unlock()
	p.failInFlight(&opError{op: "publish", cause: ErrClosed}, nil)
	p.failPending(&opError{op: "publish", cause: ErrClosed})
}

// unsubmitted is how many of the newest requests the node has certainly not carried out, which says so with the status
// that ended the stream: those that only this stream has carried. The caller holds mu.
func (p *Producer) unsubmitted(s *pb.Submitted) (n int) {
	if s == nil || p.sent < p.inFlight.len() {
		return 0
	}
	for n < p.sent {
		r := *p.inFlight.at(p.sent - 1 - n)
		if r.sequence <= s.GetThrough() ||
			r.repeated && !mutate.Off("INV-10-doubt-ends-with-the-stream") {
			break
		}
		n++
	}
	return n
}

// singly is how many publishes to a queue are sent one by one after a node has asked for that.
const singly = 1024

// split takes back what the node has not submitted and has the publishes to the queue of the first one sent one by one
// for a while, so that each has an outcome of its own. It reports false if nothing could be taken back.
func (p *Producer) split(s *pb.Submitted) bool {
	p.takeBack(s)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropWithdrawn()
	if p.inFlight.len() > 0 {
		return false // it was sent on an earlier stream, and has one outcome
	}
	if p.pending.len() == 0 {
		return true
	}
	if p.single == nil {
		p.single = make(map[string]int)
	}
	p.single[(*p.pending.at(0)).queue] = singly
	return true
}

// isSingle reports whether a publish to a queue is to be sent by itself, and counts it. The caller holds mu.
func (p *Producer) isSingle(queue string) bool {
	left, is := p.single[queue]
	if !is {
		return false
	}
	if p.single[queue] = left - 1; left <= 1 {
		delete(p.single, queue)
	}
	return true
}

// takeBack puts what the node has not submitted back to what is in no request: it is not in doubt, may be given up, and
// may go together with what was published meanwhile.
func (p *Producer) takeBack(s *pb.Submitted) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for range p.unsubmitted(s) {
		r := p.inFlight.popLast()
		p.sent--
		p.next = r.sequence
		for _, e := range slices.Backward(r.entries) {
			e.taken = false
			p.pending.pushFirst(e)
		}
		p.count += r.messages
		p.bytes += r.bytes
	}
}

// waitForWork waits until there is something to send; false when ctx ended.
func (p *Producer) waitForWork(ctx context.Context) bool {
	for ctx.Err() == nil {
		p.mu.Lock()
		work := p.open > 0
		p.mu.Unlock()
		if work {
			return true
		}
		select {
		case <-p.wake:
		case <-ctx.Done():
		}
	}
	return false
}

// session runs one stream on one node until it breaks, and tells whether anything was answered.
func (p *Producer) session(ctx context.Context, t *target) (progress bool, err error) {
	ctx, unbind := t.bind(ctx)
	defer unbind()
	p.mu.Lock()
	p.sent, p.bursts, p.greeted, p.more = 0, 0, false, false // all of inFlight is to be sent, again
	p.mu.Unlock()
	stream, err := queues(t.conn()).PublishStream(ctx)
	if err != nil {
		return false, err
	}
	received := make(chan error, 1)
	go func() {
		err := p.receive(ctx, stream, t.node.address, &progress)
		received <- err
		unbind() // so that a sender that waits for room in the connection comes back
	}()
	sendErr := p.send(ctx, stream, received)
	unbind()
	err = <-received
	if sendErr != nil && !errors.Is(sendErr, io.EOF) && status.Code(err) == codes.Canceled {
		err = sendErr // the sending failed first; otherwise a failed Send only says io.EOF, and Recv says why
	}
	return progress, err
}

// send sends requests as long as the stream lives. received has a value when it does not any more, which is left there.
func (p *Producer) send(ctx context.Context, stream pb.QueueService_PublishStreamClient, received chan error) error {
	for {
		if b := p.nextBurst(); b != nil {
			if err := stream.SendMsg(b); err != nil {
				return err //nolint:wrapcheck // asError needs it as it is
			}
			continue
		}
		select {
		case <-p.wake:
			// An answer has just woken all callers whose message was in it, and they are about to publish the next
			// one: let them, and all of that is one request. No other publish is kept waiting by it.
			runtime.Gosched()
		case err := <-received:
			received <- err
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// nextBurst returns what is to be sent next on the present stream: a request, and those that may go with it; nil when
// there is none.
func (p *Producer) nextBurst() *burst {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.nextRequest(0, 0)
	if r == nil {
		return nil
	}
	p.bursts++
	b, last := &burst{}, r
	p.addTo(b, r)
	messages, bytes := r.messages, r.bytes
	// A part of the window, so that there is always another burst on its way.
	for most := max(p.opts.Window/eagerBursts, 1); p.more && len(b.parts) < most; last = r {
		if r = p.nextRequest(messages, bytes); r == nil {
			break
		}
		p.addTo(b, r)
		messages, bytes = messages+r.messages, bytes+r.bytes
	}
	last.last = true
	return b
}

// addTo adds a request to b, under its present identity. The caller holds mu.
func (p *Producer) addTo(b *burst, r *request) {
	b.parts = append(b.parts, part{
		queue: r.queue, id: p.id, epoch: p.opts.Epoch, sequence: r.sequence, retry: r.repeated, entries: r.entries,
	})
}

// nextRequest returns the next request to be sent, unless there is none that should go, with so many messages and bytes
// that go already: first what was sent on an earlier stream, in the same order; then new requests as far as the window
// goes. The caller holds mu.
func (p *Producer) nextRequest(messages, bytes int) *request {
	if p.sent < p.inFlight.len() {
		if !p.greeted && p.bursts >= eagerBursts {
			return nil // one by one they would be many; the first answer says whether that must be
		}
		r := *p.inFlight.at(p.sent)
		if messages > 0 && !p.fits(messages+r.messages, bytes+r.bytes) {
			return nil
		}
		r.repeated, r.sent, r.last = r.sent, true, false
		p.sent++
		return r
	}
	p.dropWithdrawn()
	if p.pending.len() == 0 || p.inFlight.len() >= p.opts.Window {
		return nil
	}
	first := *p.pending.at(0)
	switch {
	case messages > 0:
		if !p.fits(messages+first.count, bytes+first.bytes) {
			return nil
		}
	case p.bursts >= eagerBursts && p.count < p.opts.BatchMessages && p.bytes < p.opts.BatchBytes:
		return nil // more will come along before the next answer does
	}
	r := p.form(messages, bytes)
	p.inFlight.push(r)
	p.sent++
	return r
}

// fits tells whether so much may be sent together.
func (p *Producer) fits(messages, bytes int) bool {
	return messages <= p.opts.BatchMessages && bytes <= p.opts.BatchBytes
}

// form takes publishes to one queue from the head of pending, which was not withdrawn, beside so many messages and
// bytes. The caller holds mu.
func (p *Producer) form(besideMessages, besideBytes int) *request {
	first := p.pending.pop()
	first.taken = true
	entries, messages, bytes := []*entry{first}, first.count, first.bytes
	alone := p.isSingle(first.queue)
	for p.dropWithdrawn(); p.pending.len() > 0 && !alone; p.dropWithdrawn() {
		e := *p.pending.at(0)
		if e.queue != first.queue || !p.fits(besideMessages+messages+e.count, besideBytes+bytes+e.bytes) {
			break
		}
		messages += e.count
		bytes += e.bytes
		e.taken = true
		entries = append(entries, p.pending.pop())
	}
	p.count -= messages
	p.bytes -= bytes
	seq := p.next
	p.next++
	return &request{
		sequence: seq, queue: first.queue, entries: entries, messages: messages, bytes: bytes, sent: true,
	}
}

// receive handles answers until the stream ends.
func (p *Producer) receive(
	ctx context.Context, stream pb.QueueService_PublishStreamClient, address string, progress *bool,
) error {
	for {
		resp, err := stream.Recv()
		if err != nil {
			return err //nolint:wrapcheck // asError needs it as it is
		}
		if err := p.handleAll(ctx, resp, address); err != nil {
			return err
		}
		*progress = true
	}
}

// handleAll handles an answer and those that came with it.
func (p *Producer) handleAll(ctx context.Context, resp *pb.PublishStreamResponse, address string) error {
	defer p.signal()
	p.mu.Lock()
	p.greeted = true
	p.more = p.more || resp.GetAcceptsMore()
	p.mu.Unlock()
	if err := p.handle(ctx, resp, address); err != nil {
		return err
	}
	for _, r := range resp.GetMore() {
		if err := p.handle(ctx, r, address); err != nil {
			return err
		}
	}
	return nil
}

// handle resolves the oldest request. An error that is worth a retry is returned and ends the stream: everything from
// that request on is sent again, in order.
func (p *Producer) handle(ctx context.Context, resp *pb.PublishStreamResponse, address string) error {
	var refused *Error
	if resp.GetError() != nil {
		if refused = streamError(ctx, address, resp.GetError()); refused.retry() {
			return refused
		}
	}
	p.mu.Lock()
	if p.sent == 0 || (*p.inFlight.at(0)).sequence != resp.GetCorrelation() {
		p.mu.Unlock()
		return &Error{Address: address, Code: codes.Unavailable, Message: errProtocol.Error()}
	}
	if refused != nil && refused.forgotten() && p.renew() {
		p.mu.Unlock()
		return &Error{Address: address, Code: codes.Unavailable, Message: refused.Message}
	}
	r := p.inFlight.pop()
	p.sent--
	if r.last {
		p.bursts--
	}
	p.mu.Unlock()

	queue, done := r.queue, resp.GetPublished()
	switch {
	case refused != nil:
		d := doubt{unknown: r.repeated}
		p.answer(r.entries, Receipt{}, d.refused("publish to "+queue, refused))
	case done.GetDuplicate() && !r.repeated:
		p.answer(r.entries, Receipt{}, fmt.Errorf("publish to %s: %w (id %q, epoch %d)", queue, ErrSequenceReused,
			p.opts.ID, p.opts.Epoch))
	default:
		p.answer(r.entries, Receipt{
			Sequence: done.GetFirstSequence(), LSN: done.GetLsn(), Duplicate: done.GetDuplicate(), Address: address,
		}, nil)
	}
	return nil
}

// renew gives the producer another identity after a node forgot it: it was idle for long while very many others were
// not. Requests of a producer that is not known are refused one and all, so those under way were not committed, unless
// the oldest was sent before and may have been committed then. The caller holds mu.
func (p *Producer) renew() bool {
	if p.opts.ID != "" || (*p.inFlight.at(0)).repeated && !mutate.Off("INV-10-producer-begins-anew-in-doubt") {
		return false
	}
	p.id, p.next = uuid.NewString(), 1
	for i := range p.inFlight.len() {
		r := *p.inFlight.at(i)
		r.sent, r.repeated, r.sequence = false, false, p.next
		p.next++
	}
	return true
}

// failInFlight answers all requests that were sent with err; those that may have been carried out with
// ErrOutcomeUnknown, too.
func (p *Producer) failInFlight(err error, s *pb.Submitted) {
	p.mu.Lock()
	n := p.unsubmitted(s)
	inDoubt, refused := p.takeInFlight(p.inFlight.len()-n), p.takeInFlight(n)
	p.sent = 0
	p.mu.Unlock()
	p.answer(inDoubt, Receipt{}, fmt.Errorf("%w; %w", err, ErrOutcomeUnknown))
	p.answer(refused, Receipt{}, err)
}
