// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/rewrite"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

func (n *node) scan(o checkpoint.ScanOptions) checkpoint.ScanResult {
	n.t.Helper()
	r, err := scanStore(context.Background(), n.s, o)
	require.NoError(n.t, err)
	require.Empty(n.t, r.Problems)
	var messages, bytes uint64
	for _, b := range r.Histogram {
		require.GreaterOrEqual(n.t, b.Bytes, b.Messages*uint64(b.FromBytes))
		require.LessOrEqual(n.t, b.Bytes, b.Messages*uint64(b.ToBytes))
		messages, bytes = messages+b.Messages, bytes+b.Bytes
	}
	require.Equal(n.t, r.Messages, messages)
	require.Equal(n.t, r.MessageBytes, bytes)
	for _, c := range r.Candidates {
		require.Equal(n.t, c.Pages, c.MessagePages+c.IndexPages+c.OtherPages)
		require.Equal(n.t, c.FileBytes, 64<<10+c.Pages*uint64(c.PageSize))
		require.Equal(n.t, c.FileBytes, c.WasteBytes+r.MessageBytes)
	}
	return r
}

// For each page size, the size that a scan predicts is exactly the size of the rewritten file.
func TestScanPredictsFileSize(t *testing.T) {
	ctx := context.Background()
	n, m := filled(t, options(memfs.New()))
	n.commit(func(b *txn.Builder) { b.CreateQueue("more", txn.Config{}, "s") })
	id := m.nextID + 1
	n.publishMany(id, 400, 700)
	n.publishMany(id, 100, 15_000)
	_, err := n.s.Checkpoint(ctx)
	require.NoError(t, err)
	for i := range uint64(50) { // holes
		n.commit(func(b *txn.Builder) { b.Ack(id, 1, txn.Range{First: 3 + i*7, Last: 3 + i*7}) })
	}
	r := n.scan(checkpoint.ScanOptions{MaxPageSize: 256 << 10})
	require.Positive(t, r.DeadMessages)
	require.Equal(t, uint64(2048), uint64(r.Candidates[0].PageSize))
	require.Equal(t, 256<<10, r.Candidates[len(r.Candidates)-1].PageSize)
	for _, c := range r.Candidates {
		result, err := n.s.Maintenance().Rewrite(ctx, rewrite.Options{PageSize: c.PageSize})
		require.NoError(t, err)
		require.Equal(t, c.FileBytes, result.FileBytesAfter, "page size %d", c.PageSize)
		again := n.scan(checkpoint.ScanOptions{MaxPageSize: 256 << 10})
		require.Equal(t, r.Candidates, again.Candidates, "the table does not depend on the current page size")
		require.Zero(t, again.DeadMessages)
	}
	n.check()
}

// For messages of mixed sizes (20 of 15,000 bytes for each 3 of 512), the recommended page size makes the file
// smaller. A page size based on the mean message size would make it seven times as large.
func TestScanMixedSizes(t *testing.T) {
	mem := memfs.New()
	n := openNode(t, options(mem))
	for range 5 {
		n.commit(func(b *txn.Builder) { b.CreateQueue("q"+string(rune('a'+n.s.End().LSN)), txn.Config{}, "default") })
	}
	for q := range uint64(5) {
		n.publishMany(q+1, 160, 15_000)
		n.publishMany(q+1, 24, 512)
	}
	r := n.scan(checkpoint.ScanOptions{})
	require.Equal(t, uint64(5*184), r.Messages)
	require.Len(t, r.Histogram, 2)
	before, err := mem.Stat(datadir.PageFile("/data"))
	require.NoError(t, err)
	require.Equal(t, uint64(before.SizeBytes), r.FileBytes)
	t.Logf("%d: %s", r.Recommended, r.Note)
	require.NotEqual(t, 2048, r.Recommended)
	require.Positive(t, r.GainBytes)
	result, err := n.s.Maintenance().Rewrite(context.Background(), rewrite.Options{PageSize: r.Recommended})
	require.NoError(t, err)
	require.Less(t, result.FileBytesAfter, r.FileBytes, "the recommendation makes the file smaller")
	require.Equal(t, int64(r.FileBytes-result.FileBytesAfter), r.GainBytes)

	r = n.scan(checkpoint.ScanOptions{})
	require.Equal(t, result.PageSize, r.Recommended)
	require.Contains(t, r.Note, "no advantage")

	// With the previous size as the limit, the scan does not recommend a larger file.
	r = n.scan(checkpoint.ScanOptions{MaxPageSize: 2048})
	require.Equal(t, result.PageSize, r.Recommended)
	require.GreaterOrEqual(t, r.GainBytes, int64(0))
	require.Contains(t, r.Note, " 2048")
	require.Contains(t, r.Note, "is kept")
	_, err = json.Marshal(r)
	require.NoError(t, err)
}

// For any current page size and limit, the recommended size makes the file no larger than a rewrite with the current
// size, and needs at most 1 % more reads.
func TestScanRecommendsNoLargerFile(t *testing.T) {
	for _, size := range []int{2 << 10, 8 << 10, 32 << 10, 64 << 10} {
		o := options(memfs.New())
		o.PageSize = size
		n := openNode(t, o)
		n.commit(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{}, "default") })
		n.publishMany(1, 300, 700)
		n.publishMany(1, 40, 9_000)
		n.publishMany(1, 300, 50)
		for _, limit := range []int{2 << 10, 4 << 10, 16 << 10, 32 << 10, 128 << 10} {
			r := n.scan(checkpoint.ScanOptions{MaxPageSize: limit})
			var now, chosen checkpoint.Candidate
			for _, c := range r.Candidates {
				if c.PageSize == r.PageSize {
					now = c
				}
				if c.PageSize == r.Recommended {
					chosen = c
				}
			}
			require.LessOrEqual(t, chosen.FileBytes, now.FileBytes, "%d, at most %d: %s", size, limit, r.Note)
			require.LessOrEqual(t, chosen.Extents, now.Extents+now.Extents/100, "%d, at most %d: %s", size, limit, r.Note)
			if size > limit && chosen.PageSize == size {
				require.Contains(t, r.Note, "the limit")
			}
		}
	}
}

// A single large message does not result in a large recommended page size.
func TestScanOneLargeMessage(t *testing.T) {
	n := openNode(t, options(memfs.New()))
	n.commit(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{}, "default") })
	n.publishMany(1, 2000, 300)
	n.publishMany(1, 1, 900_000)
	r := n.scan(checkpoint.ScanOptions{MaxPageSize: 1 << 20})
	require.Less(t, r.Recommended, 64<<10)
}

// For an empty store the current page size is recommended, or the limit if that is lower.
func TestScanEmpty(t *testing.T) {
	mem := memfs.New()
	o := options(mem)
	o.PageSize = 16384
	n := openNode(t, o)
	for range 2 {
		r := n.scan(checkpoint.ScanOptions{})
		require.Equal(t, 16384, r.Recommended)
		require.Empty(t, r.Histogram)
		r = n.scan(checkpoint.ScanOptions{MaxPageSize: 4096})
		require.Equal(t, 4096, r.Recommended)
		result, err := n.s.Maintenance().Rewrite(context.Background(), rewrite.Options{})
		require.NoError(t, err)
		require.Equal(t, r.Candidates[len(r.Candidates)-1].FileBytes, result.FileBytesAfter)
		// In the second iteration the queue exists, and the transaction is rejected.
		n.commit(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{}, "default") })
	}
	n.publishMany(1, 10, 100)
	n.check()
	require.NoError(t, n.s.Close())
	r, err := scanDir(mem, checkpoint.ScanOptions{})
	require.NoError(t, err)
	require.Equal(t, uint64(10), r.Messages)
	plan, err := rewrite.PlanDir(context.Background(), mem, "/data", rewrite.Options{PageSize: r.Recommended})
	require.NoError(t, err)
	require.NoError(t, plan.Err())
	require.Equal(t, uint64(10), plan.Messages)
	require.Positive(t, plan.OldFileBytes)
	freed, err := rewrite.DropOldDir(mem, "/data")
	require.NoError(t, err)
	require.Equal(t, plan.OldFileBytes, freed)

	_, err = scanDir(mem, checkpoint.ScanOptions{MaxPageSize: 3000})
	require.Error(t, err)
}

// If a used page of the file is corrupt, a scan reports the page, or fails if the page is needed to load the state.
func TestScanCorruptPages(t *testing.T) {
	mem := memfs.New()
	n, _ := filled(t, options(mem))
	clean := n.scan(checkpoint.ScanOptions{})
	require.NoError(t, n.s.Close())
	fault := faultfs.New(mem)
	var reported, failed int
	for no := uint64(1); no <= clean.Pages; no++ {
		at := int64(64<<10) + int64(no-1)*2048
		fault.SetHook(func(op faultfs.Op) error {
			if op.Kind == faultfs.OpRead && op.Name == datadir.PageFile("/data") && op.Offset <= at &&
				at+2048 <= op.Offset+op.Length {
				return &faultfs.FlipBit{Bit: (at-op.Offset)*8 + 300}
			}
			return nil
		})
		r, err := scanDir(fault, checkpoint.ScanOptions{})
		switch {
		case err != nil:
			failed++ // a page of the state, without which the node could not start either
		case len(r.Problems) > 0:
			reported++
			require.LessOrEqual(t, r.Messages+r.DamagedMessages, clean.Messages)
		default:
			require.Equal(t, clean.Messages, r.Messages)
		}
	}
	t.Logf("%d pages: %d reported, %d failed", clean.Pages, reported, failed)
	require.Positive(t, reported)
	require.Less(t, failed, reported)
}

// A check reports its progress, also for extents with more pages than the interval between reports.
func TestCheckProgress(t *testing.T) {
	n := openNode(t, options(memfs.New()))
	n.commit(createQueue)
	for range 4 {
		n.publish(make([]byte, 600<<10))
	}
	_, err := n.s.Checkpoint(t.Context())
	require.NoError(t, err)
	var last uint64
	calls := 0
	_, err = checkStore(t.Context(), n.s, func(done, total uint64) {
		require.GreaterOrEqual(t, done, last)
		require.LessOrEqual(t, done, total)
		last = done
		calls++
	})
	require.NoError(t, err)
	require.Greater(t, calls, 4)
}
