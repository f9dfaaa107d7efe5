// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// This file models delayed and expiring messages. The model's clock is the record number.

// someTimes draws the delivery and expiry times of a message, mostly in the near future.
func (m *model) someTimes() *txn.Attributes {
	var a txn.Attributes
	if m.rng.IntN(2) == 0 {
		a.DeliverAtMS = 1 + m.rng.Int64N(m.now+60)
	}
	if m.rng.IntN(2) == 0 {
		a.ExpiresAtMS = 1 + m.rng.Int64N(m.now+90)
	}
	return &a
}

// recordTimes adds the times of a new message to the schedule.
func (m *model) recordTimes(q *modelQueue, sequence uint64, rec []byte) {
	if len(q.allSubs()) == 0 {
		return // the message is not kept
	}
	if at := txn.RecordTime(rec, txn.AttributeDeliverAt); at > txn.RecordPublishedMS(rec) {
		q.delayed[sequence] = true
		m.schedule[txn.Due{TimeMS: at, Queue: q.id, Sequence: sequence, Kind: txn.DueDeliver}] = true
	}
	if at := txn.RecordTime(rec, txn.AttributeExpiresAt); at != 0 {
		m.schedule[txn.Due{TimeMS: at, Queue: q.id, Sequence: sequence, Kind: txn.DueExpire}] = true
	}
}

func sortedDue(set map[txn.Due]bool) []txn.Due {
	return slices.SortedFunc(maps.Keys(set), txn.Due.Compare)
}

// due proposes entries that are due by the model's clock, and some that are not due yet or no longer due.
func (m *model) due(b *txn.Builder, want *txn.Result, i int) func() {
	var entries []txn.Due
	for _, e := range sortedDue(m.schedule) {
		if e.TimeMS > m.now && m.rng.IntN(40) > 0 || len(entries) > 1000 {
			break
		}
		if m.rng.IntN(10) > 0 {
			entries = append(entries, e)
		}
	}
	for _, e := range m.dueIDs() {
		if e.TimeMS <= m.now || m.rng.IntN(40) == 0 {
			entries = append(entries, e)
		}
	}
	if q := m.pick(); q != nil && q.next > 1 {
		for range m.rng.IntN(5) { // some may never have existed
			sequence := 1 + m.rng.Uint64N(q.next)
			kind := txn.DueKind(1 + m.rng.IntN(4))
			entries = append(entries, txn.Due{TimeMS: m.rng.Int64N(m.now + 5), Queue: q.id, Sequence: sequence, Kind: kind})
		}
	}
	if len(entries) == 0 {
		entries = append(entries, txn.Due{TimeMS: 1, Queue: m.nextID + 3, Sequence: 1, Kind: txn.DueDeliver})
	}
	if m.rng.IntN(4) == 0 {
		entries = append(entries, entries[0])
	}
	now := m.now
	b.Due(entries...)
	return func() {
		for _, e := range entries {
			if m.applyDue(e, now) {
				want.Ops[i].Changed++
			}
		}
	}
}

// applyDue applies a due entry and reports whether it changed a message.
func (m *model) applyDue(e txn.Due, now int64) (changed bool) {
	q, at := m.queues[e.Queue], e.TimeMS
	if e.Kind == txn.DueTTL {
		if q == nil || q.config.TTL == 0 {
			return false
		}
		at += int64(q.config.TTL)
	}
	if at > now {
		return false
	}
	if e.Kind == txn.DueIDs {
		return false
	}
	for id := range modelSubs(q) {
		if e.Kind != txn.DueDeliver && m.reserved(q.id, id)[e.Sequence] {
			return false // the prepared transaction must be decided first
		}
	}
	delete(m.schedule, e)
	if q == nil {
		return false
	}
	if e.Kind == txn.DueDeliver {
		changed = q.delayed[e.Sequence] && q.needed(e.Sequence)
		delete(q.delayed, e.Sequence)
		return changed
	}
	for _, s := range q.allSubs() {
		if _, needs := s.needs[e.Sequence]; needs {
			delete(s.needs, e.Sequence)
			changed = true
		}
	}
	return changed
}

func modelSubs(q *modelQueue) map[uint32]*modelSub {
	if q == nil {
		return nil
	}
	return q.subs
}

// checkDelayed compares the delayed messages.
func (q *modelQueue) checkDelayed(t *testing.T, got *Queue) {
	t.Helper()
	n := uint64(0)
	for sequence := uint64(1); sequence < q.next; sequence++ {
		want := q.delayed[sequence] && q.needed(sequence)
		if want {
			n++
		}
		if got.Delayed(sequence) != want {
			require.Failf(t, "delayed", "queue %d message %d: %v", q.id, sequence, want)
		}
	}
	require.Equal(t, n, got.DelayedMessages())
}

// scheduled returns the whole schedule of a replica: from its pages and from memory.
func (r *replica) scheduled() []txn.Due {
	stored := storedSchedule(r.t, r.pages.kv)
	last := txn.Due{TimeMS: NeverMS}
	all := func(txn.Due) bool { return false }
	found := r.state.scheduled(txn.Due{}, last, stored, 1<<30, nil, all)
	some := r.state.scheduled(txn.Due{}, last, stored, 7, nil, all)
	require.Equal(r.t, found[:min(7, len(found))], some)
	return found
}

func storedSchedule(t testing.TB, kv map[string][]byte) []txn.Due {
	var stored []txn.Due
	for key, value := range kv {
		if key[0] == keySchedule {
			e, err := ParseScheduleKey([]byte(key))
			require.NoError(t, err)
			require.Equal(t, key, string(ScheduleKey(nil, e)))
			require.Empty(t, value)
			stored = append(stored, e)
		}
	}
	slices.SortFunc(stored, txn.Due.Compare)
	return stored
}

// checkSchedule compares the whole schedule with the schedule of the model.
func (m *model) checkSchedule(t *testing.T, r *replica) {
	t.Helper()
	got := slices.DeleteFunc(r.scheduled(), func(e txn.Due) bool { return e.Kind == txn.DueIDs })
	if want := sortedDue(m.schedule); !slices.Equal(want, got) {
		require.Equal(t, want, got)
	}
}

// TestDueSet compares the set with a map.
func TestDueSet(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	var s dueSet
	want := map[txn.Due]bool{}
	for i := range 60_000 {
		e := txn.Due{TimeMS: rng.Int64N(3000), Queue: 1 + rng.Uint64N(3), Sequence: 1, Kind: txn.DueExpire}
		if i > 30_000 && rng.IntN(3) > 0 {
			require.Equal(t, want[e], s.remove(e))
			delete(want, e)
		} else {
			s.add(e)
			want[e] = true
		}
		require.Equal(t, want[e], s.has(e))
	}
	for i := range int64(3 * dueBlock) { // appended in order
		e := txn.Due{TimeMS: 10_000 + i, Queue: 1, Sequence: 1, Kind: txn.DueExpire}
		s.add(e)
		want[e] = true
	}
	require.Equal(t, len(want), s.n)
	require.Equal(t, sortedDue(want), slices.Collect(s.all))
	var after []txn.Due
	s.after(txn.Due{TimeMS: 1500}, func(e txn.Due) bool { after = append(after, e); return true })
	early := func(e txn.Due) bool { return e.TimeMS < 1500 }
	require.True(t, slices.Equal(after, slices.DeleteFunc(sortedDue(want), early)))
	for e := range want {
		require.True(t, s.remove(e))
	}
	require.Empty(t, s.blocks)
}

// A proposal is re-evaluated when it is applied (INV-17).
func TestDueIsCheckedWhenApplied(t *testing.T) {
	d := newDriver(t)
	q := d.queue("q", txn.Config{TTL: 1000}, "a", "b")
	d.do(func(b *txn.Builder) {
		b.BeginPublish(q.id)
		b.MessageWith(500, &txn.Attributes{ExpiresAtMS: 5000}, nil, nil)
		b.Message(600, nil, nil)
		b.MessageWith(600, &txn.Attributes{DeliverAtMS: 5000}, nil, nil)
		b.EndPublish()
	})
	due := func(at int64, entries ...txn.Due) uint64 {
		t.Helper()
		var b txn.Builder
		b.Begin(nil, at, nil)
		b.Due(entries...)
		payload, err := b.Finish()
		require.NoError(t, err)
		d.lsn++
		r := d.s.Apply(d.lsn, payload)
		require.NoError(t, r.Err())
		require.Empty(t, d.s.Check())
		return r.Ops[0].Changed
	}
	expire := txn.Due{TimeMS: 5000, Queue: q.id, Sequence: 1, Kind: txn.DueExpire}
	ttl := txn.Due{TimeMS: 600, Queue: q.id, Sequence: 2, Kind: txn.DueTTL}
	deliver := txn.Due{TimeMS: 5000, Queue: q.id, Sequence: 3, Kind: txn.DueDeliver}
	require.Zero(t, due(1599, expire, ttl, deliver), "nothing is due yet")
	require.Equal(t, uint64(3), q.Messages())

	// The proposal was made with a TTL of 1000. When it is applied, the TTL is longer or removed.
	d.do(func(b *txn.Builder) { b.AlterQueue(q.id, txn.Config{TTL: 2000}, txn.FieldTTL) })
	require.Zero(t, due(1600, ttl), "the queue has a longer TTL by now")
	d.do(func(b *txn.Builder) { b.AlterQueue(q.id, txn.Config{}, txn.FieldTTL) })
	require.Zero(t, due(9000, ttl), "the queue no longer has a TTL")
	require.Equal(t, uint64(3), q.Messages())

	d.ack(q, 1, 1, 1)
	before := q.Digest()
	require.Equal(t, uint64(2), due(5000, expire, deliver))
	require.Equal(t, []DueMessage{{q.id, 3}}, d.s.TakeDue(nil))
	after := q.Digest()
	require.NotEqual(t, before, after)
	require.Zero(t, due(5000, expire, deliver), "a retry changes nothing")
	require.Equal(t, after, q.Digest())
	require.Empty(t, d.s.TakeDue(nil))
	dropped, expired := q.Dropped()
	require.Zero(t, dropped)
	require.EqualValues(t, 1, expired)
	require.EqualValues(t, 1, d.s.Counts().Expired)
	d.reload()
	_, expired = d.s.Queue(q.id).Dropped()
	require.EqualValues(t, 1, expired, "the number of expired messages is kept")
	d.do(func(b *txn.Builder) { b.DeleteQueue(q.id, false) })
	require.Zero(t, due(9000, deliver, ttl), "entries of a deleted queue have no effect")
}

// Delayed messages require one bitmap per chunk, or a list if the chunk has few of them.
func TestDelayedMemory(t *testing.T) {
	d := newDriver(t)
	q := d.queue("q", txn.Config{}, "a")
	for range 5 {
		d.do(func(b *txn.Builder) {
			b.BeginPublish(q.id)
			for range txn.MaxPublishMessages {
				b.MessageWith(0, &txn.Attributes{DeliverAtMS: 5}, nil, nil)
			}
			b.EndPublish()
		})
	}
	d.publish(q, 1)
	require.Equal(t, uint64(50_001), q.Sub(1).NextDeliverable(1))
	require.EqualValues(t, 50_000, d.s.Delayed())
	bytes := 0
	for _, kv := range d.s.Collect(0, true).Puts {
		if kv.Key[0] == keyDelayed {
			bytes += len(kv.Value)
		}
	}
	require.LessOrEqual(t, bytes, 13*(ChunkSize/8+2))
	d.reload()
	require.Equal(t, uint64(50_001), d.s.Queue(q.id).Sub(1).NextDeliverable(1))
	d.s.Apply(d.lsn+1, purged(t, q.id))
	require.Zero(t, d.s.Delayed(), "dead messages are not delayed")
	require.Empty(t, d.s.Check())
}

func purged(t *testing.T, id uint64) []byte {
	var b txn.Builder
	b.Begin(nil, 0, nil)
	b.Purge(id, 0)
	payload, err := b.Finish()
	require.NoError(t, err)
	return payload
}
