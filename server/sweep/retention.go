// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	// retentionEvery is how often the retentions are looked at: so much longer than it says a message may be kept.
	retentionEvery = time.Second
	// maxTrimSequences bounds the sequences that one proposal frees: applying it takes about a millisecond.
	maxTrimSequences = 1 << 18
)

// retention ends the retention of what is too old, too much or too large. What still has to be read by a subscription
// stays until that has acknowledged it.
type retention struct {
	o Options
	// heads remembers when the oldest message of a queue was published that is retained, so that it is read once.
	heads map[uint64]head
}

type head struct {
	sequence    uint64
	publishedMS int64
}

func newRetention(o Options) *retention { return &retention{o: o, heads: make(map[uint64]head)} }

// Name says what the task does.
func (*retention) Name() string { return "retention" }

// Woken is nil: it is enough to look now and then.
func (*retention) Woken() <-chan struct{} { return nil }

// Sweep frees what no retention keeps any more.
func (r *retention) Sweep(ctx context.Context) (wait time.Duration, err error) {
	seen := make(map[uint64]head, len(r.heads))
	for _, id := range r.o.Store.SweptQueues() {
		queueErr := r.sweepQueue(ctx, id)
		if ctx.Err() != nil {
			return 0, fmt.Errorf("retention: %w", ctx.Err())
		}
		if h, ok := r.heads[id]; ok {
			seen[id] = h
		}
		err = errors.Join(err, queueErr) // one queue that cannot be read does not hold up the others
	}
	r.heads = seen
	return retentionEvery, err
}

func (r *retention) sweepQueue(ctx context.Context, id uint64) error {
	for {
		q, ok := r.o.Store.Swept(id)
		if !ok || !q.Config.Retains() {
			return nil
		}
		to, err := r.keepFrom(ctx, &q)
		if err != nil || to <= q.Retained {
			return err
		}
		if err := r.trim(ctx, &q, min(to, q.Retained+maxTrimSequences)); err != nil {
			return err
		}
	}
}

// keepFrom gives the sequence of the first message that the retention still keeps.
func (r *retention) keepFrom(ctx context.Context, q *store.Swept) (uint64, error) {
	if q.Config.RetentionAge == 0 {
		return q.RetainFrom, nil
	}
	h, known := r.heads[q.ID]
	if !known || h.sequence < q.RetainFrom {
		seq, ms, ok, err := r.o.Store.PublishedAt(ctx, q.ID, q.RetainFrom)
		if errors.Is(err, store.ErrNoQueue) || err == nil && !ok {
			return q.RetainFrom, nil
		}
		if err != nil {
			return 0, fmt.Errorf("retention of queue %d: %w", q.ID, err)
		}
		h = head{sequence: seq, publishedMS: ms}
		r.heads[q.ID] = h
	}
	oldest := time.Now().UnixMilli() - int64(q.Config.RetentionAge)
	if h.publishedMS >= oldest {
		return q.RetainFrom, nil
	}
	seq, _, _, err := r.o.Store.FirstSince(ctx, q.ID, q.RetainFrom, oldest)
	if errors.Is(err, store.ErrNoQueue) {
		return q.RetainFrom, nil
	}
	if err != nil {
		return 0, fmt.Errorf("retention of queue %d: %w", q.ID, err)
	}
	return seq, nil
}

// trim proposes to end the retention of what is below a sequence. It is refused, or changes nothing, if the queue is
// gone or has another retention by then (INV-15).
func (r *retention) trim(ctx context.Context, q *store.Swept, to uint64) error {
	return propose(ctx, r.o.Primary, func(b *txn.Builder) { b.Trim(q.ID, to, &q.Config) }, txn.ErrQueueNotFound)
}

// propose commits a transaction. That it is refused because of what has changed meanwhile is no error.
func propose(ctx context.Context, primary Committer, fill func(b *txn.Builder), changed ...txn.Code) error {
	var b txn.Builder
	b.Begin(nil, time.Now().UnixMilli(), nil)
	fill(&b)
	payload, err := b.Finish()
	if err != nil {
		return fmt.Errorf("encode a proposal: %w", err)
	}
	result, err := primary.Commit(ctx, payload)
	if err != nil {
		return err
	}
	for _, code := range changed {
		if result.Code == code {
			return nil
		}
	}
	return result.Err()
}
