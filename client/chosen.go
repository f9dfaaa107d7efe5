// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// SequenceRange is an inclusive range of sequences: First is at least 1, and Last not below it.
type SequenceRange struct{ First, Last uint64 }

// MoveOptions of MoveMessages.
type MoveOptions struct {
	// Subscription that the messages are taken from; the others keep theirs. Empty: all of them, and the target gets
	// each message once.
	Subscription string
	// To is the queue that they are moved to; empty: each to the one that it comes from as a dead letter.
	To string
	// QueueID, if not 0, is the number that the queue must have: another one that has its name by now is left alone.
	QueueID uint64
}

// MoveResult is what MoveMessages did.
type MoveResult struct {
	// Moved is how many messages were moved by the attempt that was answered.
	Moved uint64
	// Skipped is how many of the chosen ones were not: they were acknowledged, held by a prepared transaction, damaged,
	// no dead letters although To is empty, or moved by an attempt that was not answered.
	Skipped uint64
}

// MoveMessages moves chosen messages of a queue to another one, or dead letters back, also those that a consumer holds:
// all that are still there in one transaction. A message that is moved is a new one at the end of its queue, for all
// subscriptions. An attempt that was not answered is made again, and the call may be made again after any error: each
// message is moved once at most. At most 10,000 messages.
//
// Errors: ErrQueueNotFound, ErrSubscriptionNotFound, ErrInvalid, ErrLimit when the target is full, ErrRefused while one
// of the nodes is of release 0.1.0, ErrDenied, ErrUnavailable.
func (c *Client) MoveMessages(
	ctx context.Context, queue string, sequences []SequenceRange, o MoveOptions,
) (MoveResult, error) {
	if err := checkName("queue", queue); err != nil {
		return MoveResult{}, err
	}
	if o.To != "" {
		if err := checkName("queue", o.To); err != nil {
			return MoveResult{}, err
		}
	}
	req := &pb.MoveMessagesRequest{
		Queue: queue, Subscription: o.Subscription, To: o.To, QueueId: o.QueueID, Sequences: rangesToProto(sequences),
	}
	resp, err := repeat(ctx, c, "move messages of "+queue, req, pb.QueueServiceClient.MoveMessages)
	return MoveResult{Moved: resp.GetMoved(), Skipped: resp.GetSkipped()}, err
}

// RemoveMessages acknowledges chosen messages of a queue for a subscription, or with "" for all of them, and returns
// how many were removed by the attempt that was answered. queueID is as in MoveOptions. It may be made again after any
// error. At most 10,000 messages. Errors: ErrQueueNotFound, ErrSubscriptionNotFound, ErrInvalid, ErrDenied,
// ErrUnavailable.
func (c *Client) RemoveMessages(
	ctx context.Context, queue, subscription string, sequences []SequenceRange, queueID uint64,
) (removed uint64, err error) {
	if err := checkName("queue", queue); err != nil {
		return 0, err
	}
	req := &pb.RemoveMessagesRequest{
		Queue: queue, Subscription: subscription, QueueId: queueID, Sequences: rangesToProto(sequences),
	}
	resp, err := repeat(ctx, c, "remove messages of "+queue, req, pb.QueueServiceClient.RemoveMessages)
	return resp.GetRemoved(), err
}

func rangesToProto(in []SequenceRange) []*pb.SequenceRange {
	out := make([]*pb.SequenceRange, len(in))
	for i, r := range in {
		out[i] = &pb.SequenceRange{First: r.First, Last: r.Last}
	}
	return out
}
