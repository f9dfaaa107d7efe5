// SPDX-License-Identifier: Apache-2.0

package page_test

import (
	"bytes"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// A file of a Builder with several bitmap chunks is durable, contains every extent, and can be changed.
func TestBuiltFile(t *testing.T) {
	mem := memfs.New()
	require.NoError(t, mem.MkdirAll("/d", 0o700))
	require.NoError(t, mem.SyncDir("/"))
	b, err := page.NewBuilder(mem, "/d/p", page.BuildOptions{
		PageSize: 2048, Checkpoint: 41, StoreID: [16]byte{5},
		FileBytes: 1 << 20,
	})
	require.NoError(t, err)
	var extents []page.Extent
	for i := range 3000 {
		buf := append(b.Begin(), bytes.Repeat([]byte{byte(i)}, i*11%30_000)...)
		ext, err := b.End(buf, page.KindPacked)
		require.NoError(t, err)
		extents = append(extents, ext)
	}
	total, bitmap, size := page.BuiltSize(2048, b.Pages())
	require.Greater(t, bitmap, uint64(2))
	meta, err := b.Finish(page.Meta{Root: extents[7]})
	require.NoError(t, err)
	require.Equal(t, total, meta.Pages)
	require.Equal(t, size, meta.FileBytes())

	f, err := page.Open(mem.CrashClone(nil), "/d/p", page.Options{}) // the file is durable
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	require.Equal(t, [16]byte{5}, f.StoreID())
	require.Greater(t, f.Meta().Checkpoint, uint64(41))
	require.Equal(t, extents[7], f.Meta().Root)
	for i, ext := range extents {
		_, payload, err := f.ReadExtent(ext, nil)
		require.NoError(t, err)
		require.Equal(t, bytes.Repeat([]byte{byte(i)}, i*11%30_000), payload)
	}
	pin := f.Pin()
	var used uint64
	for ext, err := range f.UsedExtents(pin) {
		require.NoError(t, err)
		used += uint64(ext.Pages)
	}
	require.Equal(t, total, used, "all pages are used")
	pin.Release()
	f.Free(extents[9])
	_, err = f.Checkpoint(page.Meta{Root: extents[7]})
	require.NoError(t, err)
}

// Abort removes the file, even if the disk is full. After a crash during a build, Open rejects the file.
func TestUnfinishedBuild(t *testing.T) {
	mem := memfs.New()
	require.NoError(t, mem.MkdirAll("/d", 0o700))
	require.NoError(t, mem.SyncDir("/"))
	fault := faultfs.New(mem)
	o := page.BuildOptions{PageSize: 4096, Checkpoint: 2}
	fill := func(b *page.Builder) error {
		for range 2000 {
			if _, err := b.End(append(b.Begin(), make([]byte, 9000)...), page.KindLarge); err != nil {
				return err
			}
		}
		return nil
	}
	b, err := page.NewBuilder(fault, "/d/p", o)
	require.NoError(t, err)
	require.NoError(t, fill(b))
	half := mem.CrashClone(nil)
	_, err = page.Open(half, "/d/p", page.Options{})
	require.Error(t, err, "truncated file")
	b.Abort()
	names, err := mem.ReadDir("/d")
	require.NoError(t, err)
	require.Empty(t, names)

	for _, kind := range []faultfs.OpKind{faultfs.OpWrite, faultfs.OpAllocate} {
		fault.SetHook(func(op faultfs.Op) error {
			if op.Kind == kind {
				return fmt.Errorf("test: %w", syscall.ENOSPC)
			}
			return nil
		})
		o.FileBytes = 1 << 20
		b, err := page.NewBuilder(fault, "/d/p", o)
		if err == nil {
			err = fill(b)
			b.Abort()
		}
		require.ErrorIs(t, err, page.ErrFull)
		names, err = mem.ReadDir("/d")
		require.NoError(t, err)
		require.Empty(t, names)
	}
}
