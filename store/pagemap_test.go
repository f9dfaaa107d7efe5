// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/pager"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// The page map counts each page once, and its message pages match the index.
func TestPageMap(t *testing.T) {
	ctx := context.Background()
	n := grown(t, options(memfs.New()), 3, 4, 5, 700, 701, 1200, 1499)
	_, err := n.s.Checkpoint(ctx)
	require.NoError(t, err)
	_, err = n.s.Checkpoint(ctx)
	require.NoError(t, err)
	for _, regions := range []int{1, 7, 256, 4096} {
		m, err := n.s.PageMap(ctx, regions)
		require.NoError(t, err)
		stats, err := n.s.Stats()
		require.NoError(t, err)
		require.Equal(t, stats.Pages, m.Total.Pages)
		require.Equal(t, stats.PageSize, m.PageSize)
		require.LessOrEqual(t, len(m.Regions), regions)
		compareMap(t, n, &m)
	}
}

// compareMap compares the number of message pages in each region with the index. It also verifies that the page
// counts of each region add up, and that the regions cover the file.
func compareMap(t *testing.T, n *node, m *pager.PageMap) {
	t.Helper()
	each := m.Regions[0].Pages
	messages := make([]uint64, len(m.Regions))
	err := n.s.ReadCheckpoint(context.Background(), store.ReadOptions{}, func(c *checkpoint.Checkpoint) error {
		return c.Extents(context.Background(), checkpoint.WalkOptions{IndexOnly: true},
			func(e *index.Entry, _ []byte, _ error) error {
				for i := range uint64(e.Extent.Pages) {
					messages[(uint64(e.Extent.First)-1+i)/each]++
				}
				return nil
			})
	})
	require.NoError(t, err)
	var pages, first uint64 = 0, 1
	for i := range m.Regions {
		r := &m.Regions[i]
		require.Equal(t, first, uint64(r.First), "region %d", i)
		require.Equal(t, messages[i], r.Messages(), "region %d", i)
		require.Equal(t, r.Pages, r.Messages()+r.Index+r.Bitmap+r.Held+r.Free(), "region %d", i)
		require.LessOrEqual(t, r.HeldByReaders, r.Held)
		pages += r.Pages
		first += r.Pages
	}
	require.Equal(t, m.Total.Pages, pages)
	require.Positive(t, m.Total.Index)
	require.Positive(t, m.Total.Bitmap)
}

// The page map reports pages that only a reader of an older checkpoint still uses. The pages are free after the
// reader has finished.
func TestPageMapCountsPagesHeldByReaders(t *testing.T) {
	ctx := context.Background()
	n := openNode(t, options(memfs.New()))
	n.commit(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{}, "default") })
	n.publishMany(1, 500, 1800)
	_, err := n.s.Checkpoint(ctx)
	require.NoError(t, err)
	err = n.s.ReadCheckpoint(ctx, store.ReadOptions{}, func(*checkpoint.Checkpoint) error {
		n.commit(func(b *txn.Builder) { b.Ack(1, 1, txn.Range{First: 1, Last: 400}) })
		_, err := n.s.Checkpoint(ctx)
		require.NoError(t, err)
		m, err := n.s.PageMap(ctx, 64)
		require.NoError(t, err)
		require.Equal(t, 1, m.Readers)
		require.Greater(t, m.Total.Held, uint64(300), "pages of acknowledged messages")
		for range 2 { // afterwards only the reader uses the pages, not the last two checkpoints
			n.publishMany(1, 2, 100)
			_, err = n.s.Checkpoint(ctx)
			require.NoError(t, err)
		}
		m, err = n.s.PageMap(ctx, 64)
		require.NoError(t, err)
		require.Greater(t, m.Total.HeldByReaders, uint64(300))
		return nil
	})
	require.NoError(t, err)
	m, err := n.s.PageMap(ctx, 64)
	require.NoError(t, err)
	require.Zero(t, m.Readers)
	require.Zero(t, m.Total.HeldByReaders)
	require.Greater(t, m.Total.Free(), uint64(300))
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err = n.s.PageMap(ended, 64)
	require.ErrorIs(t, err, context.Canceled)
}
