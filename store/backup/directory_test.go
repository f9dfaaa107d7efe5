// SPDX-License-Identifier: Apache-2.0

package backup_test

import (
	"io"
	"io/fs"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// When Put reports that an object exists, the object is durable, even if the sync of an earlier Put failed.
func TestPutOfExistingObject(t *testing.T) {
	mem := memfs.New()
	fault := faultfs.New(mem)
	place := backup.Directory(fault, "/archive")
	put := func(name string) error {
		return place.Put(t.Context(), name, backup.PutOptions{}, func(w io.Writer) error {
			_, err := w.Write([]byte(name))
			return err
		})
	}
	require.NoError(t, put("first"))
	fault.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.OpSyncDir && op.Name == "/archive" {
			return syscall.EIO
		}
		return nil
	})
	require.ErrorIs(t, put("second"), syscall.EIO)
	require.ErrorIs(t, put("second"), syscall.EIO)
	fault.SetHook(nil)
	require.ErrorIs(t, put("second"), fs.ErrExist)
	_, err := mem.CrashClone(nil).Stat("/archive/second")
	require.NoError(t, err)
}
