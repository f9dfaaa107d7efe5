// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// SequenceRange is an inclusive range of sequences. First is at least 1, and Last is at least First.
type SequenceRange struct{ First, Last uint64 }

// MoveOptions configures [Client.MoveMessages].
type MoveOptions struct {
	// Subscription is the subscription that the messages are moved from; other subscriptions keep them. If empty, they are
	// moved from all subscriptions, and the target receives each message once.
	Subscription string
	// To is the target queue; if empty, each dead letter is moved to its original queue.
	To string
	// QueueID, if not 0, is the required ID of the queue, so that a later queue of the same name is not changed.
	QueueID uint64
}

// MoveResult is the result of [Client.MoveMessages].
type MoveResult struct {
	// Moved is the number of messages moved by the attempt that received a response.
	Moved uint64
	// Skipped is the number of messages that were not moved. They were acknowledged, held by a prepared transaction,
	// corrupt, or moved by an attempt without a response. If To is empty, it includes messages that are not dead letters.
	Skipped uint64
}

// MoveMessages moves up to 10,000 messages of a queue to another queue, or dead letters to their original queues, in
// one transaction, even if they are in flight to a consumer. A moved message is a new message at the end of the target
// queue, for all subscriptions. The call can be retried after any error: each message is moved at most once.
//
// Errors: [client.ErrQueueNotFound], [client.ErrSubscriptionNotFound], [client.ErrInvalid], [client.ErrLimit] if the
// target is full, [client.ErrRefused] while one of the nodes runs release 0.1.0.
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

// RemoveMessages acknowledges up to 10,000 messages of a queue for a subscription, or for all if it is "". It returns
// the number of messages removed by the attempt that received a response. queueID is as in [MoveOptions]. The call can
// be retried after any error. Errors: [client.ErrQueueNotFound], [client.ErrSubscriptionNotFound], [client.ErrInvalid].
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
