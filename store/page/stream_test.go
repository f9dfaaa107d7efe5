// SPDX-License-Identifier: Apache-2.0

package page

import (
	"math/rand"
	"testing"

	"github.com/stretchr/testify/require"
)

// streamExtents writes a checkpoint's pages to an ExtentStream in parts of random size. It changes the byte at offset
// corrupt, unless corrupt is negative.
func streamExtents(t *testing.T, rng *rand.Rand, f *File, corrupt int) error {
	t.Helper()
	pin := f.Pin()
	defer pin.Release()
	s := NewExtentStream(f.PageSize())
	at := 0
	for ext, err := range f.UsedExtents(pin) {
		require.NoError(t, err)
		for skip := uint32(0); skip < ext.Pages; {
			piece := ext.sub(skip, min(1+uint32(rng.Intn(4)), ext.Pages-skip))
			skip += piece.Pages
			buf := make([]byte, int(piece.Pages)*f.PageSize())
			require.NoError(t, f.ReadPages(piece.First, buf))
			if corrupt >= at && corrupt < at+len(buf) {
				buf[corrupt-at] ^= 0x10
			}
			at += len(buf)
			if err := s.Write(piece.First, buf); err != nil {
				return err
			}
		}
	}
	return s.End()
}

// An ExtentStream accepts valid checkpoints, and detects a change of any byte, misdirected writes and gaps.
func TestExtentStream(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	for _, pageSize := range pageSizes {
		w := newWorld(t, newMem(t), pageSize, 5)
		for range 12 {
			w.step()
			w.checkpoint()
			require.NoError(t, streamExtents(t, rng, w.f, -1))
		}
		// The first page begins with an extent header.
		pin := w.f.Pin()
		for ext, err := range w.f.UsedExtents(pin) {
			require.NoError(t, err)
			buf := make([]byte, pageSize)
			require.NoError(t, w.f.ReadPages(ext.First, buf))
			h, err := PeekExtent(buf)
			require.NoError(t, err)
			for at := range ExtentHeaderBytes + min(h.PayloadBytes, 64) {
				require.ErrorIs(t, streamExtents(t, rng, w.f, at), ErrCorrupt, "byte %d", at)
			}
			break
		}
		pin.Release()
	}
	s := NewExtentStream(2048)
	require.ErrorIs(t, s.Write(1, make([]byte, 2048)), ErrCorrupt, "zeros")
	require.ErrorIs(t, s.Write(1, make([]byte, 100)), ErrMisuse)
	run, err := AppendExtent(nil, 2048, Extent{First: 3, Pages: 2, Born: 1}, KindLarge, make([]byte, 3000))
	require.NoError(t, err)
	require.ErrorIs(t, s.Write(4, run), ErrCorrupt, "misdirected write")
	require.NoError(t, s.Write(3, run[:2048]))
	require.ErrorIs(t, s.End(), ErrCorrupt, "incomplete extent")
	require.ErrorIs(t, s.Write(5, run[2048:]), ErrCorrupt, "gap in the extent")
}
