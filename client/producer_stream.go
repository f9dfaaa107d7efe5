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

func (pl *pipeline) run(ctx context.Context) {
	defer close(pl.done)
	retry := pl.client.opts.newBackoff()
	refusals := 0 // consecutive rejected tokens
	for pl.waitForWork(ctx) {
		t, err := pl.client.await(ctx, pl.pair, false)
		if errors.Is(err, errNoActive) {
			pl.lookUp(ctx)
			continue
		}
		if refused := (*Error)(nil); errors.As(err, &refused) {
			pl.failInFlight(fmt.Errorf("publish: %w", refused), nil)
			pl.failPending(fmt.Errorf("publish: %w", refused))
			continue
		}
		if err != nil {
			break
		}
		began := time.Now()
		progress, err := pl.session(ctx, t)
		if ctx.Err() != nil {
			break
		}
		if progress {
			retry.Reset()
			refusals = 0
		}
		e := pl.client.nodeError(ctx, t, err)
		if e.reason == pb.ErrorReason_ERROR_REASON_SPLIT && pl.split(e.submitted) {
			continue // the same node accepts the publishes one by one
		}
		if e.retry() || pl.client.opts.tokens.isFresh(ctx, e, began, &refusals) {
			pl.takeBack(e.submitted)
		} else {
			// The node rejects the stream as a whole. It is unknown which request caused the rejection.
			pl.failInFlight(fmt.Errorf("publish: %w", e), e.submitted)
		}
		if e.blocked() && pl.client.failsFast(t) {
			pl.failPending(fmt.Errorf("publish: %w", e.refused()))
		}
		pl.pair.locator.failed(e)
		pl.pair.locator.pause(ctx, t, max(retry.NextBackOff(), e.retryAfter))
	}
	pl.mu.Lock()
	pl.producer.closed = true // also if the client was closed while run waited for a node
	pl.mu.Unlock()
	pl.failInFlight(&opError{op: "publish", cause: ErrClosed}, nil)
	pl.failPending(&opError{op: "publish", cause: ErrClosed})
}

// unsubmitted returns how many of the newest requests the node has certainly not executed, as reported by the status
// that ended the stream. It counts only requests that no earlier stream carried. mu is held.
func (pl *pipeline) unsubmitted(s *pb.Submitted) (n int) {
	if s == nil || pl.sent < pl.inFlight.len() {
		return 0
	}
	for n < pl.sent {
		r := *pl.inFlight.at(pl.sent - 1 - n)
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
func (pl *pipeline) split(s *pb.Submitted) bool {
	pl.takeBack(s)
	pl.mu.Lock()
	defer pl.mu.Unlock()
	pl.dropWithdrawn()
	if pl.inFlight.len() > 0 {
		return false // the request was sent on an earlier stream, so its publishes share one outcome
	}
	if pl.pending.len() == 0 {
		return true
	}
	if pl.single == nil {
		pl.single = make(map[string]int)
	}
	pl.single[(*pl.pending.at(0)).queue] = singly
	return true
}

// isSingle reports whether a publish to a queue must be sent alone. If so, it counts the publish. mu is held.
func (pl *pipeline) isSingle(queue string) bool {
	left, is := pl.single[queue]
	if !is {
		return false
	}
	if pl.single[queue] = left - 1; left <= 1 {
		delete(pl.single, queue)
	}
	return true
}

// takeBack moves the publishes of unsubmitted requests back to pending, or to the route of their queue if the queue is
// moving, so that they can be canceled, or batched again.
// It also cancels or completes the moves of routes.
func (pl *pipeline) takeBack(s *pb.Submitted) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	for range pl.unsubmitted(s) {
		r := pl.inFlight.popLast()
		pl.sent--
		pl.unanswered -= r.messages
		pl.next = r.sequence
		rt := r.entries[0].route
		moving := rt != nil && rt.moving
		for _, e := range slices.Backward(r.entries) {
			e.taken = false
			if moving {
				rt.queued.pushFirst(e)
			} else {
				pl.pending.pushFirst(e)
			}
		}
		if !moving {
			pl.count += r.messages
			pl.bytes += r.bytes
		}
	}
	for rt, first := range pl.takeRefused() {
		pl.returnRefused(rt, first)
	}
	pl.producer.completeMoves(pl)
}

func (pl *pipeline) waitForWork(ctx context.Context) bool {
	for ctx.Err() == nil {
		pl.mu.Lock()
		pl.dropWithdrawn()
		work := pl.pending.len()+pl.inFlight.len() > 0
		pl.mu.Unlock()
		if work {
			return true
		}
		select {
		case <-pl.wake:
		case <-ctx.Done():
		}
	}
	return false
}

func (pl *pipeline) session(ctx context.Context, t *target) (progress bool, err error) {
	ctx, unbind := t.bind(ctx)
	defer unbind()
	pl.mu.Lock()
	pl.sent, pl.frames, pl.greeted, pl.more = 0, 0, false, false // all of inFlight must be sent again
	pl.mu.Unlock()
	stream, err := queues(t.conn()).PublishStream(ctx)
	if err != nil {
		return false, err
	}
	received := make(chan error, 1)
	go func() {
		err := pl.receive(ctx, stream, t.node.address, &progress)
		received <- err
		unbind() // unblocks a sender that waits for flow control
	}()
	sendErr := pl.send(ctx, stream, received)
	unbind()
	err = <-received
	if sendErr != nil && !errors.Is(sendErr, io.EOF) && status.Code(err) == codes.Canceled {
		err = sendErr // the send failed first; otherwise a failed Send returns only io.EOF, and Recv returns the cause
	}
	return progress, err
}

// send sends requests while the stream is open. When the stream has ended, send returns the error of the stream and
// also leaves it in received.
func (pl *pipeline) send(ctx context.Context, stream pb.QueueService_PublishStreamClient, received chan error) error {
	for {
		if b := pl.nextFrame(); b != nil {
			if err := stream.SendMsg(b); err != nil {
				return err //nolint:wrapcheck // asError reads it
			}
			continue
		}
		select {
		case <-pl.wake:
			// A response may have just woken the callers that waited for it, and they are about to publish again. Yielding lets
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
func (pl *pipeline) nextFrame() *frame {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	r := pl.nextRequest(0, 0)
	if r == nil {
		return nil
	}
	pl.frames++
	b, last := &frame{}, r
	pl.addTo(b, r)
	messages, bytes := r.messages, r.bytes
	// Use a fraction of the window, so that another frame is always in flight.
	for most := max(pl.opts.Window/eagerFrames, 1); pl.more && len(b.parts) < most; last = r {
		if r = pl.nextRequest(messages, bytes); r == nil {
			break
		}
		pl.addTo(b, r)
		messages, bytes = messages+r.messages, bytes+r.bytes
	}
	last.last = true
	return b
}

// addTo adds a request to b, under the current identity of the producer. mu is held.
func (pl *pipeline) addTo(b *frame, r *request) {
	b.parts = append(b.parts, part{
		queue: r.queue, id: pl.id, epoch: pl.opts.Epoch, sequence: r.sequence, retry: r.repeated, entries: r.entries,
		resumes: r.resumes && !r.repeated,
	})
}

// nextRequest returns the next request for a frame that already contains the given number of messages and bytes, or
// nil. Requests of an earlier stream are returned first, in the same order, followed by new requests, up to the
// window. mu is held.
func (pl *pipeline) nextRequest(messages, bytes int) *request {
	if pl.sent < pl.inFlight.len() {
		if !pl.greeted && pl.frames >= eagerFrames {
			return nil // wait: the first response reports whether the node accepts several requests per frame
		}
		r := *pl.inFlight.at(pl.sent)
		if messages > 0 && !pl.fits(messages+r.messages, bytes+r.bytes) {
			return nil
		}
		r.repeated, r.sent, r.last = r.sent, true, false
		pl.sent++
		return r
	}
	pl.dropWithdrawn()
	if pl.pending.len() == 0 || pl.inFlight.len()+pl.reserved.requests >= pl.opts.Window {
		return nil
	}
	first := *pl.pending.at(0)
	if outstanding := pl.unanswered + pl.reserved.messages; outstanding > 0 &&
		outstanding+max(int(first.count), pl.opts.BatchMessages) > maxUnanswered {
		return nil
	}
	switch {
	case messages > 0:
		if !pl.fits(messages+int(first.count), bytes+first.bytes) {
			return nil
		}
	case pl.frames >= eagerFrames && pl.count < pl.opts.BatchMessages && pl.bytes < pl.opts.BatchBytes:
		return nil // wait for a full batch or the next response
	}
	r := pl.form(messages, bytes)
	pl.inFlight.push(r)
	pl.sent++
	pl.unanswered += r.messages
	return r
}

func (pl *pipeline) fits(messages, bytes int) bool {
	return messages <= pl.opts.BatchMessages && bytes <= pl.opts.BatchBytes
}

// form creates a request from publishes to one queue at the head of pending. The first entry must not be withdrawn.
// The frame already contains otherMessages messages with otherBytes bytes. mu is held.
func (pl *pipeline) form(otherMessages, otherBytes int) *request {
	first := pl.pending.pop()
	first.taken = true
	entries, messages, bytes := []*Pending{first}, int(first.count), first.bytes
	alone := pl.isSingle(first.queue)
	for pl.dropWithdrawn(); pl.pending.len() > 0 && !alone; pl.dropWithdrawn() {
		e := *pl.pending.at(0)
		if e.queue != first.queue || !pl.fits(otherMessages+messages+int(e.count), otherBytes+bytes+e.bytes) {
			break
		}
		messages += int(e.count)
		bytes += e.bytes
		e.taken = true
		entries = append(entries, pl.pending.pop())
	}
	pl.count -= messages
	pl.bytes -= bytes
	seq := pl.next
	pl.next++
	return &request{
		sequence: seq, queue: first.queue, entries: entries, messages: messages, bytes: bytes, sent: true,
		resumes: pl.takeResumed(first.queue),
	}
}

func (pl *pipeline) receive(
	ctx context.Context, stream pb.QueueService_PublishStreamClient, address string, progress *bool,
) error {
	for {
		resp, err := stream.Recv()
		if err != nil {
			return err //nolint:wrapcheck // asError reads it
		}
		if err := pl.handleAll(ctx, resp, address); err != nil {
			return err
		}
		*progress = true
	}
}

func (pl *pipeline) handleAll(ctx context.Context, resp *pb.PublishStreamResponse, address string) error {
	defer pl.signal()
	pl.mu.Lock()
	pl.greeted = true
	pl.more = pl.more || resp.GetAcceptsMore()
	pl.mu.Unlock()
	if err := pl.handle(ctx, resp, address); err != nil {
		return err
	}
	for _, r := range resp.GetMore() {
		if err := pl.handle(ctx, r, address); err != nil {
			return err
		}
	}
	return nil
}

// handle completes the oldest request with a response. It returns a retryable error instead, which ends the stream: the
// request and all later ones are sent again, in order. Errors that concern only the owner of one queue do not end the
// stream, except DIRECTORY_UNAVAILABLE after an attempt that may have been committed.
func (pl *pipeline) handle(ctx context.Context, resp *pb.PublishStreamResponse, address string) error {
	var refused *Error
	if resp.GetError() != nil {
		if refused = streamError(ctx, address, resp.GetError()); refused.retry() && !refused.concernsOwner() {
			return refused
		}
	}
	pl.mu.Lock()
	if pl.sent == 0 || (*pl.inFlight.at(0)).sequence != resp.GetCorrelation() {
		pl.mu.Unlock()
		return &Error{Address: address, Code: codes.Unavailable, Message: errProtocol.Error()}
	}
	if refused != nil && refused.forgotten() && pl.renew() {
		pl.mu.Unlock()
		return &Error{Address: address, Code: codes.Unavailable, Message: refused.Message}
	}
	if refused != nil && refused.undirected() && !(*pl.inFlight.at(0)).notApplied(refused) {
		pl.mu.Unlock()
		return refused // an earlier attempt may be committed, so the request is sent again under the same sequence
	}
	r := pl.inFlight.pop()
	pl.sent--
	pl.unanswered -= r.messages
	if r.last {
		pl.frames--
	}
	if refused != nil && refused.partitioned != nil && r.notApplied(refused) {
		pl.client.partitions.learn(refused.partitioned)
	}
	if refused != nil && (refused.concernsOwner() || refused.partitioned != nil) && r.notApplied(refused) {
		if refused = pl.producer.redirect(pl, r, refused); refused == nil {
			pl.mu.Unlock()
			return nil
		}
	}
	pl.mu.Unlock()
	pl.finish(r, resp.GetPublished(), refused, address)
	return nil
}

// notApplied reports whether a rejection proves that no attempt of the request was or will be committed.
func (r *request) notApplied(refused *Error) bool { return !r.repeated || refused.settled }

// finish completes the publishes of a request that was answered.
func (pl *pipeline) finish(r *request, done *pb.PublishResponse, refused *Error, address string) {
	rt := r.entries[0].route
	switch {
	case refused != nil:
		if errors.Is(refused, ErrQueueNotFound) {
			pl.client.partitions.missing(r.queue)
		}
		d := attempts{unknown: r.repeated}
		pl.producer.answer(r.entries, Receipt{}, d.refused("publish to "+r.queue, refused))
	case done.GetDuplicate() && !r.repeated:
		pl.producer.answer(r.entries, Receipt{}, fmt.Errorf("publish to %s: %w (id %q, epoch %d)", r.queue,
			ErrSequenceReused, pl.opts.ID, pl.opts.Epoch))
	default:
		pl.producer.answer(r.entries, Receipt{
			Sequence: done.GetFirstSequence(), LSN: done.GetLsn(), Duplicate: done.GetDuplicate(), Address: address,
			Partition: partitionName(r.queue),
		}, nil, done.GetDuplicates()...)
	}
	if rt == nil {
		return
	}
	pl.mu.Lock()
	defer pl.mu.Unlock()
	if rt.moving {
		pl.producer.completeMove(rt, pl)
	} else if refused == nil {
		rt.reset()
	}
}

// renew assigns a new identity to the producer after a node evicted it. A node rejects all requests of an unknown
// producer, so no request in flight was committed. renew returns false if the application set the ID, or if a request
// in flight is a retry and may have been committed. mu is held.
func (pl *pipeline) renew() bool {
	if pl.opts.ID != "" {
		return false
	}
	for i := range pl.inFlight.len() {
		if (*pl.inFlight.at(i)).repeated {
			return false
		}
	}
	pl.id, pl.next = uuid.NewString(), 1
	for i := range pl.inFlight.len() {
		r := *pl.inFlight.at(i)
		r.sent, r.repeated, r.sequence = false, false, pl.next
		pl.next++
	}
	return true
}

// failInFlight completes all requests in flight with err. The error of requests that may have been committed also
// matches ErrOutcomeUnknown.
func (pl *pipeline) failInFlight(err error, s *pb.Submitted) {
	pl.mu.Lock()
	n := pl.unsubmitted(s)
	unknown, refused := pl.takeInFlight(pl.inFlight.len()-n), pl.takeInFlight(n)
	pl.sent = 0
	pl.producer.completeMoves(pl)
	pl.mu.Unlock()
	pl.producer.answer(unknown, Receipt{}, fmt.Errorf("%w; %w", err, ErrOutcomeUnknown))
	pl.producer.answer(refused, Receipt{}, err)
}
