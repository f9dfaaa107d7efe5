// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/lockstep-mq/lockstep/client/internal/link"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// BrowseOptions configures [Client.Browse]. The zero value reads all stored messages.
type BrowseOptions struct {
	// Subscription, if not empty, restricts the result to messages that it has not acknowledged.
	Subscription string
	// From is the first sequence to read; 0 means the oldest.
	From uint64
	// Limit is the maximum number of messages; 0 means no limit.
	Limit       uint64
	HeadersOnly bool
	// Damaged, if not nil, is called between messages with the sequence of each message that no node can read. If nil,
	// such a message ends Browse with [ErrDataLoss].
	Damaged func(sequence uint64)
}

// Browse reads messages without consuming them, in sequence order. It continues after a failover and ends after the
// first error. Errors: [ErrQueueNotFound], [ErrSubscriptionNotFound], [ErrUnavailable], [ErrDataLoss].
func (c *Client) Browse(ctx context.Context, queue string, o BrowseOptions) iter.Seq2[Stored, error] {
	return func(yield func(Stored, error) bool) {
		b := browser{client: c, op: "browse " + queue, yield: yield, damaged: o.Damaged, req: &pb.BrowseRequest{
			Queue: queue, Subscription: o.Subscription, FromSequence: o.From, Limit: o.Limit,
			HeadersOnly: o.HeadersOnly, MaxResponseBytes: maxReceiveBytes,
		}}
		b.run(ctx)
	}
}

// browser is a Browse in progress; req describes the remaining messages.
type browser struct {
	client *Client
	op     string
	req    *pb.BrowseRequest
	yield  func(Stored, error) bool

	damaged func(sequence uint64) // may be nil
}

func (b *browser) run(ctx context.Context) {
	retry := b.client.opts.newBackoff()
	var last error
	refusals := 0 // consecutive tokens that were refused
	for {
		t, err := b.client.locator.wait(ctx)
		if err != nil {
			b.yield(Stored{}, b.client.giveUp(b.op, err, last, false))
			return
		}
		from, began := b.req.GetFromSequence(), time.Now()
		finished, err := b.stream(ctx, t)
		if finished {
			return
		}
		if b.req.GetFromSequence() != from {
			retry.Reset()
		}
		e := asError(ctx, t.node.address, err)
		if !e.retry() && !b.client.opts.tokens.isFresh(ctx, e, began, &refusals) {
			b.yield(Stored{}, link.Wrap(b.op, e, e.Message))
			return
		}
		last = e.after(last)
		b.client.locator.failed(e)
		b.client.locator.pause(ctx, t, max(retry.NextBackOff(), e.retryAfter))
	}
}

// stream reads one stream; finished means that the request is complete or the caller stopped the iteration.
func (b *browser) stream(ctx context.Context, t *target) (finished bool, err error) {
	ctx, done := t.bind(ctx)
	defer done()
	stream, err := queues(t.conn()).Browse(ctx, b.req)
	if err != nil {
		return false, err
	}
	for {
		resp, err := stream.Recv()
		if err != nil {
			return isEOF(err), err
		}
		for _, sequence := range resp.GetDamaged() {
			if b.damaged == nil {
				b.yield(Stored{}, fmt.Errorf("%s: message %d is corrupt on all reachable nodes: %w", b.op,
					sequence, ErrDataLoss))
				return true, nil
			}
			b.damaged(sequence)
			b.req.FromSequence = sequence + 1
		}
		for _, m := range resp.GetMessages() {
			if !b.yield(storedFromProto(m), nil) {
				return true, nil
			}
			b.req.FromSequence = m.GetSequence() + 1
			if b.req.GetLimit() == 0 {
				continue
			}
			if b.req.Limit--; b.req.GetLimit() == 0 { // 0 would mean all
				return true, nil
			}
		}
	}
}
