// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// keepSizes updates exact after a configuration change.
func (q *modelQueue) keepSizes() {
	switch keeps := q.config.ExactBytes != 0 && q.config.MaxBytes|q.config.RetentionBytes != 0; {
	case !keeps:
		q.exact = 0
	case q.exact == 0:
		q.exact = q.next
	}
}

// checkBytes compares the bytes of a queue with exact sizes.
func (q *modelQueue) checkBytes(t *testing.T, got *Queue) {
	t.Helper()
	bytes := uint64(0)
	for seq, rec := range q.records {
		if !q.needed(seq) {
			continue
		}
		if q.exact == 0 || seq < q.exact {
			return
		}
		bytes += uint64(len(rec))
	}
	require.Equal(t, bytes, got.Bytes(), "bytes of queue %d", q.id)
}

// record returns a message record of size bytes.
func record(t testing.TB, size int) []byte {
	t.Helper()
	empty, err := txn.AppendMessage(nil, 0, nil, nil, nil)
	require.NoError(t, err)
	rec, err := txn.AppendMessage(nil, 0, nil, nil, make([]byte, size-len(empty)))
	require.NoError(t, err)
	require.Len(t, rec, size)
	return rec
}

func publishRecords(b *txn.Builder, q uint64, records ...[]byte) {
	b.BeginPublish(q)
	for _, rec := range records {
		b.Record(rec)
	}
	b.EndPublish()
}

// sized is a queue with a byte limit, and the size of each published message.
type sized struct {
	id    uint64
	sizes []uint64 // sizes[i] is the size of message i+1
}

// bytes returns the bytes of the live messages.
func (z *sized) bytes(q *Queue) (bytes uint64) {
	for seq := q.NextAlive(1); seq < q.nextSeq; seq = q.NextAlive(seq + 1) {
		bytes += z.sizes[seq-1]
	}
	return bytes
}

// The byte count of a queue with a limit is exact after each operation, for each overflow policy, and determines
// whether a publish is accepted. Two states, one of which is sometimes reloaded, remain equal.
func TestExactBytes(t *testing.T) {
	for seed := range uint64(6) {
		rng := rand.New(rand.NewPCG(seed, 28))
		d := newDriver(t)
		limits := txn.Config{MaxBytes: 300_000, ExactBytes: 1, Overflow: seed % 3, Priorities: seed / 3 % 2}
		dead := &sized{id: d.queue("dead", txn.Config{MaxBytes: 1 << 40, ExactBytes: 1}, "s").id}
		limits.DeadLetter = dead.id
		if seed%4 == 0 {
			limits.RetentionBytes = 100_000
		}
		z := &sized{id: d.queue("q", limits, "a", "b").id}
		other := &driver{t: t, s: d.s, lsn: d.lsn}
		other.reload()
		for k := range 250 {
			q := d.s.Queue(z.id)
			var b txn.Builder
			b.Begin(nil, int64(k), nil)
			var published []uint64
			batch := uint64(0)
			subs := q.clients()
			sub := subs[rng.IntN(len(subs))]
			first := 1 + rng.Uint64N(q.nextSeq)
			last := min(first+rng.Uint64N(100), q.nextSeq-1)
			moved := uint64(0)
			switch op := rng.IntN(40); {
			case op < 20 || first > last:
				var records [][]byte
				for range 1 + rng.IntN(40) {
					size := 20 + rng.IntN(1+rng.IntN(6000))
					switch rng.IntN(60) {
					case 0:
						size = 65_500 + rng.IntN(80)
					case 1:
						size = 100_000
					}
					records = append(records, record(t, size))
					published = append(published, uint64(size))
					batch += uint64(size)
				}
				publishRecords(&b, z.id, records...)
			case op < 30:
				b.Ack(z.id, sub.id, txn.Range{First: first, Last: last})
			case op < 33:
				if moved = sub.NextUnacked(first); moved == q.nextSeq {
					continue
				}
				b.BeginMove(z.id, sub.id, dead.id)
				b.Move(moved, record(t, 50+int(z.sizes[moved-1])))
				b.EndMove()
			case op == 33:
				b.Purge(z.id, sub.id)
			case op == 34:
				b.Seek(z.id, sub.id, first)
			case op == 35 && len(subs) < 4:
				b.CreateSubscription(z.id, string(rune('c'+k%20)), txn.StartEarliest)
			case op == 36 && len(subs) > 1:
				b.DeleteSubscription(z.id, sub.id)
			case op == 37:
				b.Due(txn.Due{TimeMS: 0, Queue: z.id, Sequence: first, Kind: txn.DueTTL})
			case op == 38 && limits.RetentionBytes != 0:
				b.Trim(z.id, q.RetainFrom(0, limits.RetentionBytes), &limits)
			default:
				limits.MaxBytes = 200_000 + rng.Uint64N(200_000)
				b.AlterQueue(z.id, limits, txn.FieldMaxBytes)
			}
			payload, err := b.Finish()
			require.NoError(t, err)
			before := z.bytes(q)
			d.lsn++
			result := d.s.Apply(d.lsn, payload)
			require.Equal(t, result, other.s.Apply(d.lsn, payload))
			switch full := before+batch > limits.MaxBytes; {
			case len(published) == 0 || limits.Overflow == txn.OverflowReject && !full:
				if result.Code != txn.ErrSubscriptionExists {
					require.NoError(t, result.Err())
				}
			case limits.Overflow == txn.OverflowReject || batch > limits.MaxBytes:
				require.Equal(t, txn.ErrQueueFull, result.Code)
			}
			if result.Code == txn.OK {
				z.sizes = append(z.sizes, published...)
				if moved != 0 && result.Ops[0].Changed > 0 {
					dead.sizes = append(dead.sizes, 50+z.sizes[moved-1])
				}
			}
			if rng.IntN(10) == 0 {
				d.reload()
			}
			require.Empty(t, d.s.Check())
			require.Equal(t, z.bytes(d.s.Queue(z.id)), d.s.Queue(z.id).Bytes(), "seed %d step %d", seed, k)
			require.Equal(t, dead.bytes(d.s.Queue(dead.id)), d.s.Queue(dead.id).Bytes(), "seed %d step %d", seed, k)
			if limits.Overflow == txn.OverflowDeadLetterHead {
				z.checkOverflowing(t, d.s.Queue(z.id))
			}
			require.Equal(t, d.s.Digest(), other.s.Digest())
			same(t, allOf(other.s), allOf(d.s), "a restart changes nothing")
		}
	}
}

// checkOverflowing verifies that Overflowing removes the fewest messages that bring the queue within its limit.
func (z *sized) checkOverflowing(t *testing.T, q *Queue) {
	t.Helper()
	end, bytes := uint64(0), z.bytes(q)
	for seq := q.NextAlive(1); bytes > q.config.MaxBytes; seq = q.NextAlive(seq + 1) {
		bytes -= z.sizes[seq-1]
		end = q.NextAlive(seq + 1)
	}
	require.Equal(t, end, q.Overflowing())
}

// A queue that begins to keep sizes counts its existing messages with the average of their group. Its count is exact
// once they are dead. When it no longer keeps sizes, its groups keep their sums.
func TestBytesAfterAlter(t *testing.T) {
	d := newDriver(t)
	q := d.queue("q", txn.Config{}, "a")
	d.do(func(b *txn.Builder) { publishRecords(b, q.id, record(t, 100), record(t, 1001)) })
	d.do(func(b *txn.Builder) {
		b.AlterQueue(q.id, txn.Config{MaxBytes: 1 << 20, ExactBytes: 1}, txn.FieldMaxBytes|txn.FieldExactBytes)
	})
	d.do(func(b *txn.Builder) { publishRecords(b, q.id, record(t, 70_000), record(t, 30)) })
	require.Equal(t, uint64(71_131), q.Bytes())
	d.ack(q, 1, 1, 1)
	require.Equal(t, uint64(71_131-551), q.Bytes(), "without the average of the first message")
	d.ack(q, 1, 2, 3)
	require.Equal(t, uint64(30), q.Bytes())
	d.do(func(b *txn.Builder) { publishRecords(b, q.id, record(t, 40), record(t, 50)) })
	d.do(func(b *txn.Builder) { b.AlterQueue(q.id, txn.Config{}, txn.FieldMaxBytes) })
	require.Equal(t, uint64(120), q.Bytes())
	require.Nil(t, q.sizes.slots[0].c.exact)
	d.reload()
	q = d.s.Queue(q.id)
	d.ack(q, 1, 4, 4)
	require.Equal(t, uint64(80), q.Bytes())
}

// A queue keeps the sizes of a group only if they differ, and only while one of its messages is live.
func TestEqualSizesTakeNoMemory(t *testing.T) {
	d := newDriver(t)
	q := d.queue("q", txn.Config{MaxBytes: 1 << 20, ExactBytes: 1}, "a")
	for range 100 {
		d.do(func(b *txn.Builder) { publishRecords(b, q.id, record(t, 100)) })
	}
	require.Nil(t, q.sizes.slots[0].c.exact)
	d.do(func(b *txn.Builder) { publishRecords(b, q.id, record(t, 99)) })
	require.NotNil(t, q.sizes.slots[0].c.exact[1])
	require.Nil(t, q.sizes.slots[0].c.exact[0])
	require.Nil(t, q.sizes.slots[0].c.exact[1].high)
	d.ack(q, 1, 2, 101)
	require.Nil(t, q.sizes.slots[0].c.exact[1])
	require.Equal(t, uint64(100), q.Bytes())
}
