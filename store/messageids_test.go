// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/rewrite"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

func encodeIDs(t *testing.T, timeMS int64, ids ...string) []byte {
	t.Helper()
	var b txn.Builder
	b.Begin(nil, timeMS, nil)
	b.BeginPublish(1)
	for _, id := range ids {
		b.MessageWith(timeMS, &txn.Attributes{MessageID: id}, nil, nil)
	}
	b.EndPublish()
	payload, err := b.Finish()
	require.NoError(t, err)
	return payload
}

func (n *node) publishIDs(timeMS int64, ids ...string) txn.OpResult {
	n.t.Helper()
	require.NoError(n.t, n.appendTxn(encodeIDs(n.t, timeMS, ids...)))
	r := n.applyAll()
	require.NoError(n.t, r.Err())
	return r.Ops[0]
}

// Message IDs survive checkpoints, restarts, a rewrite of page.db and a snapshot (INV-23).
func TestMessageIDs(t *testing.T) {
	o := options(memfs.New())
	o.PageSize = 2048
	n := openNode(t, o)
	n.commit(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{DedupWindow: 10_000}, "a") })
	const ids = 2000
	id := func(i int) string { return fmt.Sprint("order ", i) }
	for i := range ids {
		require.Equal(t, uint64(1), n.publishIDs(int64(i), id(i)).Changed)
		switch i % 500 {
		case 100:
			_, err := n.s.Checkpoint(t.Context())
			require.NoError(t, err)
		case 300:
			require.NoError(t, n.s.Close())
			n = openNode(t, o)
			n.applyAll()
		case 400:
			size := 2048 * (1 + i%3)
			_, err := n.s.Maintenance().Rewrite(t.Context(), rewrite.Options{PageSize: size})
			require.NoError(t, err)
			o.PageSize = size
		}
	}
	known := func(n *node) {
		t.Helper()
		for i := 0; i < ids; i += 7 {
			r := n.publishIDs(9000, id(i))
			require.Zero(t, r.Changed)
			require.Equal(t, uint64(i+1), r.FirstSequence)
		}
	}
	known(n)
	n.check()
	other := options(memfs.New())
	to := openNode(t, other)
	require.NoError(t, to.s.JoinPair(n.s.Identity().PairID))
	n.copyTo(to)
	digest, err := digestOf(t.Context(), n.s)
	require.NoError(t, err)
	copied, err := digestOf(t.Context(), to.s)
	require.NoError(t, err)
	require.Equal(t, digest, copied)
	known(to)
	to.check()
	require.Equal(t, uint64(1), to.publishIDs(10_000, id(0)).Changed, "outside the window")
}

// Apply blocks when message IDs that are not in the tree yet use a quarter of the memory budget, until a checkpoint has
// written them.
func TestMessageIDsWaitForCheckpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fault := faultfs.New(memfs.New())
		o := options(fault)
		o.MemoryBudget = store.MinMemoryBudget
		n := openNode(t, o)
		n.commit(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{DedupWindow: 1_000_000}) })
		const batch, batches = 100, 2000
		for i := range batches {
			ids := make([]string, batch)
			for j := range ids {
				ids[j] = fmt.Sprint(i, "/", j)
			}
			require.NoError(t, n.appendTxn(encodeIDs(t, 1, ids...)))
		}
		g := closeGate(fault, isPageFile(faultfs.OpWrite))
		applied := make(chan error, 1)
		go func() { applied <- n.s.Apply(n.s.End().LSN, nil) }()
		synctest.Wait()
		q, err := query.QueueByName(n.s, "q")
		require.NoError(t, err)
		limit := int(o.MemoryBudget / 4 / 128)
		require.Greater(t, int(q.MessageIDs), limit)
		// A checkpoint in progress has up to limit message IDs, and Apply checks the limit after at least 8,192.
		require.Less(t, int(q.MessageIDs), 2*limit+8192+batch)
		close(g.open)
		require.NoError(t, <-applied)
		q, err = query.QueueByName(n.s, "q")
		require.NoError(t, err)
		require.Equal(t, batch*batches, int(q.MessageIDs))
		n.check()
		require.NoError(t, n.s.Close())
	})
}

// A message ID uses less than 100 bytes in page.db. Message IDs use little memory after a restart and do not slow
// down a start. LOCKSTEP_IDS sets the number of IDs. docs/reference/queues/deduplication.md documents these limits.
func TestMessageIDsMemory(t *testing.T) {
	count := 200_000
	if env := os.Getenv("LOCKSTEP_IDS"); env != "" {
		var err error
		count, err = strconv.Atoi(env)
		require.NoError(t, err)
	}
	fault := faultfs.New(vfs.OS())
	o := store.Options{FS: fault, Dir: t.TempDir(), BootID: "boot", Sync: wal.SyncOff, MemoryBudget: 64 << 20}
	n := openNode(t, o)
	n.raw = nil
	n.commit(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{DedupWindow: 86_400_000}) })
	begin, timeMS := time.Now(), int64(0)
	for sent := 0; sent < count; {
		ids := make([]string, min(1000, count-sent))
		for i := range ids {
			ids[i] = strconv.Itoa(sent + i)
		}
		sent += len(ids)
		timeMS = int64(float64(sent) / float64(count) * 80_000_000)
		require.Equal(t, uint64(len(ids)), n.publishIDs(timeMS, ids...).Changed)
		n.raw = nil
	}
	took, published := time.Since(begin), heap()
	_, err := n.s.Checkpoint(t.Context())
	require.NoError(t, err)
	stats, err := n.s.Stats()
	require.NoError(t, err)
	perID := float64(stats.PagesUsed) * float64(stats.PageSize) / float64(count)
	require.NoError(t, n.s.Close())
	n.s = nil

	before, reads := heap(), fault.Count(faultfs.OpRead)
	begin = time.Now()
	n.reopen(o)
	started := time.Since(begin)
	reads = fault.Count(faultfs.OpRead) - reads
	used := heap() - before
	begin = time.Now()
	const probes = 1000
	for i := range probes {
		require.Zero(t, n.publishIDs(timeMS, strconv.Itoa(i*7919%count)).Changed)
	}
	t.Logf("%d message IDs: published in %v, then a heap of %d MiB, started in %v, %d KiB of memory, a lookup takes %v, "+
		"%.0f bytes each in page.db", count, took, published>>20, started, used>>10, time.Since(begin)/probes, perID)
	require.Less(t, published, int64(200<<20+4*count))
	require.Less(t, used, int64(16<<20))
	require.Less(t, reads, uint64(500), "a start does not read the IDs")
	require.Less(t, perID, 100.0)
}
