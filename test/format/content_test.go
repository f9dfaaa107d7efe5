// SPDX-License-Identifier: Apache-2.0

package format

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// content writes the state that the program reads from the data directory, from the backup with and without the
// archive, and from the snapshot. It does not change the files.
func (d *dumper) content() {
	for _, source := range []struct {
		name string
		open func(t *testing.T, fsys *memfs.FS) *store.Store
	}{
		{"the data directory", func(t *testing.T, fsys *memfs.FS) *store.Store { return openStore(t, fsys, nodeDir) }},
		{"the backup", func(t *testing.T, fsys *memfs.FS) *store.Store { return restore(t, fsys, "") }},
		{"the backup and the archive", func(t *testing.T, fsys *memfs.FS) *store.Store {
			return restore(t, fsys, archiveDir)
		}},
		{"the snapshot", install},
	} {
		s := source.open(d.t, copyFiles(d.t, d.fsys))
		d.line(0, "%s: %+v", source.name, s.Applied())
		d.store(s)
		require.NoError(d.t, s.Close())
	}
}

// openStore opens a data directory and applies its log.
func openStore(t *testing.T, fsys vfs.FS, dir string) *store.Store {
	t.Helper()
	s, err := store.Open(store.Options{FS: fsys, Dir: dir, SegmentBytes: 256 << 10, BootID: "boot-1"})
	require.NoError(t, err)
	require.NoError(t, s.Apply(s.End().LSN, nil))
	return s
}

func restore(t *testing.T, fsys vfs.FS, archive string) *store.Store {
	t.Helper()
	sets, err := backup.List(t.Context(), backup.Directory(fsys, backupDir))
	require.NoError(t, err)
	require.Len(t, sets, 1)
	_, err = backup.Restore(t.Context(), sets[0].Path, "/restored",
		backup.RestoreOptions{FS: fsys, ArchiveDir: archive, SegmentBytes: 256 << 10})
	require.NoError(t, err)
	return openStore(t, fsys, "/restored")
}

// install installs the pieces of the snapshot into an empty store.
func install(t *testing.T, fsys *memfs.FS) *store.Store {
	t.Helper()
	s := openStore(t, fsys, "/installed")
	pieces := names(t, fsys, snapshotDir)
	meta, err := page.DecodeMeta(read(t, fsys, pieces[0]))
	require.NoError(t, err)
	h := store.SnapshotHeader{
		Position: meta.Position, PageSize: meta.PageSize, FileBytes: uint64(meta.FileBytes()),
	}
	for _, name := range pieces {
		h.DataBytes += uint64(len(read(t, fsys, name)))
	}
	in, err := s.BeginInstall(h)
	require.NoError(t, err)
	for _, name := range pieces {
		require.NoError(t, in.WriteAt(pieceOffset(t, name), read(t, fsys, name)))
	}
	require.NoError(t, in.Commit())
	return s
}

// store writes the contents of a store, and verifies it.
func (d *dumper) store(s *store.Store) {
	queues, _, err := query.Queues(s, query.QueueRange{MaxQueues: 100, MaxSubscriptions: 100})
	require.NoError(d.t, err)
	for _, q := range queues {
		d.line(1, "queue %d %q: %s, next sequence %d, %d messages, %d bytes, digest %016x", q.ID, q.Name, config(q.Config),
			q.NextSequence, q.Messages, q.Bytes, q.Digest)
		for _, sub := range q.Subscriptions {
			with := ""
			if sub.Options != (txn.SubscriptionOptions{}) {
				with = ", options " + options(sub.Options)
			}
			d.line(2, "subscription %d %q: floor %d, backlog %d%s", sub.ID, sub.Name, sub.Floor, sub.Backlog, with)
			got, _, err := s.Read(d.t.Context(), store.ReadRequest{
				Queue: q.ID, Sub: sub.ID, From: 1, MaxMessages: 3, MaxBytes: 1 << 20,
			}, nil)
			require.NoError(d.t, err)
			for _, m := range got {
				d.message(3, fmt.Sprintf("sequence %d", m.Sequence), m.Record)
			}
		}
	}
	for _, e := range query.MetaPrefix(s, "") {
		d.line(1, "entry %q: %s", e.Key, text(e.Value))
	}
	if version, entries := query.Access(s); version != 0 {
		d.line(1, "access table of LSN %d", version)
		for _, e := range entries {
			d.line(2, "%c %q: %s", e.Kind, e.Name, text(e.Value))
		}
	}
	if fleet := query.Fleet(s); fleet != (queue.FleetState{}) {
		d.line(1, "fleet: %+v", fleet)
	}
	if site := s.Site(); site != (queue.SiteState{}) {
		d.line(1, "site: %+v", site)
	}
	var digest checkpoint.Digest
	require.NoError(d.t, s.ReadCheckpoint(d.t.Context(), store.ReadOptions{}, func(c *checkpoint.Checkpoint) error {
		report, err := c.Check(d.t.Context(), nil)
		require.NoError(d.t, err)
		require.Empty(d.t, report.Problems)
		digest, err = c.Digest(d.t.Context())
		return err
	}))
	d.line(1, "digest at LSN %d: %x, %d messages", digest.Position.LSN, digest.Content, digest.Messages)
}
