// SPDX-License-Identifier: Apache-2.0

package datadir_test

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// BeginRestore reports an inaccessible lock file as its own error, and a locked directory as in use.
func TestRestoreLockError(t *testing.T) {
	fault := faultfs.New(memfs.New())
	fault.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.OpLock {
			return syscall.EACCES
		}
		return nil
	})
	_, err := datadir.BeginRestore(fault, "/restored", "backup")
	require.ErrorIs(t, err, syscall.EACCES)
	require.NotErrorIs(t, err, datadir.ErrInUse)
	fault.SetHook(nil)
	first, err := datadir.BeginRestore(fault, "/restored", "backup")
	require.NoError(t, err)
	_, err = datadir.BeginRestore(fault, "/restored", "backup")
	require.ErrorIs(t, err, datadir.ErrInUse)
	require.NoError(t, first.Close())
}
