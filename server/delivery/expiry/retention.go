// SPDX-License-Identifier: Apache-2.0

package expiry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	// retentionEvery is the interval between checks.
	retentionEvery = time.Second
	// maxTrimSequences limits the number of sequences that one proposal frees.
	maxTrimSequences = 1 << 18
)

// retention deletes retained messages beyond the age, number or size limit of their queue. Messages that a
// subscription has not acknowledged are not deleted.
type retention struct {
	o Options
	// heads caches the publish time of the oldest retained message of each queue.
	heads map[uint64]head
}

type head struct {
	sequence    uint64
	publishedMS int64
}

func (*retention) Name() string { return "retention" }

func (*retention) Wake() <-chan struct{} { return nil }

func (r *retention) RunOnce(ctx context.Context) (wait time.Duration, err error) {
	seen := make(map[uint64]head, len(r.heads))
	for _, id := range query.ExpiryQueues(r.o.Store) {
		queueErr := r.processQueue(ctx, id)
		if ctx.Err() != nil {
			return 0, fmt.Errorf("retention: %w", ctx.Err())
		}
		if h, ok := r.heads[id]; ok {
			seen[id] = h
		}
		err = errors.Join(err, queueErr) // an unreadable queue does not block the others
	}
	r.heads = seen
	return retentionEvery, err
}

func (r *retention) processQueue(ctx context.Context, id uint64) error {
	for {
		q, ok := query.ExpiryOf(r.o.Store, id)
		if !ok || !q.Config.Retains() {
			return nil
		}
		to, err := r.keepFrom(ctx, &q)
		if err != nil || to <= q.Retained {
			return err
		}
		to = min(to, q.Retained+maxTrimSequences)
		// The proposal has no effect if the queue was deleted or its retention was altered (INV-15).
		err = propose(ctx, r.o.Primary, func(b *txn.Builder) { b.Trim(q.ID, to, &q.Config) }, txn.ErrQueueNotFound)
		if err != nil {
			return err
		}
	}
}

func (r *retention) keepFrom(ctx context.Context, q *query.Expiry) (uint64, error) {
	if q.Config.RetentionAge == 0 {
		return q.RetainFrom, nil
	}
	h, known := r.heads[q.ID]
	if !known || h.sequence < q.RetainFrom {
		seq, ms, ok, err := query.PublishedAt(ctx, r.o.Store, q.ID, q.RetainFrom)
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
	seq, _, _, err := query.FirstSince(ctx, r.o.Store, q.ID, q.RetainFrom, oldest)
	if errors.Is(err, store.ErrNoQueue) {
		return q.RetainFrom, nil
	}
	if err != nil {
		return 0, fmt.Errorf("retention of queue %d: %w", q.ID, err)
	}
	return seq, nil
}

// propose commits a transaction. It ignores a rejection with one of the codes in changed.
func propose(ctx context.Context, primary txn.Committer, fill func(b *txn.Builder), changed ...txn.Code) error {
	_, err := txn.Propose(ctx, primary, time.Now(), fill)
	if slices.ContainsFunc(changed, func(code txn.Code) bool { return errors.Is(err, code) }) {
		return nil
	}
	return err
}
