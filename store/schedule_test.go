// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"cmp"
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/rewrite"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// timed is a node and the expected content of its schedule.
type timed struct {
	*node

	rng   *rand.Rand
	clock int64
	want  map[txn.Due]bool
	next  uint64
}

func newTimed(t *testing.T, o store.Options, seed uint64) *timed {
	n := &timed{
		node: openNode(t, o), rng: rand.New(rand.NewPCG(seed, 5)), want: map[txn.Due]bool{}, clock: 1000, next: 1,
	}
	n.commit(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{}, "a") })
	return n
}

func (n *timed) at(build func(b *txn.Builder)) {
	n.t.Helper()
	var b txn.Builder
	b.Begin(nil, n.clock, nil)
	build(&b)
	payload, err := b.Finish()
	require.NoError(n.t, err)
	require.NoError(n.t, n.appendTxn(payload))
	r := n.applyAll()
	require.NoError(n.t, r.Err())
}

// publish adds messages with a delay, with a TTL, with both, or without either.
func (n *timed) publish(count int) {
	n.t.Helper()
	n.at(func(b *txn.Builder) {
		b.BeginPublish(1)
		for range count {
			var a txn.Attributes
			if n.rng.IntN(3) > 0 {
				a.DeliverAtMS = n.clock + 1 + n.rng.Int64N(500)
				n.want[txn.Due{TimeMS: a.DeliverAtMS, Queue: 1, Sequence: n.next, Kind: txn.DueDeliver}] = true
			}
			if n.rng.IntN(3) > 0 {
				a.ExpiresAtMS = n.clock + 1 + n.rng.Int64N(500)
				n.want[txn.Due{TimeMS: a.ExpiresAtMS, Queue: 1, Sequence: n.next, Kind: txn.DueExpire}] = true
			}
			b.MessageWith(n.clock, &a, nil, []byte("body"))
			n.next++
		}
		b.EndPublish()
	})
}

// scheduled returns all entries that are due by a time. It reads at most limit entries per call.
func (n *timed) scheduled(by int64, limit int) (all []txn.Due, next int64) {
	n.t.Helper()
	after := txn.Due{}
	for {
		got, then, err := n.s.Scheduled(after, by, limit)
		require.NoError(n.t, err)
		if len(got) == 0 {
			return all, then
		}
		require.LessOrEqual(n.t, len(got), limit)
		all = append(all, got...)
		after = got[len(got)-1]
	}
}

func (n *timed) compare() {
	n.t.Helper()
	want := slices.SortedFunc(maps.Keys(n.want), func(a, b txn.Due) int {
		return cmp.Or(cmp.Compare(a.TimeMS, b.TimeMS), cmp.Compare(a.Sequence, b.Sequence), cmp.Compare(a.Kind, b.Kind))
	})
	by := n.clock + n.rng.Int64N(300)
	later := slices.IndexFunc(want, func(e txn.Due) bool { return e.TimeMS > by })
	if later < 0 {
		later = len(want)
	}
	got, next := n.scheduled(by, 1+n.rng.IntN(60))
	if !slices.Equal(want[:later], got) {
		require.Equal(n.t, want[:later], got)
	}
	if later < len(want) {
		require.LessOrEqual(n.t, next, want[later].TimeMS)
		require.Greater(n.t, next, by)
	}
}

// proposeDue commits one or two transactions that process some due entries.
func (n *timed) proposeDue() {
	n.t.Helper()
	n.clock += n.rng.Int64N(60)
	got, _, err := n.s.Scheduled(txn.Due{}, n.clock, 1+n.rng.IntN(300))
	require.NoError(n.t, err)
	if len(got) == 0 {
		return
	}
	for range 1 + n.rng.IntN(2) {
		n.at(func(b *txn.Builder) { b.Due(got...) })
	}
	for _, e := range got {
		delete(n.want, e)
	}
}

// Scheduled returns all due entries, in memory and in the tree, after checkpoints, restarts, rewrites to other page
// sizes, and a snapshot.
func TestSchedule(t *testing.T) {
	for seed := range uint64(4) {
		mem := memfs.New()
		o := options(mem)
		o.PageSize = 2048
		n := newTimed(t, o, seed)
		for range 150 {
			switch k := n.rng.IntN(20); {
			case k < 9:
				n.publish(1 + n.rng.IntN(80))
			case k < 15:
				n.proposeDue()
			case k < 18:
				_, err := n.s.Checkpoint(context.Background())
				require.NoError(t, err)
			case k < 19:
				require.NoError(t, n.s.Close())
				n.node = openNode(t, o)
				n.applyAll()
			default:
				size := 2048 * (1 + n.rng.IntN(4))
				_, err := n.s.Maintenance().Rewrite(context.Background(), rewrite.Options{PageSize: size})
				require.NoError(t, err)
				o.PageSize = size
			}
			n.compare()
		}
		n.check()
		info, err := query.QueueByName(n.s, "q")
		require.NoError(t, err)
		require.Positive(t, info.Delayed)
		require.Positive(t, info.Expired)

		other := options(memfs.New())
		other.PageSize = 4096
		to := openNode(t, other)
		require.NoError(t, to.s.JoinPair(n.s.Identity().PairID))
		n.copyTo(to)
		digest, err := digestOf(t.Context(), n.s)
		require.NoError(t, err)
		copied, err := digestOf(t.Context(), to.s)
		require.NoError(t, err)
		require.Equal(t, digest, copied)
		n.node = to
		n.compare()
		n.check()
	}
}

// Two stores that differ only in a schedule entry have different digests.
func TestDigestCoversSchedule(t *testing.T) {
	var digests []any
	for range 2 {
		n := newTimed(t, options(memfs.New()), 1)
		n.at(func(b *txn.Builder) {
			b.BeginPublish(1)
			b.MessageWith(1000, &txn.Attributes{ExpiresAtMS: 1005}, nil, nil)
			b.EndPublish()
		})
		n.clock += 100
		stale := txn.Due{TimeMS: 1005, Queue: 1, Sequence: 1, Kind: txn.DueExpire}
		if len(digests) > 0 {
			stale.TimeMS-- // no such entry
		}
		n.at(func(b *txn.Builder) { b.Purge(1, 0) })
		n.at(func(b *txn.Builder) { b.Due(stale) })
		d, err := digestOf(t.Context(), n.s)
		require.NoError(t, err)
		digests = append(digests, d.Content)
	}
	require.NotEqual(t, digests[0], digests[1])
}

// A new due time earlier than the alarm is signaled. OnDue reports the messages that become deliverable.
func TestScheduleSignals(t *testing.T) {
	n := newTimed(t, options(memfs.New()), 1)
	var reported []queue.DueMessage
	n.s.OnDue(func(due []queue.DueMessage) { reported = append(reported, due...) })
	publish := func(at int64) {
		n.at(func(b *txn.Builder) {
			b.BeginPublish(1)
			b.MessageWith(n.clock, &txn.Attributes{DeliverAtMS: at}, nil, nil)
			b.EndPublish()
		})
	}
	require.EqualValues(t, queue.NeverMS, n.s.SoonestAdded())
	publish(5000)
	require.Empty(t, n.s.Early(), "no alarm is set")
	require.EqualValues(t, 5000, n.s.SoonestAdded())
	n.s.SetAlarm(5000)
	publish(6000)
	require.Empty(t, n.s.Early())
	publish(4000)
	require.Len(t, n.s.Early(), 1)
	require.EqualValues(t, 4000, n.s.SoonestAdded())

	read := func() (sequences []uint64) {
		got, _, err := n.s.Read(t.Context(), store.ReadRequest{Queue: 1, Sub: 1, MaxMessages: 9}, nil)
		require.NoError(t, err)
		for _, d := range got {
			sequences = append(sequences, d.Sequence)
		}
		return sequences
	}
	require.Empty(t, read())
	n.clock = 5500
	got, next := n.scheduled(n.clock, 9)
	require.Len(t, got, 2)
	require.EqualValues(t, 6000, next)
	n.at(func(b *txn.Builder) { b.Due(got...) })
	require.Equal(t, []queue.DueMessage{{Queue: 1, Sequence: 3}, {Queue: 1, Sequence: 1}}, reported)
	require.Equal(t, []uint64{1, 3}, read())
	n.s.OnDue(nil)
	n.clock = 6000
	n.at(func(b *txn.Builder) { b.Due(txn.Due{TimeMS: 6000, Queue: 1, Sequence: 2, Kind: txn.DueDeliver}) })
	require.Len(t, reported, 2)
	require.Equal(t, []uint64{1, 2, 3}, read())
}

// A checkpoint removes exactly the completed entries: single entries and long ranges. Unknown entries have no effect.
func TestScheduleIsRemovedInBatches(t *testing.T) {
	for seed := range uint64(4) {
		o := options(memfs.New())
		o.PageSize = 2048
		n := newTimed(t, o, seed)
		for range 4 {
			n.publish(3000)
		}
		_, err := n.s.Checkpoint(context.Background())
		require.NoError(t, err)
		n.clock += 10_000
		all := slices.SortedFunc(maps.Keys(n.want), txn.Due.Compare)
		var gone []txn.Due
		for i := 0; i < len(all); {
			remove := []int{1, 2, 1 + n.rng.IntN(3000)}[n.rng.IntN(3)]
			for end := min(i+remove, len(all)); i < end; i++ {
				gone = append(gone, all[i])
				if n.rng.IntN(20) == 0 { // an entry that does not exist
					e := all[i]
					e.Sequence += 1 << 40
					gone = append(gone, e)
				}
				delete(n.want, all[i])
			}
			i += 1 + n.rng.IntN(40) // the skipped entries remain
		}
		for part := range slices.Chunk(gone, txn.MaxDue) {
			n.at(func(b *txn.Builder) { b.Due(part...) })
		}
		for range 2 { // first from memory, then from the tree
			got, _ := n.scheduled(n.clock, 999)
			require.Equal(t, slices.SortedFunc(maps.Keys(n.want), txn.Due.Compare), got)
			_, err = n.s.Checkpoint(context.Background())
			require.NoError(t, err)
		}
	}
}
