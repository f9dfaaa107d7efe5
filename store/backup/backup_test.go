// SPDX-License-Identifier: Apache-2.0

package backup_test

import (
	"context"
	"errors"
	"io/fs"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/identity"
	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// A restored store has the content of the backup and a new identity, and can apply the later records.
func TestRestoredStoreEqualsSource(t *testing.T) {
	ctx := context.Background()
	for name, make := range filesystems(t) {
		for _, pageSize := range []int{2048, 16384} {
			t.Run(name, func(t *testing.T) {
				fsys, root := make()
				n := openNode(t, fsys, in(root, "data"), pageSize)
				require.NoError(t, n.s.JoinPair(uuid.New()))
				require.NoError(t, n.s.SetFence(identity.Fence{Config: 4, Term: 7}))
				n.steps(150)
				var phases []string
				o := n.options(in(root, "backups"))
				o.Verify = true
				o.Progress = func(p checkpoint.Progress) {
					if len(phases) == 0 || phases[len(phases)-1] != p.Phase {
						phases = append(phases, p.Phase)
					}
				}
				set, err := backup.Run(ctx, n.s, o)
				require.NoError(t, err)
				require.Equal(t, []string{"copy", "verify", "check"}, phases)
				require.Regexp(t, `^20261121T004730Z-lsn000150-ps(2048|16384)$`, set.Name)
				m := set.Manifest
				id := n.s.Identity()
				require.Equal(t, []uuid.UUID{id.PairID, id.StoreID, id.NodeID},
					[]uuid.UUID{m.PairID, m.StoreID, m.NodeID})
				require.Equal(t, n.s.End(), m.Position)
				require.Equal(t, pageSize, m.PageSize)
				require.Equal(t, epoch().Add(149*time.Second), m.LastTime)

				good, bad := mustList(t, fsys, in(root, "backups"))
				require.Empty(t, bad)
				require.Equal(t, []backup.Set{set}, good)
				found, err := backup.Verify(ctx, set.Path, backup.VerifyOptions{FS: fsys})
				require.NoError(t, err)
				require.Positive(t, found.Messages)

				n.steps(10) // after the backup
				target := in(root, "restored")
				dry, err := backup.Restore(ctx, set.Path, target,
					backup.RestoreOptions{FS: fsys, SegmentBytes: 64 << 10, DryRun: true})
				require.NoError(t, err)
				_, err = fsys.Stat(target)
				require.ErrorIs(t, err, fs.ErrNotExist)
				res, err := backup.Restore(ctx, set.Path, target,
					backup.RestoreOptions{FS: fsys, SegmentBytes: 64 << 10})
				require.NoError(t, err)
				require.Equal(t, dry.NeededBytes, res.NeededBytes)

				s := restored(t, fsys, target)
				require.Equal(t, n.history[150], dumpStore(t, s))
				require.Equal(t, n.replayed(150), digest(t, s))
				requireNewIdentity(t, id, s, res)
				require.Equal(t, m.Name, s.Identity().Restored)
				require.NoError(t, s.JoinPair(uuid.New()), "JoinPair with another pair")
				require.Empty(t, s.Identity().Restored)

				// The remaining history can be appended.
				for at := uint64(151); at <= 160; at++ {
					require.NoError(t, s.Append(n.raw[at], n.ends[at]))
				}
				require.NoError(t, s.Sync())
				require.NoError(t, s.Apply(160, nil))
				require.Equal(t, n.history[160], dumpStore(t, s))
				require.Equal(t, digest(t, n.s), digest(t, s))
			})
		}
	}
}

func requireNewIdentity(t *testing.T, old datadir.Identity, s *store.Store, res backup.RestoreResult) {
	t.Helper()
	id := s.Identity()
	require.Equal(t, []uuid.UUID{res.NodeID, res.StoreID}, []uuid.UUID{id.NodeID, id.StoreID})
	require.NotEqual(t, old.NodeID, id.NodeID)
	require.NotEqual(t, old.StoreID, id.StoreID)
	require.Equal(t, uuid.Nil, id.PairID)
	require.Zero(t, id.Fence)
	require.False(t, id.MayHaveLost)
}

// A backup of an empty store can be restored.
func TestBackupOfEmptyStore(t *testing.T) {
	n := openNode(t, memfs.New(), "/data", 4096)
	set := n.backup("/backups")
	_, err := backup.Restore(context.Background(), set.Path, "/restored",
		backup.RestoreOptions{FS: n.fs, SegmentBytes: 64 << 10})
	require.NoError(t, err)
	require.Equal(t, n.s.End(), restored(t, n.fs, "/restored").End())
}

// A backup that is made while transactions are committed contains the state at its position.
func TestBackupDuringCommits(t *testing.T) {
	mem := memfs.New()
	n := openNode(t, mem, "/data", 2048)
	n.steps(50)
	var pieces atomic.Int64
	for range 4 {
		o := n.options("/backups")
		o.Progress = func(checkpoint.Progress) { // called between two reads, so that the source changes during the copy
			pieces.Add(1)
			n.steps(3)
			n.checkpoint()
		}
		set, err := backup.Run(context.Background(), n.s, o)
		require.NoError(t, err)
		at := set.Manifest.Position.LSN
		require.Less(t, at, n.s.End().LSN)
		target := "/restored-" + set.Name
		_, err = backup.Restore(context.Background(), set.Path, target,
			backup.RestoreOptions{FS: mem, SegmentBytes: 64 << 10})
		require.NoError(t, err)
		s := restored(t, mem, target)
		require.Equal(t, n.history[at], dumpStore(t, s))
		require.Equal(t, n.replayed(at), digest(t, s))
		require.NoError(t, s.Close())
	}
	require.Greater(t, pieces.Load(), int64(8))
}

// A backup with KeepGenerations removes only older backups of the same store. Choose selects the last backup up to an
// LSN or a time.
func TestKeepGenerations(t *testing.T) {
	mem := memfs.New()
	n, other := openNode(t, mem, "/data", 2048), openNode(t, mem, "/other", 2048)
	other.steps(5)
	first := other.backup("/backups")
	require.NoError(t, mem.MkdirAll("/backups/notes", 0o700))
	require.NoError(t, mem.MkdirAll("/backups/.partial-20261121T004500Z-lsn000001-ps2048", 0o700))
	require.NoError(t, vfs.WriteFileAtomic(mem, "/backups/.partial-20261121T004500Z-lsn000001-ps2048/pages.pack",
		[]byte("x")))
	_, bad := mustList(t, mem, "/backups")
	require.Len(t, bad, 1)
	var names []string
	for range 5 {
		n.steps(3)
		o := n.options("/backups")
		o.KeepGenerations = 2
		set, err := backup.Run(context.Background(), n.s, o)
		require.NoError(t, err)
		names = append(names, set.Name)
	}
	again, err := backup.Run(context.Background(), n.s, n.options("/backups"))
	require.NoError(t, err)
	require.Equal(t, names[4]+"-1", again.Name, "name of another backup with the same time and LSN")
	good, bad := mustList(t, mem, "/backups")
	require.Empty(t, bad)
	var left []string
	for _, s := range good {
		left = append(left, s.Name)
	}
	require.Equal(t, []string{first.Name, names[3], names[4], again.Name}, left)
	_, err = mem.Stat("/backups/notes")
	require.NoError(t, err)

	set, err := backup.Choose(good, uuid.Nil, 14, time.Time{})
	require.NoError(t, err)
	require.Equal(t, names[3], set.Name)
	_, err = backup.Choose(good, uuid.Nil, 4, time.Time{})
	require.ErrorIs(t, err, backup.ErrTarget)
	set, err = backup.Choose(good, uuid.Nil, 0, epoch().Add(12*time.Second))
	require.NoError(t, err)
	require.Equal(t, names[3], set.Name)
}

// A backup to a path fails with ErrBusy while another backup to it is running.
func TestConcurrentBackupsToOnePath(t *testing.T) {
	n := openNode(t, memfs.New(), "/data", 2048)
	n.steps(5)
	o := n.options("/backups")
	o.Progress = func(checkpoint.Progress) {
		_, err := backup.Run(context.Background(), n.s, n.options("/backups"))
		require.ErrorIs(t, err, backup.ErrBusy)
	}
	_, err := backup.Run(context.Background(), n.s, o)
	require.NoError(t, err)
}

// A canceled backup leaves no files. A backup that its rate limit delays beyond its deadline fails.
func TestBackupCanceledAndRateLimited(t *testing.T) {
	synctest.Test(t, testBackupCanceledAndRateLimited)
}

func testBackupCanceledAndRateLimited(t *testing.T) {
	n := openNode(t, memfs.New(), "/data", 2048)
	for len(n.bodies) < 800 {
		n.step()
	}
	ctx, cancel := context.WithCancel(context.Background())
	o := n.options("/backups")
	o.Progress = func(checkpoint.Progress) { cancel() }
	_, err := backup.Run(ctx, n.s, o)
	require.ErrorIs(t, err, context.Canceled)
	sets, err := backup.List(t.Context(), backup.Directory(n.fs, "/backups"))
	require.NoError(t, err)
	require.Empty(t, sets)

	// The burst covers one record. At this rate the rest takes longer than the deadline.
	ctx, cancel = context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	o.Progress, o.BytesPerSecond = nil, 1
	for n.size() < 2<<20 {
		n.step()
		n.checkpoint()
	}
	_, err = backup.Run(ctx, n.s, o)
	require.Error(t, err)
	require.Contains(t, err.Error(), "rate limit")
}

func (n *node) size() uint64 {
	st, err := n.s.Stats()
	require.NoError(n.t, err)
	return st.PagesUsed * uint64(st.PageSize)
}

// On a full disk, a backup leaves no partial backup and removes no older one, and a restore leaves no files.
func TestFullDisk(t *testing.T) {
	ctx := context.Background()
	fault := faultfs.New(memfs.New())
	n := openNode(t, fault, "/data", 2048)
	n.steps(30)
	first := n.backup("/backups")
	n.steps(30)
	n.checkpoint()
	full := func(prefix string, after uint64) func(faultfs.Op) error {
		var writes uint64
		return func(op faultfs.Op) error {
			if len(op.Name) < len(prefix) || op.Name[:len(prefix)] != prefix || op.Kind != faultfs.OpWrite &&
				op.Kind != faultfs.OpSync {
				return nil
			}
			if writes++; writes <= after {
				return nil
			}
			return syscall.ENOSPC
		}
	}
	for after := range uint64(4) {
		o := n.options("/backups")
		o.KeepGenerations = 1
		fault.SetHook(full("/backups", after))
		_, err := backup.Run(ctx, n.s, o)
		fault.SetHook(nil)
		require.ErrorIs(t, err, backup.ErrNoSpace)
		sets, err := backup.List(t.Context(), backup.Directory(fault, "/backups"))
		require.NoError(t, err)
		require.Equal(t, []backup.Set{first}, sets)
	}
	for after := range uint64(4) {
		fault.SetHook(full("/restored/page.db", after))
		_, err := backup.Restore(ctx, first.Path, "/restored", backup.RestoreOptions{FS: fault, SegmentBytes: 64 << 10})
		fault.SetHook(nil)
		require.ErrorIs(t, err, backup.ErrNoSpace)
		names, err := fault.ReadDir("/restored")
		require.NoError(t, err)
		require.Equal(t, []string{"lock"}, names)
	}
	_, err := backup.Restore(ctx, first.Path, "/restored", backup.RestoreOptions{FS: fault, SegmentBytes: 64 << 10})
	require.NoError(t, err)
	require.Equal(t, n.history[30], dumpStore(t, restored(t, fault, "/restored")))
}

// A backup without enough space fails before anything is written. The error contains the required and the available
// bytes.
func TestNoSpaceBeforeStart(t *testing.T) {
	mem := memfs.New()
	n := openNode(t, mem, "/data", 2048)
	n.steps(30)
	set := n.backup("/backups")
	usage, err := mem.Usage("/")
	require.NoError(t, err)
	mem.SetCapacity(int64(usage.TotalBytes - usage.AvailableBytes + 100_000))
	_, err = backup.Run(context.Background(), n.s, n.options("/backups"))
	require.ErrorIs(t, err, backup.ErrNoSpace)
	require.Contains(t, err.Error(), "are needed")
	res, err := backup.Restore(context.Background(), set.Path, "/restored",
		backup.RestoreOptions{FS: mem, SegmentBytes: 64 << 10})
	require.ErrorIs(t, err, backup.ErrNoSpace)
	require.Greater(t, res.NeededBytes, res.AvailableBytes)
	_, err = mem.Stat("/restored")
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// If a page at any position is corrupt, the backup fails, and the old generation is retained.
func TestCorruptSource(t *testing.T) {
	fault := faultfs.New(memfs.New())
	n := openNode(t, fault, "/data", 2048)
	n.steps(150)
	first := n.backup("/backups")
	n.steps(1)
	n.checkpoint()
	o := n.options("/backups")
	o.KeepGenerations = 1
	for _, where := range []struct {
		name     string
		minBytes int64 // minimum length of the read: the copy uses large reads
		bit      int64
	}{
		{"tree", 2048, 8 * 40},
		{"message", 64 << 10, 8 * 40},
		{"header of an extent", 64 << 10, 8 * 16},
		{"message in a later page", 64 << 10, 8 * (2048*20 + 100)},
	} {
		fault.SetHook(func(op faultfs.Op) error {
			if op.Kind == faultfs.OpRead && op.Name == "/data/page.db" && op.Length >= where.minBytes {
				return &faultfs.FlipBit{Bit: where.bit}
			}
			return nil
		})
		_, err := backup.Run(context.Background(), n.s, o)
		fault.SetHook(nil)
		require.Error(t, err, where.name)
		require.True(t, errors.Is(err, page.ErrCorrupt) || errors.Is(err, index.ErrDataLoss), "%s: %v", where.name, err)
		good, bad := mustList(t, fault, "/backups")
		require.Equal(t, []backup.Set{first}, good)
		require.Empty(t, bad)
	}
	_, err := backup.Run(context.Background(), n.s, o)
	require.NoError(t, err)
}
