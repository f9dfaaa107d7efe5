// SPDX-License-Identifier: Apache-2.0

package tree_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/tree"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// MoveNodes moves the nodes at or after a page, up to the given number. The entries do not change.
func TestMoveNodes(t *testing.T) {
	mem := memfs.New()
	require.NoError(t, mem.MkdirAll("/d", 0o700))
	file, err := page.Create(mem, "/d/p", page.CreateOptions{})
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	tr := tree.New(file, page.Extent{}, tree.Options{})
	flush := func() {
		root, err := tr.Flush()
		require.NoError(t, err)
		_, err = file.Checkpoint(page.Meta{Root: root})
		require.NoError(t, err)
	}
	const n = 20_000
	edit := tr.Edit()
	for i := range n {
		require.NoError(t, edit.Put(fmt.Appendf(nil, "%08d", i), make([]byte, i%60)))
	}
	require.NoError(t, edit.Commit())
	flush()
	extents := func() map[page.Extent]bool {
		m := map[page.Extent]bool{}
		require.NoError(t, tr.View().WalkExtents(func(r page.Extent, _ int) error { m[r] = true; return nil }))
		return m
	}
	before := extents()
	from, behind := page.No(200), 0
	for r := range before {
		if r.First >= from {
			behind++
		}
	}
	edit = tr.Edit()
	moved, err := edit.MoveNodes(from, 10)
	require.NoError(t, err)
	require.Equal(t, 10, moved)
	edit.Discard()
	edit = tr.Edit()
	moved, err = edit.MoveNodes(from, 1<<20)
	require.NoError(t, err)
	require.Equal(t, behind, moved)
	require.NoError(t, edit.Commit())
	flush()
	require.NoError(t, tr.View().Verify())
	after := extents()
	require.Len(t, after, len(before))
	for r := range after {
		if r.First >= from {
			require.False(t, before[r], "node at page %d was not moved", r.First)
		}
	}
	i := 0
	for it := tr.View().Scan(nil, nil); it.Next(); i++ {
		require.Equal(t, fmt.Sprintf("%08d", i), string(it.Key()))
		require.Len(t, it.Value(), i%60)
	}
	require.Equal(t, n, i)
}
