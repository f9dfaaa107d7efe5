// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
)

// heap returns the heap in use after a full garbage collection.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse)
}

// Delayed messages need little memory and do not slow down a start, regardless of their number. LOCKSTEP_DELAYED sets
// the number.
func TestDelayedMessagesMemory(t *testing.T) {
	count := 200_000
	if env := os.Getenv("LOCKSTEP_DELAYED"); env != "" {
		var err error
		count, err = strconv.Atoi(env)
		require.NoError(t, err)
	}
	fault := faultfs.New(vfs.OS())
	o := store.Options{FS: fault, Dir: t.TempDir(), BootID: "boot", Sync: wal.SyncOff, MemoryBudget: 64 << 20}
	n := openNode(t, o)
	n.raw = nil
	n.commit(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{}, "a") })
	begin := time.Now()
	for sent := 0; sent < count; sent += txn.MaxPublishMessages {
		n.commit(func(b *txn.Builder) {
			b.BeginPublish(1)
			for i := range min(txn.MaxPublishMessages, count-sent) {
				at := 1_000_000 + int64(sent+i)*7919%86_400_000 // within one day, in random order
				b.MessageWith(1000, &txn.Attributes{DeliverAtMS: at}, nil, []byte("0123456789"))
			}
			b.EndPublish()
		})
		n.raw = nil
	}
	took := time.Since(begin)
	_, err := n.s.Checkpoint(t.Context())
	require.NoError(t, err)
	require.NoError(t, n.s.Close())
	n.s = nil

	before, reads := heap(), fault.Count(faultfs.OpRead)
	begin = time.Now()
	n.reopen(o)
	started := time.Since(begin)
	reads = fault.Count(faultfs.OpRead) - reads
	used := heap() - before
	stats, err := n.s.Stats()
	require.NoError(t, err)
	require.EqualValues(t, count, stats.Delayed)
	begin = time.Now()
	entries, _, err := n.s.Scheduled(txn.Due{}, 1<<40, 4096)
	require.NoError(t, err)
	require.Len(t, entries, min(count, 4096))
	t.Logf("%d delayed messages: published in %v, started in %v, %d KiB of memory, the first 4096 due found in %v, "+
		"page.db has %d pages of %d bytes", count, took, started, used>>10, time.Since(begin), stats.PagesUsed,
		stats.PageSize)
	require.Less(t, used, int64(64<<20))
	require.Less(t, reads, uint64(500), "a start does not read the schedule")
}

func (n *node) reopen(o store.Options) {
	n.t.Helper()
	s, err := store.Open(o)
	require.NoError(n.t, err)
	n.t.Cleanup(func() { _ = s.Close() })
	n.s = s
}
