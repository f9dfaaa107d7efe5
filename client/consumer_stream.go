// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-mq/lockstep/client/internal/link"
	"github.com/lockstep-mq/lockstep/proto/codec"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const (
	// maxConfirms replaces eagerConfirms while Flush waits.
	maxConfirms = 64
	// fullAcks is the number of pending answers from which they are sent regardless of the number of requests in flight.
	fullAcks = 1024
	// maxAcks limits the acks, the nacks, the rejects and the extensions of one request: a node accepts 10,000 ranges of
	// each.
	maxAcks = 5000
)

func (co *Consumer) run(ctx context.Context) {
	defer close(co.done)
	retry := co.client.opts.newBackoff()
	refusals := 0 // consecutive rejected tokens
	for {
		pair, t, err := co.target(ctx)
		if refused := (*Error)(nil); errors.As(err, &refused) {
			co.end(link.Wrap(co.op(), refused, refused.Message))
			return
		}
		if err != nil {
			break
		}
		began := time.Now()
		attached, err := co.session(ctx, t)
		if ctx.Err() != nil || co.left() {
			break
		}
		if attached {
			retry.Reset()
			refusals = 0
		}
		e, moved := co.follow(co.client.nodeError(ctx, t, err), attached)
		if moved {
			continue
		}
		outdated := e.reason == pb.ErrorReason_ERROR_REASON_SITE_EPOCH
		switch {
		case e.reason == pb.ErrorReason_ERROR_REASON_SUBSCRIPTION_MOVED:
			co.forget()
		case outdated:
			co.endEra()
		}
		if !e.retry() && !outdated && !co.client.opts.tokens.isFresh(ctx, e, began, &refusals) {
			co.end(link.Wrap(co.op(), e, e.Message))
			return
		}
		pair.locator.failed(e)
		pair.locator.pause(ctx, t, max(retry.NextBackOff(), e.retryAfter))
	}
	co.end(fmt.Errorf("%s: consumer %w", co.op(), ErrClosed))
}

// follow processes the error that ended a stream. moved reports whether the consumer attaches to another pair
// immediately. The queue of another pair is a different queue, so earlier deliveries can no longer be answered.
func (co *Consumer) follow(e *Error, attached bool) (_ *Error, moved bool) {
	co.mu.Lock()
	defer co.mu.Unlock()
	if attached {
		co.way.progress()
	}
	from := co.way.pair
	e = co.way.follow(e, nil)
	if co.way.pair != from {
		co.leavePair()
	}
	return e, co.way.moved
}

// leavePair discards all deliveries, because the queue has another owner. mu is held.
func (co *Consumer) leavePair() {
	co.endEraLocked()
	co.era.lineage, co.era.epoch, co.era.pairID = "", 0, ""
}

func (co *Consumer) end(err error) {
	if errors.Is(err, ErrQueueNotFound) {
		co.client.partitions.missing(co.queue)
	}
	co.mu.Lock()
	co.err = err
	co.buffer.clear()
	close(co.progress)
	co.progress = make(chan struct{})
	co.mu.Unlock()
	co.isAttached()
	signal(co.avail)
}

// isAttached closes co.attached, so that Consume returns: a node has accepted the consumer, or the consumer has
// ended. It is called only by run and by the goroutine that run waits for, never concurrently.
func (co *Consumer) isAttached() {
	select {
	case <-co.attached:
	default:
		close(co.attached)
	}
}

func (co *Consumer) left() bool {
	co.mu.Lock()
	defer co.mu.Unlock()
	co.streaming = false
	return co.leaving
}

func (co *Consumer) begins() bool {
	co.mu.Lock()
	defer co.mu.Unlock()
	co.streaming = !co.leaving
	return co.streaming
}

func (co *Consumer) session(ctx context.Context, t *target) (attached bool, err error) {
	if !co.begins() {
		return false, ErrClosed
	}
	ctx, unbind := t.bind(ctx)
	defer unbind()
	stream, err := queues(t.conn()).Consume(ctx)
	if err != nil {
		return false, err
	}
	first := co.reattach(t)
	received := make(chan error, 1)
	go func() {
		var resp codec.Received
		var err error
		for err == nil {
			if err = stream.RecvMsg(&resp); err == nil {
				attached = true
				co.handle(&resp.Response)
				resp.Reset()
			}
		}
		received <- err
		unbind() // unblocks a sender that waits for flow control
	}()
	sendErr := co.send(ctx, stream, first, received)
	if sendErr != nil {
		unbind()
	}
	err = <-received // the node ends the stream of a consumer that has left
	if sendErr != nil && !errors.Is(sendErr, io.EOF) && status.Code(err) == codes.Canceled {
		err = sendErr // the send failed first; otherwise a failed Send returns only io.EOF, and Recv returns the cause
	}
	co.mu.Lock()
	co.buffer.clear() // the next active may deliver them to another consumer
	co.mu.Unlock()
	return attached, err
}

// send sends requests while the stream is open, and returns nil after the last request of a consumer that leaves.
// When the stream has ended, send returns the error of the stream and also leaves it in received.
func (co *Consumer) send(
	ctx context.Context, stream pb.QueueService_ConsumeClient, r *pb.ConsumeRequest, received chan error,
) error {
	for {
		if r != nil {
			if err := stream.Send(r); err != nil {
				return err
			}
		} else {
			select {
			case <-co.wake:
			case err := <-received:
				received <- err
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		last := false
		if r, last = co.nextRequest(); last {
			if err := stream.Send(r); err != nil {
				return err
			}
			return stream.CloseSend() //nolint:wrapcheck // asError converts it
		}
	}
}

// reattach prepares the consumer for a new stream and returns the first request of the stream. Unconfirmed
// acknowledgements are retried; a retry has no effect if the acknowledgement is already committed. Nacked messages
// are redelivered in any case; rejected messages are redelivered unless they were moved.
func (co *Consumer) reattach(t *target) *pb.ConsumeRequest {
	co.mu.Lock()
	defer co.mu.Unlock()
	co.enter(t)
	co.deadline.address = t.node.address
	co.generation++
	clear(co.committed) // the new stream does not deliver them
	var again []uint64
	for co.unconfirmed.len() > 0 {
		again = append(again, co.unconfirmed.pop().ack...)
	}
	co.ack = append(again, co.ack...)
	co.nack, co.nackAfter, co.reject, co.extend = nil, nil, nil, nil
	co.credit = uint32(co.prefetch)
	if len(co.ack) == 0 {
		co.settle(co.answered)
	}
	r := co.request(true)
	r.Attach = &pb.Attach{
		Queue: co.queue, Subscription: co.subscription, MaxResponseBytes: maxReceiveBytes, QueueId: co.queueID,
		Filter: co.filter, ReportWaiting: true, AckTimeout: link.DurationToProto(co.ackTimeout),
		SiteEpoch: co.era.epoch, ConsumerId: co.member.consumerID(),
	}
	return r
}

// forget discards all deliveries after a seek: messages from the new position on are redelivered regardless of earlier
// answers. Earlier answers count as committed; later answers to these deliveries return an error.
func (co *Consumer) forget() {
	co.mu.Lock()
	defer co.mu.Unlock()
	co.forgetLocked()
}

func (co *Consumer) forgetLocked() {
	co.unconfirmed.clear()
	co.ack, co.nack, co.nackAfter, co.reject, co.extend = nil, nil, nil, nil, nil
	clear(co.held)
	clear(co.committed)
	co.settle(co.answered)
}

// nextRequest returns the next request, or nil, and whether it is the last request of a consumer that leaves.
func (co *Consumer) nextRequest() (r *pb.ConsumeRequest, last bool) {
	co.mu.Lock()
	defer co.mu.Unlock()
	pending, limit := co.pending(), eagerConfirms
	if co.leaving {
		co.credit = 0
		r = co.request(true)
		if last = co.pending() == 0; last {
			r.Leave = co.leave()
		}
		return r, last
	}
	if co.waiting > 0 {
		limit = maxConfirms
	}
	answers := pending > 0 && (co.unconfirmed.len() < limit || pending >= fullAcks || len(co.extend) > 0)
	if !answers && int(co.credit) < (co.prefetch+1)/2 && !co.empty {
		return nil, false
	}
	return co.request(answers), false
}

// leave returns a list of the messages that the application has received and not acknowledged. If the list has too
// many ranges, it is replaced with one range that covers all of them. mu is held.
func (co *Consumer) leave() *pb.Leave {
	var seen []uint64
	for sequence, h := range co.held {
		if !h.acked {
			seen = append(seen, sequence)
		}
	}
	list := toRanges(seen)
	if len(list) > maxAcks {
		list = []*pb.SequenceRange{{First: list[0].GetFirst(), Last: list[len(list)-1].GetLast()}}
	}
	return &pb.Leave{Seen: list}
}

// pending returns the number of answers and extensions to be sent. mu is held.
func (co *Consumer) pending() int {
	return len(co.ack) + len(co.nack) + len(co.nackAfter) + len(co.reject) + len(co.extend)
}

// request creates a request from the pending credit and, if answers is set, from the pending answers and extensions.
// mu is held.
func (co *Consumer) request(answers bool) *pb.ConsumeRequest {
	r := &pb.ConsumeRequest{Credit: co.credit}
	co.credit, co.empty = 0, false
	if !answers || co.pending() == 0 {
		return r
	}
	var ack, nack, reject []uint64
	ack, co.ack = cut(co.ack)
	if nack, co.nack = cut(co.nack); len(nack) == 0 {
		nack, r.NackDelay = co.cutNackAfter()
	}
	reject, co.reject = cut(co.reject)
	if len(co.extend) > 0 {
		r.Extend = &pb.Extend{}
		extend, left := cut(co.extend)
		r.Extend.Sequences, co.extend = toRanges(extend), left
	}
	co.number++
	b := batch{number: co.number, ack: ack}
	if co.pending() == 0 {
		b.answered = co.answered // this request completes the pending answers
	}
	co.unconfirmed.push(b)
	r.Ack, r.Nack, r.Reject, r.Confirm = toRanges(ack), toRanges(nack), toRanges(reject), co.number
	return r
}

func (co *Consumer) cutNackAfter() (sequences []uint64, delay *durationpb.Duration) {
	for _, n := range co.nackAfter {
		if n.delay != co.nackAfter[0].delay || len(sequences) == maxAcks {
			break
		}
		sequences = append(sequences, n.sequence)
	}
	if len(sequences) == 0 {
		return nil, nil
	}
	delay = durationpb.New(co.nackAfter[0].delay)
	co.nackAfter = co.nackAfter[len(sequences):]
	return sequences, delay
}

func cut(sequences []uint64) (head, tail []uint64) {
	if len(sequences) <= maxAcks {
		return sequences, nil
	}
	return sequences[:maxAcks:maxAcks], sequences[maxAcks:]
}

// together is the maximum number of deliveries in one allocation.
const together = 16

// deliveries converts the messages of a response, which the caller may then reuse.
func (co *Consumer) deliveries(messages []*pb.StoredMessage) []*Delivery {
	co.mu.Lock()
	number := co.era.number
	co.mu.Unlock()
	list := make([]*Delivery, len(messages))
	var slab []Delivery
	for i, m := range messages {
		if len(slab) == 0 {
			slab = make([]Delivery, min(together, len(messages)-i))
		}
		d := &slab[0]
		slab = slab[1:]
		d.fromProto(m)
		d.consumer, d.era = co, number
		list[i] = d
	}
	return list
}

func (co *Consumer) handle(resp *pb.ConsumeResponse) {
	deliveries := co.deliveries(resp.GetMessages())
	co.mu.Lock()
	confirmed := false
	if resp.GetQueueId() != 0 {
		co.queueID = resp.GetQueueId()
	}
	co.handleDeadlines(resp)
	for _, r := range resp.GetWaiting() {
		co.refused += int(r.GetLast()-r.GetFirst()) + 1
	}
	for co.unconfirmed.len() > 0 && co.unconfirmed.at(0).number <= resp.GetConfirmed() {
		b := co.unconfirmed.pop()
		for _, seq := range b.ack {
			delete(co.held, seq)
		}
		co.settle(b.answered)
		confirmed = true
	}
	for _, d := range deliveries {
		if co.known(d.Sequence) {
			co.credit++
			continue
		}
		co.buffer.push(d)
	}
	avail, send := co.buffer.len() > 0, confirmed || int(co.credit) >= (co.prefetch+1)/2
	co.mu.Unlock()
	co.isAttached() // only now, because Consume and its caller read the fields set above
	if avail {
		signal(co.avail)
	}
	if send {
		signal(co.wake)
	}
}

// known reports whether the message must not be delivered to the application again: the application has acknowledged
// it, or received it on an earlier stream and is still processing it. A second delivery on one stream means that the
// message was requeued. mu is held.
func (co *Consumer) known(seq uint64) bool {
	if _, ok := co.committed[seq]; ok {
		delete(co.committed, seq)
		return true
	}
	h, ok := co.held[seq]
	if !ok || !h.acked && h.generation == co.generation {
		return false
	}
	h.generation = co.generation
	co.held[seq] = h
	return true
}

// settle records that the first n answers are committed or discarded, so that Flush does not wait for them. mu is held.
func (co *Consumer) settle(n uint64) {
	if n > co.settled {
		co.settled = n
		close(co.progress)
		co.progress = make(chan struct{})
	}
}
