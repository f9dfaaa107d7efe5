// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

func (d *driver) trim(q *Queue, seq uint64, c txn.Config) uint64 {
	d.t.Helper()
	return d.do(func(b *txn.Builder) { b.Trim(q.id, seq, &c) }).Ops[0].Changed
}

func (d *driver) seek(q *Queue, sub uint32, seq uint64) txn.OpResult {
	d.t.Helper()
	return d.do(func(b *txn.Builder) { b.Seek(q.id, sub, seq) }).Ops[0]
}

func TestRetentionKeepsAcknowledged(t *testing.T) {
	d := newDriver(t)
	retained := txn.Config{RetentionMessages: 50}
	q := d.queue("q", retained, "a")
	d.publish(q, 100)
	require.Equal(t, uint64(100), d.ack(q, 1, 1, 100))
	require.Equal(t, uint64(100), q.Messages(), "retained messages count as live")
	require.Zero(t, q.Sub(1).Backlog())
	require.Equal(t, 1, q.SubCount())
	require.Nil(t, q.Sub(txn.RetentionSub))
	require.Nil(t, q.SubByName(""))
	for _, fill := range []func(b *txn.Builder){
		func(b *txn.Builder) { b.Release(q.id, txn.RetentionSub, txn.Range{First: 1, Last: 9}) },
		func(b *txn.Builder) { b.Purge(q.id, txn.RetentionSub) },
		func(b *txn.Builder) { b.DeleteSubscription(q.id, txn.RetentionSub) },
	} {
		r := d.apply(nil, fill)
		require.ErrorIs(t, r.Err(), txn.ErrSubscriptionNotFound, "clients cannot use the hidden subscription")
	}

	require.Equal(t, uint64(51), q.RetainFrom(50, 0))
	require.Equal(t, uint64(50), d.trim(q, 51, retained))
	require.Equal(t, uint64(50), q.Messages())
	require.Zero(t, d.trim(q, 51, retained), "a repeated proposal changes nothing")
	require.Zero(t, d.trim(q, 20, retained), "an older proposal changes nothing")

	r := d.seek(q, 1, 1)
	require.Equal(t, txn.OpResult{FirstSequence: 51, Changed: 50}, r, "from the first one that is retained")
	late := d.do(func(b *txn.Builder) { b.CreateSubscription(q.id, "late", txn.StartEarliest) }).Ops[0].ID
	require.Equal(t, uint32(2), uint32(late))
	require.Equal(t, uint64(50), q.Sub(2).Backlog())

	d.do(func(b *txn.Builder) { b.AlterQueue(q.id, txn.Config{}, txn.Retention) })
	require.Equal(t, uint64(50), q.Messages(), "the subscriptions need them")
	d.ack(q, 1, 1, 100)
	d.ack(q, 2, 1, 80)
	require.Equal(t, uint64(20), q.Messages())
	require.Empty(t, d.s.Check())

	d.do(func(b *txn.Builder) { b.AlterQueue(q.id, txn.Config{RetentionAge: 1}, txn.FieldRetentionAge) })
	floor, ok := q.Retained()
	require.True(t, ok)
	require.Equal(t, uint64(81), floor, "a retention that is set later begins with the live messages")
	require.Equal(t, uint64(20), d.do(func(b *txn.Builder) { b.Purge(q.id, 0) }).Ops[0].Changed)
	require.Zero(t, q.Messages(), "a purge of the whole queue deletes retained messages")
}

// An acknowledgement for the hidden subscription removes retained messages that no other subscription needs.
func TestRetainedMessagesAreDiscarded(t *testing.T) {
	d := newDriver(t)
	retained := txn.Config{RetentionMessages: 50}
	q := d.queue("q", retained, "a")
	d.publish(q, 10)
	d.ack(q, 1, 1, 5)
	counts := d.s.Counts()
	discard := func(first, last uint64) uint64 {
		t.Helper()
		return d.ack(q, txn.RetentionSub, first, last)
	}
	require.Equal(t, uint64(1), discard(3, 3))
	require.Zero(t, discard(3, 3))
	require.True(t, q.Dead(3))
	require.Equal(t, uint64(1), discard(7, 7))
	require.False(t, q.Dead(7), "a subscription needs it")
	d.ack(q, 1, 7, 7)
	require.True(t, q.Dead(7))
	require.Equal(t, uint64(8), q.Messages())
	require.Equal(t, counts.Acknowledged+1, d.s.Counts().Acknowledged, "only those of subscriptions of clients")
	require.Equal(t, txn.OpResult{FirstSequence: 1, Changed: 8}, d.seek(q, 1, 1))
	require.Empty(t, d.s.Check())

	r := d.apply(nil, func(b *txn.Builder) { b.Ack(q.id, txn.RetentionSub, txn.Range{First: 1, Last: 11}) })
	require.ErrorIs(t, r.Err(), txn.ErrBeyondEnd)
	d.do(func(b *txn.Builder) { b.AlterQueue(q.id, txn.Config{}, txn.Retention) })
	r = d.apply(nil, func(b *txn.Builder) { b.Ack(q.id, txn.RetentionSub, txn.Range{First: 1, Last: 1}) })
	require.ErrorIs(t, r.Err(), txn.ErrSubscriptionNotFound)
}

// A trim proposal is ignored if another retention was set before it is applied.
func TestRetentionIsCheckedWhenApplied(t *testing.T) {
	d := newDriver(t)
	short := txn.Config{RetentionMessages: 10}
	q := d.queue("q", short, "a")
	d.publish(q, 100)
	d.ack(q, 1, 1, 100)
	decided := q.RetainFrom(10, 0)
	d.do(func(b *txn.Builder) {
		b.AlterQueue(q.id, txn.Config{RetentionMessages: 1000}, txn.FieldRetentionMessages)
	})
	require.Zero(t, d.trim(q, decided, short), "INV-15: a proposal for another retention was applied")
	require.Equal(t, uint64(100), q.Messages())
	d.do(func(b *txn.Builder) { b.AlterQueue(q.id, txn.Config{}, txn.Retention) })
	require.Zero(t, q.Messages())
	require.Zero(t, d.trim(q, decided, short), "the queue has no retention")
}

// RetainFrom returns the same sequence as a linear search from the end.
func TestRetainFrom(t *testing.T) {
	d := newDriver(t)
	q := d.queue("q", txn.Config{RetentionMessages: 1}, "a", "b")
	rng := rand.New(rand.NewPCG(7, 7))
	for range 6 {
		d.publish(q, 1+rng.IntN(4000))
	}
	n := q.nextSeq - 1
	d.ack(q, 1, 1, n)
	d.ack(q, 2, 500, n) // a slow subscription needs the first messages, regardless of the retention
	size := q.bytes / q.messages
	for range 200 {
		floor, _ := q.Retained()
		keep := 1 + rng.Uint64N(n+50)
		want := max(floor, q.nextSeq-min(keep, q.nextSeq-1))
		require.Equal(t, want, q.RetainFrom(keep, 0), "%d messages above %d", keep, floor)
		require.Equal(t, want, q.RetainFrom(0, keep*size), "%d messages' bytes above %d", keep, floor)
		require.Equal(t, want, q.RetainFrom(n+50, keep*size))
		if rng.IntN(12) == 0 {
			d.trim(q, floor+rng.Uint64N(n/12), q.Config())
		}
	}
	require.Equal(t, q.nextSeq, q.RetainFrom(0, 1), "no message fits")
}

func TestSeek(t *testing.T) {
	d := newDriver(t)
	q := d.queue("q", txn.Config{}, "a", "b")
	d.publish(q, 10_000)
	d.ack(q, 1, 1, 9000)
	d.ack(q, 2, 101, 5000)
	d.do(func(b *txn.Builder) { b.Release(q.id, 1, txn.Range{First: 9500, Last: 9600}) })
	require.Equal(t, txn.OpResult{FirstSequence: 50, Changed: 51 + 5000}, d.seek(q, 1, 50),
		"without a retention, messages that all subscriptions have acknowledged are deleted")
	require.Zero(t, q.Sub(1).DeliveryCount(9550))
	require.Equal(t, uint64(1), q.Sub(1).Start())
	require.Equal(t, txn.OpResult{FirstSequence: 10_001}, d.seek(q, 1, 10_001))
	require.Equal(t, uint64(5100), q.Messages())
	require.Equal(t, txn.OpResult{FirstSequence: 5001, Changed: 5000}, d.seek(q, 2, 200))
	require.Equal(t, uint64(5000), q.Messages(), "no subscription needs the messages below its position")
	r := d.apply(nil, func(b *txn.Builder) { b.Seek(q.id, 1, 10_002) })
	require.ErrorIs(t, r.Err(), txn.ErrBeyondEnd)
	r = d.apply(nil, func(b *txn.Builder) { b.Seek(q.id, 3, 1) })
	require.ErrorIs(t, r.Err(), txn.ErrSubscriptionNotFound)
	require.Empty(t, d.s.Check())
}

// A retried seek does not move a subscription again, because the subscription may have advanced.
func TestSeekRetry(t *testing.T) {
	d := newDriver(t)
	q := d.queue("q", txn.Config{RetentionMessages: 100}, "a")
	d.publish(q, 100)
	d.ack(q, 1, 1, 100)
	p := &txn.Producer{ID: []byte("p"), Epoch: 1, Sequence: 1}
	seek := func(b *txn.Builder) { b.Seek(q.id, 1, 11) }
	first := d.apply(p, seek)
	require.Equal(t, []txn.OpResult{{FirstSequence: 11, Changed: 90}}, first.Ops)
	d.ack(q, 1, 11, 60)
	again := d.apply(p, seek)
	require.True(t, again.Duplicate)
	require.Equal(t, first.Ops, again.Ops)
	require.Equal(t, uint64(40), q.Sub(1).Backlog())
}

func TestDropHead(t *testing.T) {
	for name, config := range map[string]txn.Config{
		"messages": {MaxMessages: 100, Overflow: txn.OverflowDropHead},
		"bytes":    {MaxBytes: 100 * 14, Overflow: txn.OverflowDropHead},
		"retained": {MaxMessages: 100, Overflow: txn.OverflowDropHead, RetentionMessages: 1000},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDriver(t)
			q := d.queue("q", config, "a", "b")
			d.publish(q, 1)
			require.Equal(t, uint64(14), q.Bytes(), "a message of this test")
			d.publish(q, 80)
			d.ack(q, 1, 1, 40)
			d.publish(q, 50)
			require.Equal(t, uint64(100), q.Messages())
			require.Equal(t, uint64(32), q.NextAlive(1))
			require.Equal(t, uint64(100), q.Sub(2).Backlog())
			require.Equal(t, uint64(91), q.Sub(1).Backlog())
			require.Equal(t, uint64(31), d.s.Counts().Overflowed)
			r := d.apply(nil, func(b *txn.Builder) { publish(b, q.id, 101, 1) })
			require.ErrorIs(t, r.Err(), txn.ErrQueueFull, "the batch does not fit into the empty queue")
			r = d.apply(nil, func(b *txn.Builder) { publish(b, q.id, 60, 1); publish(b, q.id, 60, 1) })
			require.ErrorIs(t, r.Err(), txn.ErrQueueFull, "the transaction would drop its own messages")
			require.Equal(t, uint64(100), q.Messages())
			d.do(func(b *txn.Builder) { publish(b, q.id, 100, 1) })
			require.Equal(t, uint64(132), q.NextAlive(1))
			require.Empty(t, d.s.Check())
		})
	}
}

// With dead-letter-head, a queue may exceed its limits, up to a bound, until the active moves the excess.
func TestDeadLetterHead(t *testing.T) {
	d := newDriver(t)
	dead := d.queue("dead", txn.Config{MaxMessages: 300}, "default")
	config := txn.Config{MaxMessages: 1000, Overflow: txn.OverflowDeadLetterHead}
	r := d.apply(nil, func(b *txn.Builder) { b.CreateQueue("q", config, "a") })
	require.ErrorIs(t, r.Err(), txn.ErrNoDeadLetter)
	config.DeadLetter = dead.id
	q := d.queue("q", config, "a")
	r = d.apply(nil, func(b *txn.Builder) { b.AlterQueue(q.id, txn.Config{}, txn.FieldDeadLetter) })
	require.ErrorIs(t, r.Err(), txn.ErrNoDeadLetter, "the overflow policy still requires a dead-letter queue")
	d.publish(q, 1000)
	require.Zero(t, q.Overflowing())
	d.publish(q, 700)
	require.Equal(t, uint64(701), q.Overflowing(), "messages below this sequence exceed the limit")
	d.publish(q, 399)
	d.publish(q, 100) // below the bound on arrival
	r = d.apply(nil, func(b *txn.Builder) { publish(b, q.id, 1, 1) })
	require.ErrorIs(t, r.Err(), txn.ErrQueueFull)
	r = d.apply(nil, func(b *txn.Builder) { publish(b, q.id, 1001, 1) })
	require.ErrorIs(t, r.Err(), txn.ErrQueueFull)

	d.ack(q, 1, 1, 1100)
	d.publish(q, 100)
	d.publish(dead, 300)
	r = d.apply(nil, func(b *txn.Builder) { publish(b, q.id, 1, 1) })
	require.ErrorIs(t, r.Err(), txn.ErrQueueFull, "the dead-letter queue is full")
	d.ack(dead, 1, 1, 1)
	d.publish(q, 1)
	d.ack(q, 1, 1, 1500)
	d.publish(q, 1)
	require.Zero(t, q.Overflowing())
	require.Empty(t, d.s.Check())
}

// After repeated seeks of a subscription, a checkpoint leaves no outdated key of the subscription in the tree.
func TestSeekAcrossCheckpoints(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 3))
			r := newReplica(t, seed)
			lsn := uint64(0)
			do := func(fill func(b *txn.Builder)) {
				t.Helper()
				var b txn.Builder
				b.Begin(nil, 0, nil)
				fill(&b)
				payload, err := b.Finish()
				require.NoError(t, err)
				lsn++
				r.log = append(r.log, payload)
				result := r.state.Apply(lsn, payload)
				require.NoError(t, result.Err())
				r.step()
			}
			do(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{RetentionAge: 1}, "a", "b") })
			for range 3 {
				do(func(b *txn.Builder) { publish(b, 1, 8000, 1) })
			}
			const n = 24_000
			for range 150 {
				first := 1 + rng.Uint64N(n)
				last := min(first+rng.Uint64N(9000), n)
				switch rng.IntN(8) {
				case 0:
					do(func(b *txn.Builder) { b.Trim(1, 1+rng.Uint64N(first), &txn.Config{RetentionAge: 1}) })
				case 1, 2, 3:
					do(func(b *txn.Builder) { b.Seek(1, 1, first) })
				default:
					do(func(b *txn.Builder) { b.Ack(1, 1+uint32(rng.IntN(2)), txn.Range{First: first, Last: last}) })
				}
			}
			r.restart() // compares the state before and after
			require.Empty(t, r.state.Check())
		})
	}
}
