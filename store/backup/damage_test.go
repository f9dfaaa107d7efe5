// SPDX-License-Identifier: Apache-2.0

package backup_test

import (
	"context"
	"io/fs"
	"math/rand/v2"
	"testing"

	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
	"github.com/stretchr/testify/require"
)

// refused verifies that Verify and Restore reject a backup.
func refused(t *testing.T, mem *memfs.FS, set backup.Set, what string, want ...error) {
	t.Helper()
	is := func(err error) {
		t.Helper()
		require.Error(t, err, what)
		for _, w := range want {
			if errorsIs(err, w) {
				return
			}
		}
		require.Fail(t, "another error", "%s: %v", what, err)
	}
	_, err := backup.Verify(context.Background(), set.Path, backup.VerifyOptions{FS: mem})
	is(err)
	_, err = backup.Restore(context.Background(), set.Path, "/restored", backup.RestoreOptions{FS: mem})
	is(err)
	_, err = mem.Stat("/restored")
	require.ErrorIs(t, err, fs.ErrNotExist, "nothing was written")
}

func smallBackup(t *testing.T) (*memfs.FS, backup.Set) {
	t.Helper()
	mem := memfs.New()
	n := openNode(t, mem, "/data", 2048)
	n.steps(12)
	set := n.backup("/backups")
	return mem.CrashClone(nil), set
}

// A flipped bit at any position of a backup is detected.
func TestFlippedBitsAreDetected(t *testing.T) {
	mem, set := smallBackup(t)
	rng := rand.New(rand.NewPCG(1, 2))
	manifest := set.Path + "/manifest.json"
	raw, err := vfs.ReadFile(mem, manifest, 1<<20)
	require.NoError(t, err)
	for i := range raw { // each byte, since a JSON decoder ignores some of them
		require.NoError(t, vfs.WriteFileAtomic(mem, manifest, flip(raw, i*8+rng.IntN(8))))
		refused(t, mem, set, "manifest", backup.ErrCorrupt)
		sets, err := backup.List(t.Context(), backup.Directory(mem, "/backups"))
		require.NoError(t, err)
		require.False(t, sets[0].Complete)
	}
	require.NoError(t, vfs.WriteFileAtomic(mem, manifest, raw))

	pack := set.Path + "/pages.pack"
	raw, err = vfs.ReadFile(mem, pack, 1<<20)
	require.NoError(t, err)
	for i := range 300 {
		bit := rng.IntN(len(raw) * 8)
		if i < 64 {
			bit = i * 8 // the headers of the file and of the first record
		}
		require.NoError(t, vfs.WriteFileAtomic(mem, pack, flip(raw, bit)))
		refused(t, mem, set, "pack", backup.ErrCorrupt, backup.ErrNewerVersion)
	}
	require.NoError(t, vfs.WriteFileAtomic(mem, pack, raw))
	_, err = backup.Verify(context.Background(), set.Path, backup.VerifyOptions{FS: mem})
	require.NoError(t, err)
}

func flip(b []byte, bit int) []byte {
	c := append([]byte(nil), b...)
	c[bit/8] ^= 1 << (bit % 8)
	return c
}

// A backup with a truncated, extended or missing file is rejected.
func TestTruncatedBackup(t *testing.T) {
	mem, set := smallBackup(t)
	for _, name := range []string{"manifest.json", "pages.pack"} {
		path := set.Path + "/" + name
		raw, err := vfs.ReadFile(mem, path, 1<<20)
		require.NoError(t, err)
		for _, left := range []int{0, 1, len(raw) / 2, len(raw) - 1} {
			require.NoError(t, vfs.WriteFileAtomic(mem, path, raw[:left]))
			refused(t, mem, set, name, backup.ErrIncomplete, backup.ErrCorrupt)
		}
		require.NoError(t, vfs.WriteFileAtomic(mem, path, append(append([]byte(nil), raw...), 0)))
		refused(t, mem, set, name, backup.ErrIncomplete, backup.ErrCorrupt)
		require.NoError(t, mem.Remove(path))
		refused(t, mem, set, name, backup.ErrIncomplete)
		good, bad := mustList(t, mem, "/backups")
		require.Empty(t, good)
		require.Len(t, bad, 1)
		require.NoError(t, vfs.WriteFileAtomic(mem, path, raw))
	}
}

// A restore verifies the data again while it copies it.
func TestCorruptionDuringRestore(t *testing.T) {
	mem, set := smallBackup(t)
	fault := faultfs.New(mem)
	reads := 0
	fault.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.OpRead && op.Name == set.Path+"/pages.pack" && op.Length > 1000 {
			if reads++; reads == 2 {
				return &faultfs.FlipBit{Bit: 8 * 5000}
			}
		}
		return nil
	})
	_, err := backup.Restore(context.Background(), set.Path, "/restored",
		backup.RestoreOptions{FS: fault, SegmentBytes: 64 << 10})
	require.ErrorIs(t, err, backup.ErrCorrupt)
	names, err := mem.ReadDir("/restored")
	require.NoError(t, err)
	require.Equal(t, []string{"lock"}, names)
}

// A restore into a directory that is in use or not empty is rejected, except for an empty lost+found.
func TestRestoreIntoNonEmptyDirectory(t *testing.T) {
	ctx := context.Background()
	mem := memfs.New()
	n := openNode(t, mem, "/data", 2048)
	n.steps(12)
	set := n.backup("/backups")
	o := backup.RestoreOptions{FS: mem, SegmentBytes: 64 << 10}
	_, err := backup.Restore(ctx, set.Path, "/data", o)
	require.ErrorIs(t, err, datadir.ErrNotEmpty)
	require.NoError(t, mem.MkdirAll("/target", 0o700))
	require.NoError(t, vfs.WriteFileAtomic(mem, "/target/notes.txt", []byte("mine")))
	_, err = backup.Restore(ctx, set.Path, "/target", o)
	require.ErrorIs(t, err, datadir.ErrNotEmpty)
	names, err := mem.ReadDir("/target")
	require.NoError(t, err)
	require.Equal(t, []string{"notes.txt"}, names)

	require.NoError(t, mem.Remove("/target/notes.txt"))
	require.NoError(t, mem.MkdirAll("/target/lost+found", 0o700))
	_, err = backup.Restore(ctx, set.Path, "/target", o)
	require.NoError(t, err)
	_, err = backup.Restore(ctx, set.Path, "/target", o)
	require.ErrorIs(t, err, datadir.ErrNotEmpty, "a finished restore is a data directory")
	require.Equal(t, n.history[12], dumpStore(t, restored(t, mem, "/target")))
}

// The error for a missing backup contains its path.
func TestLoadMissingBackup(t *testing.T) {
	_, err := backup.Load(t.Context(), backup.Directory(memfs.New(), "/"), "none")
	require.ErrorIs(t, err, backup.ErrIncomplete)
	require.Contains(t, err.Error(), "/none")
}
