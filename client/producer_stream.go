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
)

func (p *Producer) run(ctx context.Context) {
	defer close(p.done)
	retry := p.client.opts.newBackoff()
	refusals := 0 // consecutive rejected tokens
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
			continue // the same node accepts the publishes one by one
		}
		if e.retry() || p.client.opts.tokens.isFresh(ctx, e, began, &refusals) {
			p.takeBack(e.submitted)
		} else {
			// The node rejects the stream as a whole. It is unknown which request caused the rejection.
			p.failInFlight(fmt.Errorf("publish: %w", e), e.submitted)
		}
		if e.blocked() && p.client.failsFast(t) {
			p.failPending(fmt.Errorf("publish: %w", e.refused()))
		}
		p.client.locator.failed(e)
		p.client.locator.pause(ctx, t, max(retry.NextBackOff(), e.retryAfter))
	}
	p.mu.Lock()
	p.closed = true // also if the client was closed while run waited for a node
	p.mu.Unlock()
	p.failInFlight(&opError{op: "publish", cause: ErrClosed}, nil)
	p.failPending(&opError{op: "publish", cause: ErrClosed})
}

// unsubmitted returns how many of the newest requests the node has certainly not executed, as reported by the status
// that ended the stream. It counts only requests that no earlier stream carried. mu is held.
func (p *Producer) unsubmitted(s *pb.Submitted) (n int) {
	if s == nil || p.sent < p.inFlight.len() {
		return 0
	}
	for n < p.sent {
		r := *p.inFlight.at(p.sent - 1 - n)
		if r.sequence <= s.GetThrough() || r.repeated {
			break
		}
		n++
	}
	return n
}

// singly is the number of publishes to a queue that are sent one by one after a node has requested this.
const singly = 1024

// split moves the publishes of unsubmitted requests back to pending. The next publishes to the queue of the first
// pending publish are sent one by one, so that each has its own outcome. It returns false if requests of an earlier
// stream remain in flight.
func (p *Producer) split(s *pb.Submitted) bool {
	p.takeBack(s)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropWithdrawn()
	if p.inFlight.len() > 0 {
		return false // the request was sent on an earlier stream, so its publishes share one outcome
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

// isSingle reports whether a publish to a queue must be sent alone. If so, it counts the publish. mu is held.
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

// takeBack moves the publishes of unsubmitted requests back to pending. They can then be canceled, or batched again.
func (p *Producer) takeBack(s *pb.Submitted) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for range p.unsubmitted(s) {
		r := p.inFlight.popLast()
		p.sent--
		p.unanswered -= r.messages
		p.next = r.sequence
		for _, e := range slices.Backward(r.entries) {
			e.taken = false
			p.pending.pushFirst(e)
		}
		p.count += r.messages
		p.bytes += r.bytes
	}
}

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

func (p *Producer) session(ctx context.Context, t *target) (progress bool, err error) {
	ctx, unbind := t.bind(ctx)
	defer unbind()
	p.mu.Lock()
	p.sent, p.frames, p.greeted, p.more = 0, 0, false, false // all of inFlight must be sent again
	p.mu.Unlock()
	stream, err := queues(t.conn()).PublishStream(ctx)
	if err != nil {
		return false, err
	}
	received := make(chan error, 1)
	go func() {
		err := p.receive(ctx, stream, t.node.address, &progress)
		received <- err
		unbind() // unblocks a sender that waits for flow control
	}()
	sendErr := p.send(ctx, stream, received)
	unbind()
	err = <-received
	if sendErr != nil && !errors.Is(sendErr, io.EOF) && status.Code(err) == codes.Canceled {
		err = sendErr // the send failed first; otherwise a failed Send returns only io.EOF, and Recv returns the cause
	}
	return progress, err
}

// send sends requests while the stream is open. When the stream has ended, send returns the error of the stream and
// also leaves it in received.
func (p *Producer) send(ctx context.Context, stream pb.QueueService_PublishStreamClient, received chan error) error {
	for {
		if b := p.nextFrame(); b != nil {
			if err := stream.SendMsg(b); err != nil {
				return err //nolint:wrapcheck // asError reads it
			}
			continue
		}
		select {
		case <-p.wake:
			// A response has just woken all callers that waited for it, and they are about to publish again. Yielding lets
			// these publishes share one request.
			runtime.Gosched()
		case err := <-received:
			received <- err
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// nextFrame returns the next frame for the current stream: a request and further requests that are sent with it. It
// returns nil if no request is ready.
func (p *Producer) nextFrame() *frame {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.nextRequest(0, 0)
	if r == nil {
		return nil
	}
	p.frames++
	b, last := &frame{}, r
	p.addTo(b, r)
	messages, bytes := r.messages, r.bytes
	// Use a fraction of the window, so that another frame is always in flight.
	for most := max(p.opts.Window/eagerFrames, 1); p.more && len(b.parts) < most; last = r {
		if r = p.nextRequest(messages, bytes); r == nil {
			break
		}
		p.addTo(b, r)
		messages, bytes = messages+r.messages, bytes+r.bytes
	}
	last.last = true
	return b
}

// addTo adds a request to b, under the current identity of the producer. mu is held.
func (p *Producer) addTo(b *frame, r *request) {
	b.parts = append(b.parts, part{
		queue: r.queue, id: p.id, epoch: p.opts.Epoch, sequence: r.sequence, retry: r.repeated, entries: r.entries,
	})
}

// nextRequest returns the next request for a frame that already contains the given number of messages and bytes, or
// nil. Requests of an earlier stream are returned first, in the same order, followed by new requests, up to the
// window. mu is held.
func (p *Producer) nextRequest(messages, bytes int) *request {
	if p.sent < p.inFlight.len() {
		if !p.greeted && p.frames >= eagerFrames {
			return nil // wait: the first response reports whether the node accepts several requests per frame
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
	if p.unanswered > 0 && p.unanswered+max(int(first.count), p.opts.BatchMessages) > maxUnanswered {
		return nil
	}
	switch {
	case messages > 0:
		if !p.fits(messages+int(first.count), bytes+first.bytes) {
			return nil
		}
	case p.frames >= eagerFrames && p.count < p.opts.BatchMessages && p.bytes < p.opts.BatchBytes:
		return nil // wait for a full batch or the next response
	}
	r := p.form(messages, bytes)
	p.inFlight.push(r)
	p.sent++
	p.unanswered += r.messages
	return r
}

func (p *Producer) fits(messages, bytes int) bool {
	return messages <= p.opts.BatchMessages && bytes <= p.opts.BatchBytes
}

// form creates a request from publishes to one queue at the head of pending. The first entry must not be withdrawn.
// The frame already contains otherMessages messages with otherBytes bytes. mu is held.
func (p *Producer) form(otherMessages, otherBytes int) *request {
	first := p.pending.pop()
	first.taken = true
	entries, messages, bytes := []*Pending{first}, int(first.count), first.bytes
	alone := p.isSingle(first.queue)
	for p.dropWithdrawn(); p.pending.len() > 0 && !alone; p.dropWithdrawn() {
		e := *p.pending.at(0)
		if e.queue != first.queue || !p.fits(otherMessages+messages+int(e.count), otherBytes+bytes+e.bytes) {
			break
		}
		messages += int(e.count)
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

func (p *Producer) receive(
	ctx context.Context, stream pb.QueueService_PublishStreamClient, address string, progress *bool,
) error {
	for {
		resp, err := stream.Recv()
		if err != nil {
			return err //nolint:wrapcheck // asError reads it
		}
		if err := p.handleAll(ctx, resp, address); err != nil {
			return err
		}
		*progress = true
	}
}

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

// handle completes the oldest request with a response. It returns a retryable error instead, which ends the stream:
// the request and all later ones are sent again, in order.
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
	p.unanswered -= r.messages
	if r.last {
		p.frames--
	}
	p.mu.Unlock()

	queue, done := r.queue, resp.GetPublished()
	switch {
	case refused != nil:
		d := attempts{unknown: r.repeated}
		p.answer(r.entries, Receipt{}, d.refused("publish to "+queue, refused))
	case done.GetDuplicate() && !r.repeated:
		p.answer(r.entries, Receipt{}, fmt.Errorf("publish to %s: %w (id %q, epoch %d)", queue, ErrSequenceReused,
			p.opts.ID, p.opts.Epoch))
	default:
		p.answer(r.entries, Receipt{
			Sequence: done.GetFirstSequence(), LSN: done.GetLsn(), Duplicate: done.GetDuplicate(), Address: address,
		}, nil, done.GetDuplicates()...)
	}
	return nil
}

// renew assigns a new identity to the producer after a node evicted it, which happens to an idle producer when very
// many others are active. A node rejects all requests of an unknown producer, so no request in flight was committed.
// renew returns false if the application set the ID, or if the oldest request in flight is a retry and may have been
// committed. mu is held.
func (p *Producer) renew() bool {
	if p.opts.ID != "" || (*p.inFlight.at(0)).repeated {
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

// failInFlight completes all sent requests with err. The error of requests that may have been committed also matches
// ErrOutcomeUnknown.
func (p *Producer) failInFlight(err error, s *pb.Submitted) {
	p.mu.Lock()
	n := p.unsubmitted(s)
	unknown, refused := p.takeInFlight(p.inFlight.len()-n), p.takeInFlight(n)
	p.sent = 0
	p.mu.Unlock()
	p.answer(unknown, Receipt{}, fmt.Errorf("%w; %w", err, ErrOutcomeUnknown))
	p.answer(refused, Receipt{}, err)
}
