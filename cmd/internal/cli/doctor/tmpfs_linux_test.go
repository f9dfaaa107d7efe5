// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lockstep-mq/lockstep/server/config"
)

// An in-memory filesystem and a full filesystem are reported.
func TestFullTmpfs(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=2m,mode=700"); err != nil {
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
			t.Skipf("a filesystem can be mounted by root only: %v", err)
		}
		require.NoError(t, err)
	}
	defer func() { require.NoError(t, unix.Unmount(dir, 0)) }()
	in := inspect(t, func(c *config.Config) { c.Data.Dir = dir })
	reported(t, checkFilesystem(t.Context(), in)[0], Problem, "tmpfs", "in memory")
	reported(t, checkSpace(t.Context(), in)[0], Problem, "disk.low-watermark")
	require.Error(t, os.WriteFile(filepath.Join(dir, "all"), make([]byte, 4<<20), 0o600))
	reported(t, checkSync(t.Context(), in)[0], Problem, "no space")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "doctor leaves no file")
}

// lockOwner returns the owner of a lock without acquiring the lock.
func TestLockOwner(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	require.Zero(t, lockOwner(name))
	f, err := os.Create(name)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	require.Zero(t, lockOwner(name))
	require.NoError(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	require.Equal(t, os.Getpid(), lockOwner(name))
}

func TestChosenOf(t *testing.T) {
	require.Equal(t, "madvise", chosenOf("always [madvise] never"))
	require.Empty(t, chosenOf(""))
}
