// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

func TestRefusedTransactionChangesNothing(t *testing.T) {
	d := newDriver(t)
	d.s.setLimits(limits{queues: 2, released: 10, taken: 20, producers: 9, producerOps: 9, totalOps: 9, producerWindow: 9})
	q := d.queue("q", txn.Config{MaxMessages: 10, MaxBytes: 1000}, "a")
	d.queue("other", txn.Config{})
	d.publish(q, 5)
	r13 := func(b *txn.Builder) { b.Ack(q.id, 1, txn.Range{First: 1, Last: 3}) }

	for name, c := range map[string]struct {
		code txn.Code
		op   int
		fill func(b *txn.Builder)
	}{
		"queue exists":    {txn.ErrQueueExists, 0, func(b *txn.Builder) { b.CreateQueue("q", txn.Config{}) }},
		"too many queues": {txn.ErrTooManyQueues, 0, func(b *txn.Builder) { b.CreateQueue("third", txn.Config{}) }},
		"no queue":        {txn.ErrQueueNotFound, 1, func(b *txn.Builder) { r13(b); publish(b, 77, 1, 1) }},
		"no queue to alter": {txn.ErrQueueNotFound, 0, func(b *txn.Builder) {
			b.AlterQueue(77, txn.Config{}, txn.PlainFields)
		}},
		"not empty": {txn.ErrQueueNotEmpty, 0, func(b *txn.Builder) { b.DeleteQueue(q.id, true) }},
		"full of messages": {
			txn.ErrQueueFull, 2,
			func(b *txn.Builder) { r13(b); publish(b, q.id, 3, 1); publish(b, q.id, 3, 1) },
		},
		"full of bytes": {txn.ErrQueueFull, 1, func(b *txn.Builder) { r13(b); publish(b, q.id, 1, 990) }},
		"subscription exists": {
			txn.ErrSubscriptionExists, 0,
			func(b *txn.Builder) { b.CreateSubscription(q.id, "a", txn.StartLatest) },
		},
		"no subscription": {
			txn.ErrSubscriptionNotFound, 1,
			func(b *txn.Builder) { r13(b); b.Ack(q.id, 2, txn.Range{First: 1, Last: 1}) },
		},
		"no subscription to purge":  {txn.ErrSubscriptionNotFound, 0, func(b *txn.Builder) { b.Purge(q.id, 2) }},
		"no subscription to delete": {txn.ErrSubscriptionNotFound, 0, func(b *txn.Builder) { b.DeleteSubscription(q.id, 2) }},
		"beyond the end": {
			txn.ErrBeyondEnd, 1,
			func(b *txn.Builder) { publish(b, q.id, 1, 1); b.Ack(q.id, 1, txn.Range{First: 6, Last: 6}) },
		},
		"far beyond the end": {
			txn.ErrBeyondEnd, 0,
			func(b *txn.Builder) { b.Release(q.id, 1, txn.Range{First: 1, Last: 1<<64 - 1}) },
		},
		"too many released": {txn.ErrTooManyReleased, 2, func(b *txn.Builder) {
			for range 3 {
				b.Release(q.id, 1, txn.Range{First: 1, Last: 5})
			}
		}},
		"too many released after a take": {txn.ErrTooManyReleased, 5, func(b *txn.Builder) {
			for range 3 {
				b.Take(q.id, 1, txn.Range{First: 1, Last: 5})
			}
			for range 3 {
				b.Release(q.id, 1, txn.Range{First: 1, Last: 5})
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			before, digest := allOf(d.s), d.s.Digest()
			r := d.apply(nil, c.fill)
			require.ErrorIs(t, r.Err(), c.code)
			require.Equal(t, c.op, r.Op)
			require.Empty(t, r.Ops)
			require.Equal(t, d.lsn, d.s.Applied(), "a rejected transaction advances Applied")
			require.NotEqual(t, digest, d.s.Digest())
			after := allOf(d.s)
			delete(before, "m")
			delete(after, "m")
			same(t, before, after, "a refused transaction changes nothing")
		})
	}
	// Two subscriptions of a new queue have the same name.
	r := d.apply(nil, func(b *txn.Builder) { b.DeleteQueue(2, false) })
	require.NoError(t, r.Err())
	r = d.apply(nil, func(b *txn.Builder) { b.CreateQueue("third", txn.Config{}, "x", "x") })
	require.ErrorIs(t, r.Err(), txn.ErrSubscriptionExists)
}

func TestMalformedAndNewerRecords(t *testing.T) {
	d := newDriver(t)
	q := d.queue("q", txn.Config{}, "a")
	r := d.s.Apply(10, []byte("no transaction"))
	require.ErrorIs(t, r.Err(), txn.ErrNewerVersion, "another version")
	require.Equal(t, uint64(1), d.s.Applied(), "nothing may be applied beyond it")
	r = d.s.Apply(10, []byte{1, 0})
	require.ErrorIs(t, r.Err(), txn.ErrMalformed)
	require.Equal(t, uint64(10), d.s.Applied())
	require.PanicsWithValue(t, "queue: record 10 applied after record 10", func() { d.s.Apply(10, nil) })
	d.s.Advance(12)
	require.Equal(t, uint64(12), d.s.Applied())
	d.lsn = 12

	// Two operations, the second one unknown: the first one must not be applied.
	var b txn.Builder
	b.Begin(nil, 0, nil)
	publish(&b, q.id, 1, 1)
	at := b.Bytes()
	b.Ack(q.id, 1, txn.Range{First: 1, Last: 1})
	payload, err := b.Finish()
	require.NoError(t, err)
	payload[at] = 99
	r = d.s.Apply(13, payload)
	require.ErrorIs(t, r.Err(), txn.ErrNewerVersion)
	require.Equal(t, uint64(1), q.NextSequence())
	require.Equal(t, uint64(12), d.s.Applied())
}

// TestChunks covers the boundaries of chunks and words.
func TestChunks(t *testing.T) {
	d := newDriver(t)
	q := d.queue("q", txn.Config{}, "a")
	const n = 5*ChunkSize + 100
	d.publish(q, n)
	sub := q.Sub(1)
	require.Equal(t, uint64(n), sub.Backlog())

	require.Equal(t, uint64(2*ChunkSize), d.ack(q, 1, ChunkSize, 3*ChunkSize-1), "two whole chunks")
	require.True(t, sub.acks.slot(1).full)
	require.Nil(t, sub.acks.slot(1).c)
	require.Equal(t, uint64(3*ChunkSize), sub.NextUnacked(ChunkSize))
	require.Equal(t, uint64(0), d.ack(q, 1, ChunkSize, 3*ChunkSize-1), "acknowledged before")
	require.Equal(t, uint64(ChunkSize-1), d.ack(q, 1, 1, ChunkSize-1), "before the two chunks")
	require.Equal(t, uint64(3*ChunkSize), sub.Floor())
	require.Empty(t, sub.acks.slots)
	for i := range uint64(ChunkSize) { // one at a time, backwards
		require.Equal(t, uint64(1), d.ack(q, 1, 4*ChunkSize-1-i, 4*ChunkSize-1-i))
	}
	require.Equal(t, uint64(4*ChunkSize), sub.Floor())
	require.Equal(t, uint64(50), d.ack(q, 1, n-49, n))
	require.Equal(t, uint64(1), d.ack(q, 1, 5*ChunkSize-1, 5*ChunkSize-1))
	require.Equal(t, uint64(ChunkSize+50), d.ack(q, 1, 1, n-49), "the rest, over existing entries")
	require.Equal(t, uint64(n+1), sub.Floor())
	require.Zero(t, sub.Backlog())
	require.Zero(t, q.Messages())
	require.Zero(t, q.Bytes())
	require.Equal(t, uint64(n+1), q.NextAlive(1))
	require.Equal(t, uint64(n+1), q.TailFirst())
	require.Zero(t, d.s.TailBytes())
	require.Empty(t, d.s.Check())
}

func TestQueueBytes(t *testing.T) {
	d := newDriver(t)
	q := d.queue("q", txn.Config{}, "a")
	d.do(func(b *txn.Builder) { publish(b, q.id, 63, 87) }) // 100 bytes each
	d.do(func(b *txn.Builder) { publish(b, q.id, 64, 187) })
	require.Equal(t, uint64(63*100+64*200), q.Bytes())
	d.ack(q, 1, 2, 4)
	require.Equal(t, uint64(60*100+64*200), q.Bytes(), "exact for messages of one size")
	d.ack(q, 1, 1, 70)
	require.Equal(t, uint64(57*200), q.Bytes())
	require.Equal(t, q.Bytes(), d.s.Bytes())
}

func TestSubscriptions(t *testing.T) {
	d := newDriver(t)
	q := d.queue("topic", txn.Config{})
	d.publish(q, 3)
	require.Zero(t, q.Messages(), "no subscription needs them")
	require.Zero(t, d.s.TailBytes())
	d.do(func(b *txn.Builder) { b.CreateSubscription(q.id, "a", txn.StartEarliest) })
	require.Equal(t, uint64(4), q.SubByName("a").Start(), "a new subscription does not receive dead messages")
	d.publish(q, 10)
	d.ack(q, 1, 4, 5)
	d.ack(q, 1, 9, 9)
	d.do(func(b *txn.Builder) { b.Release(q.id, 1, txn.Range{First: 6, Last: 9}) })
	d.do(func(b *txn.Builder) { b.CreateSubscription(q.id, "early", txn.StartEarliest) })
	d.do(func(b *txn.Builder) { b.CreateSubscription(q.id, "late", txn.StartLatest) })
	early, late := q.SubByName("early"), q.SubByName("late")
	require.Equal(t, uint64(6), early.Floor())
	require.True(t, early.Acked(9))
	require.Equal(t, uint32(1), q.Sub(1).DeliveryCount(6))
	require.Zero(t, q.Sub(1).DeliveryCount(9), "it was acknowledged")
	require.Zero(t, early.DeliveryCount(6))
	require.Equal(t, uint64(7), early.Backlog())
	require.Zero(t, late.Backlog())

	r := d.do(func(b *txn.Builder) { b.DeleteSubscription(q.id, 1) })
	require.Zero(t, r.Ops[0].Changed, "another one still needs them")
	require.Nil(t, q.Sub(1))
	require.Same(t, early, q.Sub(early.ID()))
	require.Equal(t, uint64(7), q.Messages())
	b := d.s.Collect(0, false) // empty: the limit is 0
	require.Empty(t, b.Tails)
	b = d.s.Collect(1<<30, false)
	require.Len(t, b.Tails, 1)
	r = d.do(func(b *txn.Builder) { b.DeleteSubscription(q.id, early.ID()) })
	require.Equal(t, uint64(7), r.Ops[0].Changed)
	d.do(func(b *txn.Builder) { b.DeleteSubscription(q.id, late.ID()) })
	d.publish(q, 2) // the tail of the queue is still in a batch
	require.Zero(t, q.Messages())
	d.do(func(b *txn.Builder) { b.CreateSubscription(q.id, "a", txn.StartLatest) })
	d.publish(q, 1)
	d.s.Flushed(q.id, b.Tails[0].Last())
	rec, ok := q.TailRecord(16)
	require.True(t, ok)
	require.NotEmpty(t, rec)
	require.Empty(t, d.s.Check())
}

func TestTooManySubscriptions(t *testing.T) {
	d := newDriver(t)
	names := make([]string, txn.MaxSubscriptions)
	for i := range names {
		names[i] = fmt.Sprintf("s%d", i)
	}
	q := d.queue("q", txn.Config{}, names...)
	r := d.apply(nil, func(b *txn.Builder) { b.CreateSubscription(q.id, "one-more", txn.StartLatest) })
	require.ErrorIs(t, r.Err(), txn.ErrTooManySubscriptions)
	d.publish(q, 100)
	for i := range names {
		require.Equal(t, uint64(100), q.Messages())
		d.ack(q, uint32(i+1), 1, 100)
	}
	require.Zero(t, q.Messages())
	require.Empty(t, d.s.Check())
}

func TestTakeTouched(t *testing.T) {
	d := newDriver(t)
	a, b, c := d.queue("a", txn.Config{}, "s"), d.queue("b", txn.Config{}, "s"), d.queue("c", txn.Config{}, "s")
	require.Empty(t, d.s.TakeTouched(nil))
	d.publish(a, 1)
	d.publish(a, 1)
	d.do(func(x *txn.Builder) { x.Purge(b.id, 0) })
	d.do(func(x *txn.Builder) { x.DeleteQueue(c.id, false) })
	require.Equal(t, []uint64{9, a.id, b.id, c.id}, d.s.TakeTouched([]uint64{9}))
	d.ack(a, 1, 1, 1)
	require.Empty(t, d.s.TakeTouched(nil))
	d.do(func(x *txn.Builder) { x.Release(a.id, 1, txn.Range{First: 1, Last: 2}) })
	require.Equal(t, []uint64{a.id}, d.s.TakeTouched(nil))
}

func TestDigestDiffersByHistory(t *testing.T) {
	seen := map[uint64]string{}
	for name, fill := range map[string]func(b *txn.Builder){
		"ack":     func(b *txn.Builder) { b.Ack(1, 1, txn.Range{First: 1, Last: 1}) },
		"ack 2":   func(b *txn.Builder) { b.Ack(1, 1, txn.Range{First: 2, Last: 2}) },
		"other":   func(b *txn.Builder) { b.Ack(1, 2, txn.Range{First: 1, Last: 1}) },
		"release": func(b *txn.Builder) { b.Release(1, 1, txn.Range{First: 1, Last: 1}) },
		"publish": func(b *txn.Builder) { publish(b, 1, 1, 1) },
		"two":     func(b *txn.Builder) { publish(b, 1, 2, 1) },
		"larger":  func(b *txn.Builder) { publish(b, 1, 1, 2) },
		"purge":   func(b *txn.Builder) { b.Purge(1, 1) },
		"all":     func(b *txn.Builder) { b.Purge(1, 0) },
		"alter":   func(b *txn.Builder) { b.AlterQueue(1, txn.Config{MaxBytes: 1}, txn.PlainFields) },
		"create":  func(b *txn.Builder) { b.CreateSubscription(1, "c", txn.StartLatest) },
		"delete":  func(b *txn.Builder) { b.DeleteSubscription(1, 1) },
	} {
		d := newDriver(t)
		q := d.queue("q", txn.Config{}, "a", "b")
		d.publish(q, 2)
		d.do(fill)
		require.Empty(t, seen[q.Digest()], "the digest of %q is that of another history", name)
		seen[q.Digest()] = name
	}
}

func TestDeadRange(t *testing.T) {
	d := newDriver(t)
	q := d.queue("q", txn.Config{}, "a")
	d.publish(q, 3*ChunkSize)
	b := d.s.Collect(0, true)
	require.Empty(t, b.Dead)
	next := uint64(1)
	for _, run := range b.Tails {
		require.Equal(t, next, run.First, "each run follows the previous one")
		require.LessOrEqual(t, len(run.Records), MaxExtentSpan)
		next = run.Last() + 1
		d.s.Flushed(run.Queue, run.Last())
	}
	require.Equal(t, q.NextSequence(), next)
	require.Zero(t, d.s.TailBytes())

	d.ack(q, 1, ChunkSize+10, ChunkSize+20)
	b = d.s.Collect(0, true)
	require.Len(t, b.Dead, 1)
	dead := &b.Dead[0]
	require.LessOrEqual(t, dead.First, uint64(ChunkSize+10))
	require.GreaterOrEqual(t, dead.Last, uint64(ChunkSize+20))
	d.do(func(b *txn.Builder) { b.Purge(q.id, 0) })
	require.True(t, dead.AllDead(ChunkSize+10, 11))
	require.False(t, dead.AllDead(ChunkSize+9, 12), "messages that died after the batch are live in it")
	require.False(t, dead.AllDead(ChunkSize+10, 12))
	require.False(t, dead.AllDead(1, 1))
	require.False(t, dead.AllDead(ChunkSize+10, 100*ChunkSize))
	require.False(t, dead.AllDead(1<<64-1, 2))
	require.True(t, q.AllDead(1, 3*ChunkSize))

	b = d.s.Collect(0, true)
	require.Len(t, b.Dead, 1)
	require.True(t, b.Dead[0].AllDead(1, ChunkSize))
	require.True(t, b.Dead[0].AllDead(ChunkSize-5, 10))
	b = d.s.Collect(0, true)
	require.Empty(t, b.Dead)
}

// A batch does not contain messages that died before their pages were written.
func TestDeadMessagesAreNotWritten(t *testing.T) {
	d := newDriver(t)
	q := d.queue("q", txn.Config{}, "a")
	d.publish(q, 100)
	d.ack(q, 1, 1, 50)
	d.ack(q, 1, 60, 69)
	b := d.s.Collect(0, true)
	require.Empty(t, b.Dead, "there are no pages to free")
	require.Len(t, b.Tails, 1)
	require.Equal(t, uint64(51), b.Tails[0].First)
	written := 0
	for _, rec := range b.Tails[0].Records {
		if rec != nil {
			written++
		}
	}
	require.Equal(t, 40, written)

	// While the batch is written, its messages can be read and can die without a change to the batch.
	d.ack(q, 1, 51, 59)
	require.NotNil(t, b.Tails[0].Records[0])
	_, ok := q.TailRecord(75)
	require.True(t, ok)
	d.publish(q, 5)
	d.s.Flushed(q.id, b.Tails[0].Last())
	require.Equal(t, uint64(101), q.TailFirst())
	_, ok = q.TailRecord(75)
	require.False(t, ok)
	b = d.s.Collect(0, true)
	require.Len(t, b.Dead, 1, "they are in pages now")
	require.Empty(t, d.s.Check())
}

// A flush contains the messages of the queues with the least recent flush, up to its limit.
func TestFlushOrder(t *testing.T) {
	d := newDriver(t)
	a, b := d.queue("a", txn.Config{}, "s"), d.queue("b", txn.Config{}, "s")
	d.publish(b, 1000)
	d.publish(a, 1000)
	batch := d.s.Collect(500*cost(make([]byte, 14)), false)
	require.Len(t, batch.Tails, 1)
	require.Equal(t, b.id, batch.Tails[0].Queue)
	require.Len(t, batch.Tails[0].Records, 500)
	require.Empty(t, batch.Puts)
	d.s.Flushed(b.id, 500)
	require.Equal(t, uint64(501), b.TailFirst())
	batch = d.s.Collect(1, false)
	require.Len(t, batch.Tails, 1)
	require.Equal(t, a.id, batch.Tails[0].Queue, "the other queue was flushed more recently")
	require.Len(t, batch.Tails[0].Records, 1)
}

func TestIdleQueueMemory(t *testing.T) {
	const n = 20_000
	d := newDriver(t)
	before := heap()
	for i := range n {
		d.queue(fmt.Sprintf("an-ordinary-queue-name-%d", i), txn.Config{}, "default")
	}
	for id := range uint64(n) {
		q := d.s.Queue(id + 1)
		d.publish(q, 5)
		d.ack(q, 1, 1, 5)
	}
	d.s.TakeTouched(nil)
	d.s.Collect(0, true)
	perQueue := (heap() - before) / n
	require.Less(t, perQueue, uint64(1024), "bytes for an idle queue")
	require.Equal(t, n, d.s.QueueCount())
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestApplyAllocations(t *testing.T) {
	d := newDriver(t)
	q := d.queue("q", txn.Config{}, "a")
	payload := func(fill func(b *txn.Builder)) []byte {
		var b txn.Builder
		b.Begin(nil, 0, nil)
		fill(&b)
		p, err := b.Finish()
		require.NoError(t, err)
		return p
	}
	batch := payload(func(b *txn.Builder) { publish(b, q.id, 1000, 10) })
	allocs := testing.AllocsPerRun(50, func() {
		d.lsn++
		d.s.Apply(d.lsn, batch)
	})
	require.LessOrEqual(t, allocs, 3.0, "for a batch of 1000 messages")
	next := uint64(0)
	acks := make([][]byte, 0, 2002)
	for range 1001 {
		next += 2
		acks = append(acks, payload(func(b *txn.Builder) { b.Ack(q.id, 1, txn.Range{First: next, Last: next}) }),
			payload(func(b *txn.Builder) { b.Ack(q.id, 1, txn.Range{First: next - 1, Last: next - 1}) }))
	}
	i := 0
	allocs = testing.AllocsPerRun(1000, func() {
		for range 2 {
			d.lsn++
			d.s.Apply(d.lsn, acks[i])
			i++
		}
	})
	require.Zero(t, allocs, "for two acknowledgements in the wrong order")
	require.Equal(t, uint64(2003), q.Sub(1).Floor())
}

// A batch can be read without the lock while the state changes. The race detector verifies this.
func TestBatchIsReadDuringApply(t *testing.T) {
	d := newDriver(t)
	q := d.queue("q", txn.Config{}, "a")
	d.publish(q, 3000)
	d.do(func(b *txn.Builder) { b.Release(q.id, 1, txn.Range{First: 5, Last: 9}) })
	d.ack(q, 1, 2500, 2600)
	batch := d.s.Collect(0, true)
	sum := make(chan uint64)
	go func() {
		n := uint64(0)
		for _, run := range batch.Tails {
			for _, rec := range run.Records {
				n += uint64(len(rec))
			}
		}
		for _, kv := range batch.Puts {
			n += uint64(len(kv.Key) + len(kv.Value))
		}
		for i := range batch.Dead {
			batch.Dead[i].AllDead(1, 3000)
		}
		sum <- n
	}()
	d.publish(q, 3000)
	d.ack(q, 1, 1, 100)
	d.ack(q, 1, 2700, 3100)
	d.publish(q, 10)
	require.NotZero(t, <-sum)
	for i := range batch.Tails {
		d.s.Flushed(q.id, batch.Tails[i].Last())
	}
	require.Empty(t, d.s.Check())
}
