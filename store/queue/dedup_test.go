// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

func duplicates(d ...txn.Duplicate) *txn.Duplicates { return (*txn.Duplicates)(&d) }

// A message with the ID of an earlier message in the window is a duplicate, also after a checkpoint and a restart.
func TestDedupWindow(t *testing.T) {
	d := newDedupDriver(t)
	q := d.queue(txn.Config{DedupWindow: 1000}).id
	require.Equal(t, txn.OpResult{FirstSequence: 1, Changed: 2}, d.publish(q, "a", "b"))
	require.Equal(t, txn.OpResult{FirstSequence: 1, Duplicates: duplicates(txn.Duplicate{Sequence: 1})},
		d.publish(q, "a"), "a duplicate was stored")
	d.checkpoint()
	d.now = 999
	require.Equal(t, txn.OpResult{FirstSequence: 3, Changed: 1, Duplicates: duplicates(
		txn.Duplicate{Index: 0, Sequence: 2}, txn.Duplicate{Index: 2, Sequence: 3},
	)}, d.publish(q, "b", "c", "c"), "the last one is a duplicate of the second one")
	d.restart()
	require.Equal(t, uint64(1), d.publish(q, "a").FirstSequence)
	kept, discarded := d.state.Queue(q).MessageIDs()
	require.Equal(t, []uint64{3, 4}, []uint64{kept, discarded})
	d.now = 1000
	require.Equal(t, txn.OpResult{FirstSequence: 4, Changed: 1}, d.publish(q, "a"), "the id has left the window")
	require.Equal(t, txn.OpResult{FirstSequence: 5, Changed: 2}, d.publish(q, "", ""), "no id")
	require.Equal(t, uint64(6), d.state.Queue(q).Messages())
}

// The published bytes do not include duplicates.
func TestDedupCounts(t *testing.T) {
	d := newDedupDriver(t)
	q := d.queue(txn.Config{DedupWindow: 1000}).id
	d.publish(q, "a")
	first := d.state.Counts()
	require.Equal(t, d.state.Bytes(), first.PublishedBytes)
	d.publish(q, "a", "a")
	require.Equal(t, first.PublishedBytes, d.state.Counts().PublishedBytes)
	require.Equal(t, first.Published, d.state.Counts().Published)
	require.Equal(t, uint64(2), d.state.Counts().Duplicates)
}

func TestDedupMax(t *testing.T) {
	d := newDedupDriver(t)
	q := d.queue(txn.Config{DedupWindow: 1e6, DedupMax: 3000}).id
	for i := range 10_000 {
		if i%700 == 0 {
			d.checkpoint()
		}
		d.publish(q, fmt.Sprint(i))
	}
	require.Equal(t, uint64(7001), d.publish(q, "7000").FirstSequence)
	require.Equal(t, uint64(10_001), d.publish(q, "6999").FirstSequence)
	d.checkpoint()
	require.LessOrEqual(t, len(d.messageIDs()), 3000+3000/idParts+minIDGeneration)
	kept, _ := d.state.Queue(q).MessageIDs()
	require.Equal(t, uint64(3000), kept)
}

// The IDs of an idle queue are removed by entries of the schedule index.
func TestDedupExpiresWhenIdle(t *testing.T) {
	d := newDedupDriver(t)
	q := d.queue(txn.Config{DedupWindow: 1000}).id
	for d.now = 0; d.now < 900; d.now += 100 {
		d.publish(q, fmt.Sprint(d.now))
	}
	d.checkpoint()
	require.Len(t, d.messageIDs(), 9)
	due := d.dueIDs()
	require.Len(t, due, 3, "generations of 300 ms")
	d.now = due[0].TimeMS - 1
	d.do(func(b *txn.Builder) { b.Due(due...) })
	require.Len(t, d.messageIDs(), 9, "not due")
	for i, e := range due {
		d.now = e.TimeMS
		d.do(func(b *txn.Builder) { b.Due(e) })
		require.Len(t, d.messageIDs(), 9-3*(i+1))
	}
	d.checkpoint()
	require.Empty(t, d.dueIDs())
	for key := range d.pages.kv {
		require.NotContains(t, []byte{keyIDs, keyIDSet}, key[0])
	}
}

// All IDs are removed with a few tree operations when deduplication is disabled or the queue is deleted.
func TestDedupOff(t *testing.T) {
	for name, remove := range map[string]func(d *dedupDriver, q uint64){
		"off": func(d *dedupDriver, q uint64) {
			d.do(func(b *txn.Builder) { b.AlterQueue(q, txn.Config{}, txn.FieldDedupWindow) })
		},
		"deleted": func(d *dedupDriver, q uint64) {
			d.do(func(b *txn.Builder) { b.DeleteQueue(q, false) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDedupDriver(t)
			q := d.queue(txn.Config{DedupWindow: 1000}).id
			d.publish(q, "a", "b", "a")
			d.checkpoint()
			d.publish(q, "c")
			remove(d, q)
			b := d.state.Collect(0, true)
			require.LessOrEqual(t, len(b.Deletes)+len(b.DeleteRanges), 10)
			d.pages.write(t, b, 10)
			for key := range d.pages.kv {
				require.NotContains(t, []byte{keyIDs, keyIDSet}, key[0])
			}
		})
	}
}

// A change of the window also applies to IDs that were accepted before, unless they have already left the window.
func TestDedupWindowChanges(t *testing.T) {
	d := newDedupDriver(t)
	q := d.queue(txn.Config{DedupWindow: 1000}).id
	d.publish(q, "a")
	window := func(ms uint64) {
		d.do(func(b *txn.Builder) { b.AlterQueue(q, txn.Config{DedupWindow: ms}, txn.FieldDedupWindow) })
	}
	d.now = 500
	window(100)
	require.Equal(t, uint64(2), d.publish(q, "a").FirstSequence)
	window(10_000)
	due := d.dueIDs()
	d.now = 9000
	d.do(func(b *txn.Builder) { b.Due(due...) })
	require.Equal(t, uint64(2), d.publish(q, "a").FirstSequence)
	require.NotEmpty(t, d.dueIDs(), "scheduled again")
	for range 100 { // many changes
		window(4)
		d.now += 2
		d.publish(q, fmt.Sprint(d.now))
		window(10_000)
	}
	require.LessOrEqual(t, len(d.state.Queue(q).ids.generations), maxIDGenerations)
	require.Equal(t, uint64(1), d.publish(q, fmt.Sprint(d.now)).FirstSequence-101, "the last one")
	require.Equal(t, uint64(103), d.publish(q, "a").FirstSequence, "the id has left the window")
}

// A duplicate is not forwarded, and each target has its own window.
func TestDedupForward(t *testing.T) {
	d := newDedupDriver(t)
	from, plain := d.queue(txn.Config{DedupWindow: 1000}).id, d.queue(txn.Config{}).id
	unique := d.queue(txn.Config{DedupWindow: 1000}).id
	d.publish(unique, "b")
	r := d.do(func(b *txn.Builder) {
		publishIDs(b, from, "a", "b", "a", "c")
		b.Forward(from, plain, false, nil)
		b.Forward(from, unique, true, nil)
	})
	require.Equal(t, []txn.OpResult{
		{FirstSequence: 1, Changed: 3, Duplicates: duplicates(txn.Duplicate{Index: 2, Sequence: 1})},
	}, r.Ops)
	require.Equal(t, uint64(3), d.state.Queue(plain).Messages())
	require.Equal(t, uint64(3), d.state.Queue(unique).Messages())
	require.Zero(t, d.state.Queue(from).Messages(), "moved")
}

// In a transaction with duplicates, the other operations take effect. A retry returns the same result.
func TestDedupTransaction(t *testing.T) {
	d := newDedupDriver(t)
	q, other := d.queue(txn.Config{DedupWindow: 1000}).id, d.queue(txn.Config{}).id
	d.publish(q, "a")
	d.checkpoint()
	fill := func(b *txn.Builder) {
		publishIDs(b, q, "a")
		publishIDs(b, other, "a", "a")
		publishIDs(b, q, "b", "a")
		b.Ack(q, 1, txn.Range{First: 1, Last: 1})
	}
	apply := func() txn.Result {
		var b txn.Builder
		b.Begin(nil, d.now, &txn.Producer{ID: []byte("p"), Sequence: 1})
		fill(&b)
		payload, err := b.Finish()
		require.NoError(t, err)
		d.lsn++
		d.log = append(d.log, payload)
		return d.state.Apply(d.lsn, payload)
	}
	want := []txn.OpResult{
		{FirstSequence: 1, Duplicates: duplicates(txn.Duplicate{Sequence: 1})},
		{FirstSequence: 1, Changed: 2},
		{FirstSequence: 2, Changed: 1, Duplicates: duplicates(txn.Duplicate{Index: 1, Sequence: 1})},
		{Changed: 1},
	}
	require.Equal(t, want, apply().Ops)
	d.checkpoint()
	d.restart()
	retry := apply()
	require.True(t, retry.Duplicate)
	require.Equal(t, want, retry.Ops)
}

// Apply changes nothing if an ID cannot be read.
func TestDedupReadError(t *testing.T) {
	d := newDedupDriver(t)
	q := d.queue(txn.Config{DedupWindow: 1000}).id
	d.publish(q, "a")
	d.checkpoint()
	failed := errors.New("corrupt page")
	d.state.ReadIDs(func([]byte) ([]byte, bool, error) { return nil, false, failed })
	var b txn.Builder
	b.Begin(nil, 0, &txn.Producer{ID: []byte("p"), Sequence: 1})
	publishIDs(&b, q, "a")
	payload, err := b.Finish()
	require.NoError(t, err)
	before := allOf(d.state)
	d.state.Apply(d.lsn+1, payload)
	require.ErrorIs(t, d.state.ReadError(), failed)
	require.Equal(t, d.lsn, d.state.Applied())
	same(t, before, allOf(d.state), "nothing changed")
	d.state.ReadIDs(d.pages.get)
	r := d.state.Apply(d.lsn+1, payload)
	require.NoError(t, d.state.ReadError())
	require.Equal(t, 1, r.Ops[0].Duplicates.Len())
}

// TestDedupMemory limits the memory used by IDs that are not in pages yet.
func TestDedupMemory(t *testing.T) {
	d := newDedupDriver(t)
	q := d.queue(txn.Config{DedupWindow: 1e9}).id
	s, h := d.state.Queue(q), idHash{}
	s.ownIDs()
	const n = 100_000
	before := heapInUse()
	for i := range n {
		h[0], h[1], h[2] = byte(i), byte(i>>8), byte(i>>16)
		d.state.addID(s, h)
	}
	require.Less(t, (heapInUse()-before)/n, int64(132))
	filter := 0
	for _, p := range s.ids.generations[0].filter.parts {
		filter += 8 * len(p.bits)
	}
	require.Less(t, filter/n, 4)
	require.Len(t, s.ids.generations[0].now, n)
}

func heapInUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestIDFilter(t *testing.T) {
	var f idFilter
	const n = 200_000
	id := func(i int) idHash {
		sum := sha256.Sum256([]byte(strconv.Itoa(i)))
		return idHash(sum[:16])
	}
	for i := range n {
		f.add(id(i))
	}
	wrong := 0
	for i := range n {
		require.True(t, f.mayHave(id(i)))
		if f.mayHave(id(n + i)) {
			wrong++
		}
	}
	require.Less(t, wrong, n/50)
}

// The results of all requests that a client can have in flight are retained, although all their messages are
// duplicates. A retry after a failover would otherwise be too old, and its outcome unknown.
func TestDuplicatesInFlightAreKept(t *testing.T) {
	d := newDedupDriver(t)
	q := d.queue(txn.Config{DedupWindow: 1e6}).id
	const requests, batch = 256, MaxProducerDuplicates / 256
	ids := make([]string, batch)
	for i := range ids {
		ids[i] = fmt.Sprint(i)
	}
	d.publish(q, ids...)
	publish := func(sequence uint64) *txn.Result {
		var b txn.Builder
		b.Begin(nil, d.now, origin("p", 0, sequence))
		publishIDs(&b, q, ids...)
		payload, err := b.Finish()
		require.NoError(t, err)
		d.lsn++
		d.log = append(d.log, payload)
		r := d.state.Apply(d.lsn, payload)
		require.NoError(t, d.state.ReadError())
		return &r
	}
	for n := range uint64(requests) {
		require.NoError(t, publish(n+1).Err())
	}
	d.checkpoint()
	d.restart()
	require.Empty(t, d.state.Check())
	for n := range uint64(requests) {
		r := publish(n + 1)
		require.NoError(t, r.Err(), "retry of request %d", n+1)
		require.True(t, r.Duplicate)
		require.Equal(t, batch, r.Ops[0].Duplicates.Len())
	}
	require.NoError(t, publish(requests+1).Err())
	require.ErrorIs(t, publish(1).Err(), txn.ErrTooOld)
	require.Equal(t, uint64(batch), d.state.Queue(q).Messages())
}
