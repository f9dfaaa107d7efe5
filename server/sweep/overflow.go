// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/server/dispatch"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	// overflowAgain is how often it is tried again to move what the dead-letter queue has no room for.
	overflowAgain = time.Second
	// overflowEvery is how often the queues are looked at without a reason.
	overflowEvery = time.Minute
	// maxOverflowMessages and maxOverflowBytes bound what is moved by one transaction.
	maxOverflowMessages = 1024
	maxOverflowBytes    = 1 << 20
)

// overflow moves the oldest messages of queues that hold more than their limits to their dead-letter queues: once for
// each subscription that still needs them.
type overflow struct {
	o      Options
	woken  <-chan struct{}
	cancel func()
	full   map[uint64]bool // it was said that the dead-letter queue is full
}

func newOverflow(o Options) *overflow {
	t := &overflow{o: o, full: make(map[uint64]bool)}
	t.woken, t.cancel = o.Store.Watch(store.OverflowQueue)
	return t
}

// Name says what the task does.
func (*overflow) Name() string { return "overflow" }

// Woken receives when a queue exceeds its limits.
func (t *overflow) Woken() <-chan struct{} { return t.woken }

// Close ends the watch.
func (t *overflow) Close() { t.cancel() }

// Sweep moves what is too much.
func (t *overflow) Sweep(ctx context.Context) (wait time.Duration, err error) {
	wait = overflowEvery
	for _, id := range t.o.Store.SweptQueues() {
		full, queueErr := t.sweepQueue(ctx, id)
		if ctx.Err() != nil {
			return 0, fmt.Errorf("overflow: %w", ctx.Err())
		}
		if full {
			wait = overflowAgain
		}
		err = errors.Join(err, queueErr)
	}
	return wait, err
}

// sweepQueue tells whether some of the excess of a queue has to stay for now: its dead-letter queue has no room for it,
// or it cannot be read.
func (t *overflow) sweepQueue(ctx context.Context, id uint64) (stays bool, err error) {
	for {
		q, ok := t.o.Store.Swept(id)
		if !ok || q.Overflow == 0 {
			delete(t.full, id)
			return false, nil
		}
		moved := 0
		for _, sub := range q.Subs {
			n, err := t.moveHead(ctx, &q, dispatch.Key{Queue: id, Sub: sub})
			moved += n
			switch {
			case errors.Is(err, txn.ErrQueueFull):
				t.sayFull(id)
				return true, nil
			case err != nil && !errors.Is(err, store.ErrNoQueue): // it was deleted meanwhile
				return false, fmt.Errorf("overflow of queue %d: %w", id, err)
			}
		}
		if q.Config.Retains() && q.Retained < q.Overflow {
			err := propose(ctx, t.o.Primary, func(b *txn.Builder) { b.Trim(id, q.Overflow, &q.Config) },
				txn.ErrQueueNotFound)
			if err != nil {
				return false, err
			}
			moved++
		}
		if moved == 0 {
			return true, nil
		}
	}
}

func (t *overflow) sayFull(id uint64) {
	if !t.full[id] {
		t.o.Log.Warn("a queue is over its limit, and its dead-letter queue is full, too: publishes are refused until one of "+
			"them has room; consume from them, or raise their limits", zap.Uint64("queue_id", id))
	}
	t.full[id] = true
}

// moveHead moves what a subscription needs of the excess of its queue, and gives how many messages it has moved. One
// that is damaged stays where it is, as it always does, until it is repaired or given up.
func (t *overflow) moveHead(ctx context.Context, q *store.Swept, key dispatch.Key) (moved int, err error) {
	for from := uint64(1); from < q.Overflow; {
		messages, next, err := t.o.Store.Read(ctx, store.ReadRequest{
			Queue: key.Queue, Sub: key.Sub, From: from, MaxMessages: maxOverflowMessages, MaxBytes: maxOverflowBytes,
			MarkDamaged: true, Delayed: true,
		}, nil)
		if err != nil || len(messages) == 0 && next == from {
			return moved, err
		}
		from = next
		n, err := t.moveBatch(ctx, q, key, messages)
		moved += n
		if err != nil {
			return moved, err
		}
	}
	return moved, nil
}

// moveBatch moves messages in one transaction, as far as they belong to the excess.
func (t *overflow) moveBatch(
	ctx context.Context, q *store.Swept, key dispatch.Key, messages []store.Delivery,
) (int, error) {
	origin, err := t.o.Store.Origin(key.Queue, key.Sub)
	if err != nil {
		return 0, err
	}
	now := time.Now().UnixMilli()
	var moved []txn.Range
	var records [][]byte
	for _, m := range messages {
		if m.Sequence >= q.Overflow || m.Record == nil {
			continue
		}
		rec, err := txn.Relabel(m.Record, &txn.DeadLetter{
			Queue: origin.Queue, Subscription: origin.Subscription, Sequence: m.Sequence, Reason: txn.DeadOverflow,
			Deliveries: m.DeliveryCount, MovedMS: now,
		})
		if err != nil {
			return 0, fmt.Errorf("sequence %d: %w", m.Sequence, err)
		}
		moved, records = append(moved, txn.Range{First: m.Sequence, Last: m.Sequence}), append(records, rec)
	}
	if len(moved) == 0 || origin.QueueDeadLetter == txn.NoQueue {
		return 0, nil
	}
	err = propose(ctx, t.o.Primary, func(b *txn.Builder) {
		b.BeginMove(key.Queue, key.Sub, origin.QueueDeadLetter)
		for i, rec := range records {
			b.Move(moved[i].First, rec)
		}
		b.EndMove()
	}, txn.ErrQueueNotFound, txn.ErrSubscriptionNotFound)
	if err != nil {
		return 0, err
	}
	t.o.Consumers.Settled(key, moved, nil)
	return len(moved), nil
}
