// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// A backup in another location than the configured one does not remove archived log, which a point-in-time restore of
// a backup in the configured location needs.
func TestBackupElsewhereKeepsArchive(t *testing.T) { synctest.Test(t, testBackupElsewhereKeepsArchive) }

func testBackupElsewhereKeepsArchive(t *testing.T) {
	ctx, fs := t.Context(), memfs.New()
	p, archive := newPairOn(t, fs), backup.Directory(fs, "/archive")
	a, err := backup.StartArchiver(p.store, backup.ArchiveOptions{FS: fs, Dir: "/archive", Interval: time.Hour})
	require.NoError(t, err)
	defer func() { require.NoError(t, a.Close()) }()
	o := Options{
		Store: p.store, Node: p, Peers: p, FS: fs, DataDir: "/data", Archive: archive, Archiver: a,
		Location: func(at backup.Location) (backup.Objects, error) { return backup.Directory(fs, at.Dir), nil },
		Defaults: Defaults{PageSizeMax: 32768, BackupPath: "/backups", BackupKeep: 1},
	}
	m, err := New(o)
	require.NoError(t, err)
	write := func() {
		for _, size := range []int{8192, 16384, 32768} {
			_, err := m.Update(ctx, Change{PageSizeMax: &size})
			require.NoError(t, err)
			require.NoError(t, a.Flush(ctx))
		}
	}
	save := func(path string) backup.Set {
		set, err := m.Backup(ctx, BackupRequest{Path: path}, nil)
		require.NoError(t, err)
		return set
	}
	files := func() int {
		entries, err := archive.List(ctx, "")
		require.NoError(t, err)
		return len(entries)
	}

	set := save("")
	write()
	archived := files()
	save("/other")
	require.Equal(t, archived, files())
	restored, err := backup.Restore(ctx, set.Path, "/restored", backup.RestoreOptions{FS: fs, ArchiveDir: "/archive"})
	require.NoError(t, err)
	require.Equal(t, p.store.End(), restored.End)

	save("file:///backups/")
	require.Less(t, files(), archived)
	write()
	archived = files()
	save("")
	require.Less(t, files(), archived)
	write()
	archived = files()
	o.Defaults.BackupPath = ""
	m, err = New(o)
	require.NoError(t, err)
	save("/other")
	require.Less(t, files(), archived)
}
