// SPDX-License-Identifier: Apache-2.0

package faultfs_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
	"github.com/lockstep-mq/lockstep/test/vfs/vfstest"
)

func TestWriteBackConformance(t *testing.T) {
	vfstest.Run(t, func(t *testing.T) (vfs.FS, string) {
		w := faultfs.NewWriteBack(vfs.OS())
		w.Hold(true, 0.3, 1)
		return w, t.TempDir()
	})
}

// The inner filesystem contains only synced data. Unsynced data stays with a file that is renamed or reopened.
func TestWriteBackBuffersUnsyncedData(t *testing.T) {
	under := vfs.OS()
	w := faultfs.NewWriteBack(under)
	dir := t.TempDir()
	name := filepath.Join(dir, "a")
	f := vfstest.Open(t, w, name, vfstest.Create)
	vfstest.Write(t, f, 0, "before")
	require.Equal(t, "before", vfstest.Content(t, under, name), "no buffering before Hold")

	w.Hold(true, 0, 1)
	vfstest.Write(t, f, 4, "XX and more")
	require.Equal(t, "befoXX and more", vfstest.Content(t, w, name))
	require.Equal(t, "before", vfstest.Content(t, under, name))
	info, err := w.Stat(name)
	require.NoError(t, err)
	require.EqualValues(t, 15, info.SizeBytes)

	// a renamed and reopened file
	moved := filepath.Join(dir, "b")
	require.NoError(t, w.Rename(name, moved))
	require.Equal(t, "befoXX and more", vfstest.Content(t, w, moved))
	require.Equal(t, "before", vfstest.Content(t, under, moved))
	require.NoError(t, f.Close())
	again := vfstest.Open(t, w, moved, os.O_RDWR)
	w.Hold(false, 0, 1)
	vfstest.Write(t, again, 0, "B")
	require.Equal(t, "before", vfstest.Content(t, under, moved), "later writes are buffered, too")
	require.NoError(t, again.Sync())
	require.Equal(t, "BefoXX and more", vfstest.Content(t, under, moved))

	// a file in a renamed directory
	w.Hold(true, 0, 1)
	require.NoError(t, w.MkdirAll(filepath.Join(dir, "old"), 0o700))
	inner := vfstest.Open(t, w, filepath.Join(dir, "old", "c"), vfstest.Create)
	vfstest.Write(t, inner, 0, "held")
	require.NoError(t, w.Rename(filepath.Join(dir, "old"), filepath.Join(dir, "new")))
	require.Equal(t, "held", vfstest.Content(t, w, filepath.Join(dir, "new", "c")))
	require.Empty(t, vfstest.Content(t, under, filepath.Join(dir, "new", "c")))
	require.NoError(t, w.Remove(filepath.Join(dir, "new", "c")))
	vfstest.Open(t, w, filepath.Join(dir, "new", "c"), vfstest.Create)
	require.Empty(t, vfstest.Content(t, w, filepath.Join(dir, "new", "c")), "no data of the removed file")
}

// SyncRange writes only the sectors of the range.
func TestWriteBackSyncRange(t *testing.T) {
	under := vfs.OS()
	w := faultfs.NewWriteBack(under)
	name := filepath.Join(t.TempDir(), "a")
	f := vfstest.Open(t, w, name, vfstest.Create)
	require.NoError(t, f.Allocate(0, 4096))
	require.NoError(t, f.Sync())
	w.Hold(true, 0, 1)
	vfstest.Write(t, f, 0, string(bytes.Repeat([]byte("x"), 4096)))
	require.NoError(t, f.SyncRange(1024, 1024))
	want := append(append(make([]byte, 1024), bytes.Repeat([]byte("x"), 1024)...), make([]byte, 2048)...)
	require.Equal(t, string(want), vfstest.Content(t, under, name))
}

// With a leak fraction, some sectors are written immediately, each completely.
func TestWriteBackLeaksSectors(t *testing.T) {
	under := vfs.OS()
	w := faultfs.NewWriteBack(under)
	name := filepath.Join(t.TempDir(), "a")
	f := vfstest.Open(t, w, name, vfstest.Create)
	require.NoError(t, f.Allocate(0, 100*512))
	require.NoError(t, f.Sync())
	w.Hold(true, 0.5, 7)
	vfstest.Write(t, f, 0, string(bytes.Repeat([]byte("y"), 100*512)))
	data := vfstest.Content(t, under, name)
	leaked, held := 0, 0
	for at := 0; at < len(data); at += 512 {
		switch data[at : at+512] {
		case string(bytes.Repeat([]byte("y"), 512)):
			leaked++
		case string(make([]byte, 512)):
			held++
		}
	}
	require.Equal(t, 100, leaked+held)
	require.Greater(t, leaked, 20)
	require.Greater(t, held, 20)
}

// After random operations, reads return the same data as reads of a memfs. After each sync, the inner filesystem has
// the same content.
func TestWriteBackModel(t *testing.T) {
	const limit = 8000
	under := vfs.OS()
	w := faultfs.NewWriteBack(under)
	name := filepath.Join(t.TempDir(), "a")
	model := vfstest.Open(t, memfs.New(), "a", vfstest.Create)
	f := vfstest.Open(t, w, name, vfstest.Create)
	rng := rand.New(rand.NewPCG(1, 2))
	for step := range 3000 {
		off, n := rng.Int64N(limit), rng.Int64N(2000)+1
		both := func(do func(vfs.File) error) {
			require.NoError(t, do(f), "step %d", step)
			require.NoError(t, do(model))
		}
		switch rng.IntN(12) {
		case 0:
			w.Hold(rng.IntN(3) > 0, []float64{0, 0.5}[rng.IntN(2)], uint64(step))
		case 1:
			both(func(f vfs.File) error { return f.Truncate(off) })
		case 2:
			both(func(f vfs.File) error { return f.Allocate(off, n) })
		case 3:
			both(vfs.File.Sync)
			require.Equal(t, vfstest.Content(t, w, name), vfstest.Content(t, under, name), "step %d", step)
		default:
			p := bytes.Repeat([]byte{byte(step)}, int(n))
			both(func(f vfs.File) error { _, err := f.WriteAt(p, off); return err })
		}
		want, got := make([]byte, 2*limit), make([]byte, 2*limit)
		wn, werr := model.ReadAt(want, off/2)
		gn, gerr := f.ReadAt(got, off/2)
		require.Equal(t, werr, gerr, "step %d", step)
		require.Equal(t, want[:wn], got[:gn], "step %d", step)
	}
}
