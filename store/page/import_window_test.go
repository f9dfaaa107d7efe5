// SPDX-License-Identifier: Apache-2.0

package page

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
)

// An import syncs after each window of written bytes, not only at the end. A failed sync is final (INV-7).
func TestImportWriteback(t *testing.T) {
	source := newWorld(t, newMem(t), 2048, 3)
	for range 10 {
		source.step()
		source.checkpoint()
	}
	defer func() { require.NoError(t, source.f.Close()) }()
	pin := source.f.Pin()
	defer pin.Release()

	fault := faultfs.New(newMem(t))
	const window = 32 << 10
	begin := func() *Importer {
		im, err := NewImporter(fault, importFile, ImportOptions{Meta: pin.Meta().Encode()})
		require.NoError(t, err)
		im.window = window
		return im
	}
	im := begin()
	written := int64(0)
	fault.SetHook(func(op faultfs.Op) error {
		switch op.Kind {
		case faultfs.OpWrite:
			written += op.Length
		case faultfs.OpSync:
			written = 0
		default:
		}
		return nil
	})
	synced := fault.Count(faultfs.OpSync)
	send(t, source.f, pin, im, func() { require.Less(t, written, int64(window)) })
	require.Greater(t, fault.Count(faultfs.OpSync), synced+1)
	require.NoError(t, im.Finish())

	im = begin()
	fault.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.OpSync {
			return syscall.EIO
		}
		return nil
	})
	var err error
	for at := int64(DataOffset); err == nil && at < pin.Meta().FileBytes(); at += 2048 {
		err = im.WriteAt(at, make([]byte, 2048))
	}
	require.ErrorIs(t, err, ErrFailed)
	require.ErrorIs(t, err, syscall.EIO)
	im.Abort()
}
