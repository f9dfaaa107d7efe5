// SPDX-License-Identifier: Apache-2.0

package vfs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
)

// RemoveLarge truncates a file of more than 32 MiB in steps before it removes it. It reports a missing file.
func TestRemoveLarge(t *testing.T) {
	fault := faultfs.New(vfs.OS())
	for size, steps := range map[int64]uint64{0: 0, 32 << 20: 0, 32<<20 + 1: 1, 200 << 20: 6} {
		name := filepath.Join(t.TempDir(), "f")
		f, err := os.Create(name)
		require.NoError(t, err)
		require.NoError(t, f.Truncate(size))
		require.NoError(t, f.Close())
		before := fault.Count(faultfs.OpTruncate)
		require.NoError(t, vfs.RemoveLarge(fault, name))
		require.Equal(t, before+steps, fault.Count(faultfs.OpTruncate))
		require.NoFileExists(t, name)
		require.ErrorIs(t, vfs.RemoveLarge(fault, name), fs.ErrNotExist)
	}
}
