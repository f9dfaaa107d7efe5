// SPDX-License-Identifier: Apache-2.0

package expiry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const temporaryEvery = 250 * time.Millisecond

// temporary deletes temporary queues without consumers after their grace period, which restarts with each term.
type temporary struct {
	queues    func() []query.TemporaryQueue
	consumers func(key dispatch.Key) (inFlight uint64, consumers uint32)
	commit    txn.Committer
	epoch     func(id uint64) uint64
	deleted   func(queue string, epoch uint64)
	log       *zap.Logger
	// used contains the time at which each queue was last observed with a consumer. The initial value is the time of
	// the first check.
	used map[uint64]time.Time
}

func newTemporary(o Options) *temporary {
	return &temporary{
		queues:    func() []query.TemporaryQueue { return query.TemporaryQueues(o.Store) },
		consumers: o.Consumers.Stats, commit: o.Primary, deleted: o.Deleted, log: o.Log,
		epoch: func(id uint64) uint64 {
			epoch, _ := query.OwnershipEpochOf(o.Store, id)
			return epoch
		},
		used: make(map[uint64]time.Time),
	}
}

func (*temporary) Name() string { return "delete temporary queues" }

func (*temporary) Wake() <-chan struct{} { return nil }

func (t *temporary) RunOnce(ctx context.Context) (wait time.Duration, err error) {
	queues, now := t.queues(), time.Now()
	there := make(map[uint64]time.Time, len(queues))
	for i := range queues {
		q := &queues[i]
		used, seen := t.used[q.ID]
		if !seen || t.attached(q) {
			used = now
		}
		there[q.ID] = used
	}
	t.used = there
	for i := range queues {
		q := &queues[i]
		if now.Sub(there[q.ID]) < time.Duration(q.GraceMS)*time.Millisecond || t.attached(q) {
			continue
		}
		if err := t.remove(ctx, q); err != nil {
			return 0, err
		}
	}
	return temporaryEvery, nil
}

func (t *temporary) attached(q *query.TemporaryQueue) bool {
	for _, sub := range q.Subscriptions {
		if _, n := t.consumers(dispatch.Key{Queue: q.ID, Sub: sub}); n > 0 {
			return true
		}
	}
	return false
}

// remove proposes the deletion of a queue. A consumer that attaches concurrently ends when the deletion is applied.
func (t *temporary) remove(ctx context.Context, q *query.TemporaryQueue) error {
	epoch := uint64(0)
	if t.deleted != nil {
		epoch = t.epoch(q.ID)
	}
	result, err := txn.Propose(ctx, t.commit, time.Now(), func(b *txn.Builder) { b.DeleteTemporary(q.ID, q.GraceMS) })
	switch {
	case errors.Is(err, txn.ErrQueueNotFound):
		return nil // a client has deleted the queue
	case errors.Is(err, txn.ErrQueueInUse):
		t.used[q.ID] = time.Now() // retry after another grace period
		t.log.Warn("temporary queue without consumers not deleted: in use by another queue or by a prepared transaction",
			zap.String("queue", q.Name), zap.Uint64("queue_id", q.ID))
		return nil
	case err != nil:
		return fmt.Errorf("delete temporary queue %q: %w", q.Name, err)
	}
	if epoch > 0 {
		t.deleted(q.Name, epoch)
	}
	t.log.Info("temporary queue without consumers deleted after its grace period", zap.String("queue", q.Name),
		zap.Uint64("queue_id", q.ID), zap.Uint64("messages", result.Ops[0].Changed),
		zap.Duration("grace", time.Duration(q.GraceMS)*time.Millisecond))
	return nil
}
