// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/rewrite"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// Extents that one subscription reads are cached for the other subscriptions of the queue. A queue with a single
// subscription uses no cache. A rewrite invalidates the cache.
func TestReadCacheIsSharedBySubscriptions(t *testing.T) {
	fs, reads := faultfs.New(memfs.New()), atomic.Int64{}
	fs.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.OpRead && strings.HasSuffix(op.Name, "page.db") {
			reads.Add(op.Length)
		}
		return nil
	})
	o := options(fs)
	o.MemoryBudget = store.MinMemoryBudget // 1 MiB for the cache
	n := openNode(t, o)
	const subs, batches, each = 5, 60, 100 // 3 MB
	n.commit(func(b *txn.Builder) { b.CreateQueue("many", txn.Config{}, "s1", "s2", "s3", "s4", "s5") })
	n.commit(func(b *txn.Builder) { b.CreateQueue("one", txn.Config{}, "s1") })
	text := func(queue, seq uint64) string { return fmt.Sprintf("%d-%d-%0500d", queue, seq, seq) }
	next := uint64(1)
	for range batches {
		n.commit(func(b *txn.Builder) {
			for queue := range uint64(2) {
				b.BeginPublish(queue + 1)
				for i := range uint64(each) {
					b.Message(1, nil, []byte(text(queue+1, next+i)))
				}
				b.EndPublish()
			}
		})
		next += each
	}
	_, err := n.s.Checkpoint(t.Context())
	require.NoError(t, err)
	read := func(queue uint64, sub uint32, from uint64) (next uint64) {
		batch, next, err := n.s.Read(t.Context(),
			store.ReadRequest{Queue: queue, Sub: sub, From: from, MaxMessages: each, MaxBytes: 1 << 20}, nil)
		require.NoError(t, err)
		require.Len(t, batch, each)
		for i := range batch {
			m, err := txn.DecodeMessage(batch[i].Record)
			require.NoError(t, err)
			require.Equal(t, text(queue, from+uint64(i)), string(m.Body))
		}
		return next
	}
	// cost returns the number of bytes read from the file if all subscriptions of a queue read it at the same pace.
	cost := func(queue uint64, subs uint32) float64 {
		before := reads.Load()
		for from := uint64(1); from < next; {
			to := from
			for sub := range subs {
				to = read(queue, sub+1, from)
			}
			from = to
		}
		return float64(reads.Load() - before)
	}
	alone := cost(2, 1)
	require.Greater(t, alone, 3e6)
	require.InEpsilon(t, alone, cost(2, 1), 0.01, "same reads as the first time")
	together := cost(1, subs)
	require.Less(t, together, alone*1.2, "one read for five subscriptions")
	// The cache now contains the end of the queue, so the beginning must be read again, but only once.
	before := reads.Load()
	read(1, 1, 1)
	require.Greater(t, reads.Load(), before)
	before = reads.Load()
	read(1, 2, 1)
	require.Equal(t, before, reads.Load())
	_, err = n.s.Maintenance().Rewrite(t.Context(), rewrite.Options{PageSize: 16 << 10})
	require.NoError(t, err)
	before = reads.Load()
	read(1, 2, 1)
	require.Greater(t, reads.Load(), before)
	n.check()
}
