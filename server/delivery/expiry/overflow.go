// SPDX-License-Identifier: Apache-2.0

package expiry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	overflowAgain       = time.Second
	overflowEvery       = time.Minute
	maxOverflowMessages = 1024
	maxOverflowBytes    = 1 << 20
)

// overflow moves the oldest messages of a queue that exceeds its limits to the dead-letter queue, once for each
// subscription that still needs them. It also removes excess retained messages. It processes only queues with
// txn.OverflowDeadLetterHead.
type overflow struct {
	o      Options
	wake   <-chan struct{}
	cancel func()
	full   map[uint64]bool // queues for which a full dead-letter queue was logged
}

func newOverflow(o Options) *overflow {
	t := &overflow{o: o, full: make(map[uint64]bool)}
	t.wake, t.cancel = o.Store.Watch(query.OverflowQueue)
	return t
}

func (*overflow) Name() string { return "overflow" }

func (t *overflow) Wake() <-chan struct{} { return t.wake }

func (t *overflow) Close() { t.cancel() }

func (t *overflow) RunOnce(ctx context.Context) (wait time.Duration, err error) {
	wait = overflowEvery
	for _, id := range query.ExpiryQueues(t.o.Store) {
		full, queueErr := t.processQueue(ctx, id)
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

// processQueue moves the excess messages of a queue, and removes excess retained messages. It reports whether some
// messages remain in the queue because they are in flight, do not fit into the dead-letter queue, or are unreadable.
func (t *overflow) processQueue(ctx context.Context, id uint64) (postponed bool, err error) {
	for {
		q, ok := query.ExpiryOf(t.o.Store, id)
		if !ok || q.Overflow == 0 {
			delete(t.full, id)
			return false, nil
		}
		moved := 0
		for _, sub := range q.Subs {
			n, err := t.moveHead(ctx, &q, dispatch.Key{Queue: id, Sub: sub})
			moved += n
			full := (*dispatch.FullError)(nil)
			switch {
			case errors.As(err, &full):
				t.o.recordFull(t.full, id, full, "queue is over its limits and its dead-letter queue is full: publishes are "+
					"rejected until either has space; consume messages, or raise the limits")
				return true, nil
			case err != nil && !errors.Is(err, store.ErrNoQueue): // ErrNoQueue: the queue was deleted in the meantime
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

// moveHead moves the excess messages that a subscription needs and that fit into the dead-letter queue. It returns
// their number. A corrupt message remains until it is repaired or discarded.
func (t *overflow) moveHead(ctx context.Context, q *query.Expiry, key dispatch.Key) (moved int, err error) {
	var tooLarge error
	for from := uint64(1); from < q.Overflow; {
		messages, next, err := t.o.Store.Read(ctx, store.ReadRequest{
			Queue: key.Queue, Sub: key.Sub, From: from, MaxMessages: maxOverflowMessages, MaxBytes: maxOverflowBytes,
			IncludeCorrupt: true, Delayed: true,
		}, nil)
		if err != nil {
			return moved, err
		}
		if len(messages) == 0 && next == from {
			break
		}
		from = next
		n, err := t.moveBatch(ctx, q, key, messages)
		moved += n
		full := (*dispatch.FullError)(nil)
		if errors.As(err, &full) && full.Oversized {
			tooLarge = err // the message does not block others
			continue
		}
		if err != nil {
			return moved, err
		}
	}
	if moved > 0 {
		return moved, nil // the caller checks again
	}
	return 0, tooLarge
}

// moveBatch moves, in one transaction, the messages that are not in flight and that fit into the dead-letter queue.
// It returns their number, and a *dispatch.FullError if some messages do not fit.
func (t *overflow) moveBatch(
	ctx context.Context, q *query.Expiry, key dispatch.Key, messages []store.Delivery,
) (moved int, err error) {
	origin, err := query.OriginOf(t.o.Store, key.Queue, key.Sub)
	if err != nil || origin.QueueDeadLetter == txn.NoQueue {
		return 0, err
	}
	sequences := make([]uint64, 0, len(messages))
	bySequence := make(map[uint64]*store.Delivery, len(messages))
	for i := range messages {
		if m := &messages[i]; m.Sequence < q.Overflow && m.Record != nil {
			sequences = append(sequences, m.Sequence)
			bySequence[m.Sequence] = m
		}
	}
	if len(sequences) == 0 {
		return 0, nil
	}
	var full error
	err = t.o.Consumers.Withdraw(key, sequences, func(free []uint64) (taken []uint64, err error) {
		var records [][]byte
		if taken, records, full, err = t.fittingPrefix(&origin, free, bySequence); err != nil || len(taken) == 0 {
			return nil, err
		}
		moved = len(taken)
		return taken, propose(ctx, t.o.Primary, func(b *txn.Builder) {
			b.BeginMove(key.Queue, key.Sub, origin.QueueDeadLetter)
			for i, rec := range records {
				b.Move(taken[i], rec)
			}
			b.EndMove()
		}, txn.ErrQueueNotFound, txn.ErrSubscriptionNotFound)
	})
	if errors.Is(err, txn.ErrQueueFull) { // other messages have filled the queue in the meantime
		return 0, &dispatch.FullError{Queue: origin.Queue, DeadLetter: origin.QueueDeadLetterName}
	}
	if err != nil {
		return 0, err
	}
	return moved, full
}

// fittingPrefix returns the sequences of the oldest messages that fit into the dead-letter queue, and their new
// records. If some messages do not fit, full is a *dispatch.FullError.
func (t *overflow) fittingPrefix(
	origin *query.Origin, free []uint64, messages map[uint64]*store.Delivery,
) (taken []uint64, records [][]byte, full, err error) {
	room, now := query.RoomIn(t.o.Store, origin.QueueDeadLetter), time.Now().UnixMilli()
	for _, sequence := range free {
		m := messages[sequence]
		rec, err := txn.Relabel(m.Record, &txn.DeadLetter{
			Queue: origin.Queue, Subscription: origin.Subscription, Sequence: m.Sequence, Reason: txn.DeadOverflow,
			Deliveries: m.DeliveryCount, MovedMS: now,
		})
		if err != nil {
			return nil, nil, nil, fmt.Errorf("sequence %d: %w", m.Sequence, err)
		}
		never := room.Never(len(rec))
		if !never && room.Add(len(rec)) {
			taken, records = append(taken, sequence), append(records, rec)
			continue
		}
		full = &dispatch.FullError{Queue: origin.Queue, DeadLetter: origin.QueueDeadLetterName, Oversized: never}
		if !never {
			break // later messages must not overtake this one
		}
	}
	return taken, records, full, nil
}
