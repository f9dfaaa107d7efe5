// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/repair"
	"github.com/lockstep-mq/lockstep/store/rewrite"
	"github.com/lockstep-mq/lockstep/store/throttle"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// A scrub detects a flipped bit in any used page. The scrub repairs messages from the other node, and the bitmap
// from memory. The visible content does not change.
func TestScrubRepairsEveryPage(t *testing.T) {
	n, mem, peer, m := pairOf(t)
	want := mustDigest(t, n.s)
	require.Equal(t, want.Content, mustDigest(t, peer.s).Content)
	repaired := map[string]int{}
	damage := func(no page.No) {
		kind := kindAt(t, mem, no)
		flip(t, mem, datadir.PageFile("/data"), page.OffsetOf(no, 2048)+37)
		before := n.s.Repair().Status()
		_, err := n.s.Repair().Scrub(context.Background(), nil)
		if errors.Is(err, index.ErrCorrupt) { // see TestCorruptIndexIsReplaced
			require.Equal(t, "node", kind)
			n, mem, peer, m = pairOf(t)
			return
		}
		require.NoError(t, err)
		after := n.s.Repair().Status()
		if after.RepairedPages > before.RepairedPages {
			require.Equal(t, before.FoundPages+1, after.FoundPages)
			repaired[kind]++
			require.Equal(t, want.Content, mustDigest(t, n.s).Content, "page %d, %s", no, kind)
			n.check()
		}
		require.Zero(t, after.DamagedMessages)
	}
	stats, err := n.s.Stats()
	require.NoError(t, err)
	for no := page.No(1); uint64(no) <= stats.Pages; no++ {
		damage(no)
	}
	// The pages of the bitmap move with each checkpoint, so the loop may have missed them.
	for _, kind := range []string{"bitmap", "bitmap directory"} {
		for no := page.No(1); uint64(no) <= stats.Pages && repaired[kind] == 0; no++ {
			if kindAt(t, mem, no) == kind {
				damage(no)
			}
		}
	}
	require.Equal(t, m.dump(), dumpStore(t, n.s))
	t.Logf("repaired %v", repaired)
	for _, kind := range []string{"packed", "large", "bitmap", "bitmap directory"} {
		require.Positive(t, repaired[kind], kind)
	}
}

// After a flipped bit in any node of the tree, the store reports that it must be replaced. After the replacement, the
// store is consistent.
func TestCorruptIndexIsReplaced(t *testing.T) {
	first, same, _, _ := pairOf(t)
	stats, err := first.s.Stats()
	require.NoError(t, err)
	found := 0
	for no := page.No(1); uint64(no) <= stats.Pages; no++ {
		if kindAt(t, same, no) != "node" {
			continue
		}
		n, mem, peer, m := pairOf(t)
		flip(t, mem, datadir.PageFile("/data"), page.OffsetOf(no, 2048)+37)
		if _, err := n.s.Repair().Scrub(context.Background(), nil); err == nil {
			require.NoError(t, n.s.Repair().Index())
			continue // a node of an earlier checkpoint
		}
		found++
		require.ErrorIs(t, n.s.Repair().Index(), index.ErrCorrupt)
		n.s.Repair().AwaitSnapshot()
		require.NoError(t, receive(t, peer.s, n.s).Commit())
		require.NoError(t, n.s.Repair().Index())
		require.Equal(t, m.dump(), dumpStore(t, n.s))
		n.check()
	}
	require.Positive(t, found)
}

// A scrub repairs flipped bits in the file header and the meta slots. A restart finds all content.
func TestScrubRepairsHeader(t *testing.T) {
	n, mem, _, m := pairOf(t)
	for _, at := range []int64{20, 16<<10 + 60, 32<<10 + 60} {
		flip(t, mem, datadir.PageFile("/data"), at)
		before := n.s.Repair().Status()
		_, err := n.s.Repair().Scrub(context.Background(), nil)
		require.NoError(t, err)
		require.Equal(t, before.RepairedPages+1, n.s.Repair().Status().RepairedPages)
		_, err = n.s.Repair().Scrub(context.Background(), nil)
		require.NoError(t, err)
		require.Equal(t, before.FoundPages+1, n.s.Repair().Status().FoundPages, "a second scrub finds nothing")
	}
	require.NoError(t, n.s.Close())
	again := openNode(t, options(mem))
	again.applyAll()
	require.Equal(t, m.dump(), dumpStore(t, again.s))
}

// A scrub without a limit ends when its context is canceled.
func TestScrubIsCanceled(t *testing.T) {
	n := small(t, options(memfs.New()))
	for name, ctx := range map[string]context.Context{
		"governed": t.Context(), "full speed": throttle.FullSpeed(t.Context()),
	} {
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		within(t, "Scrub", func() {
			_, err := n.s.Repair().Scrub(ctx, nil)
			require.ErrorIs(t, err, context.Canceled, name)
		})
	}
}

// Reads repair corrupt pages of messages.
func TestReadRepairs(t *testing.T) {
	n, mem, peer, m := pairOf(t)
	want := mustDigest(t, n.s)
	damaged := damageMessages(t, n.s, mem)
	require.Equal(t, m.dump(), dumpStore(t, n.s))
	require.Positive(t, damaged)
	require.Positive(t, n.s.Repair().Status().RepairedPages)
	requests := peer.requests.Load()
	_, err := n.s.Repair().Scrub(context.Background(), nil)
	require.NoError(t, err)
	require.Equal(t, m.dump(), dumpStore(t, n.s))
	require.Equal(t, requests, peer.requests.Load(), "no further request: everything is repaired")
	require.Equal(t, want.Content, mustDigest(t, n.s).Content)
	n.check()

	// Close writes a checkpoint with the repaired pages, although no record was applied.
	require.NoError(t, n.s.Close())
	again := openNode(t, options(mem))
	again.applyAll()
	require.Equal(t, m.dump(), dumpStore(t, again.s))
	again.check()
}

// Only messages in pages that are corrupt on both nodes are lost. Since the page sizes differ, some messages of a
// corrupt page can be repaired and others cannot.
func TestBothCopiesCorrupt(t *testing.T) {
	mem, there := memfs.New(), memfs.New()
	o := options(there)
	o.PageSize = 8192
	n, remote := small(t, options(mem)), small(t, o)
	peer := &other{s: remote.s}
	n.s.Repair().SetSource(peer)
	text := fmt.Sprintf("%0500d", 20)
	mine, theirs := pageWith(t, mem, 2048, text), pageWith(t, there, 8192, text)
	flip(t, there, datadir.PageFile("/data"), page.OffsetOf(theirs, 8192)+100)
	_, lostThere := readMarked(t, remote.s)
	require.Contains(t, lostThere, uint64(21))
	flip(t, mem, datadir.PageFile("/data"), page.OffsetOf(mine, 2048)+100)
	flip(t, mem, datadir.PageFile("/data"), page.OffsetOf(mine+2, 2048)+100) // repairable from the other node

	got, lost := readMarked(t, n.s)
	require.Contains(t, lost, uint64(21))
	require.Subset(t, lostThere, lost)
	require.Len(t, append(got, lost...), 40, "all other messages are readable")
	status := n.s.Repair().Status()
	require.Equal(t, uint64(len(lost)), status.LostMessages)
	require.Equal(t, uint64(len(lost)), status.DamagedMessages)
	require.Positive(t, status.RepairedPages)
	for i, d := range n.s.Repair().Damaged(100) {
		require.Equal(t, lost[i], d.Sequence)
		require.True(t, d.Lost)
		require.Equal(t, "q", d.Name)
	}

	// A read without IncludeCorrupt returns the messages before a corrupt one, and then ErrDataLoss.
	_, _, err := n.s.Read(context.Background(), store.ReadRequest{Queue: 1, From: 21, MaxMessages: 5}, nil)
	var bad *repair.CorruptError
	require.ErrorAs(t, err, &bad)
	require.ErrorIs(t, err, index.ErrDataLoss)
	require.True(t, slices.Contains(bad.Sequences, 21))
	for _, seq := range bad.Sequences {
		require.Contains(t, lost, seq)
	}

	// After a consumer has acknowledged the lost messages, they are no longer listed, and their page is freed.
	n.commit(func(b *txn.Builder) {
		for _, seq := range lost {
			b.Ack(1, 1, txn.Range{First: seq, Last: seq})
		}
	})
	require.Zero(t, n.s.Repair().Status().DamagedMessages)
	got, lost = readMarked(t, n.s)
	require.Empty(t, lost)
	n.commit(func(b *txn.Builder) { b.Ack(1, 1, txn.Range{First: 1, Last: 40}) })
	require.NotEmpty(t, got)
	n.check()
}

// A message that cannot be repaired because the other node is unavailable does not block reads, and is repaired later.
func TestRepairIsRetried(t *testing.T) {
	mem := memfs.New()
	n, remote := small(t, options(mem)), small(t, options(memfs.New()))
	peer := &other{s: remote.s}
	peer.unavailable.Store(true)
	n.s.Repair().SetSource(peer)
	flip(t, mem, datadir.PageFile("/data"), page.OffsetOf(pageWith(t, mem, 2048, fmt.Sprintf("%0500d", 20)), 2048)+100)
	_, damaged := readMarked(t, n.s)
	require.Contains(t, damaged, uint64(21))
	require.Zero(t, n.s.Repair().Status().LostMessages)
	requests := peer.requests.Load()
	_, again := readMarked(t, n.s)
	require.Equal(t, damaged, again)
	require.Equal(t, requests, peer.requests.Load(), "no further request to the other node")
	peer.unavailable.Store(false)
	require.Eventually(t, func() bool {
		left, err := n.s.Repair().RepairAll(context.Background())
		return err == nil && left == 0
	}, time.Minute, 100*time.Millisecond)
	_, damaged = readMarked(t, n.s)
	require.Empty(t, damaged)
	n.check()
}

// A rewrite that detects a corrupt page repairs it and starts again. If the other node is unavailable, the rewrite
// fails.
func TestRewriteRepairs(t *testing.T) {
	n, mem, peer, m := pairOf(t)
	want := mustDigest(t, n.s)
	require.Positive(t, damageMessages(t, n.s, mem))
	peer.unavailable.Store(true)
	_, err := n.s.Maintenance().Rewrite(context.Background(), rewrite.Options{PageSize: 8192})
	require.ErrorIs(t, err, index.ErrDataLoss)
	peer.unavailable.Store(false)
	require.Eventually(t, func() bool {
		left, err := n.s.Repair().RepairAll(context.Background())
		return err == nil && left == 0
	}, time.Minute, 100*time.Millisecond)
	flip(t, mem, datadir.PageFile("/data"), page.OffsetOf(firstMessages(t, n.s, mem), 2048)+70)
	_, err = n.s.Maintenance().Rewrite(context.Background(), rewrite.Options{PageSize: 8192})
	require.NoError(t, err)
	require.Equal(t, want.Content, mustDigest(t, n.s).Content)
	require.Equal(t, m.dump(), dumpStore(t, n.s))
	n.check()
}

// A scrub detects a flipped bit in the first and in the current log segment. The store discards the corrupt records,
// which a checkpoint contains, and a restart finds a consistent log.
func TestScrubRepairsLog(t *testing.T) {
	mem := memfs.New()
	o := options(mem)
	o.SegmentBytes = 16 << 10
	n, _ := filled(t, o)
	names, err := mem.ReadDir("/data/log")
	require.NoError(t, err)
	names = slices.DeleteFunc(names, func(s string) bool { return !strings.HasSuffix(s, ".seg") })
	require.Greater(t, len(names), 1)
	for i, name := range []string{names[0], names[len(names)-1]} {
		flip(t, mem, "/data/log/"+name, 4096+200)
		_, err = n.s.Repair().Scrub(context.Background(), nil)
		require.NoError(t, err)
		st := n.s.Repair().Status()
		require.Equal(t, uint64(i+1), st.FoundLog, name)
		if st.DamagedLogLSN != 0 { // in the current segment: the next transaction starts another one
			n.commit(func(b *txn.Builder) { b.CreateQueue("another", txn.Config{}, "default") })
			_, err = n.s.Repair().RepairAll(context.Background())
			require.NoError(t, err)
		}
		st = n.s.Repair().Status()
		require.Zero(t, st.DamagedLogLSN)
		require.Equal(t, uint64(i+1), st.RepairedLog)
		_, err = n.s.Repair().Scrub(context.Background(), nil)
		require.NoError(t, err)
		require.Equal(t, uint64(i+1), n.s.Repair().Status().FoundLog, "a second scrub finds nothing")
	}
	want := dumpStore(t, n.s)
	require.NoError(t, n.s.Close())
	again := openNode(t, options(mem))
	again.applyAll()
	require.Equal(t, want, dumpStore(t, again.s))
	_, err = again.s.ReadLog(1)
	require.ErrorIs(t, err, wal.ErrTrimmed)
}

// A store with a corrupt index continues to apply records until a snapshot replaces it.
func TestApplyWithCorruptIndex(t *testing.T) {
	n, mem, peer, _ := pairOf(t)
	require.NoError(t, n.s.Close())
	stats, err := peer.s.Stats()
	require.NoError(t, err)
	require.NotZero(t, stats.Pages)
	// After a restart only the part of the tree from which the state was loaded is in memory.
	n = openNode(t, options(mem))
	n.s.Repair().SetSource(peer)
	n.applyAll()
	st, err := n.s.Stats()
	require.NoError(t, err)
	for no := page.No(1); uint64(no) <= st.Pages; no++ {
		if kindAt(t, mem, no) == "node" {
			flip(t, mem, datadir.PageFile("/data"), page.OffsetOf(no, 2048)+60)
		}
	}
	_, err = n.s.Repair().Scrub(context.Background(), nil)
	require.ErrorIs(t, err, index.ErrCorrupt)
	require.ErrorIs(t, n.s.Repair().Index(), index.ErrCorrupt)
	n.commit(func(b *txn.Builder) { b.CreateQueue("more", txn.Config{}, "default") })
	n.s.Repair().AwaitSnapshot()
	require.NoError(t, receive(t, peer.s, n.s).Commit())
	require.NoError(t, n.s.Repair().Index())
	n.check()
}

// A node of a pair quarantines a store that it cannot open, and creates an empty one with a higher incarnation, which
// does not match the cluster record. A node without a pair does not start.
func TestPairedStoreIsQuarantined(t *testing.T) {
	damages := map[string]func(t *testing.T, mem vfs.FS){
		"tree": func(t *testing.T, mem vfs.FS) {
			t.Helper()
			for no := page.No(1); no < 400; no++ {
				if kindAt(t, mem, no) == "node" {
					flip(t, mem, datadir.PageFile("/data"), page.OffsetOf(no, 2048)+60)
				}
			}
		},
		"both meta slots": func(t *testing.T, mem vfs.FS) {
			t.Helper()
			flip(t, mem, datadir.PageFile("/data"), 16<<10+60)
			flip(t, mem, datadir.PageFile("/data"), 32<<10+60)
		},
		"log": func(t *testing.T, mem vfs.FS) {
			t.Helper()
			names, err := mem.ReadDir("/data/log")
			require.NoError(t, err)
			for _, name := range names {
				if strings.HasSuffix(name, ".seg") {
					flip(t, mem, "/data/log/"+name, 4096+200)
				}
			}
		},
	}
	for name, damage := range damages {
		for _, paired := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, paired %v", name, paired), func(t *testing.T) {
				mem := memfs.New()
				o := options(mem)
				o.ReplaceDamaged = true
				n, m := filled(t, o)
				source, _ := filled(t, options(memfs.New()))
				if paired {
					require.NoError(t, n.s.JoinPair(uuid.New()))
				}
				before := n.s.Identity()
				require.NoError(t, n.s.Close())
				damage(t, mem)
				s, err := store.Open(o)
				if !paired {
					require.Error(t, err)
					return
				}
				require.NoError(t, err)
				t.Cleanup(func() { _ = s.Close() })
				now := s.Identity()
				require.Greater(t, now.Incarnation, before.Incarnation)
				require.True(t, now.MayHaveLost)
				require.Equal(t, []any{before.NodeID, before.StoreID, before.PairID},
					[]any{now.NodeID, now.StoreID, now.PairID})
				require.True(t, s.End().IsZero())
				names, err := mem.ReadDir("/data")
				require.NoError(t, err)
				at := slices.IndexFunc(names, func(name string) bool { return strings.HasPrefix(name, "damaged-") })
				require.GreaterOrEqual(t, at, 0)
				kept, err := mem.ReadDir("/data/" + names[at])
				require.NoError(t, err)
				require.Equal(t, []string{"identity", "log", "page.db"}, kept)

				require.NoError(t, receive(t, source.s, s).Commit())
				require.Equal(t, m.dump(), dumpStore(t, s))
			})
		}
	}
}

// A sender that detects a corrupt page of messages while it sends a snapshot repairs its own copy.
func TestSnapshotOfCorruptPage(t *testing.T) {
	n, mem, _, m := pairOf(t)
	flip(t, mem, datadir.PageFile("/data"), page.OffsetOf(firstMessages(t, n.s, mem), 2048)+70)
	require.NoError(t, repairAll(n.s))
	to := openNode(t, options(memfs.New()))
	in := receive(t, n.s, to.s)
	defer in.Abort()
	require.Positive(t, n.s.Repair().Status().SuspectPages)
	require.NoError(t, repairAll(n.s))
	require.Positive(t, n.s.Repair().Status().RepairedMessages)
	require.Equal(t, m.dump(), dumpStore(t, n.s))
	n.check()
}
