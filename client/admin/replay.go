// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/internal/link"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// ReplayOptions configures [Client.ReplayDeadLetters]. The zero value moves each dead letter of
// client.DefaultSubscription to its original queue.
type ReplayOptions struct {
	// Subscription is the subscription of the dead-letter queue. Default client.DefaultSubscription.
	Subscription string
	// To is the target queue; if empty, each dead letter is moved to its original queue, and other messages remain.
	To string
	// From is the first sequence to move; 0 means the oldest.
	From uint64
	// Limit is the maximum number of messages to move; 0 means no limit.
	Limit uint64
	// Filter, if not empty, is a CEL expression that messages must match, as in client.BrowseOptions.
	Filter string
	// Progress, if not nil, is called after each part of a search with Filter.
	Progress func(client.SearchProgress)
}

// ReplayResult is the result of [Client.ReplayDeadLetters].
type ReplayResult struct {
	// Moved is the number of messages that were moved.
	Moved uint64
	// Skipped is the number of messages that were not moved, because they are corrupt, older than the TTL of the target
	// queue, reserved by a prepared transaction, or were acknowledged during the call. Without ReplayOptions.To, it
	// includes messages that are not dead letters, and dead letters with an original queue that is this queue or is not
	// on the pair.
	Skipped uint64
}

// ReplayDeadLetters moves messages from a dead-letter queue to their original queues, or to another queue. It also
// moves messages that are in flight to a consumer. A moved message is a new message at the end of the target queue,
// for all subscriptions.
//
// Each message is moved at most once, in transactions of several messages. After an error, some messages may have been
// moved. An attempt without a response is not retried, because it could exceed Limit: the call returns
// [client.ErrOutcomeUnknown], and another call moves the remaining messages. For this call, reduce Limit by the
// number of moved messages.
//
// Errors include [client.ErrQueueNotFound], [client.ErrSubscriptionNotFound], [client.ErrInvalid], [client.ErrLimit]
// if the target is full, [client.ErrRefused] while one of the nodes runs release 0.1.0.
func (c *Client) ReplayDeadLetters(ctx context.Context, queue string, o ReplayOptions) (ReplayResult, error) {
	if err := checkName("queue", queue); err != nil {
		return ReplayResult{}, err
	}
	if o.To != "" {
		if err := checkName("queue", o.To); err != nil {
			return ReplayResult{}, err
		}
	}
	result, err := c.replayQueue(ctx, queue, o)
	count := partitionsIn(err, queue)
	if count == 0 || o.From != 0 { // sequences belong to a partition
		return result, err
	}
	err = c.As(nil).forPartitions(queue, count, func(c *Client, at target) error {
		part := o
		if part.Limit = o.Limit - min(result.Moved, o.Limit); o.Limit > 0 && part.Limit == 0 {
			return nil
		}
		one, err := c.replayQueue(ctx, at.name, part)
		result.Moved += one.Moved
		result.Skipped += one.Skipped
		return err
	})
	return result, err
}

func (c *Client) replayQueue(ctx context.Context, queue string, o ReplayOptions) (ReplayResult, error) {
	if o.Filter == "" {
		resp, err := c.replay(ctx, queue, o, &pb.Search{FromSequence: o.From}, o.Limit)
		return ReplayResult{Moved: resp.GetMoved(), Skipped: resp.GetSkipped()}, err
	}
	var total ReplayResult
	which := Matching{Filter: o.Filter, From: o.From, Progress: o.Progress}
	err := which.run(func(search *pb.Search, _ uint64) (*pb.SearchProgress, error) {
		resp, err := c.replay(ctx, queue, o, search, o.Limit-min(total.Moved, o.Limit))
		total.Moved += resp.GetMoved()
		total.Skipped += resp.GetSkipped()
		if err == nil && o.Limit > 0 && total.Moved >= o.Limit {
			err = errEnough
		}
		return resp.GetProgress(), err
	})
	return total, err
}

func (c *Client) replay(
	ctx context.Context, queue string, o ReplayOptions, which *pb.Search, limit uint64,
) (*pb.ReplayDeadLettersResponse, error) {
	req := &pb.ReplayDeadLettersRequest{
		Queue: queue, Subscription: o.Subscription, To: o.To, FromSequence: which.GetFromSequence(), Limit: limit,
		Filter: which.GetFilter(), BeforeSequence: which.GetBeforeSequence(),
	}
	var resp *pb.ReplayDeadLettersResponse
	op, to := "replay dead letters of "+queue, link.Target{Queue: queue}
	err := c.conns.Once(ctx, op, to, func(ctx context.Context, cc *grpc.ClientConn) (err error) {
		resp, err = queues(cc).ReplayDeadLetters(ctx, req)
		return err
	})
	if errors.Is(err, client.ErrOutcomeUnknown) {
		err = fmt.Errorf("%w; some messages may have been moved", err)
	}
	return resp, err
}
