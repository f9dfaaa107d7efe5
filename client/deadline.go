// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/lockstep-mq/lockstep/client/internal/link"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// extendParts is the number of times that Run extends the deadline of a message within one acknowledgement timeout.
const extendParts = 3

// deadline is the acknowledgement deadline that the node has reported. Consumer.mu guards it.
type deadline struct {
	timeout time.Duration // 0: none
	changed chan struct{} // closed and replaced when timeout changes
	address string        // of the node that the consumer is attached to
}

// AckTimeout returns the acknowledgement deadline of the consumer, as reported by the node; 0 if it has none. On a
// partitioned queue, it returns the shortest deadline of the partitions.
func (co *Consumer) AckTimeout() time.Duration {
	if co.group != nil {
		return co.group.ackTimeout()
	}
	co.mu.Lock()
	defer co.mu.Unlock()
	return co.deadline.timeout
}

// Extend restarts the acknowledgement deadline of the message, and returns when the node has confirmed this. It has
// no effect if the consumer has no deadline or if the message was answered. It may also wait for earlier answers.
// After a failover, the message may already be redelivered to another consumer. Errors include [ErrRefused] with the
// reason ACK_DEADLINE_EXPIRED if the deadline had passed; [ErrInvalid] if this delivery is no longer valid, for
// example after a Seek; [ErrOutcomeUnknown] if ctx or the consumer ends first.
func (d *Delivery) Extend(ctx context.Context) error {
	co := d.consumer
	co.mu.Lock()
	h, held := co.holding(d)
	sends := held && !h.acked && co.deadline.timeout > 0
	if sends {
		co.answered++
		co.extend = append(co.extend, d.Sequence)
	}
	co.mu.Unlock()
	if sends {
		if err := co.flush(ctx); err != nil {
			return err
		}
	}
	return co.refusal(d)
}

// keepExtended periodically extends the deadlines of the consumer's messages until ctx ends.
func (co *Consumer) keepExtended(ctx context.Context) {
	if co.group != nil {
		co.group.each(func(c *Consumer) { c.keepExtended(ctx) })
		return
	}
	for ctx.Err() == nil {
		co.mu.Lock()
		timeout, changed := co.deadline.timeout, co.deadline.changed
		co.mu.Unlock()
		var due <-chan time.Time
		if timeout > 0 {
			due = time.After(timeout / extendParts)
		}
		select {
		case <-due:
			co.extendAll()
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// extendAll queues extensions for all messages that the consumer has received and the application has not answered.
func (co *Consumer) extendAll() {
	co.mu.Lock()
	defer co.mu.Unlock()
	co.extend = co.extend[:0]
	for sequence, h := range co.held {
		if !h.acked {
			co.extend = append(co.extend, sequence)
		}
	}
	for i := range co.buffer.len() {
		co.extend = append(co.extend, (*co.buffer.at(i)).Sequence)
	}
	if len(co.extend) > 0 {
		signal(co.wake)
	}
}

// handleDeadlines applies the deadline, the expired messages and the refused answers that a response reports. mu is
// held.
func (co *Consumer) handleDeadlines(resp *pb.ConsumeResponse) {
	if timeout := resp.GetAckTimeout(); timeout != nil || resp.GetAttached() {
		if is := timeout.AsDuration(); is != co.deadline.timeout {
			co.deadline.timeout = is
			close(co.deadline.changed)
			co.deadline.changed = make(chan struct{})
		}
	}
	for _, r := range resp.GetRefused().GetSequences() {
		for sequence := r.GetFirst(); sequence <= r.GetLast(); sequence++ {
			co.late++
			co.expire(sequence)
			co.withdraw(sequence)
		}
	}
	if len(resp.GetExpired()) == 0 {
		return
	}
	co.empty = true // the node delivers nothing until the next request
	signal(co.wake)
	buffered := make(map[uint64]bool)
	for _, r := range resp.GetExpired() {
		for sequence := r.GetFirst(); sequence <= r.GetLast(); sequence++ {
			buffered[sequence] = true
			if h, held := co.held[sequence]; held && !h.acked { // the refusal of a pending ack is reported separately
				co.expire(sequence)
			}
		}
	}
	for range co.buffer.len() {
		d := co.buffer.pop()
		if buffered[d.Sequence] {
			co.credit++
			continue
		}
		co.buffer.push(d)
	}
}

// expire records that a message is no longer in flight to the consumer. mu is held.
func (co *Consumer) expire(sequence uint64) {
	if h, held := co.held[sequence]; held {
		delete(co.held, sequence)
		if h.delivery != nil {
			h.delivery.expired = true
		}
	}
}

// withdraw removes a refused ack, so that the next stream does not send it again: a node would accept it there. mu is
// held.
func (co *Consumer) withdraw(sequence uint64) {
	for i := range co.unconfirmed.len() {
		b := co.unconfirmed.at(i)
		b.ack = slices.DeleteFunc(b.ack, func(s uint64) bool { return s == sequence })
	}
}

// refusal returns an error if an answer to the delivery has no effect or an unknown outcome.
func (co *Consumer) refusal(d *Delivery) error {
	co.mu.Lock()
	defer co.mu.Unlock()
	_, held := co.held[d.Sequence]
	switch {
	case d.expired:
		return co.errExpired(d.Sequence)
	case d.lost && d.answer == ackAnswer:
		return co.errLostAcks(1)
	case d.answer != noAnswer:
		return nil
	case d.era != co.era.number:
		return co.errOutdated(d.Sequence)
	case !held:
		return co.errNotHeld(d.Sequence)
	default:
		return nil
	}
}

// errExpired returns the error for a delivery after its acknowledgement deadline. mu is held.
func (co *Consumer) errExpired(sequence uint64) error {
	return co.deadlineError(fmt.Sprintf("acknowledgement deadline of sequence %d of %s has passed: it is redelivered",
		sequence, co.queue))
}

func (co *Consumer) errLate(n int) error {
	co.mu.Lock()
	defer co.mu.Unlock()
	return co.deadlineError(fmt.Sprintf("%d acks or rejects on %s had no effect, because the acknowledgement deadlines "+
		"of the messages had passed; all other answers are committed", n, co.queue))
}

func (co *Consumer) deadlineError(text string) error {
	e := &Error{
		Address: co.deadline.address, Code: codes.FailedPrecondition, Reason: "ACK_DEADLINE_EXPIRED", Message: text,
		reason: pb.ErrorReason_ERROR_REASON_ACK_DEADLINE_EXPIRED, kind: ErrRefused,
	}
	return link.Wrap(co.op(), e, e.Message)
}
