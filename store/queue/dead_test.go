// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// A batch being written retains the messages that were live when it was collected, even if their last subscription is
// deleted in the meantime.
func TestBatchKeepsMessagesOfDeletedSubscription(t *testing.T) {
	for _, n := range []int{3, blockEntries + 3} { // in one block and in two
		d := newDriver(t)
		q := d.queue("q", txn.Config{}, "a")
		d.publish(q, n)
		b := d.s.Collect(0, true)
		d.do(func(b *txn.Builder) { b.DeleteSubscription(q.id, 1) })
		d.do(func(b *txn.Builder) { b.CreateSubscription(q.id, "b", txn.StartLatest) })
		d.publish(q, 2)
		require.Empty(t, d.s.Check())
		written := 0
		for _, run := range b.Tails {
			for i, rec := range run.Records {
				require.NotNil(t, rec, "message %d was removed from the batch", run.First+uint64(i))
				written++
			}
		}
		require.Equal(t, n, written)
		for i := range b.Tails {
			d.s.Flushed(q.id, b.Tails[i].Last())
		}
		_, inMemory := d.s.Queue(q.id).TailRecord(uint64(n) + 2)
		require.True(t, inMemory)
		require.Empty(t, d.s.Check())
	}
}

// For any acknowledgements and any division of messages into extents, the batches identify exactly the dead extents.
func TestDeadExtentsAreFound(t *testing.T) {
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, 1))
		d := newDriver(t)
		q := d.queue("q", txn.Config{}, "a", "b")
		var pages fakePages
		pages.extents = map[uint64][]fakeExtent{}
		// few messages: many acknowledgements per extent
		published, most := uint64(0), []uint64{300, 2 * ChunkSize, 5 * ChunkSize}[seed%3]
		for range 60 {
			if published < most && rng.IntN(3) == 0 {
				n := 1 + rng.Uint64N(most/2)
				d.publish(q, int(n))
				published += n
			}
			for range rng.IntN(30) {
				if published == 0 {
					break
				}
				first := 1 + rng.Uint64N(published)
				length := min([]uint64{1, 2, 10, 64, 200, 3000}[rng.IntN(6)], most/50)
				last := min(first+rng.Uint64N(length), published)
				for _, sub := range []uint32{1, 2} {
					d.ack(q, sub, first, last)
				}
			}
			b := d.s.Collect(0, true)
			for i := range b.Tails {
				pages.writeTail(t, &b.Tails[i], []int{1, 3, 14, 100, MaxExtentSpan}[rng.IntN(5)])
				d.s.Flushed(b.Tails[i].Queue, b.Tails[i].Last())
			}
			before := slices.Clone(pages.extents[q.id])
			pages.write(t, &Batch{Dead: pruned(b.Dead, before)}, 1)
			want := slices.DeleteFunc(before, func(r fakeExtent) bool { return q.AllDead(r.first, r.span) })
			require.Equal(t, firsts(want), firsts(pages.extents[q.id]))
		}
	}
}

// pruned drops the groups that cannot contain a dead extent, as the store does with its extent lengths.
func pruned(ranges []DeadRange, extents []fakeExtent) (left []DeadRange) {
	for _, r := range ranges {
		chunk, single := r.Single()
		if !single {
			left = append(left, r)
			continue
		}
		var least [GroupsOfChunk]uint8
		for _, e := range extents {
			for seq := e.first; seq < e.first+e.span; seq++ {
				if g := &least[seq&chunkMask>>6]; seq>>chunkBits == chunk && (*g == 0 || e.span < uint64(*g)) {
					*g = uint8(min(e.span, 255))
				}
			}
		}
		if r.Prune(&least) {
			left = append(left, r)
		}
	}
	return left
}

func firsts(extents []fakeExtent) (list []uint64) {
	for _, e := range extents {
		list = append(list, e.first)
	}
	return list
}

// After a few acknowledgements of many messages, dead ranges cover few messages, so that the store does not scan all.
func TestPartsOfFewAcknowledgements(t *testing.T) {
	d := newDriver(t)
	q := d.queue("q", txn.Config{}, "a")
	d.publish(q, 3*ChunkSize)
	for _, run := range d.s.Collect(0, true).Tails {
		d.s.Flushed(run.Queue, run.Last())
	}
	for _, seq := range []uint64{1, ChunkSize + 10, ChunkSize + 2000, 2*ChunkSize + 5} {
		d.ack(q, 1, seq, seq)
	}
	span, parts := uint64(0), 0
	for _, r := range d.s.Collect(0, true).Dead {
		few := r
		require.False(t, few.Prune(&[GroupsOfChunk]uint8{0: 3, 31: 3}), "no extent of three messages is dead")
		few = r
		require.True(t, few.Prune(&[GroupsOfChunk]uint8{0: 1, 31: 1}), "an extent of one message may be dead")
		for first, last := range r.Parts {
			span += last - first + 1
			parts++
		}
	}
	require.Equal(t, 4, parts)
	require.LessOrEqual(t, span, uint64(4*64))
}

// TestQueueFitsItsSizeClass checks the memory of a queue and of a subscription, since a store can have a million of
// them. Each limit is the allocator's next size class, beyond which the cost rises in a step.
func TestQueueFitsItsSizeClass(t *testing.T) {
	require.LessOrEqual(t, unsafe.Sizeof(Queue{}), uintptr(240))
	require.LessOrEqual(t, unsafe.Sizeof(Sub{}), uintptr(128))
	require.LessOrEqual(t, unsafe.Sizeof(sizeChunk{}), uintptr(48))
}
