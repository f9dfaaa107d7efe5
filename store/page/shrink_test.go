// SPDX-License-Identifier: Apache-2.0

package page_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// Trim truncates the free end of a file with several bitmap chunks. The remaining extents are unchanged, and the file
// can grow again.
func TestTrim(t *testing.T) {
	mem := memfs.New()
	require.NoError(t, mem.MkdirAll("/d", 0o700))
	f, err := page.Create(mem, "/d/p", page.CreateOptions{PageSize: 2048})
	require.NoError(t, err)
	rng := rand.New(rand.NewPCG(1, 2))
	extents := map[page.No]page.Extent{}
	fill := func(n int) {
		for range n {
			ext, err := f.Alloc(uint32(1 + rng.IntN(8)))
			require.NoError(t, err)
			require.NoError(t, f.WriteExtent(ext, page.KindPacked, []byte{byte(ext.First), byte(ext.First >> 8)}))
			extents[ext.First] = ext
		}
	}
	checkpoint := func() {
		_, err := f.Checkpoint(page.Meta{})
		require.NoError(t, err)
	}
	fill(10_000)
	checkpoint()
	before, err := mem.Stat("/d/p")
	require.NoError(t, err)
	require.Greater(t, f.Stats().Pages, uint64(2*16128), "more than two bitmap chunks")
	for round := range 6 {
		end := page.No(f.Stats().Used / 2)
		for no, ext := range extents {
			if ext.End() > end {
				f.Free(ext)
				delete(extents, no)
			}
		}
		checkpoint()
		checkpoint() // now the freed pages are reusable
		for range 2 {
			f.AllocLow()
			f.RelocateBitmap(end)
			checkpoint()
		}
		freed, err := f.Trim()
		require.NoError(t, err)
		require.Positive(t, freed, "round %d", round)
		require.Less(t, f.FreeTail(), uint64(100))
		after, err := mem.Stat("/d/p")
		require.NoError(t, err)
		require.Equal(t, before.SizeBytes-freed, after.SizeBytes)
		require.Equal(t, f.Meta().FileBytes(), after.SizeBytes)
		if round%2 == 1 {
			require.NoError(t, f.Close())
			f, err = page.Open(mem, "/d/p", page.Options{})
			require.NoError(t, err)
		}
		for _, ext := range extents {
			_, payload, err := f.ReadExtent(ext, nil)
			require.NoError(t, err)
			require.Equal(t, []byte{byte(ext.First), byte(ext.First >> 8)}, payload)
		}
		fill(300)
		checkpoint()
		if before, err = mem.Stat("/d/p"); err != nil {
			t.Fatal(err)
		}
	}
	require.NoError(t, f.Close())
	_, err = f.Trim()
	require.ErrorIs(t, err, page.ErrClosed)
}

// Trim does not truncate pages of a pinned checkpoint.
func TestTrimKeepsPinnedPages(t *testing.T) {
	mem := memfs.New()
	require.NoError(t, mem.MkdirAll("/d", 0o700))
	f, err := page.Create(mem, "/d/p", page.CreateOptions{PageSize: 2048})
	require.NoError(t, err)
	var last page.Extent
	for range 3000 {
		if last, err = f.Alloc(1); err != nil {
			t.Fatal(err)
		}
		require.NoError(t, f.WriteExtent(last, page.KindPacked, []byte("x")))
	}
	_, err = f.Checkpoint(page.Meta{})
	require.NoError(t, err)
	pin := f.Pin()
	f.Free(page.Extent{First: 10, Pages: uint32(last.First) - 9, Born: last.Born})
	for range 3 {
		f.RelocateBitmap(1)
		f.AllocLow()
		_, err = f.Checkpoint(page.Meta{})
		require.NoError(t, err)
	}
	_, err = f.Trim()
	require.NoError(t, err)
	_, _, err = f.ReadExtent(last, nil)
	require.NoError(t, err)
	n := uint64(0)
	for ext, err := range f.UsedExtents(pin) {
		require.NoError(t, err)
		n += uint64(ext.Pages)
	}
	require.Equal(t, pin.Meta().UsedPages, n)
	pin.Release()
	for range 3 {
		f.RelocateBitmap(1)
		f.AllocLow()
		_, err = f.Checkpoint(page.Meta{})
		require.NoError(t, err)
	}
	freed, err := f.Trim()
	require.NoError(t, err)
	require.Greater(t, freed, int64(2000*2048))
	require.NoError(t, f.Close())
}
