// SPDX-License-Identifier: Apache-2.0

package page

import (
	"io/fs"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/vfs"
)

// cacheFS records the calls that control the page cache.
type cacheFS struct {
	vfs.FS

	mu      sync.Mutex
	dropped []byteRange
	behind  int64 // bytes of WriteBehind calls
}

func (c *cacheFS) OpenFile(name string, flag int, perm fs.FileMode) (vfs.File, error) {
	f, err := c.FS.OpenFile(name, flag, perm)
	return cacheFile{File: f, fs: c}, err
}

// takeDropped returns the ranges dropped since the last call.
func (c *cacheFS) takeDropped() []byteRange {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.dropped
	c.dropped = nil
	return d
}

type cacheFile struct {
	vfs.File

	fs *cacheFS
}

func (c cacheFile) WriteBehind(_, length int64) {
	c.fs.mu.Lock()
	defer c.fs.mu.Unlock()
	c.fs.behind += length
}

func (c cacheFile) CachedBytes(_, length int64) (int64, bool) { return length, true }

func (c cacheFile) ReadExactly(p []byte, offset int64) (int, error) { return c.ReadAt(p, offset) }

func (c cacheFile) WriteUncached(p []byte, offset int64) (int, error) { return c.WriteAt(p, offset) }

func (c cacheFile) ReadUncached(p []byte, offset int64) (int, error) { return c.ReadAt(p, offset) }

func (c cacheFile) DropCache(offset, length int64) {
	c.fs.mu.Lock()
	defer c.fs.mu.Unlock()
	c.fs.dropped = append(c.fs.dropped, byteRange{offset, offset + length})
}

// covers reports whether one of the ranges contains an extent.
func covers(in []byteRange, f *File, ext Extent) bool {
	for _, s := range in {
		if s.from <= f.geo.offset(ext.First) && f.geo.offset(ext.End()) <= s.to {
			return true
		}
	}
	return false
}

// With AvoidCache, written extents are evicted from the page cache once the checkpoint's sync has made them durable.
func TestAvoidCache(t *testing.T) {
	t.Parallel()
	fsys := &cacheFS{FS: newMem(t)}
	w := newWorld(t, fsys, 2048, 1)
	defer func() { require.NoError(t, w.f.Close()) }()
	w.add(50)
	w.checkpoint()
	require.Empty(t, fsys.takeDropped(), "UseCache is the default")

	w.f.UseCache(vfs.AvoidCache)
	old := len(w.extents)
	for range 20 {
		w.add(5)
	}
	require.Empty(t, fsys.takeDropped(), "not durable yet")
	w.checkpoint()
	dropped := fsys.takeDropped()
	require.Less(t, len(dropped), 20, "adjacent ranges are dropped together")
	fresh := 0
	for _, ext := range w.extents {
		if covers(dropped, w.f, ext) {
			fresh++
		}
	}
	require.Equal(t, len(w.extents)-old, fresh, "only the writes of this checkpoint")

	ext, err := w.f.Alloc(1)
	require.NoError(t, err)
	w.f.UseCache(vfs.UseCache)
	require.NoError(t, w.f.WriteExtent(ext, KindPacked, nil))
	w.f.Free(ext)
	w.checkpoint()
	require.Empty(t, fsys.takeDropped())
}

// Writeback of a large write starts before the checkpoint's sync.
func TestWriteBehind(t *testing.T) {
	t.Parallel()
	fsys := &cacheFS{FS: newMem(t)}
	f, err := Create(fsys, pageFile, CreateOptions{PageSize: 2048})
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	for _, size := range []int{writeBytes / 2, 2 * writeBytes} {
		ext, err := f.Alloc(f.PagesFor(size))
		require.NoError(t, err)
		fsys.behind = 0
		require.NoError(t, f.WriteExtent(ext, KindLarge, make([]byte, size)))
		if size < writeBytes {
			require.Zero(t, fsys.behind)
		} else {
			require.Equal(t, int64(ext.Pages)*2048, fsys.behind)
		}
	}
}

// Built and imported files do not stay in the page cache.
func TestBuiltAndImportedFilesAreNotCached(t *testing.T) {
	t.Parallel()
	fsys := &cacheFS{FS: newMem(t)}
	b, err := NewBuilder(fsys, pageFile, BuildOptions{PageSize: 2048, Checkpoint: 1})
	require.NoError(t, err)
	var extents []Extent
	for range 20 {
		ext, err := b.End(append(b.Begin(), make([]byte, writeBytes)...), KindLarge)
		require.NoError(t, err)
		extents = append(extents, ext)
	}
	_, err = b.Finish(Meta{})
	require.NoError(t, err)
	f, err := Open(fsys, pageFile, Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	dropped := fsys.takeDropped()
	require.True(t, covers(dropped, f, Extent{First: 1, Pages: extents[0].Pages}))

	pin := f.Pin()
	defer pin.Release()
	im, err := NewImporter(fsys, importFile, ImportOptions{Meta: pin.Meta().Encode()})
	require.NoError(t, err)
	send(t, f, pin, im, func() {})
	require.NoError(t, im.Finish())
	require.True(t, covers(fsys.takeDropped(), f, Extent{First: 1, Pages: 1}))
}
