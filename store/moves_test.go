// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/rewrite"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// ok commits a transaction that must be accepted.
func (n *node) ok(build func(b *txn.Builder)) txn.Result {
	n.t.Helper()
	r := n.commit(build)
	require.NoError(n.t, r.Err())
	return r
}

// importSome imports the next messages of a queue from another pair, and reports whether there were any.
func importSome(
	from *node, commit func(build func(b *txn.Builder)) txn.Result, q queue.MovedQueue, epoch uint64,
) bool {
	list, _, err := from.s.Read(from.t.Context(), store.ReadRequest{
		Queue: q.Source, From: q.Next, MaxMessages: 70, MaxBytes: 100_000,
	}, nil)
	require.NoError(from.t, err)
	if len(list) == 0 {
		return false
	}
	commit(func(b *txn.Builder) {
		b.BeginImport(q.ID, epoch, q.Next)
		for _, m := range list {
			b.Import(m.Sequence, m.Record)
		}
		b.EndImport()
	})
	return true
}

// movedQueue creates a queue with messages of different sizes, some of which are acknowledged, and message IDs.
func movedQueue(n *node, rng *rand.Rand) uint64 {
	n.ok(joinFleet(5))
	n.ok(func(b *txn.Builder) {
		b.OwnQueue("q", 6)
		b.CreateQueue("q", txn.Config{DedupWindow: 60_000, MaxBytes: 1 << 30, ExactBytes: 1}, "a", "b")
	})
	info, err := query.QueueByName(n.s, "q")
	require.NoError(n.t, err)
	id, next := info.ID, uint64(1)
	for i := range 60 {
		r := n.ok(func(b *txn.Builder) {
			b.BeginPublish(id)
			for j := range 1 + rng.IntN(40) {
				size := rng.IntN(300)
				if rng.IntN(60) == 0 {
					size = 20_000
				}
				a := &txn.Attributes{MessageID: fmt.Sprint(i, ".", j/2)} // every second message is a duplicate
				if rng.IntN(9) == 0 {
					a.DeliverAtMS = 900_000
				}
				b.MessageWith(1_000, a, nil, make([]byte, size))
			}
			b.EndPublish()
		})
		next = r.Ops[0].FirstSequence + r.Ops[0].Changed
		for sub := range uint32(2) {
			first := 1 + rng.Uint64N(next-1)
			n.ok(func(b *txn.Builder) {
				b.Ack(id, sub+1, txn.Range{First: first, Last: min(first+rng.Uint64N(30), next-1)})
			})
		}
		n.ok(func(b *txn.Builder) { b.Release(id, 1, txn.Range{First: next - 1, Last: next - 1}) })
		if i%20 == 0 {
			_, err := n.s.Checkpoint(n.t.Context())
			require.NoError(n.t, err)
		}
	}
	n.ok(func(b *txn.Builder) { b.Ack(id, 1, txn.Range{First: 1, Last: 80}) })
	n.ok(func(b *txn.Builder) { b.Ack(id, 2, txn.Range{First: 1, Last: 80}) })
	return id
}

// A queue with messages in pages is moved between stores, with checkpoints, restarts and crashes of the target. Both
// nodes of the target have the same content (INV-28).
func TestMoveBetweenStores(t *testing.T) {
	rng := rand.New(rand.NewPCG(28, 1))
	from := openNode(t, options(memfs.New()))
	source := movedQueue(from, rng)
	mem := memfs.New()
	to := openNode(t, options(mem))
	var log []func(b *txn.Builder)
	commit := func(build func(b *txn.Builder)) txn.Result {
		log = append(log, build)
		return to.ok(build)
	}
	commit(func(b *txn.Builder) {
		b.Fleet(txn.FleetChange{Action: txn.FleetJoin, ID: uuid.Max, Pair: "pair-2", Epoch: 4})
	})
	for i := range 3 { // so that the numbers of the queues differ
		commit(ownNew(fmt.Sprint("other", i), 7+uint64(i)))
	}
	commit(func(b *txn.Builder) {
		b.ImportBegin(20, "pair-1", []txn.ImportQueue{{Name: "q", Source: source}})
	})
	disturb := func() {
		switch rng.IntN(5) {
		case 0:
			_, err := to.s.Checkpoint(t.Context())
			require.NoError(t, err)
		case 1:
			require.NoError(t, to.s.Close())
			to = openNode(t, options(mem))
			to.applyAll()
		case 2:
			mem = mem.CrashClone(crashRand(rng))
			require.NoError(t, to.s.Close())
			to = openNode(t, options(mem))
			to.applyAll()
		}
	}
	for more := true; more; disturb() {
		m, ok := query.Move(to.s, 20)
		require.True(t, ok)
		require.Equal(t, queue.MoveImporting, m.State)
		more = importSome(from, commit, m.Queues[0], 20)
	}
	_, err := from.s.ExportState(t.Context(), source, 20, nil, 1000)
	require.ErrorIs(t, err, store.ErrNotFenced)
	from.ok(func(b *txn.Builder) { b.Fence(20, "pair-2", []uint64{source}) })
	epoch, pair, ok := query.Fence(from.s, "q")
	require.True(t, ok)
	require.Equal(t, uint64(20), epoch)
	require.Equal(t, "pair-2", pair)
	_, _, ok = query.Fence(to.s, "q")
	require.False(t, ok)
	require.Len(t, query.Moves(from.s), 1)
	var target uint64
	kinds := map[byte]bool{}
	for complete := false; !complete; disturb() {
		m, _ := query.Move(to.s, 20)
		target = m.Queues[0].ID
		part, err := from.s.ExportState(t.Context(), source, 20, m.Queues[0].After, 700)
		require.NoError(t, err)
		for _, p := range part.Pairs {
			kinds[p.Key[0]] = true
		}
		commit(func(b *txn.Builder) {
			b.ImportState(target, 20, m.Queues[0].After, part.Pairs, part.Last)
		})
		complete = part.Last
	}
	require.Len(t, kinds, 7, "q, s, a, d, h, g and e")
	want, messages, err := from.s.DigestState(t.Context(), source, 20)
	require.NoError(t, err)
	require.Greater(t, messages, uint64(300))
	got, copied, err := to.s.DigestState(t.Context(), target, 20)
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.Equal(t, messages, copied)
	compareMessages(from, to, source, target)

	commit(func(b *txn.Builder) { b.TakeMoved(20) })
	to.check()
	_, _, err = to.s.DigestState(t.Context(), target, 20)
	require.ErrorIs(t, err, store.ErrNotFenced)
	info, err := query.QueueByName(to.s, "q")
	require.NoError(t, err)
	require.Equal(t, target, info.ID)
	require.Equal(t, messages, info.Messages)
	for sub := range uint32(2) {
		require.Equal(t, unacknowledged(from, source, sub+1), unacknowledged(to, target, sub+1))
	}
	r := commit(func(b *txn.Builder) {
		b.BeginPublish(target)
		b.MessageWith(1_000, &txn.Attributes{MessageID: "59.0"}, nil, nil)
		b.EndPublish()
	})
	require.Equal(t, 1, r.Ops[0].Duplicates.Len(), "the message IDs were moved")

	_, err = to.s.Maintenance().Rewrite(t.Context(), rewrite.Options{})
	require.NoError(t, err)
	to.check()
	standby := openNode(t, options(memfs.New()))
	for _, build := range log {
		standby.ok(build)
	}
	standby.check()
	a, err := digestOf(t.Context(), to.s)
	require.NoError(t, err)
	for name, other := range map[string]*store.Store{"standby": standby.s, "snapshot": snapshotOf(to)} {
		b, err := digestOf(t.Context(), other)
		require.NoError(t, err)
		require.Equal(t, a.Content, b.Content, name)
	}

	from.ok(func(b *txn.Builder) { b.DropMoved(20) })
	commit(func(b *txn.Builder) { b.ForgetMove(20) })
	from.check()
	_, err = query.QueueByName(from.s, "q")
	require.ErrorIs(t, err, store.ErrNoQueue)
}

// compareMessages compares the digests of all live messages of a queue with those of its copy, in parts.
func compareMessages(from, to *node, source, target uint64) {
	next, parts := uint64(1), 0
	for {
		list, _, err := from.s.Read(from.t.Context(), store.ReadRequest{Queue: source, From: next, MaxMessages: 1}, nil)
		require.NoError(from.t, err)
		if len(list) == 0 {
			break
		}
		end := list[0].Sequence + 40
		want, err := from.s.DigestMessages(from.t.Context(), store.DigestRequest{
			Queue: source, From: next, To: end, MaxBytes: 3_000,
		})
		require.NoError(from.t, err)
		got, err := to.s.DigestMessages(to.t.Context(), store.DigestRequest{
			Queue: target, From: next, To: want.Next, Only: want.Lengths, Urgent: true,
		})
		require.NoError(to.t, err)
		require.Equal(to.t, want.SHA256, got.SHA256)
		require.Equal(to.t, want.Bytes, got.Bytes)
		require.Greater(to.t, want.Next, next)
		next = want.Next
		parts++
	}
	require.Greater(from.t, parts, 5)
}

// A digest selects the live messages of another copy. It differs if a message or its sequence differs.
func TestDigestMessages(t *testing.T) {
	n := openNode(t, options(memfs.New()))
	ids := map[string]uint64{}
	for _, name := range []string{"a", "same", "changed", "late"} {
		n.ok(func(b *txn.Builder) { b.CreateQueue(name, txn.Config{}, "s") })
		info, err := query.QueueByName(n.s, name)
		require.NoError(t, err)
		ids[name] = info.ID
		if name == "late" { // the sequences differ
			n.ok(func(b *txn.Builder) {
				b.BeginPublish(info.ID)
				b.MessageWith(1_000, nil, nil, nil)
				b.EndPublish()
			})
		}
		for i := range 30 {
			n.ok(func(b *txn.Builder) {
				b.BeginPublish(info.ID)
				for j := range 100 {
					body := fmt.Sprint(i, ".", j)
					if name == "changed" && i == 20 && j == 50 {
						body = "20.5x"
					}
					b.MessageWith(1_000, nil, nil, []byte(body))
				}
				b.EndPublish()
			})
			if i == 15 {
				_, err := n.s.Checkpoint(t.Context())
				require.NoError(t, err)
			}
		}
	}
	for _, r := range []txn.Range{
		{First: 1, Last: 7}, {First: 9, Last: 9}, {First: 100, Last: 2000}, {First: 2991, Last: 3000},
	} {
		n.ok(func(b *txn.Builder) { b.Ack(ids["a"], 1, r) })
	}
	want, err := n.s.DigestMessages(t.Context(), store.DigestRequest{Queue: ids["a"], From: 1, To: 3001})
	require.NoError(t, err)
	require.Equal(t, []uint64{7, 1, 1, 90, 1901, 990, 10}, want.Lengths)
	require.Equal(t, uint64(3001), want.Next)
	digest := func(queue string, only []uint64) (store.MessageDigest, error) {
		return n.s.DigestMessages(t.Context(), store.DigestRequest{Queue: ids[queue], From: 1, To: 3001, Only: only})
	}
	got, err := digest("same", want.Lengths)
	require.NoError(t, err)
	require.Equal(t, want.SHA256, got.SHA256)
	require.Equal(t, want.Bytes, got.Bytes)
	for _, queue := range []string{"changed", "late"} {
		got, err = digest(queue, want.Lengths)
		require.NoError(t, err)
		require.NotEqual(t, want.SHA256, got.SHA256, queue)
	}
	for _, missing := range [][]uint64{{6, 1}, {7, 3}, {100, 1}, {2990, 1}, {3000, 1}} {
		_, err = digest("a", missing)
		require.ErrorIs(t, err, store.ErrMissing, missing)
	}
	_, err = n.s.DigestMessages(t.Context(), store.DigestRequest{Queue: 99, From: 1, To: 2})
	require.ErrorIs(t, err, store.ErrNoQueue)
	empty, err := n.s.DigestMessages(t.Context(), store.DigestRequest{Queue: ids["a"], From: 2995, To: 3001})
	require.NoError(t, err)
	require.Equal(t, []uint64{6}, empty.Lengths)
	require.Equal(t, uint64(3001), empty.Next)
}

// unacknowledged returns the unacknowledged messages of a subscription.
func unacknowledged(n *node, id uint64, sub uint32) []store.Delivery {
	n.t.Helper()
	var all []store.Delivery
	for from := uint64(1); ; {
		list, next, err := n.s.Read(n.t.Context(), store.ReadRequest{
			Queue: id, Sub: sub, From: from, MaxMessages: 100, Delayed: true,
		}, nil)
		require.NoError(n.t, err)
		if len(list) == 0 {
			return all
		}
		for i := range list {
			list[i].Record = slices.Clone(list[i].Record)
		}
		all, from = append(all, list...), next
	}
}

// importing returns a node with an incoming queue that has all messages, but no state yet.
func importing(t *testing.T) *node {
	t.Helper()
	from := openNode(t, options(memfs.New()))
	source := movedQueue(from, rand.New(rand.NewPCG(28, 2)))
	to := openNode(t, options(memfs.New()))
	to.ok(func(b *txn.Builder) {
		b.Fleet(txn.FleetChange{Action: txn.FleetJoin, ID: uuid.Max, Pair: "pair-2", Epoch: 4})
	})
	to.ok(func(b *txn.Builder) {
		b.ImportBegin(20, "pair-1", []txn.ImportQueue{{Name: "q", Source: source}})
	})
	for more := true; more; {
		m, _ := query.Move(to.s, 20)
		more = importSome(from, to.ok, m.Queues[0], 20)
	}
	return to
}

// A scan includes the messages of an incoming queue.
func TestScanIncomingQueue(t *testing.T) {
	to := importing(t)
	st, err := to.s.Stats()
	require.NoError(t, err)
	require.Positive(t, st.Messages)
	require.Equal(t, st.Messages, to.scan(checkpoint.ScanOptions{}).Messages)
}

// A canceled import frees its pages.
func TestCancelImportFreesPages(t *testing.T) {
	to := importing(t)
	_, err := to.s.Checkpoint(t.Context())
	require.NoError(t, err)
	to.check()
	before, err := to.s.Stats()
	require.NoError(t, err)
	require.NotZero(t, before.Messages)
	to.ok(func(b *txn.Builder) { b.CancelImport(20) })
	_, err = to.s.Checkpoint(t.Context())
	require.NoError(t, err)
	to.check()
	after, err := to.s.Stats()
	require.NoError(t, err)
	require.Zero(t, after.Messages)
	require.Less(t, after.PagesUsed, before.PagesUsed)
}
