// SPDX-License-Identifier: Apache-2.0

package page

import (
	"math/rand"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
)

func flip(t *testing.T, fsys vfs.FS, offset int64, mask byte) {
	t.Helper()
	file, err := fsys.OpenFile(pageFile, os.O_RDWR, 0)
	require.NoError(t, err)
	var b [1]byte
	_, err = file.ReadAt(b[:], offset)
	require.NoError(t, err)
	b[0] ^= mask
	_, err = file.WriteAt(b[:], offset)
	require.NoError(t, err)
	require.NoError(t, file.Close())
}

// A read of an extent of any kind with a flipped bit returns an error with the location of the extent.
func TestFlippedBitsAreDetected(t *testing.T) {
	mem := newMem(t)
	w := newWorld(t, mem, 2048, 5)
	w.add(6)
	w.checkpoint()
	defer func() { require.NoError(t, w.f.Close()) }()
	pin := w.f.Pin()
	defer pin.Release()
	extents := []Extent{w.root}
	for _, ext := range w.extents {
		extents = append(extents, ext)
	}
	own, err := w.f.OwnExtents(pin)
	require.NoError(t, err)
	require.Len(t, own, 2)
	seen := map[Kind]bool{}
	for _, ext := range append(extents, own...) {
		kind, payload, err := w.f.ReadExtent(ext, nil)
		require.NoError(t, err)
		seen[kind] = true
		for range 200 {
			at := w.rng.Intn(ExtentHeaderBytes + len(payload))
			if w.rng.Intn(2) == 0 {
				at = w.rng.Intn(ExtentHeaderBytes)
			}
			offset, mask := OffsetOf(ext.First, 2048)+int64(at), byte(1)<<w.rng.Intn(8)
			flip(t, mem, offset, mask)
			_, _, err := w.f.ReadExtent(ext, nil)
			requireCorruptAt(t, err, ext.First)
			flip(t, mem, offset, mask)
		}
		_, _, err = w.f.ReadExtent(ext, nil)
		require.NoError(t, err)
	}
	require.Len(t, seen, 5, "pages of every kind")
	for _, ext := range own { // a file with a corrupt bitmap opens only for reading
		flip(t, mem, OffsetOf(ext.First, 2048)+40, 4)
		_, err := Open(mem, pageFile, Options{})
		requireCorruptAt(t, err, ext.First)
		f, err := Open(mem, pageFile, Options{ReadOnly: true})
		require.NoError(t, err)
		at, err := w.verify(f)
		requireCorruptAt(t, err, ext.First)
		require.Equal(t, w.steps, at)
		require.NoError(t, f.Close())
		flip(t, mem, OffsetOf(ext.First, 2048)+40, 4)
	}
}

func requireCorruptAt(t *testing.T, err error, page No) {
	t.Helper()
	require.ErrorIs(t, err, ErrCorrupt)
	var d *CorruptError
	require.ErrorAs(t, err, &d)
	require.Equal(t, page, d.Page)
	require.Equal(t, OffsetOf(page, 2048), d.Offset)
	require.Equal(t, pageFile, d.Path)
}

// A lost write and a misdirected write of an extent are detected, although a valid older extent is at that position.
func TestLostAndMisdirectedWrites(t *testing.T) {
	mem := newMem(t)
	fault := faultfs.New(mem)
	w := newWorld(t, fault, 2048, 6)
	for range 30 { // fills the reused position with valid old one-page extents
		ext, err := w.f.Alloc(1)
		require.NoError(t, err)
		require.NoError(t, w.f.WriteExtent(ext, KindPacked, []byte("old")))
		w.f.Free(ext)
		w.checkpoint()
	}
	fault.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.OpWrite {
			return faultfs.ErrDropped
		}
		return nil
	})
	stale := 0
	for range 600 {
		ext, err := w.f.Alloc(1)
		require.NoError(t, err)
		require.NoError(t, w.f.WriteExtent(ext, KindPacked, []byte("new")))
		_, _, err = w.f.ReadExtent(ext, nil)
		require.ErrorIs(t, err, ErrCorrupt)
		if _, _, err := w.f.ReadExtent(Extent{First: ext.First, Pages: 1}, nil); err == nil {
			stale++ // without Born an older extent is accepted as the new one
		}
	}
	require.Positive(t, stale)
	fault.SetHook(nil)

	a, err := w.f.Alloc(1)
	require.NoError(t, err)
	b, err := w.f.Alloc(1)
	require.NoError(t, err)
	require.NoError(t, w.f.WriteExtent(a, KindPacked, []byte("a")))
	buf, err := w.f.encode(nil, a, KindPacked, []byte("a"))
	require.NoError(t, err)
	require.ErrorIs(t, w.f.WriteExtents(b.First, buf), ErrMisuse)
	file, err := mem.OpenFile(pageFile, os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = file.WriteAt(buf, OffsetOf(b.First, 2048)) // simulates a misdirected write
	require.NoError(t, err)
	require.NoError(t, file.Close())
	_, _, err = w.f.ReadExtent(Extent{First: b.First, Pages: 1}, nil)
	require.Error(t, err)
	require.Contains(t, err.Error(), "misdirected write")
	requireCorruptAt(t, err, b.First)
	_, _, err = w.f.ReadExtent(Extent{First: 1 << 40, Pages: 1}, nil)
	require.ErrorIs(t, err, ErrCorrupt)
	require.NoError(t, w.f.Close())
}

// An extent of a checkpoint that was not completed before a crash is not accepted in place of a later extent.
func TestLostWritesAfterCrash(t *testing.T) {
	mem := newMem(t)
	w := newWorld(t, mem, 2048, 1)
	w.checkpoint()
	before, err := w.f.Alloc(1)
	require.NoError(t, err)
	require.NoError(t, w.f.WriteExtent(before, KindPacked, []byte("before the crash")))
	crashed := mem.CrashClone(rand.New(rand.NewSource(0)))
	for seed := int64(1); ; seed++ { // until the write survives
		file, err := crashed.OpenFile(pageFile, os.O_RDONLY, 0)
		require.NoError(t, err)
		b := make([]byte, 2048)
		_, _ = file.ReadAt(b, OffsetOf(before.First, 2048))
		require.NoError(t, file.Close())
		if _, _, err := DecodeExtent(b, 2048, before); err == nil {
			break
		}
		crashed = mem.CrashClone(rand.New(rand.NewSource(seed)))
	}
	fault := faultfs.New(crashed)
	f, err := Open(fault, pageFile, Options{})
	require.NoError(t, err)
	fault.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.OpWrite {
			return faultfs.ErrDropped
		}
		return nil
	})
	for range 600 {
		ext, err := f.Alloc(1)
		require.NoError(t, err)
		require.NoError(t, f.WriteExtent(ext, KindPacked, []byte("after the crash")))
		_, _, err = f.ReadExtent(ext, nil)
		require.ErrorIs(t, err, ErrCorrupt)
	}
	require.NoError(t, f.Close())
	require.NoError(t, w.f.Close())
}
