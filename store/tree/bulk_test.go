// SPDX-License-Identifier: Apache-2.0

package tree_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/tree"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// counting is a NodeWriter that only counts pages, like the simulation of a rewrite.
type counting struct {
	size  int
	pages uint64
}

func (c *counting) PageSize() int { return c.size }

func (c *counting) WriteNode(n int, _ func([]byte) []byte) (page.Extent, error) {
	ext := page.Extent{First: page.No(c.pages + 1), Pages: page.PagesFor(c.size, n), Born: 7}
	c.pages += uint64(ext.Pages)
	return ext, nil
}

// A bulk-loaded tree of any size has all entries and can be changed. Its size equals that of a simulation without
// writes.
func TestBulkLoadedTree(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, pageSize := range []int{2048, 6144} {
		for _, n := range []int{0, 1, 2, 100, 3000, 40_000} {
			t.Run(fmt.Sprintf("%d/%d", pageSize, n), func(t *testing.T) { bulkRound(t, rng, pageSize, n) })
		}
	}
}

func bulkRound(t *testing.T, rng *rand.Rand, pageSize, n int) {
	mem := memfs.New()
	require.NoError(t, mem.MkdirAll("/d", 0o700))
	b, err := page.NewBuilder(mem, "/d/p", page.BuildOptions{PageSize: pageSize, Checkpoint: 7})
	require.NoError(t, err)
	count := &counting{size: pageSize}
	bulk, shadow := tree.NewBulk(b, tree.Options{}), tree.NewBulk(count, tree.Options{})
	value := func(i int) []byte {
		size := i % 40
		if i%997 == 5 {
			size = 9000
		}
		return []byte(fmt.Sprintf("%0*d", size+1, i))
	}
	for i := range n {
		key := fmt.Appendf(nil, "key/%d/%09d", i/10_000, i)
		require.NoError(t, bulk.Put(key, value(i)))
		require.NoError(t, shadow.Put(key, value(i)))
	}
	root, err := bulk.Finish()
	require.NoError(t, err)
	again, err := shadow.Finish()
	require.NoError(t, err)
	require.Equal(t, root, again)
	require.Equal(t, count.pages, b.Pages())
	_, _, size := page.BuiltSize(pageSize, b.Pages())
	meta, err := b.Finish(page.Meta{Root: root})
	require.NoError(t, err)
	require.Equal(t, size, meta.FileBytes())
	info, err := mem.Stat("/d/p")
	require.NoError(t, err)
	require.Equal(t, size, info.SizeBytes)

	file, err := page.Open(mem, "/d/p", page.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	tr := tree.New(file, file.Meta().Root, tree.Options{})
	require.NoError(t, tr.View().Verify())
	i := 0
	for it := tr.View().Scan(nil, nil); it.Next(); i++ {
		require.Equal(t, value(i), it.Value())
	}
	require.Equal(t, n, i)
	left := map[int]bool{}
	for i := range n {
		left[i] = true
	}
	edit := tr.Edit()
	for range n / 2 {
		i := rng.IntN(n)
		_, err := edit.Delete(fmt.Appendf(nil, "key/%d/%09d", i/10_000, i))
		require.NoError(t, err)
		delete(left, i)
	}
	require.NoError(t, edit.Commit())
	newRoot, err := tr.Flush()
	require.NoError(t, err)
	_, err = file.Checkpoint(page.Meta{Root: newRoot})
	require.NoError(t, err)
	require.NoError(t, tr.View().Verify())
	for it := tr.View().Scan(nil, nil); it.Next(); {
		var q, i int
		_, err := fmt.Sscanf(string(it.Key()), "key/%d/%d", &q, &i)
		require.NoError(t, err)
		require.True(t, left[i])
		delete(left, i)
	}
	require.Empty(t, left)
}

// Bulk rejects keys that are not in ascending order, also at node boundaries, and keys that are too long.
func TestBulkRejectsInvalidKeys(t *testing.T) {
	for _, n := range []int{1, 500} {
		bulk := tree.NewBulk(&counting{size: 2048}, tree.Options{})
		for i := range n {
			require.NoError(t, bulk.Put(fmt.Appendf(nil, "%09d", i), make([]byte, 100)))
		}
		require.ErrorIs(t, bulk.Put(fmt.Appendf(nil, "%09d", n-1), nil), tree.ErrOrder)
		_, err := bulk.Finish()
		require.ErrorIs(t, err, tree.ErrOrder)
	}
	bulk := tree.NewBulk(&counting{size: 2048}, tree.Options{})
	require.ErrorIs(t, bulk.Put(make([]byte, tree.MaxKeyBytes+1), nil), tree.ErrTooLarge)
}
