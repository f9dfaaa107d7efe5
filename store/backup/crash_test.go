// SPDX-License-Identifier: Apache-2.0

package backup_test

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// changes reports whether an operation changes the disk.
func changes(k faultfs.OpKind) bool {
	switch k {
	case faultfs.OpCreate, faultfs.OpWrite, faultfs.OpSync, faultfs.OpTruncate, faultfs.OpAllocate,
		faultfs.OpRemove, faultfs.OpRename, faultfs.OpMkdir, faultfs.OpSyncDir:
		return true
	default:
		return false
	}
}

// crashEverywhere runs do. For each change of the disk, it calls check with the disk as it is after a power failure
// before the change. The last call is for a power failure at the end.
func crashEverywhere(t *testing.T, mem *memfs.FS, fault *faultfs.FS, do func(), check func(step int, after *memfs.FS)) {
	t.Helper()
	var mu sync.Mutex // the log preallocates segments in the background
	var clones []*memfs.FS
	fault.SetHook(func(op faultfs.Op) error {
		if changes(op.Kind) {
			mu.Lock()
			defer mu.Unlock()
			seed := int64(len(clones))
			if seed%3 == 0 {
				clones = append(clones, mem.CrashClone(nil))
			}
			clones = append(clones, mem.CrashClone(crashRand(seed)))
		}
		return nil
	})
	do()
	fault.SetHook(nil)
	mu.Lock() // an operation that loaded the hook earlier may still run in it
	defer mu.Unlock()
	clones = append(clones, mem.CrashClone(nil))
	t.Logf("%d crashes", len(clones))
	for step, c := range clones {
		check(step, c)
	}
}

// After a crash at any step of a backup that replaces older generations, all listed backups are complete, and the next
// backup removes partial files.
func TestBackupAfterCrash(t *testing.T) {
	ctx := context.Background()
	mem := memfs.New()
	fault := faultfs.New(mem)
	n := openNode(t, fault, "/data", 2048)
	before := map[string]bool{}
	for range 2 {
		n.steps(20)
		before[n.backup("/backups").Name] = true
	}
	n.steps(20)
	n.checkpoint()
	var set backup.Set
	crashEverywhere(t, mem, fault, func() {
		o := n.options("/backups")
		o.KeepGenerations = 2
		var err error
		set, err = backup.Run(ctx, n.s, o)
		require.NoError(t, err)
	}, func(step int, after *memfs.FS) {
		good, bad := mustList(t, after, "/backups")
		require.GreaterOrEqual(t, len(good), 2, "step %d", step)
		require.LessOrEqual(t, len(good)+len(bad), 4)
		for _, s := range good {
			require.True(t, before[s.Name] || s.Name == set.Name)
			_, err := backup.Verify(ctx, s.Path, backup.VerifyOptions{FS: after})
			require.NoError(t, err, "step %d: %s is listed as complete", step, s.Name)
		}
		for _, s := range bad {
			_, err := backup.Verify(ctx, s.Path, backup.VerifyOptions{FS: after, ChecksumsOnly: true})
			if err == nil { // complete, but marked as partial or removed
				require.Regexp(t, `^\.(partial|removed)-`, s.Name)
			}
			_, err = backup.Load(ctx, backup.Directory(after, path.Dir(s.Path)), s.Name)
			require.ErrorIs(t, err, backup.ErrIncomplete)
		}
		if step%5 != 0 {
			return
		}
		// The next backup removes partial and old backups.
		o := n.o
		o.FS = after
		s, err := store.Open(o)
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
		ro := n.options("/backups")
		ro.FS, ro.KeepGenerations = after, 1
		last, err := backup.Run(ctx, s, ro)
		require.NoError(t, err)
		names, err := after.ReadDir("/backups")
		require.NoError(t, err)
		require.Equal(t, []string{".lock", last.Name}, names)
	})
}

// After a crash at any step of a restore, the directory is empty, complete, or rejected until the restore is
// repeated.
func TestRestoreAfterCrash(t *testing.T) {
	ctx := context.Background()
	mem := memfs.New()
	fault := faultfs.New(mem)
	n := openNode(t, fault, "/data", 4096)
	a := startArchiver(t, n, "/archive")
	n.steps(25)
	set := n.backup("/backups")
	n.steps(10)
	require.NoError(t, a.Close())
	o := func(fsys vfs.FS) backup.RestoreOptions {
		return backup.RestoreOptions{FS: fsys, ArchiveDir: "/archive", ToLSN: 33, SegmentBytes: 16 << 10}
	}
	counts := map[string]int{}
	crashEverywhere(t, mem, fault, func() {
		_, err := backup.Restore(ctx, set.Path, "/new/restored", o(fault))
		require.NoError(t, err)
	}, func(step int, after *memfs.FS) {
		if err := datadir.CheckRestore(after, "/new/restored"); err == nil {
			what := "empty"
			if _, err := datadir.ReadIdentity(after, "/new/restored"); !errors.Is(err, fs.ErrNotExist) {
				require.NoError(t, err, "step %d", step)
				so := n.o
				so.FS, so.Dir = after, "/new/restored"
				_, err = store.Open(so)
				require.ErrorIs(t, err, datadir.ErrRestoring, "step %d", step)
				what = "rejected"
			}
			counts[what]++
			_, err := backup.Restore(ctx, set.Path, "/new/restored", o(after))
			require.NoError(t, err, "step %d", step)
		} else {
			require.ErrorIs(t, err, datadir.ErrNotEmpty)
			counts["complete"]++
		}
		s := restored(t, after, "/new/restored")
		require.Equal(t, uint64(33), s.End().LSN)
		require.Equal(t, n.history[33], dumpStore(t, s))
		require.NoError(t, s.Close())
	})
	require.Len(t, counts, 3, "%v", counts)
}

// After an I/O error in any operation of a restore, the restore can be repeated, or the directory is complete.
func TestRestoreAfterError(t *testing.T) {
	ctx := context.Background()
	mem := memfs.New()
	n := openNode(t, mem, "/data", 2048)
	n.steps(25)
	set := n.backup("/backups")
	broken := errors.New("broken")
	for fail := int64(1); ; fail++ {
		target := mem.CrashClone(nil)
		fault := faultfs.New(target)
		var count atomic.Int64 // goroutines of the log do I/O as well
		fault.SetHook(func(op faultfs.Op) error {
			if !changes(op.Kind) {
				return nil
			}
			if count.Add(1) == fail {
				return broken
			}
			return nil
		})
		_, err := backup.Restore(ctx, set.Path, "/restored", backup.RestoreOptions{FS: fault, SegmentBytes: 16 << 10})
		if fault.SetHook(nil); err == nil && count.Load() < fail {
			require.Greater(t, fail, int64(20))
			return
		}
		if err == nil { // the error was in the preallocation of the next segment, which is not needed
			continue
		}
		require.ErrorIs(t, err, broken)
		if datadir.CheckRestore(target, "/restored") != nil { // complete except for the last sync of the directory
			_, err := datadir.ReadIdentity(target, "/restored")
			require.NoError(t, err)
		} else {
			_, err = backup.Restore(ctx, set.Path, "/restored",
				backup.RestoreOptions{FS: target, SegmentBytes: 16 << 10})
			require.NoError(t, err)
		}
		s := restored(t, target, "/restored")
		require.Equal(t, n.history[25], dumpStore(t, s))
		require.NoError(t, s.Close())
	}
}
