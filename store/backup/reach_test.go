// SPDX-License-Identifier: Apache-2.0

package backup_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// CheckSet reports the end of a valid backup, and corruption as a problem in the report. It fails for a missing backup
// and a canceled context.
func TestCheckSet(t *testing.T) {
	ctx := context.Background()
	mem, set := smallBackup(t)
	place := backup.Directory(mem, "/backups")
	phases := map[string]bool{}
	r, err := backup.CheckSet(ctx, place, "", backup.CheckOptions{
		Progress: func(p checkpoint.Progress) { phases[p.Phase] = true },
	})
	require.NoError(t, err)
	require.NoError(t, r.Problem)
	require.Equal(t, set.Name, r.Set.Name)
	require.Equal(t, set.Manifest.Position, r.End)
	require.Equal(t, set.Manifest.Messages, r.Verified.Messages)
	require.Greater(t, r.NeededBytes, set.Manifest.DataBytes)
	require.True(t, phases["verify"] && phases["check"], phases)

	_, err = backup.CheckSet(ctx, place, "../"+set.Name, backup.CheckOptions{})
	require.ErrorIs(t, err, backup.ErrNotFound)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err = backup.CheckSet(ended, place, set.Name, backup.CheckOptions{})
	require.ErrorIs(t, err, context.Canceled)

	pack := set.Path + "/pages.pack"
	raw, err := vfs.ReadFile(mem, pack, 1<<20)
	require.NoError(t, err)
	require.NoError(t, vfs.WriteFileAtomic(mem, pack, flip(raw, len(raw)*4)))
	r, err = backup.CheckSet(ctx, place, set.Name, backup.CheckOptions{})
	require.NoError(t, err)
	require.ErrorIs(t, r.Problem, backup.ErrCorrupt)

	require.NoError(t, mem.Remove(pack))
	r, err = backup.CheckSet(ctx, place, set.Name, backup.CheckOptions{})
	require.NoError(t, err)
	require.ErrorIs(t, r.Problem, backup.ErrIncomplete)
	_, err = backup.CheckSet(ctx, place, "", backup.CheckOptions{})
	require.ErrorIs(t, err, backup.ErrNotFound, "the only backup is incomplete")
	_, err = backup.CheckSet(ctx, backup.Directory(mem, "/nowhere"), "", backup.CheckOptions{})
	require.ErrorIs(t, err, backup.ErrNotFound)
}
