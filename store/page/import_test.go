// SPDX-License-Identifier: Apache-2.0

package page

import (
	"errors"
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
)

const importFile = "data/import.db"

// send copies the used pages of a pinned checkpoint, in parts, and calls between after each part.
func send(t *testing.T, f *File, pin *Pin, im *Importer, between func()) {
	t.Helper()
	for ext, err := range f.UsedExtents(pin) {
		require.NoError(t, err)
		for skip := uint32(0); skip < ext.Pages; skip += 16 {
			piece := ext.sub(skip, min(16, ext.Pages-skip))
			buf := make([]byte, int(piece.Pages)*f.PageSize())
			require.NoError(t, f.ReadPages(piece.First, buf))
			require.NoError(t, im.WriteAt(OffsetOf(piece.First, f.PageSize()), buf))
			between()
		}
	}
}

// An imported file has the content of the pinned checkpoint, although the source changes concurrently. The imported
// file can be changed.
func TestImportOfPinnedCheckpoint(t *testing.T) {
	for _, pageSize := range pageSizes {
		source := newWorld(t, newMem(t), pageSize, 3)
		for range 10 {
			source.step()
			source.checkpoint()
		}
		pin := source.f.Pin()
		target := newMem(t)
		o := ImportOptions{
			Meta: pin.Meta().Encode(), PageSize: pageSize, FileBytes: pin.Meta().FileBytes(),
			StoreID: [16]byte{77},
		}
		im, err := NewImporter(target, importFile, o)
		require.NoError(t, err)
		send(t, source.f, pin, im, func() {
			if source.rng.Intn(4) == 0 {
				source.step()
				source.checkpoint()
			}
		})
		_, err = Open(target.CrashClone(source.rng), importFile, Options{})
		require.Error(t, err, "not a page file before Finish")
		require.True(t, errIsAny(err, ErrNotPageFile, fs.ErrNotExist), "%v", err)
		require.NoError(t, im.Finish())
		im.Abort() // no effect after Finish
		require.Error(t, im.WriteAt(DataOffset, nil))
		require.Error(t, im.Finish())

		target = target.CrashClone(nil)
		f, err := Open(target, importFile, Options{})
		require.NoError(t, err)
		require.Equal(t, [16]byte{77}, f.StoreID())
		at, err := source.verify(f)
		require.NoError(t, err)
		require.Equal(t, pin.Meta().Position.LSN, at)
		require.NoError(t, f.Close())
		require.NoError(t, target.Rename(importFile, pageFile))
		copied := &world{t: t, rng: source.rng, next: source.next, states: source.states}
		copied.open(target)
		for range 5 {
			copied.step()
			copied.checkpoint()
		}
		copied.requireSound(copied.steps)
		require.NoError(t, copied.f.Close())
		pin.Release()
		require.NoError(t, source.f.Close())
	}
}

func errIsAny(err error, targets ...error) bool {
	for _, target := range targets {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// An importer rejects invalid metadata, invalid offsets and an incomplete file. Abort leaves no file.
func TestImportRejectsInvalidInput(t *testing.T) {
	source := newWorld(t, newMem(t), 2048, 3)
	source.step()
	source.checkpoint()
	defer func() { require.NoError(t, source.f.Close()) }()
	pin := source.f.Pin()
	defer pin.Release()
	target := newMem(t)
	meta := pin.Meta().Encode()

	_, err := NewImporter(target, importFile, ImportOptions{Meta: meta, PageSize: 4096})
	require.ErrorIs(t, err, ErrCorrupt)
	_, err = NewImporter(target, importFile, ImportOptions{Meta: meta, FileBytes: 1})
	require.ErrorIs(t, err, ErrCorrupt)
	_, err = NewImporter(target, importFile, ImportOptions{Meta: meta[:len(meta)-1]})
	require.ErrorIs(t, err, ErrCorrupt)
	_, err = target.Stat(importFile)
	require.ErrorIs(t, err, fs.ErrNotExist, "no file was created")

	im, err := NewImporter(target, importFile, ImportOptions{Meta: meta})
	require.NoError(t, err)
	for _, offset := range []int64{-1, 0, slotOffset(0), DataOffset - 1, pin.Meta().FileBytes() - 1, 1 << 62} {
		require.ErrorIs(t, im.WriteAt(offset, []byte("xy")), ErrMisuse)
	}
	require.ErrorIs(t, im.Finish(), ErrCorrupt, "missing bitmap")
	_, err = Open(target, importFile, Options{})
	require.ErrorIs(t, err, ErrNotPageFile)

	im, err = NewImporter(target, importFile, ImportOptions{Meta: meta})
	require.NoError(t, err)
	send(t, source.f, pin, im, func() {})
	im.Abort()
	im.Abort()
	_, err = target.Stat(importFile)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// After a crash in an import, the file has the whole content or does not open.
func TestCrashInImport(t *testing.T) {
	source := newWorld(t, newMem(t), 4096, 3)
	for range 3 {
		source.step()
		source.checkpoint()
	}
	pin := source.f.Pin()
	c := newCrasher(t, 1, 30)
	c.start()
	im, err := NewImporter(c.fault, importFile, ImportOptions{Meta: pin.Meta().Encode()})
	require.NoError(t, err)
	send(t, source.f, pin, im, func() {})
	require.NoError(t, im.Finish())
	complete := 0
	for _, crash := range c.stop() {
		f, err := Open(crash.fs, importFile, Options{})
		if err != nil {
			require.NotEqual(t, "the end", crash.op)
			require.True(t, errIsAny(err, ErrNotPageFile, ErrCorrupt, fs.ErrNotExist), "%v", err)
			continue
		}
		complete++
		_, err = source.verify(f)
		require.NoError(t, err, "crash before %s", crash.op)
		require.NoError(t, f.Close())
	}
	require.Positive(t, complete)
	pin.Release()
	require.NoError(t, source.f.Close())
}

// Open finds the used pages of a file with several bitmap directory pages.
func TestManyDirectoryPages(t *testing.T) {
	mem := faultfs.New(newMem(t))
	w := newWorld(t, mem, 2048, 3)
	size := w.f.geo.chunkPages()
	var extents []Extent
	for range 2 * w.f.geo.leafChunks() {
		ext, err := w.f.Alloc(uint32(size) - 1)
		require.NoError(t, err)
		extents = append(extents, ext)
	}
	for i, ext := range extents {
		if i%3 > 0 {
			w.f.Free(ext)
		}
	}
	want := w.f.Stats().Used
	m, err := w.f.Checkpoint(Meta{Root: extents[0]})
	require.NoError(t, err)
	require.Len(t, m.leaves, 3)
	own := m.UsedPages - want
	require.Greater(t, own, uint64(200))
	pin := w.f.Pin()
	list, err := w.f.OwnExtents(pin)
	require.NoError(t, err)
	require.Len(t, list, int(own))
	require.Len(t, pagesOf(t, w.f, pin), int(m.UsedPages))
	pin.Release()
	require.NoError(t, w.f.Close())
	f, err := Open(mem, pageFile, Options{})
	require.NoError(t, err)
	require.Equal(t, m.UsedPages, f.Stats().Used)
	for i, ext := range extents {
		require.Equal(t, i%3 == 0, f.space.isLive(uint64(ext.First)-1, uint64(ext.Pages)))
	}
	require.NoError(t, f.Close())
}
