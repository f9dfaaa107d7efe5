// SPDX-License-Identifier: Apache-2.0

package faultfs_test

import (
	"errors"
	"io"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
	"github.com/lockstep-mq/lockstep/test/vfs/vfstest"
)

func TestConformance(t *testing.T) {
	vfstest.Run(t, func(t *testing.T) (vfs.FS, string) {
		mem := memfs.New()
		require.NoError(t, mem.MkdirAll("d", 0o700))
		return faultfs.New(mem), "d"
	})
}

var errTest = errors.New("test")

// only returns a hook that returns err for operations of one kind.
func only(kind faultfs.OpKind, err error) func(faultfs.Op) error {
	return func(op faultfs.Op) error {
		if op.Kind == kind {
			return err
		}
		return nil
	}
}

// The hook is called before each kind of operation. If it returns an error, the operation is not executed.
func TestHookFailsOperations(t *testing.T) {
	mem := memfs.New()
	fault := faultfs.New(mem)
	f := vfstest.Open(t, fault, "a", vfstest.Create)
	vfstest.Write(t, f, 0, "hello")
	ops := map[faultfs.OpKind]func() error{
		faultfs.OpOpen:   func() error { _, err := fault.OpenFile("a", os.O_RDWR, 0); return err },
		faultfs.OpCreate: func() error { _, err := fault.OpenFile("b", vfstest.Create, 0o600); return err },
		faultfs.OpRead:   func() error { _, err := f.ReadAt(make([]byte, 2), 1); return err },
		faultfs.OpWrite:  func() error { _, err := f.WriteVec(3, []byte("x"), []byte("yz")); return err },
		faultfs.OpSync:   f.Sync, faultfs.OpTruncate: func() error { return f.Truncate(9) },
		faultfs.OpAllocate: func() error { return f.Allocate(1, 20) },
		faultfs.OpRemove:   func() error { return fault.Remove("a") },
		faultfs.OpRename:   func() error { return fault.Rename("a", "c") },
		faultfs.OpMkdir:    func() error { return fault.MkdirAll("d", 0o700) }, faultfs.OpReadDir: func() error {
			_, err := fault.ReadDir(".")
			return err
		},
		faultfs.OpStat:    func() error { _, err := fault.Stat("a"); return err },
		faultfs.OpSyncDir: func() error { return fault.SyncDir(".") },
		faultfs.OpLock:    func() error { _, err := fault.Lock("l"); return err },
		faultfs.OpUsage:   func() error { _, err := fault.Usage("."); return err },
	}
	for kind, do := range ops {
		var seen []faultfs.Op
		fault.SetHook(func(op faultfs.Op) error { seen = append(seen, op); return errTest })
		require.ErrorIs(t, do(), errTest, kind)
		require.Len(t, seen, 1)
		require.Equal(t, kind, seen[0].Kind)
		require.Equal(t, fault.Count(kind), seen[0].Count)
		require.NotContains(t, kind.String(), "operation")
		fault.SetHook(nil)
	}
	require.Equal(t, "hello", vfstest.Content(t, mem, "a"), "no operation was executed")
	names, err := mem.ReadDir(".")
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, names)
	require.Equal(t, "operation 99", faultfs.OpKind(99).String())

	fault.SetHook(func(op faultfs.Op) error {
		require.Equal(t, faultfs.Op{Kind: faultfs.OpWrite, Name: "a", Offset: 3, Length: 3, Count: 3}, op)
		return nil
	})
	require.NoError(t, ops[faultfs.OpWrite]())
	require.Equal(t, "helxyz", vfstest.Content(t, mem, "a"))
}

// An operation for which the hook returns ErrDropped succeeds without an effect.
func TestHookDropsOperations(t *testing.T) {
	mem := memfs.New()
	fault := faultfs.New(mem)
	f := vfstest.Open(t, fault, "a", vfstest.Create)
	vfstest.Write(t, f, 0, "hello")
	require.NoError(t, mem.SyncDir("."))
	fault.SetHook(only(faultfs.OpSync, faultfs.ErrDropped))
	require.NoError(t, f.Sync())
	require.Empty(t, vfstest.Content(t, mem.CrashClone(nil), "a"), "dropped sync")
	fault.SetHook(only(faultfs.OpWrite, faultfs.ErrDropped))
	vfstest.Write(t, f, 0, "HELLO")
	fault.SetHook(nil)
	require.Equal(t, "hello", vfstest.Content(t, mem, "a"), "dropped write")
}

// A hook can shorten a write, and flip a bit of written or read data.
func TestHookShortensWritesAndFlipsBits(t *testing.T) {
	mem := memfs.New()
	fault := faultfs.New(mem)
	f := vfstest.Open(t, fault, "a", vfstest.Create)
	fault.SetHook(only(faultfs.OpWrite, &faultfs.ShortWrite{Bytes: 4}))
	n, err := f.WriteVec(0, []byte("abc"), []byte("def"))
	require.ErrorIs(t, err, io.ErrShortWrite)
	require.Equal(t, 4, n)
	require.Equal(t, "abcd", vfstest.Content(t, mem, "a"))

	fault.SetHook(only(faultfs.OpWrite, &faultfs.FlipBit{Bit: 8}))
	vfstest.Write(t, f, 0, "abcd")
	require.Equal(t, "accd", vfstest.Content(t, mem, "a"), "flipped bit is stored")

	fault.SetHook(only(faultfs.OpRead, &faultfs.FlipBit{Bit: 32}))
	buf := make([]byte, 4)
	_, err = f.ReadAt(buf, 0)
	require.NoError(t, err)
	require.Equal(t, "`ccd", string(buf), "the bit number is taken modulo the length")
	require.Equal(t, "accd", vfstest.Content(t, mem, "a"))

	fault.SetHook(only(faultfs.OpWrite, syscall.ENOSPC))
	_, err = f.WriteAt([]byte("x"), 0)
	require.ErrorIs(t, err, syscall.ENOSPC)
}

// A hook that blocks delays only its operation.
func TestHookBlocksOperation(t *testing.T) {
	fault := faultfs.New(memfs.New())
	f := vfstest.Open(t, fault, "a", vfstest.Create)
	hanging, release, done := make(chan struct{}), make(chan struct{}), make(chan error)
	fault.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.OpSync {
			close(hanging)
			<-release
		}
		return nil
	})
	go func() { done <- f.Sync() }()
	<-hanging
	vfstest.Write(t, f, 0, "another operation")
	close(release)
	require.NoError(t, <-done)
}
