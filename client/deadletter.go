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

// DeadLetter describes the origin of a dead letter and the reason for the move.
type DeadLetter struct {
	// Queue and Subscription that the message came from, by their names at the time of the move.
	Queue, Subscription string
	// Sequence of the message in that queue.
	Sequence uint64
	// Reason for the move.
	Reason DeadLetterReason
	// Deliveries is the number of deliveries by that subscription.
	Deliveries uint32
	// MovedAt is the time of the move, by the clock of the active node.
	MovedAt time.Time
}

// DeadLetterReason is the reason why a message was moved to a dead-letter queue.
type DeadLetterReason int

// Values of DeadLetterReason. A node of a later release may send others.
const (
	// DeadLetterMaxDeliveries means that the message reached QueueConfig.MaxDeliveries.
	DeadLetterMaxDeliveries = DeadLetterReason(pb.DeadLetterReason_DEAD_LETTER_REASON_MAX_DELIVERIES)
	// DeadLetterRejected means that a consumer rejected the message.
	DeadLetterRejected = DeadLetterReason(pb.DeadLetterReason_DEAD_LETTER_REASON_REJECTED)
	// DeadLetterExpired means that the message expired before it was acknowledged.
	DeadLetterExpired = DeadLetterReason(pb.DeadLetterReason_DEAD_LETTER_REASON_EXPIRED)
	// DeadLetterOverflow means that the queue was full and the message was one of the oldest.
	DeadLetterOverflow = DeadLetterReason(pb.DeadLetterReason_DEAD_LETTER_REASON_OVERFLOW)
)

// String returns the name of the reason: "max-deliveries", "rejected", "expired" or "overflow".
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

// ReplayOptions are the options of [Client.ReplayDeadLetters]. The zero value moves each dead letter of
// DefaultSubscription to the queue that it came from.
type ReplayOptions struct {
	// Subscription of the dead-letter queue that the messages are moved from; if empty, DefaultSubscription.
	Subscription string
	// To is the target queue; if empty, each message is moved to the queue that it came from. Messages that are not dead
	// letters are moved only if To is set.
	To string
	// From is the first sequence to move; 0 means the oldest.
	From uint64
	// Limit is the maximum number of messages to move; 0 means no limit.
	Limit uint64
	// Filter, if not empty, is a CEL expression that messages must match, as in SubscriptionOptions.
	Filter string
}

// ReplayResult is the result of [Client.ReplayDeadLetters].
type ReplayResult struct {
	// Moved is the number of moved messages.
	Moved uint64
	// Skipped is the number of messages that remain because they are not dead letters or their queue no longer exists.
	Skipped uint64
}

// ReplayDeadLetters moves messages from a dead-letter queue to the queues that they came from, or to another queue.
// Messages held by a consumer are moved, too. A moved message is a new message at the end of the target queue, for all
// subscriptions.
//
// Each message is moved at most once, in transactions of several messages. Moves are not undone when the call fails:
// with any error, some messages may have been moved. The client does not retry an attempt without a response, since it
// could exceed Limit. It returns [ErrOutcomeUnknown], and another call moves the remaining messages.
//
// Errors: [ErrQueueNotFound], [ErrSubscriptionNotFound], [ErrInvalid], [ErrLimit] if the target is full, [ErrRefused]
// while one of the nodes runs release 0.1.0, [ErrUnavailable].
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
			e.kind = ErrOutcomeUnknown // prevents a retry
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
