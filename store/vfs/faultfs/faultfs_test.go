package faultfs_test

import (
	"errors"
	"io"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	vfs "github.com/lockstep-mq/lockstep/store/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/store/vfs/memfs"
	"github.com/lockstep-mq/lockstep/store/vfs/vfstest"
)

const create = vfstest.Create

var (
	mustOpen  = vfstest.Open
	mustWrite = vfstest.Write
	content   = vfstest.Content
)

var errTest = errors.New("test")

// only returns a hook that fails operations of one kind.
func only(kind vfs.OpKind, err error) func(vfs.Op) error {
	return func(op vfs.Op) error {
		if op.Kind == kind {
			return err
		}
		return nil
	}
}

func TestFaultSeesAndFailsEveryOperation(t *testing.T) {
	mem := memfs.New()
	fault := vfs.New(mem)
	f := mustOpen(t, fault, "a", create)
	mustWrite(t, f, 0, "hello")
	ops := map[vfs.OpKind]func() error{
		vfs.OpOpen:   func() error { _, err := fault.OpenFile("a", os.O_RDWR, 0); return err },
		vfs.OpCreate: func() error { _, err := fault.OpenFile("b", create, 0o600); return err },
		vfs.OpRead:   func() error { _, err := f.ReadAt(make([]byte, 2), 1); return err },
		vfs.OpWrite:  func() error { _, err := f.WriteVec(3, []byte("x"), []byte("yz")); return err },
		vfs.OpSync:   f.Sync, vfs.OpTruncate: func() error { return f.Truncate(9) },
		vfs.OpAllocate:  func() error { return f.Allocate(1, 20) },
		vfs.OpPunchHole: func() error { return f.PunchHole(1, 2) },
		vfs.OpRemove:    func() error { return fault.Remove("a") },
		vfs.OpRename:    func() error { return fault.Rename("a", "c") },
		vfs.OpMkdir:     func() error { return fault.MkdirAll("d", 0o700) }, vfs.OpReadDir: func() error {
			_,
				err := fault.ReadDir(".")
			return err
		},
		vfs.OpStat:    func() error { _, err := fault.Stat("a"); return err },
		vfs.OpSyncDir: func() error { return fault.SyncDir(".") },
		vfs.OpLock:    func() error { _, err := fault.Lock("l"); return err },
		vfs.OpUsage:   func() error { _, err := fault.Usage("."); return err },
	}
	for kind, do := range ops {
		var seen []vfs.Op
		fault.SetHook(func(op vfs.Op) error { seen = append(seen, op); return errTest })
		require.ErrorIs(t, do(), errTest, kind)
		require.Len(t, seen, 1)
		require.Equal(t, kind, seen[0].Kind)
		require.Equal(t, fault.Count(kind), seen[0].Count)
		require.NotContains(t, kind.String(), "operation")
		fault.SetHook(nil)
	}
	require.Equal(t, "hello", content(t, mem, "a"), "nothing was done")
	names, err := mem.ReadDir(".")
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, names)
	require.Equal(t, "operation 99", vfs.OpKind(99).String())

	fault.SetHook(func(op vfs.Op) error {
		require.Equal(t, vfs.Op{Kind: vfs.OpWrite, Name: "a", Offset: 3, Length: 3, Count: 3}, op)
		return nil
	})
	require.NoError(t, ops[vfs.OpWrite]())
	require.Equal(t, "helxyz", content(t, mem, "a"))
}

func TestFaultDropped(t *testing.T) {
	mem := memfs.New()
	fault := vfs.New(mem)
	f := mustOpen(t, fault, "a", create)
	mustWrite(t, f, 0, "hello")
	require.NoError(t, mem.SyncDir("."))
	fault.SetHook(only(vfs.OpSync, vfs.ErrDropped))
	require.NoError(t, f.Sync())
	require.Empty(t, content(t, mem.CrashClone(nil), "a"), "the sync lied")
	fault.SetHook(only(vfs.OpWrite, vfs.ErrDropped))
	mustWrite(t, f, 0, "HELLO")
	fault.SetHook(nil)
	require.Equal(t, "hello", content(t, mem, "a"), "the write was lost")
}

func TestFaultShortWriteAndFlippedBits(t *testing.T) {
	mem := memfs.New()
	fault := vfs.New(mem)
	f := mustOpen(t, fault, "a", create)
	fault.SetHook(only(vfs.OpWrite, &vfs.ShortWrite{Bytes: 4}))
	n, err := f.WriteVec(0, []byte("abc"), []byte("def"))
	require.ErrorIs(t, err, io.ErrShortWrite)
	require.Equal(t, 4, n)
	require.Equal(t, "abcd", content(t, mem, "a"))

	fault.SetHook(only(vfs.OpWrite, &vfs.FlipBit{Bit: 8}))
	mustWrite(t, f, 0, "abcd")
	require.Equal(t, "accd", content(t, mem, "a"), "the disk has it wrong")

	fault.SetHook(only(vfs.OpRead, &vfs.FlipBit{Bit: 32}))
	buf := make([]byte, 4)
	_, err = f.ReadAt(buf, 0)
	require.NoError(t, err)
	require.Equal(t, "`ccd", string(buf), "the reader gets it wrong, modulo the length")
	require.Equal(t, "accd", content(t, mem, "a"))

	fault.SetHook(only(vfs.OpWrite, syscall.ENOSPC))
	_, err = f.WriteAt([]byte("x"), 0)
	require.ErrorIs(t, err, syscall.ENOSPC)
}

func TestFaultStall(t *testing.T) {
	fault := vfs.New(memfs.New())
	f := mustOpen(t, fault, "a", create)
	hanging, release, done := make(chan struct{}), make(chan struct{}), make(chan error)
	fault.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpSync {
			close(hanging)
			<-release
		}
		return nil
	})
	go func() { done <- f.Sync() }()
	<-hanging
	mustWrite(t, f, 0, "others go on")
	close(release)
	require.NoError(t, <-done)
}
