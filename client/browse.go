// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/lockstep-mq/lockstep/client/internal/link"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// BrowseOptions configures [Client.Browse]. The zero value selects all messages of the queue.
type BrowseOptions struct {
	// Subscription, if not empty, restricts the result to messages that this subscription has not acknowledged.
	Subscription string
	// From is the lowest sequence to read; 0 means the oldest message.
	From uint64
	// Limit is the maximum number of messages; 0 means no limit.
	Limit uint64
	// HeadersOnly omits the bodies.
	HeadersOnly bool
	// Before, if not 0, restricts the result to messages before this sequence. If it is 0, the result contains only
	// messages that were stored when the iteration started.
	Before uint64
	// Newest reverses the order: sequences are descending, from the last message before Before down to From.
	Newest bool
	// Filter, if not empty, is a CEL expression that messages must match. In addition to the variables of
	// SubscriptionOptions.Filter, it can use body for JSON bodies: body.customer.id == "4711".
	Filter string
	// Progress, if not nil, is called after each response of the node to a search with Filter.
	Progress func(SearchProgress)
	// Damaged, if not nil, is called between messages with the sequence of each message that is corrupt on all reachable
	// nodes. If nil, such a message ends Browse with [ErrDataLoss].
	Damaged func(sequence uint64)
}

// SearchProgress is the progress of a search with a filter.
type SearchProgress struct {
	// Scanned is the number of messages read so far.
	Scanned uint64
	// Unevaluated is the number of scanned messages that were treated as not matching because of a limit: the cost
	// limit of the filter, or a limit for JSON bodies.
	Unevaluated uint64
	// From and Before are the bounds of the remaining range; Before is not included.
	From, Before uint64
	// QueueID is the ID of the queue.
	QueueID uint64
}

// Browse returns an iterator over the messages of a queue, in ascending sequence order, or in descending order with
// Newest. It does not consume the messages. The iteration continues after a failover and ends after the first error.
// Errors include [ErrQueueNotFound], [ErrSubscriptionNotFound], [ErrInvalid] for an invalid filter, [ErrUnavailable],
// [ErrDataLoss].
func (c *Client) Browse(ctx context.Context, queue string, o BrowseOptions) iter.Seq2[Stored, error] {
	return func(yield func(Stored, error) bool) {
		b := browser{client: c, op: "browse " + queue, yield: yield, options: o, req: &pb.BrowseRequest{
			Queue: queue, Subscription: o.Subscription, FromSequence: o.From, Limit: o.Limit,
			HeadersOnly: o.HeadersOnly, MaxResponseBytes: maxReceiveBytes,
			BeforeSequence: o.Before, Newest: o.Newest, Filter: o.Filter,
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

	options BrowseOptions
	// earlier is the value of progress when the current stream was opened.
	earlier, progress SearchProgress
}

func (b *browser) run(ctx context.Context) {
	retry := b.client.opts.newBackoff()
	var last error
	refusals := 0 // consecutive rejected tokens
	for way := b.client.pathTo(b.client.owners.of(b.req.GetQueue())); ; {
		pair := way.pair
		t, err := b.client.await(ctx, pair, b.client.opts.FailFast)
		if errors.Is(err, errNoActive) {
			way.restart(&attempts{})
			continue
		}
		if err != nil {
			b.yield(Stored{}, b.client.giveUpAt(pair, b.op, err, last, false))
			return
		}
		from, began := b.position(), time.Now()
		finished, err := b.stream(ctx, t)
		if finished {
			return
		}
		if b.position() != from {
			retry.Reset()
			way.progress()
		}
		if isEOF(err) {
			continue // the node ended the stream at a limit of one call
		}
		e := way.follow(b.client.nodeError(ctx, t, err), nil)
		if way.moved {
			last = way.round
			continue
		}
		if !e.retry() && !b.client.opts.tokens.isFresh(ctx, e, began, &refusals) {
			b.yield(Stored{}, link.Wrap(b.op, e, e.Message))
			return
		}
		last = e.after(last)
		pair.locator.failed(e)
		pair.locator.pause(ctx, t, max(retry.NextBackOff(), e.retryAfter))
	}
}

// stream opens one stream and reads it to its end. finished is true if the iteration has ended, because the request is
// complete, a corrupt message was reported as an error, or the caller stopped the iteration.
func (b *browser) stream(ctx context.Context, t *target) (finished bool, err error) {
	ctx, done := t.bind(ctx)
	defer done()
	b.earlier = b.progress
	stream, err := queues(t.conn()).Browse(ctx, b.req)
	if err != nil {
		return false, err
	}
	for {
		resp, err := stream.Recv()
		if err != nil {
			return isEOF(err) && b.complete(), err //nolint:wrapcheck // asError reads it
		}
		for _, sequence := range resp.GetDamaged() {
			if b.options.Damaged == nil {
				b.yield(Stored{}, fmt.Errorf("%s: message %d is corrupt on all reachable nodes: %w", b.op,
					sequence, ErrDataLoss))
				return true, nil
			}
			b.options.Damaged(sequence)
			b.passed(sequence)
		}
		for _, m := range resp.GetMessages() {
			if !b.yield(storedFromProto(m), nil) {
				return true, nil
			}
			b.passed(m.GetSequence())
			if b.req.GetLimit() == 0 {
				continue
			}
			if b.req.Limit--; b.req.GetLimit() == 0 { // 0 would mean no limit
				return true, nil
			}
		}
		if p := resp.GetProgress(); p != nil {
			b.setProgress(p)
		}
	}
}

func (b *browser) position() uint64 {
	if b.req.GetNewest() {
		return b.req.GetBeforeSequence()
	}
	return b.req.GetFromSequence()
}

func (b *browser) passed(sequence uint64) {
	if b.req.GetNewest() {
		b.req.BeforeSequence = sequence
	} else {
		b.req.FromSequence = sequence + 1
	}
}

func (b *browser) complete() bool {
	return b.req.GetFilter() == "" || b.req.GetFromSequence() >= b.req.GetBeforeSequence()
}

func (b *browser) setProgress(p *pb.SearchProgress) {
	b.req.FromSequence, b.req.BeforeSequence = p.GetFromSequence(), p.GetBeforeSequence()
	b.progress = SearchProgress{
		Scanned: b.earlier.Scanned + p.GetScanned(), Unevaluated: b.earlier.Unevaluated + p.GetUnevaluated(),
		From: p.GetFromSequence(), Before: p.GetBeforeSequence(), QueueID: p.GetQueueId(),
	}
	if b.options.Progress != nil && b.options.Filter != "" {
		b.options.Progress(b.progress)
	}
}
