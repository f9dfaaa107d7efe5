// SPDX-License-Identifier: Apache-2.0

package backup_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

func errorsIs(err, target error) bool { return errors.Is(err, target) }

func archiveOptions(fsys vfs.FS, dir string) backup.ArchiveOptions {
	return backup.ArchiveOptions{FS: fsys, Dir: dir, Interval: time.Hour, FileBytes: 20_000}
}

func startArchiver(t *testing.T, n *node, dir string) *backup.Archiver {
	t.Helper()
	a, err := backup.StartArchiver(n.s, archiveOptions(n.fs, dir))
	require.NoError(t, err)
	t.Cleanup(func() { _ = a.Close() })
	return a
}

// A store that is restored with the archive to an LSN or a time has the content of the model at that record. Targets
// outside of the backup and the archive are rejected.
func TestRestoreToPointInTime(t *testing.T) {
	ctx := context.Background()
	mem := memfs.New()
	n := openNode(t, mem, "/data", 2048)
	a := startArchiver(t, n, "/archive")
	var sets []backup.Set
	for round := range 6 {
		n.steps(20)
		require.NoError(t, a.Flush(ctx))
		n.steps(5)
		if round == 1 || round == 3 {
			sets = append(sets, n.backup("/backups"))
		}
		n.steps(5)
		n.checkpoint()
		n.checkpoint()
	}
	require.NoError(t, a.Close())
	end := n.s.End().LSN
	chains, err := backup.VerifyArchive(ctx, backup.Directory(mem, "/archive"), nil)
	require.NoError(t, err)
	require.Len(t, chains, 1)
	require.Zero(t, chains[0].Before)
	require.Equal(t, n.s.End(), chains[0].Last)
	require.Greater(t, chains[0].Files, 6)

	restore := func(set backup.Set, o backup.RestoreOptions, want uint64) {
		t.Helper()
		fsys := mem.CrashClone(nil)
		o.FS, o.ArchiveDir, o.SegmentBytes = fsys, "/archive", 64<<10
		res, err := backup.Restore(ctx, set.Path, "/restored", o)
		require.NoError(t, err)
		s := restored(t, fsys, "/restored")
		require.Equal(t, want, s.End().LSN)
		require.Equal(t, n.ends[want], s.End())
		require.Equal(t, s.End(), res.End)
		require.Equal(t, epoch().Add(time.Duration(want-1)*time.Second), res.EndTime)
		require.Equal(t, n.history[want], dumpStore(t, s))
		require.Equal(t, n.replayed(want), digest(t, s))
		require.NoError(t, s.Close())
	}
	for _, set := range sets {
		from := set.Manifest.Position.LSN
		for _, to := range []uint64{from, from + 1, from + 7, from + 31, end - 1, end} {
			restore(set, backup.RestoreOptions{ToLSN: to}, to)
		}
		restore(set, backup.RestoreOptions{}, end)
		to := from + 12
		restore(set, backup.RestoreOptions{ToTime: epoch().Add(time.Duration(to-1) * time.Second)}, to)
		restore(set, backup.RestoreOptions{ToTime: epoch().Add(time.Duration(to)*time.Second - 1)}, to)
		for what, o := range map[string]backup.RestoreOptions{
			"before the backup": {ToLSN: from - 1}, "after the archive": {ToLSN: end + 1},
			"a time before": {ToTime: epoch().Add(time.Duration(from-2) * time.Second)},
			"a time after":  {ToTime: epoch().Add(time.Duration(end+1) * time.Second)},
			"both":          {ToLSN: end, ToTime: epoch()},
		} {
			o.FS, o.ArchiveDir = mem, "/archive"
			_, err := backup.Restore(ctx, set.Path, "/restored", o)
			require.ErrorIs(t, err, backup.ErrTarget, what)
			if strings.Contains(what, "after") { // the error explains how to archive the missing records
				require.Contains(t, err.Error(), "flush-archive", what)
				require.Contains(t, err.Error(), "wal.archive-interval", what)
			}
			if what == "after the archive" {
				require.Contains(t, err.Error(), fmt.Sprintf("%d to %d", end+1, end+1))
			}
		}
		_, err := backup.Restore(ctx, set.Path, "/restored", backup.RestoreOptions{FS: mem, ToLSN: from + 1})
		require.ErrorIs(t, err, backup.ErrTarget, "no archive")
	}
	corruptArchiveFile(t, mem, sets[0])
}

// corruptArchiveFile verifies that flipped bits in the archive and a missing file are detected.
func corruptArchiveFile(t *testing.T, mem *memfs.FS, set backup.Set) {
	t.Helper()
	ctx := context.Background()
	rng := rand.New(rand.NewPCG(3, 4))
	for range 60 {
		fsys := mem.CrashClone(nil)
		files, err := backup.ListArchive(fsys, "/archive")
		require.NoError(t, err)
		// The last files are all required.
		changeFile(t, fsys, files[len(files)-1-rng.IntN(4)].Path,
			func(b []byte) []byte { return flip(b, rng.IntN(len(b)*8)) })
		_, err = backup.VerifyArchive(ctx, backup.Directory(fsys, "/archive"), nil)
		require.True(t, errorsIs(err, backup.ErrArchiveCorrupt) || errorsIs(err, backup.ErrNewerVersion), "%v", err)
		_, err = backup.Restore(ctx, set.Path, "/restored", backup.RestoreOptions{FS: fsys, ArchiveDir: "/archive"})
		require.True(t, errorsIs(err, backup.ErrArchiveCorrupt) || errorsIs(err, backup.ErrNewerVersion), "%v", err)
		_, err = fsys.Stat("/restored")
		require.Error(t, err)
	}
	fsys := mem.CrashClone(nil)
	files, err := backup.ListArchive(fsys, "/archive")
	require.NoError(t, err)
	removed := files[len(files)-2]
	require.NoError(t, fsys.Remove(removed.Path))
	_, err = backup.Restore(ctx, set.Path, "/restored", backup.RestoreOptions{FS: fsys, ArchiveDir: "/archive"})
	require.ErrorIs(t, err, backup.ErrArchiveGap)
	_, err = backup.Restore(ctx, set.Path, "/restored", backup.RestoreOptions{
		FS: fsys, ArchiveDir: "/archive", ToLSN: removed.First() - 1, SegmentBytes: 64 << 10,
	})
	require.NoError(t, err, "a target before the gap")
}

// Records that are logged but not applied are not archived, since they can still be truncated.
func TestArchiveOnlyApplied(t *testing.T) {
	n := openNode(t, memfs.New(), "/data", 2048)
	a := startArchiver(t, n, "/archive")
	n.steps(10)
	at := n.s.End()
	n.appendOnly()
	require.NoError(t, a.Flush(context.Background()))
	require.Equal(t, at, a.Status().Last)
	_, err := n.s.TruncateTail(at, false)
	require.NoError(t, err)
	n.steps(5)
	require.NoError(t, a.Flush(context.Background()))
	require.Equal(t, n.s.End(), a.Status().Last)
	require.Zero(t, a.Status().Behind)
	_, err = backup.VerifyArchive(context.Background(), backup.Directory(n.fs, "/archive"), nil)
	require.NoError(t, err)
}

// The archive has no gap after clean restarts and crashes, although the log is recycled as early as possible.
func TestArchiveRestarts(t *testing.T) {
	mem := memfs.New()
	n := openNode(t, mem, "/data", 2048)
	for round := range 8 {
		a := startArchiver(t, n, "/archive")
		n.steps(40)
		if round%2 == 0 {
			require.NoError(t, a.Flush(context.Background()))
		}
		n.steps(40)
		n.checkpoint()
		n.step()
		n.checkpoint()
		if round%3 != 0 {
			require.NoError(t, a.Close())
			require.NoError(t, a.Close())
		} else {
			// Simulate a crash.
			n.fs = mem.CrashClone(nil)
			mem = n.fs.(*memfs.FS)
		}
		require.NoError(t, n.s.Close())
		n.o.FS = mem
		n.open()
		require.NoError(t, n.s.Apply(n.s.End().LSN, nil))
	}
	a := startArchiver(t, n, "/archive")
	require.NoError(t, a.Close())
	require.Zero(t, a.Status().Gap)
	chains, err := backup.VerifyArchive(context.Background(), backup.Directory(mem, "/archive"), nil)
	require.NoError(t, err)
	require.Len(t, chains, 1)
	require.Equal(t, n.s.End(), chains[0].Last)
	require.Greater(t, n.s.FirstLSN(), uint64(100), "test requires a recycled log")
}

// After a crash at any step of archiving, all files are complete, and the next Archiver continues without a gap.
func TestArchiveAfterCrash(t *testing.T) {
	ctx := context.Background()
	mem := memfs.New()
	fault := faultfs.New(mem)
	n := openNode(t, fault, "/data", 2048)
	a := startArchiver(t, n, "/archive")
	n.steps(10)
	require.NoError(t, a.Flush(ctx))
	first := a.Status().Last
	n.steps(60)
	crashEverywhere(t, mem, fault, func() { require.NoError(t, a.Flush(ctx)) }, func(step int, after *memfs.FS) {
		chains, err := backup.VerifyArchive(ctx, backup.Directory(after, "/archive"), nil)
		require.NoError(t, err, "step %d", step)
		require.Len(t, chains, 1)
		require.GreaterOrEqual(t, chains[0].Last.LSN, first.LSN)
		o := n.o
		o.FS = after
		s, err := store.Open(o)
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
		again, err := backup.StartArchiver(s, archiveOptions(after, "/archive"))
		require.NoError(t, err)
		require.NoError(t, s.Apply(s.End().LSN, nil))
		require.NoError(t, again.Close())
		chains, err = backup.VerifyArchive(ctx, backup.Directory(after, "/archive"), nil)
		require.NoError(t, err)
		require.Len(t, chains, 1)
		require.Equal(t, n.s.End(), chains[0].Last)
	})
}

// While the archive cannot be written, the log is retained. It is archived afterwards. Above MaxHoldBytes the log is
// trimmed, and the gap is reported.
func TestArchiveCannotBeWritten(t *testing.T) {
	ctx := context.Background()
	for _, limit := range []int64{0, 200_000} {
		fault := faultfs.New(memfs.New())
		n := openNode(t, fault, "/data", 2048)
		o := archiveOptions(fault, "/archive")
		o.MaxHoldBytes = limit
		a, err := backup.StartArchiver(n.s, o)
		require.NoError(t, err)
		n.steps(10)
		require.NoError(t, a.Flush(ctx))
		broken := errors.New("broken")
		fault.SetHook(func(op faultfs.Op) error {
			if op.Kind == faultfs.OpSync && len(op.Name) > 8 && op.Name[:8] == "/archive" {
				return broken
			}
			return nil
		})
		for range 10 {
			n.steps(40)
			n.checkpoint()
			require.ErrorIs(t, a.Flush(ctx), broken)
			require.ErrorIs(t, a.Status().Err, broken)
		}
		require.Equal(t, n.s.End().LSN-10, a.Status().Behind)
		if limit > 0 {
			require.Eventually(t, func() bool {
				n.step()
				n.checkpoint()
				return n.s.FirstLSN() > 11
			}, time.Minute, time.Millisecond)
		}
		fault.SetHook(nil)
		require.NoError(t, a.Flush(ctx))
		require.NoError(t, a.Status().Err)
		chains, err := backup.VerifyArchive(ctx, backup.Directory(fault, "/archive"), nil)
		require.NoError(t, err)
		require.Equal(t, n.s.End(), chains[len(chains)-1].Last)
		if limit == 0 {
			require.Len(t, chains, 1)
			require.Zero(t, a.Status().Gap)
		} else {
			require.Len(t, chains, 2)
			require.Equal(t, chains[1].Before.LSN+1, a.Status().Gap)
		}
		require.NoError(t, a.Close())
	}
}

// trim restarts the store without an Archiver, and adds records until the log no longer contains a record.
func (n *node) trim(lsn uint64) {
	n.t.Helper()
	n.reopen()
	for n.s.FirstLSN() <= lsn {
		n.steps(40)
		n.checkpoint()
	}
}

// reopen restarts the store.
func (n *node) reopen() {
	n.t.Helper()
	require.NoError(n.t, n.s.Close())
	n.open()
	require.NoError(n.t, n.s.Apply(n.s.End().LSN, nil))
}

// A gap is reported after restarts until a backup covers it. The marker of the gap is durable before the first record
// after the gap.
func TestArchiveGapSurvivesRestarts(t *testing.T) {
	ctx := context.Background()
	fault := faultfs.New(memfs.New())
	n := openNode(t, fault, "/data", 2048)
	a := startArchiver(t, n, "/archive")
	n.steps(10)
	require.NoError(t, a.Close())
	n.trim(n.s.End().LSN)

	broken := errors.New("broken")
	fault.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.OpSync && strings.Contains(op.Name, ".frames") {
			return broken
		}
		return nil
	})
	a = startArchiver(t, n, "/archive")
	require.ErrorIs(t, a.Flush(ctx), broken)
	first := n.s.FirstLSN()
	require.Equal(t, first, a.Status().Gap)
	require.ErrorIs(t, a.Close(), broken)
	fault.SetHook(nil)
	for _, backedUp := range []uint64{0, first - 2} {
		n.reopen()
		a = startArchiver(t, n, "/archive")
		require.Equal(t, first, a.Status().Gap)
		a.BackedUp(backedUp)
		require.NoError(t, a.Flush(ctx))
		require.Equal(t, first, a.Status().Gap)
		require.NoError(t, a.Close())
	}
	chains, err := backup.VerifyArchive(ctx, backup.Directory(fault, "/archive"), nil)
	require.NoError(t, err)
	require.Len(t, chains, 2)

	n.reopen()
	a = startArchiver(t, n, "/archive")
	a.BackedUp(n.backup("/backups").Manifest.Position.LSN)
	require.Zero(t, a.Status().Gap)
	require.NoError(t, a.Close())
	n.reopen()
	a = startArchiver(t, n, "/archive")
	require.Zero(t, a.Status().Gap, "a backup covers the gap")
	n.steps(10)
	require.NoError(t, a.Close())
	require.Zero(t, a.Status().Gap)
}

// An archive that replaces one of another history reports its start as a gap, also after restarts, until a backup made
// since then. Without an earlier archive, the start is not a gap.
func TestReplacedArchiveReportsItsStart(t *testing.T) {
	ctx := context.Background()
	mem := memfs.New()
	n := openNode(t, mem, "/data", 2048)
	n.steps(10)
	old := startArchiver(t, n, "/archive")
	require.NoError(t, old.Close())
	n.trim(200)
	gap := startArchiver(t, n, "/archive")
	require.NoError(t, gap.Close())
	require.Equal(t, n.s.FirstLSN(), gap.Status().Gap)

	other := openNode(t, mem, "/other", 4096)
	other.trim(5)
	require.Less(t, other.s.End().LSN, gap.Status().Gap, "the marker of the old archive is higher")
	fresh := startArchiver(t, other, "/fresh")
	require.NoError(t, fresh.Close())
	require.Zero(t, fresh.Status().Gap)

	a := startArchiver(t, other, "/archive")
	require.NotEmpty(t, a.Status().Former)
	require.Zero(t, a.Status().Gap, "the archive has no start yet")
	// The process ends before it archives a record.
	crashed := other.o
	crashed.FS = mem.CrashClone(nil)
	s, err := store.Open(crashed)
	require.NoError(t, err)
	defer func() { _ = s.Close() }()
	require.NoError(t, s.Apply(s.End().LSN, nil))
	b, err := backup.StartArchiver(s, archiveOptions(crashed.FS, "/archive"))
	require.NoError(t, err)
	require.Empty(t, b.Status().Former)
	require.NoError(t, b.Close())
	require.Equal(t, s.FirstLSN(), b.Status().Gap)

	a.BackedUp(other.s.FirstLSN() - 2)
	require.NoError(t, a.Flush(ctx))
	start := a.Status().Gap
	require.Equal(t, other.s.FirstLSN(), start)
	require.NoError(t, a.Close())
	other.reopen()
	a = startArchiver(t, other, "/archive")
	require.Equal(t, start, a.Status().Gap)
	a.BackedUp(other.backup("/backups").Manifest.Position.LSN)
	require.NoError(t, a.Close())
	other.reopen()
	a = startArchiver(t, other, "/archive")
	require.NoError(t, a.Close())
	require.Zero(t, a.Status().Gap)
}

// Records are archived without a call of Flush. A second Archiver for a store is rejected.
func TestArchiveInBackground(t *testing.T) {
	n := openNode(t, memfs.New(), "/data", 2048)
	o := archiveOptions(n.fs, "/archive")
	o.Interval = time.Millisecond
	a, err := backup.StartArchiver(n.s, o)
	require.NoError(t, err)
	_, err = backup.StartArchiver(n.s, o)
	require.ErrorIs(t, err, backup.ErrBusy)
	n.steps(10)
	require.Eventually(t, func() bool { return a.Status().Last == n.s.End() }, time.Minute, time.Millisecond)
	require.NoError(t, a.Close())
}

// moved replaces the archive files in directory to with those in directory from.
func moved(t *testing.T, fsys vfs.FS, from, to string) {
	t.Helper()
	files, err := backup.ListArchive(fsys, to)
	require.NoError(t, err)
	for i := range files {
		require.NoError(t, fsys.Remove(files[i].Path))
	}
	files, err = backup.ListArchive(fsys, from)
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for i := range files {
		require.NoError(t, fsys.Rename(files[i].Path, to+"/"+filepath.Base(files[i].Path)))
	}
}

// A store restored to an older state starts a new archive instead of continuing the old one. The old archive does not
// continue a backup of the new history.
func TestArchiveOfOtherHistory(t *testing.T) {
	ctx := context.Background()
	mem := memfs.New()
	n := openNode(t, mem, "/data", 2048)
	a := startArchiver(t, n, "/archive")
	n.steps(20)
	set := n.backup("/backups")
	n.steps(20)
	require.NoError(t, a.Close())
	_, err := backup.Restore(ctx, set.Path, "/restored", backup.RestoreOptions{
		FS: mem, ArchiveDir: "/archive", ToLSN: 30, SegmentBytes: 64 << 10,
	})
	require.NoError(t, err)
	o := n.o
	o.Dir = "/restored"
	b := &node{
		t: t, fs: mem, dir: o.Dir, o: o, rng: rand.New(rand.NewPCG(9, 9)), acked: map[uint64]bool{},
		history: map[uint64]string{},
		raw:     map[uint64][]byte{}, ends: map[uint64]lsn.Position{},
	}
	b.open()
	defer func() { _ = b.s.Close() }()
	// The log is shorter than the archive, and the store ID is different.
	e := startArchiver(t, b, "/archive")
	former := e.Status().Former
	require.Contains(t, former, "/archive/other-")
	require.NoError(t, e.Close())
	moved(t, mem, former, "/archive")
	require.NoError(t, b.s.Apply(30, nil))
	b.bodies = make([]string, 10)
	b.steps(20)
	// Record 40 differs.
	e = startArchiver(t, b, "/archive")
	former = e.Status().Former
	require.Contains(t, former, "/archive/other-")
	require.NoError(t, e.Flush(ctx))
	require.Equal(t, b.s.Applied(), e.Status().Last, "the new archive continues")
	require.NoError(t, e.Close())
	chains, err := backup.VerifyArchive(ctx, backup.Directory(mem, former), nil)
	require.NoError(t, err)
	require.Equal(t, uint64(40), chains[len(chains)-1].Last.LSN, "the former archive is complete")
	moved(t, mem, former, "/archive")
	wrong := b.backup("/backups")
	b.steps(1)
	c := startArchiver(t, b, "/archive-2")
	b.steps(10)
	require.NoError(t, c.Close())
	res, err := backup.Restore(ctx, set.Path, "/branch",
		backup.RestoreOptions{FS: mem, ArchiveDir: "/archive-2", SegmentBytes: 64 << 10})
	require.NoError(t, err, "the new archive has the restored records, and then the new history")
	require.Equal(t, b.s.End(), res.End)
	n.steps(20)
	d := startArchiver(t, n, "/archive")
	require.NoError(t, d.Close())
	require.Greater(t, d.Status().Last.LSN, wrong.Manifest.Position.LSN)
	_, err = backup.Restore(ctx, wrong.Path, "/again",
		backup.RestoreOptions{FS: mem, ArchiveDir: "/archive", SegmentBytes: 64 << 10})
	require.ErrorIs(t, err, backup.ErrOtherHistory)
}

// A backup with an archive removes only archived files that no retained backup needs. PruneArchive retains files
// newer than a time, and always the newest file.
func TestPruneArchive(t *testing.T) {
	ctx := context.Background()
	mem := memfs.New()
	n := openNode(t, mem, "/data", 2048)
	a := startArchiver(t, n, "/archive")
	var sets []backup.Set
	for range 5 {
		n.steps(15)
		require.NoError(t, a.Flush(ctx))
		o := n.options("/backups")
		o.KeepGenerations, o.ArchiveDir = 2, "/archive"
		set, err := backup.Run(ctx, n.s, o)
		require.NoError(t, err)
		sets = append(sets, set)
		n.steps(5)
	}
	require.NoError(t, a.Flush(ctx))
	files, err := backup.ListArchive(mem, "/archive")
	require.NoError(t, err)
	need := sets[3].Manifest.Position.LSN
	require.LessOrEqual(t, files[0].First(), need+1)
	require.Greater(t, files[0].Last.LSN, need)
	res, err := backup.Restore(ctx, sets[3].Path, "/restored",
		backup.RestoreOptions{FS: mem, ArchiveDir: "/archive", SegmentBytes: 64 << 10})
	require.NoError(t, err)
	require.Equal(t, n.s.End(), res.End)

	removed, err := backup.PruneArchive(mem, "/archive", ^uint64(0), epoch())
	require.NoError(t, err)
	require.Zero(t, removed, "no file is old enough")
	_, err = backup.PruneArchive(mem, "/archive", ^uint64(0), time.Time{})
	require.NoError(t, err)
	files, err = backup.ListArchive(mem, "/archive")
	require.NoError(t, err)
	require.Len(t, files, 1, "the newest file is kept")
	n.steps(5)
	require.NoError(t, a.Close())
	require.Zero(t, a.Status().Gap)
}
