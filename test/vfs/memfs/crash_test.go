// SPDX-License-Identifier: Apache-2.0

package memfs_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
	"github.com/lockstep-mq/lockstep/test/vfs/vfstest"
)

func exists(t *testing.T, fsys vfs.FS, name string) bool {
	t.Helper()
	_, err := fsys.Stat(name)
	if err != nil {
		require.ErrorIs(t, err, fs.ErrNotExist)
	}
	return err == nil
}

// Without a random source, a crash clone contains only synced names, data and sizes.
func TestCrashKeepsSyncedData(t *testing.T) {
	mem := memfs.New()
	require.NoError(t, mem.MkdirAll("d/e", 0o700))
	f := vfstest.Open(t, mem, "d/a", vfstest.Create)
	vfstest.Write(t, f, 0, "one")
	require.NoError(t, f.Sync())

	require.False(t, exists(t, mem.CrashClone(nil), "d"), "the name of the directory was not synced")
	require.NoError(t, mem.SyncDir("."))
	require.False(t, exists(t, mem.CrashClone(nil), "d/a"), "the name of the file was not synced")
	require.NoError(t, mem.SyncDir("/d"))
	require.Equal(t, "one", vfstest.Content(t, mem.CrashClone(nil), "d/a"))
	require.True(t, exists(t, mem.CrashClone(nil), "d/e"))

	vfstest.Write(t, f, 0, "two, and longer")
	require.NoError(t, mem.Remove("d/e"))
	clone := mem.CrashClone(nil)
	require.Equal(t, "one", vfstest.Content(t, clone, "d/a"))
	require.True(t, exists(t, clone, "d/e"))

	require.NoError(t, f.Truncate(1))
	require.Equal(t, "one", vfstest.Content(t, mem.CrashClone(nil), "d/a"))
	require.NoError(t, f.Sync())
	require.Equal(t, "t", vfstest.Content(t, mem.CrashClone(nil), "d/a"))
	require.Equal(t, "t", vfstest.Content(t, mem.CrashClone(rand.New(rand.NewSource(1))), "d/a"))
}

// Writes to a clone do not change the original, and vice versa. A clone has no locks.
func TestCrashClonesAreIndependent(t *testing.T) {
	mem := memfs.New()
	f := vfstest.Open(t, mem, "a", vfstest.Create)
	vfstest.Write(t, f, 0, string(bytes.Repeat([]byte("x"), 9000)))
	require.NoError(t, f.Sync())
	require.NoError(t, mem.SyncDir("."))
	held, err := mem.Lock("lock")
	require.NoError(t, err)
	defer func() { require.NoError(t, held.Close()) }()

	clone := mem.CrashClone(nil)
	vfstest.Write(t, f, 5, "original")
	g := vfstest.Open(t, clone, "a", os.O_RDWR)
	vfstest.Write(t, g, 8000, "clone")
	require.Equal(t, "xxxxxoriginal", vfstest.Content(t, mem, "a")[:13])
	require.NotContains(t, vfstest.Content(t, mem, "a"), "clone")
	require.NotContains(t, vfstest.Content(t, clone, "a"), "original")
	lock, err := clone.Lock("lock")
	require.NoError(t, err, "no lock in the clone")
	require.NoError(t, lock.Close())
}

// Unsynced sectors survive independently of each other. All or none of them may survive. The same seed results in
// the same clone.
func TestCrashTearsUnsyncedWrites(t *testing.T) {
	mem := memfs.New()
	f := vfstest.Open(t, mem, "a", vfstest.Create)
	vfstest.Write(t, f, 0, string(bytes.Repeat([]byte("-"), 8*512)))
	require.NoError(t, f.Sync())
	require.NoError(t, mem.SyncDir("."))
	vfstest.Write(t, f, 0, string(bytes.Repeat([]byte("+"), 8*512)))
	seen := map[string]int{}
	for seed := range int64(300) {
		got := vfstest.Content(t, mem.CrashClone(rand.New(rand.NewSource(seed))), "a")
		require.Equal(t, got, vfstest.Content(t, mem.CrashClone(rand.New(rand.NewSource(seed))), "a"),
			"same seed")
		pattern := ""
		for s := range 8 {
			sector := got[s*512 : (s+1)*512]
			require.Contains(t, []string{
				string(bytes.Repeat([]byte("-"), 512)),
				string(bytes.Repeat([]byte("+"), 512)),
			}, sector)
			pattern += sector[:1]
		}
		seen[pattern]++
	}
	require.Greater(t, seen["--------"], 20)
	require.Greater(t, seen["++++++++"], 20)
	require.Greater(t, len(seen), 30)
}

// After a crash, a file has its synced size, its unsynced size, or a size in between. Unchanged synced data survives.
func TestFileSizeAfterCrash(t *testing.T) {
	mem := memfs.New()
	f := vfstest.Open(t, mem, "a", vfstest.Create)
	vfstest.Write(t, f, 0, string(bytes.Repeat([]byte("-"), 5000)))
	require.NoError(t, f.Sync())
	require.NoError(t, mem.SyncDir("."))
	require.NoError(t, f.Truncate(100))
	vfstest.Write(t, f, 9000, string(bytes.Repeat([]byte("+"), 3000)))
	sizes := map[int]bool{}
	for seed := range int64(200) {
		got := vfstest.Content(t, mem.CrashClone(rand.New(rand.NewSource(seed))), "a")
		require.Equal(t, string(bytes.Repeat([]byte("-"), 100)), got[:100], "unchanged synced data")
		require.True(t, len(got) >= 5000 && len(got) <= 12000, "size %d", len(got))
		sizes[len(got)] = true
	}
	require.True(t, sizes[5000] && sizes[12000] && len(sizes) > 5, "%v", sizes)
}

// After a crash, a renamed file has exactly one of its names. An operation does not survive if an earlier operation on
// the same file is lost.
func TestRenameIsAtomicInCrash(t *testing.T) {
	outcomes := map[string]bool{}
	for seed := range int64(300) {
		mem := memfs.New()
		require.NoError(t, mem.MkdirAll("x", 0o700))
		require.NoError(t, mem.MkdirAll("y", 0o700))
		require.NoError(t, vfs.WriteFileAtomic(mem, "x/a", []byte("old")))
		require.NoError(t, mem.SyncDir("."))
		f := vfstest.Open(t, mem, "x/b", vfstest.Create)
		vfstest.Write(t, f, 0, "new")
		require.NoError(t, f.Sync())
		require.NoError(t, mem.Rename("x/b", "x/a"))
		require.NoError(t, mem.Rename("x/a", "y/a"))
		c := mem.CrashClone(rand.New(rand.NewSource(seed)))
		state := ""
		for _, name := range []string{"x/a", "x/b", "y/a"} {
			if exists(t, c, name) {
				state += fmt.Sprintf("%s=%s ", name, vfstest.Content(t, c, name))
			}
		}
		outcomes[state] = true
	}
	require.Equal(t, map[string]bool{
		"x/a=old ": true, "x/a=old x/b=new ": true, "x/a=new ": true, "y/a=new ": true,
	}, outcomes)
}

// A sync of the old or the new directory makes a rename between directories durable.
func TestSyncOfEitherDirectoryMakesRenameDurable(t *testing.T) {
	for _, dir := range []string{"x", "y"} {
		mem := memfs.New()
		require.NoError(t, mem.MkdirAll("x", 0o700))
		require.NoError(t, mem.MkdirAll("y", 0o700))
		require.NoError(t, vfs.WriteFileAtomic(mem, "x/a", []byte("1")))
		require.NoError(t, mem.SyncDir("."))
		require.NoError(t, mem.Rename("x/a", "y/a"))
		require.NoError(t, mem.SyncDir(dir))
		c := mem.CrashClone(nil)
		require.False(t, exists(t, c, "x/a"))
		require.Equal(t, "1", vfstest.Content(t, c, "y/a"))
	}
}

// After a crash during WriteFileAtomic, the file has the old or the new content.
func TestCrashDuringWriteFileAtomic(t *testing.T) {
	mem := memfs.New()
	fault := faultfs.New(mem)
	require.NoError(t, vfs.WriteFileAtomic(mem, "a", []byte("old")))
	rng := rand.New(rand.NewSource(3))
	crashes := 0
	fault.SetHook(func(faultfs.Op) error {
		for range 20 {
			got := vfstest.Content(t, mem.CrashClone(rng), "a")
			require.Contains(t, []string{"old", "newer"}, got)
			crashes++
		}
		return nil
	})
	require.NoError(t, vfs.WriteFileAtomic(fault, "a", []byte("newer")))
	require.Equal(t, "newer", vfstest.Content(t, mem.CrashClone(nil), "a"))
	require.Greater(t, crashes, 80)
}

// Writes above the capacity fail with ENOSPC. A removed file uses space until it is closed.
func TestCapacity(t *testing.T) {
	mem := memfs.New()
	mem.SetCapacity(10 * 4096)
	f := vfstest.Open(t, mem, "a", vfstest.Create)
	require.NoError(t, f.Allocate(0, 8*4096))
	g := vfstest.Open(t, mem, "b", vfstest.Create)
	_, err := g.WriteAt(make([]byte, 3*4096), 0)
	require.ErrorIs(t, err, syscall.ENOSPC)
	vfstest.Write(t, f, 0, string(make([]byte, 8*4096)))
	vfstest.Write(t, g, 0, "x")
	u, err := mem.Usage(".")
	require.NoError(t, err)
	require.EqualValues(t, 1*4096, u.AvailableBytes)

	require.NoError(t, mem.Remove("a"))
	u, _ = mem.Usage(".")
	require.EqualValues(t, 1*4096, u.AvailableBytes, "removed file is still open")
	require.NoError(t, f.Close())
	u, _ = mem.Usage(".")
	require.EqualValues(t, 9*4096, u.AvailableBytes)
	u, err = mem.CrashClone(rand.New(rand.NewSource(1))).Usage(".")
	require.NoError(t, err)
	require.LessOrEqual(t, u.AvailableBytes, uint64(10*4096))
	require.Contains(t, mem.String(), "4096 of 40960")
}
