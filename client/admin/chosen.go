// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"cmp"
	"context"
	"errors"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// SequenceRange is an inclusive range of sequences. First is at least 1, and Last is at least First.
type SequenceRange struct{ First, Last uint64 }

// MoveOptions configures [Client.MoveMessages] and [Client.MoveMatching].
type MoveOptions struct {
	// Subscription is the subscription that the messages are moved from; other subscriptions retain the messages. If
	// Subscription is empty, the messages are moved from all subscriptions, and the target receives each message once.
	Subscription string
	// To is the target queue; if empty, each dead letter is moved to its original queue.
	To string
	// QueueID, if not 0, is the required ID of the queue, so that a later queue of the same name is not changed.
	QueueID uint64
}

// MoveResult is the result of [Client.MoveMessages] and [Client.MoveMatching].
type MoveResult struct {
	// Moved is the number of messages that were moved, without those moved by an attempt that had no response.
	Moved uint64
	// Skipped is the number of messages that were not moved. They were acknowledged, reserved by a prepared
	// transaction, corrupt, older than the TTL of the target, or moved by an attempt that had no response. If To is
	// empty, Skipped includes messages that are not dead letters.
	Skipped uint64
}

// MoveMessages moves up to 10,000 messages of a queue to another queue of the same pair, or dead letters to their
// original queues, in one transaction. It also moves messages that are in flight to a consumer. A moved message is a
// new message at the end of the target queue, for all subscriptions. The call can be retried after any error: each
// message is moved at most once.
//
// Errors include [client.ErrQueueNotFound], [client.ErrSubscriptionNotFound], [client.ErrInvalid], [client.ErrLimit]
// if the target is full, [client.ErrRefused] while one of the nodes runs release 0.1.0.
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

// RemoveMessages acknowledges up to 10,000 messages of a queue for a subscription, or for all subscriptions if
// subscription is empty. It returns the number of messages removed by the attempt that received a response. queueID
// has the meaning of MoveOptions.QueueID. The call can be retried after any error. Errors include
// [client.ErrQueueNotFound], [client.ErrSubscriptionNotFound], [client.ErrInvalid].
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

// Matching selects the messages of [Client.MoveMatching] and [Client.RemoveMatching].
type Matching struct {
	// Filter is a CEL expression that messages must match, as in client.BrowseOptions. It is required.
	Filter string
	// From is the first sequence; 0 means the oldest message.
	From uint64
	// Before, if not 0, restricts the selection to messages before this sequence. If it is 0, messages published after
	// the call are not selected.
	Before uint64
	// Progress, if not nil, is called after each part of the search.
	Progress func(client.SearchProgress)
}

// MoveMatching moves the messages that match a filter, like [Client.MoveMessages], in several transactions. After an
// error, the result counts the messages that were already moved or skipped; another call moves the remaining messages.
func (c *Client) MoveMatching(ctx context.Context, queue string, which Matching, o MoveOptions) (MoveResult, error) {
	var total MoveResult
	if err := checkName("queue", queue); err != nil {
		return total, err
	}
	if o.To != "" {
		if err := checkName("queue", o.To); err != nil {
			return total, err
		}
	}
	err := which.run(func(search *pb.Search, queueID uint64) (*pb.SearchProgress, error) {
		req := &pb.MoveMessagesRequest{
			Queue: queue, Subscription: o.Subscription, To: o.To, QueueId: cmp.Or(queueID, o.QueueID), Search: search,
		}
		resp, err := repeat(ctx, c, "move messages of "+queue, req, pb.QueueServiceClient.MoveMessages)
		total.Moved += resp.GetMoved()
		total.Skipped += resp.GetSkipped()
		return resp.GetProgress(), err
	})
	return total, err
}

// RemoveMatching removes the messages that match a filter, like [Client.RemoveMessages], in several transactions. After
// an error, removed is the number of messages that were already removed.
func (c *Client) RemoveMatching(
	ctx context.Context, queue, subscription string, which Matching, queueID uint64,
) (removed uint64, err error) {
	if err := checkName("queue", queue); err != nil {
		return 0, err
	}
	err = which.run(func(search *pb.Search, found uint64) (*pb.SearchProgress, error) {
		req := &pb.RemoveMessagesRequest{
			Queue: queue, Subscription: subscription, QueueId: cmp.Or(found, queueID), Search: search,
		}
		resp, err := repeat(ctx, c, "remove messages of "+queue, req, pb.QueueServiceClient.RemoveMessages)
		removed += resp.GetRemoved()
		return resp.GetProgress(), err
	})
	return removed, err
}

var errEnough = errors.New("enough messages found")

// run calls fn for consecutive parts of the search, until the search is complete or fn returns an error. errEnough ends
// the search without an error.
func (m *Matching) run(fn func(search *pb.Search, queueID uint64) (*pb.SearchProgress, error)) error {
	search := &pb.Search{Filter: m.Filter, FromSequence: m.From, BeforeSequence: m.Before}
	var total client.SearchProgress
	for {
		p, err := fn(search, total.QueueID)
		if err != nil && !errors.Is(err, errEnough) {
			return err
		}
		search.FromSequence, search.BeforeSequence = p.GetFromSequence(), p.GetBeforeSequence()
		total = client.SearchProgress{
			Scanned: total.Scanned + p.GetScanned(), Unevaluated: total.Unevaluated + p.GetUnevaluated(),
			From: p.GetFromSequence(), Before: p.GetBeforeSequence(), QueueID: p.GetQueueId(),
		}
		if m.Progress != nil {
			m.Progress(total)
		}
		if errors.Is(err, errEnough) || total.From >= total.Before {
			return nil
		}
	}
}

func rangesToProto(in []SequenceRange) []*pb.SequenceRange {
	out := make([]*pb.SequenceRange, len(in))
	for i, r := range in {
		out[i] = &pb.SequenceRange{First: r.First, Last: r.Last}
	}
	return out
}
