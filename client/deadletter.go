// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// DeadLetter says where a message comes from that was moved to a dead-letter queue, and why.
type DeadLetter struct {
	// Queue that it was moved from, and Subscription that could not deal with it, by their names then.
	Queue, Subscription string
	// Sequence that it had in that queue.
	Sequence uint64
	// Reason for which it was moved.
	Reason DeadLetterReason
	// Deliveries is how many times the subscription had given it to a consumer.
	Deliveries uint32
	// MovedAt is when the active moved it, by its clock.
	MovedAt time.Time
}

// DeadLetterReason is why a message was moved to a dead-letter queue.
type DeadLetterReason int

// Values of DeadLetterReason. A node of a later release may send others.
const (
	// DeadLetterMaxDeliveries: it was given back as often as QueueConfig.MaxDeliveries allows for.
	DeadLetterMaxDeliveries = DeadLetterReason(pb.DeadLetterReason_DEAD_LETTER_REASON_MAX_DELIVERIES)
	// DeadLetterRejected: a consumer rejected it.
	DeadLetterRejected = DeadLetterReason(pb.DeadLetterReason_DEAD_LETTER_REASON_REJECTED)
	// DeadLetterExpired: it was not acknowledged before it expired.
	DeadLetterExpired = DeadLetterReason(pb.DeadLetterReason_DEAD_LETTER_REASON_EXPIRED)
	// DeadLetterOverflow: its queue was full, and it was one of the oldest messages.
	DeadLetterOverflow = DeadLetterReason(pb.DeadLetterReason_DEAD_LETTER_REASON_OVERFLOW)
)

// String names the reason: "max-deliveries", "rejected", "expired" or "overflow".
func (r DeadLetterReason) String() string {
	switch r {
	case DeadLetterMaxDeliveries:
		return "max-deliveries"
	case DeadLetterRejected:
		return "rejected"
	case DeadLetterExpired:
		return "expired"
	case DeadLetterOverflow:
		return "overflow"
	default:
		return fmt.Sprintf("reason-%d", int(r))
	}
}

// ReplayOptions of ReplayDeadLetters. The zero value moves each dead letter of DefaultSubscription back to the queue
// that it comes from.
type ReplayOptions struct {
	// Subscription of the dead-letter queue that they are taken from; empty means DefaultSubscription.
	Subscription string
	// To is the queue that they are moved to; empty means the one that each comes from. Messages that are no dead
	// letters are moved only if this is set.
	To string
	// From is the first sequence to move; 0 means the oldest.
	From uint64
	// Limit is the number of messages to move; 0 means all.
	Limit uint64
	// Filter, if not empty: only messages that match this expression in CEL, as in SubscriptionOptions.
	Filter string
}

// ReplayResult is what ReplayDeadLetters did.
type ReplayResult struct {
	// Moved is how many messages were moved.
	Moved uint64
	// Skipped is how many stay, because they are no dead letters, or their queue is gone.
	Skipped uint64
}

// ReplayDeadLetters moves messages from a dead-letter queue back to the queues that they come from, or to another one,
// also those that a consumer holds. A message that is moved back is a new one there, at the end, for all subscriptions.
//
// Each is moved once at most, together with some others in one transaction, and what was moved stays moved when the
// call fails: with any error some may have been moved. An attempt that was not answered is not made again by the
// client, since it could move more than Limit; it ends with ErrOutcomeUnknown, and another call moves what is left.
//
// Errors: ErrQueueNotFound, ErrSubscriptionNotFound, ErrInvalid, ErrLimit when the target is full, ErrRefused while one
// of the nodes is of release 0.1.0, ErrUnavailable.
func (c *Client) ReplayDeadLetters(ctx context.Context, queue string, o ReplayOptions) (ReplayResult, error) {
	if err := checkName("queue", queue); err != nil {
		return ReplayResult{}, err
	}
	if o.To != "" {
		if err := checkName("queue", o.To); err != nil {
			return ReplayResult{}, err
		}
	}
	req := &pb.ReplayDeadLettersRequest{
		Queue: queue, Subscription: o.Subscription, To: o.To, FromSequence: o.From, Limit: o.Limit,
		Filter: o.Filter,
	}
	var resp *pb.ReplayDeadLettersResponse
	op := "replay dead letters of " + queue
	err := c.do(ctx, op, &doubt{}, func(attempt context.Context, cc *grpc.ClientConn) (err error) {
		resp, err = queues(cc).ReplayDeadLetters(attempt, req)
		if err == nil {
			return nil
		}
		e := asError(ctx, strings.TrimPrefix(cc.Target(), passthrough), err)
		if e.retry() && !e.answered() && !e.unreached {
			e.kind = ErrOutcomeUnknown // and so there is no other attempt
		}
		return e
	})
	if errors.Is(err, ErrOutcomeUnknown) {
		err = fmt.Errorf("%w; messages that were moved stay moved, and another call moves what is left", err)
	}
	return ReplayResult{Moved: resp.GetMoved(), Skipped: resp.GetSkipped()}, err
}

func deadLetterFromProto(d *pb.DeadLetter) *DeadLetter {
	if d == nil {
		return nil
	}
	return &DeadLetter{
		Queue: d.GetQueue(), Subscription: d.GetSubscription(), Sequence: d.GetSequence(),
		Reason: DeadLetterReason(d.GetReason()), Deliveries: d.GetDeliveries(), MovedAt: timeFromProto(d.GetMovedAt()),
	}
}
