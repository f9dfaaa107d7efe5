// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// prepare prepares a transaction and returns the code.
func (d *driver) prepare(xid string, fill func(b *txn.Builder)) txn.Code {
	d.t.Helper()
	inner := encode(d.t, fill)
	return d.apply(nil, func(b *txn.Builder) { b.Prepare(xid, inner) }).Code
}

func encode(t testing.TB, fill func(b *txn.Builder)) []byte {
	t.Helper()
	var b txn.Builder
	b.Begin(nil, 0, nil)
	fill(&b)
	payload, err := b.Finish()
	require.NoError(t, err)
	return payload
}

func (d *driver) commitPrepared(xid string) txn.Result {
	return d.apply(nil, func(b *txn.Builder) { b.CommitPrepared(xid, txn.ByCoordinator, 0) })
}

func (d *driver) rollbackPrepared(xid string) txn.Result {
	return d.apply(nil, func(b *txn.Builder) { b.RollbackPrepared(xid, txn.ByCoordinator, 0) })
}

// Retried commits apply a transaction once (INV-16), and never after a rollback.
func TestDecideOnce(t *testing.T) {
	d := newDriver(t)
	in, to := d.queue("in", txn.Config{}, "s"), d.queue("to", txn.Config{}, "s")
	d.publish(in, 4)
	move := func(seq uint64) func(b *txn.Builder) {
		return func(b *txn.Builder) {
			b.Take(in.id, 1, txn.Range{First: seq, Last: seq})
			publish(b, to.id, 1, 10)
		}
	}
	require.Equal(t, txn.OK, d.prepare("a", move(1)))
	require.Equal(t, txn.OK, d.prepare("b", move(2)))
	require.Zero(t, to.Messages(), "not visible before the commit")
	require.Equal(t, uint64(4), in.Messages())
	require.Equal(t, uint64(3), in.Sub(1).NextDeliverable(1))
	require.Equal(t, txn.ErrReserved, d.prepare("c", move(1)))
	require.Equal(t, txn.ErrXIDInUse, d.prepare("a", move(3)))

	r := d.commitPrepared("a")
	require.Equal(t, []txn.OpResult{{ID: 1, Changed: 2}}, r.Ops)
	require.Equal(t, []txn.OpResult{{ID: 1}}, d.commitPrepared("a").Ops)
	d.reload()
	in, to = d.s.Queue(in.id), d.s.Queue(to.id)
	require.Equal(t, []txn.OpResult{{ID: 1}}, d.commitPrepared("a").Ops, "also after a restart")
	require.Equal(t, uint64(1), to.Messages(), "a transaction was applied twice")
	require.Equal(t, txn.ErrCommitted, d.rollbackPrepared("a").Code)
	require.Equal(t, txn.ErrXIDInUse, d.prepare("a", move(3)))

	require.Equal(t, []txn.OpResult{{Changed: 1}}, d.rollbackPrepared("b").Ops)
	require.Equal(t, uint64(1), to.Messages(), "a rolled-back transaction was published")
	require.Equal(t, []txn.OpResult{{}}, d.rollbackPrepared("b").Ops)
	require.Equal(t, txn.ErrRolledBack, d.commitPrepared("b").Code)
	require.Equal(t, uint64(2), in.Sub(1).NextDeliverable(1), "deliverable again")
	require.Equal(t, txn.ErrXIDNotFound, d.commitPrepared("c").Code)
	require.Empty(t, d.s.Check())
	require.Nil(t, in.Sub(1).reserved)
}

// The coordinator receives a decision made by an operator or the timeout.
func TestHeuristicDecision(t *testing.T) {
	d := newDriver(t)
	q := d.queue("q", txn.Config{}, "s")
	one := func(b *txn.Builder) { publish(b, q.id, 1, 1) }
	for _, xid := range []string{"a", "b"} {
		require.Equal(t, txn.OK, d.prepare(xid, one))
	}
	number := d.s.Prepared("b").Number()
	d.do(func(b *txn.Builder) { b.CommitPrepared("a", txn.ByOperator, 0) })
	require.Equal(t, txn.ErrXIDNotFound, d.apply(nil, func(b *txn.Builder) {
		b.RollbackPrepared("b", txn.ByTimeout, number-1)
	}).Code, "an earlier transaction with that xid")
	d.do(func(b *txn.Builder) { b.RollbackPrepared("b", txn.ByTimeout, number) })
	d.reload()
	committed, by := OutcomeOf(&d.commitPrepared("a").Ops[0])
	require.True(t, committed)
	require.Equal(t, txn.ByOperator, by)
	require.Equal(t, txn.ErrHeuristicCommit, d.rollbackPrepared("a").Code)
	require.Equal(t, txn.ErrHeuristicRollback, d.commitPrepared("b").Code)
	committed, by = OutcomeOf(&d.rollbackPrepared("b").Ops[0])
	require.False(t, committed)
	require.Equal(t, txn.ByTimeout, by)
}

// Publishes, purges and deletions that would prevent the commit of a prepared transaction are rejected.
func TestPreparedReserves(t *testing.T) {
	d := newDriver(t)
	q := d.queue("q", txn.Config{MaxMessages: 5}, "s", "t")
	dead := d.queue("dead", txn.Config{}, "s")
	d.publish(q, 3)
	require.Equal(t, txn.OK, d.prepare("a", func(b *txn.Builder) {
		publish(b, q.id, 2, 1)
		b.Ack(q.id, 1, txn.Range{First: 2, Last: 2})
	}))
	refused := func(code txn.Code, fill func(b *txn.Builder)) {
		t.Helper()
		before := d.s.Digest()
		require.Equal(t, code, d.apply(nil, fill).Code)
		require.NotEqual(t, before, d.s.Digest())
		require.Empty(t, d.s.Check())
	}
	refused(txn.ErrQueueFull, func(b *txn.Builder) { publish(b, q.id, 1, 1) })
	refused(txn.ErrPreparedInUse, func(b *txn.Builder) { b.DeleteQueue(q.id, false) })
	refused(txn.ErrPreparedInUse, func(b *txn.Builder) { b.Purge(q.id, 0) })
	refused(txn.ErrPreparedInUse, func(b *txn.Builder) { b.Purge(q.id, 1) })
	refused(txn.ErrPreparedInUse, func(b *txn.Builder) { b.DeleteSubscription(q.id, 1) })
	refused(txn.ErrReserved, func(b *txn.Builder) { b.Take(q.id, 1, txn.Range{First: 1, Last: 3}) })
	d.do(func(b *txn.Builder) { b.Purge(q.id, 2) })
	d.do(func(b *txn.Builder) { b.DeleteSubscription(q.id, 2) })
	d.do(func(b *txn.Builder) { b.AlterQueue(q.id, txn.Config{MaxMessages: 1}, txn.FieldMaxMessages) })

	// Dead-lettering a reserved message would process it twice.
	rec, err := txn.AppendMessage(nil, 0, nil, nil, nil)
	require.NoError(t, err)
	require.Equal(t, uint64(1), d.do(func(b *txn.Builder) {
		b.BeginMove(q.id, 1, dead.id)
		b.Move(1, rec)
		b.Move(2, rec)
		b.EndMove()
	}).Ops[0].Changed)
	require.Equal(t, uint64(3), d.commitPrepared("a").Ops[0].Changed, "also above a limit that was lowered later")
	require.Equal(t, uint64(3), q.Messages())
	require.Equal(t, uint64(3), d.s.Counts().Published-2, "3, and 2 of the transaction")
	d.do(func(b *txn.Builder) { b.DeleteQueue(q.id, false) })
	require.Empty(t, d.s.Check())
}

// If two transactions process a message, only one succeeds.
func TestTake(t *testing.T) {
	d := newDriver(t)
	q, to := d.queue("q", txn.Config{}, "s"), d.queue("to", txn.Config{}, "s")
	d.publish(q, 3)
	both := func(seq uint64) func(b *txn.Builder) {
		return func(b *txn.Builder) {
			publish(b, to.id, 1, 1)
			b.Take(q.id, 1, txn.Range{First: seq, Last: seq})
		}
	}
	require.Equal(t, uint64(1), d.do(both(1)).Ops[1].Changed)
	require.Equal(t, uint64(1), d.s.Counts().Acknowledged)
	again := d.apply(nil, both(1))
	require.Equal(t, txn.ErrAlreadyAcknowledged, again.Code, "a message was processed twice")
	require.Equal(t, 1, again.Op)
	require.Equal(t, uint64(1), to.Messages())
	require.Equal(t, txn.ErrAlreadyAcknowledged, d.apply(nil, func(b *txn.Builder) {
		b.Take(q.id, 1, txn.Range{First: 1, Last: 3})
	}).Code)
	require.Equal(t, txn.ErrBeyondEnd, d.apply(nil, both(4)).Code)
	require.Equal(t, uint64(2), q.Messages())
}

// A transaction beyond a limit is rejected and leaves no state.
func TestPreparedLimits(t *testing.T) {
	d := newDriver(t)
	limits := defaultLimits()
	limits.prepared, limits.preparedBytes, limits.outcomes, limits.taken = 3, 10_000, 4, 10
	d.s.setLimits(limits)
	q := d.queue("q", txn.Config{}, "s")
	d.publish(q, 30)
	one := func(n int) func(b *txn.Builder) { return func(b *txn.Builder) { publish(b, q.id, 1, n) } }
	ack := func(first, last uint64) func(b *txn.Builder) {
		return func(b *txn.Builder) { b.Ack(q.id, 1, txn.Range{First: first, Last: last}) }
	}
	require.Equal(t, txn.ErrTooManyPrepared, d.prepare("large", one(10_000)))
	require.Equal(t, txn.ErrTooLarge, d.prepare("many", ack(1, 11)))
	require.Equal(t, txn.ErrBeyondEnd, d.prepare("beyond", ack(30, 31)))
	require.Equal(t, txn.ErrMalformed, d.prepare("release", func(b *txn.Builder) {
		b.Release(q.id, 1, txn.Range{First: 1, Last: 1})
	}))
	require.Equal(t, txn.ErrQueueNotFound, d.prepare("queue", func(b *txn.Builder) { publish(b, 99, 1, 1) }))
	require.Equal(t, txn.ErrSubscriptionNotFound, d.prepare("sub", func(b *txn.Builder) {
		b.Ack(q.id, 99, txn.Range{First: 1, Last: 1})
	}))
	require.Equal(t, txn.ErrMalformed, d.apply(nil, func(b *txn.Builder) { b.Prepare("nothing", []byte("x")) }).Code)
	require.Empty(t, d.s.AllPrepared())
	require.Zero(t, d.s.PreparedBytes())
	for i := range 3 {
		require.Equal(t, txn.OK, d.prepare(fmt.Sprint("p", i), one(100)))
	}
	require.Equal(t, txn.ErrTooManyPrepared, d.prepare("p3", one(1)))
	for i := range 7 { // the oldest outcomes are dropped
		if i >= 3 {
			require.Equal(t, txn.OK, d.prepare(fmt.Sprint("p", i), one(100)))
		}
		require.Equal(t, txn.OK, d.commitPrepared(fmt.Sprint("p", i)).Code)
		d.reload()
	}
	require.Equal(t, txn.ErrXIDNotFound, d.commitPrepared("p2").Code)
	require.Equal(t, txn.OK, d.commitPrepared("p3").Code)
	require.Equal(t, txn.OK, d.prepare("p2", one(1)), "an xid can be reused after its outcome was dropped")
	require.Len(t, d.s.prepared.outcomes, 4)
}

// Messages get the commit time, so the publish times of a queue are in ascending order.
func TestPreparedTimestamps(t *testing.T) {
	d := newDriver(t)
	q := d.queue("q", txn.Config{}, "s")
	require.Equal(t, txn.OK, d.prepare("a", func(b *txn.Builder) {
		b.BeginPublish(q.id)
		b.Message(5, []txn.Property{{Key: "k", Value: "v"}}, []byte("body"))
		b.EndPublish()
	}))
	prepared := bytes.Clone(d.s.Prepared("a").payload)
	kept := d.s.Prepared("a")
	var b txn.Builder
	b.Begin(nil, 7777, nil)
	b.CommitPrepared("a", txn.ByCoordinator, 0)
	payload, err := b.Finish()
	require.NoError(t, err)
	d.lsn++
	require.Equal(t, txn.OK, new(d.s.Apply(d.lsn, payload)).Code)
	rec, ok := d.s.Queue(q.id).TailRecord(1)
	require.True(t, ok)
	m, err := txn.DecodeMessage(rec)
	require.NoError(t, err)
	require.Equal(t, int64(7777), m.TimestampMS)
	require.Equal(t, "body", string(m.Body))
	require.Equal(t, prepared, kept.payload, "the payload, which a batch may share, does not change")
}

// A transaction larger than a tree value is reloaded unchanged.
func TestLargePrepared(t *testing.T) {
	d := newDriver(t)
	q := d.queue("q", txn.Config{}, "s")
	require.Equal(t, txn.OK, d.prepare("a", func(b *txn.Builder) { publish(b, q.id, 3, 3*preparedPart/2) }))
	want := bytes.Clone(d.s.Prepared("a").payload)
	for key, value := range d.s.All {
		require.LessOrEqual(t, len(value), preparedPart, "%x", key)
	}
	batch := d.s.Collect(0, true)
	pieces := 0
	for i, kv := range batch.Puts {
		require.True(t, i == 0 || bytes.Compare(batch.Puts[i-1].Key, kv.Key) < 0, "in order")
		if kv.Key[0] == keyPrepared {
			pieces++
		}
	}
	require.Equal(t, 1+5, pieces)
	d.reload()
	require.Equal(t, want, d.s.Prepared("a").payload)
	require.Equal(t, txn.OK, d.commitPrepared("a").Code)
	require.Len(t, d.s.Collect(0, true).Deletes, 1+5)
	require.Equal(t, uint64(3), d.s.Messages())
}

// The search for deliverable messages skips any number of reserved messages.
func TestDeliverableSkipsReserved(t *testing.T) {
	d := newDriver(t)
	q := d.queue("q", txn.Config{}, "s")
	d.publish(q, 20_000)
	require.Equal(t, txn.OK, d.prepare("a", func(b *txn.Builder) {
		b.Take(q.id, 1, txn.Range{First: 2, Last: 130}, txn.Range{First: 200, Last: 19_999})
	}))
	var got []uint64
	sub := q.Sub(1)
	for seq := sub.NextDeliverable(1); seq < q.NextSequence(); seq = sub.NextDeliverable(seq + 1) {
		got = append(got, seq)
	}
	require.Len(t, got, 1+69+1)
	require.Equal(t, []uint64{1, 131, 132}, got[:3])
	require.Equal(t, uint64(20_000), got[70])
	d.ack(q, 1, 1, 20_000)
	require.Equal(t, q.NextSequence(), sub.NextDeliverable(1))
	require.Equal(t, uint64(0), d.commitPrepared("a").Ops[0].Changed, "acknowledged by another client in the meantime")
	require.Empty(t, d.s.Check())
}
