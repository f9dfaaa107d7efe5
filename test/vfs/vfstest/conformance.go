// SPDX-License-Identifier: Apache-2.0

// Package vfstest provides a conformance suite for implementations of vfs.FS, and helpers to open, write and read
// files.
package vfstest

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"math/rand"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/vfs"
)

// Create contains the flags to open a file for reading and writing, and to create it if it does not exist.
const Create = os.O_RDWR | os.O_CREATE

// Run runs the conformance suite. For each test, fresh returns a filesystem and an empty directory in it.
func Run(t *testing.T, fresh func(t *testing.T) (fsys vfs.FS, dir string)) {
	t.Helper()
	for name, test := range map[string]func(t *testing.T, fsys vfs.FS, dir string){
		"OpenFlags": testOpenFlags, "ReadWrite": testReadWrite, "TruncateAllocatePunch": testTruncateAllocatePunch,
		"Names": testNames, "RemoveOpenFile": testRemoveOpenFile, "ClosedFile": testClosedFile,
		"Lock": testLock, "Usage": testUsage, "ReadFileAndWriteFileAtomic": testReadFileAndWriteFileAtomic,
		"AgainstModel": testAgainstModel, "ConcurrentUse": testConcurrentUse,
	} {
		t.Run(name, func(t *testing.T) {
			fsys, dir := fresh(t)
			test(t, fsys, dir)
		})
	}
}

// Open opens a file and closes it at the end of the test.
func Open(t *testing.T, fsys vfs.FS, name string, flag int) vfs.File {
	t.Helper()
	f, err := fsys.OpenFile(name, flag, 0o600)
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// Write writes data at offset.
func Write(t *testing.T, f vfs.File, offset int64, data string) {
	t.Helper()
	n, err := f.WriteAt([]byte(data), offset)
	require.NoError(t, err)
	require.Equal(t, len(data), n)
}

// Content returns the content of a file.
func Content(t *testing.T, fsys vfs.FS, name string) string {
	t.Helper()
	data, err := vfs.ReadFile(fsys, name, 1<<20)
	require.NoError(t, err)
	return string(data)
}

func testOpenFlags(t *testing.T, fsys vfs.FS, dir string) {
	name := filepath.Join(dir, "a")
	_, err := fsys.OpenFile(name, os.O_RDWR, 0)
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = fsys.OpenFile(filepath.Join(dir, "no", "a"), Create, 0o600)
	require.ErrorIs(t, err, fs.ErrNotExist)

	f := Open(t, fsys, name, Create|os.O_EXCL)
	require.Equal(t, name, f.Name())
	Write(t, f, 0, "hello")
	_, err = fsys.OpenFile(name, Create|os.O_EXCL, 0o600)
	require.ErrorIs(t, err, fs.ErrExist)

	again := Open(t, fsys, name, Create)
	size, err := again.SizeBytes()
	require.NoError(t, err)
	require.EqualValues(t, 5, size)

	Open(t, fsys, name, Create|os.O_TRUNC)
	size, err = f.SizeBytes()
	require.NoError(t, err)
	require.Zero(t, size, "all handles must refer to the same file")

	_, err = Open(t, fsys, name, os.O_RDONLY).WriteAt([]byte("x"), 0)
	require.ErrorIs(t, err, syscall.EBADF)
}

func testReadWrite(t *testing.T, fsys vfs.FS, dir string) {
	f := Open(t, fsys, filepath.Join(dir, "a"), Create)
	Write(t, f, 10, "0123456789")
	buf := make([]byte, 30)
	n, err := f.ReadAt(buf, 5)
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, "\x00\x00\x00\x00\x000123456789", string(buf[:n]))
	n, err = f.ReadAt(buf[:4], 16)
	require.NoError(t, err)
	require.Equal(t, "6789", string(buf[:n]))
	n, err = f.ReadAt(buf, 20)
	require.ErrorIs(t, err, io.EOF)
	require.Zero(t, n)

	n, err = f.WriteVec(4090, []byte("abc"), nil, []byte("defgh"), []byte("i"))
	require.NoError(t, err)
	require.Equal(t, 9, n)
	n, err = f.ReadAt(buf[:9], 4090)
	require.NoError(t, err)
	require.Equal(t, "abcdefghi", string(buf[:n]))
	n, err = f.WriteVec(0)
	require.NoError(t, err)
	require.Zero(t, n)
	require.NoError(t, f.Sync())
}

func testTruncateAllocatePunch(t *testing.T, fsys vfs.FS, dir string) {
	name := filepath.Join(dir, "a")
	f := Open(t, fsys, name, Create)
	Write(t, f, 0, string(bytes.Repeat([]byte("x"), 10000)))
	require.NoError(t, f.Truncate(5000))
	require.NoError(t, f.Truncate(6000))
	got := Content(t, fsys, name)
	require.Equal(t, string(bytes.Repeat([]byte("x"), 5000))+string(make([]byte, 1000)), got)

	require.NoError(t, f.Allocate(0, 20000))
	size, err := f.SizeBytes()
	require.NoError(t, err)
	require.EqualValues(t, 20000, size)
	require.NoError(t, f.Allocate(0, 100))
	size, err = f.SizeBytes()
	require.NoError(t, err)
	require.EqualValues(t, 20000, size, "Allocate must not shrink a file")
	require.Error(t, f.Truncate(-1))
}

func testNames(t *testing.T, fsys vfs.FS, dir string) {
	a, b, sub := filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(dir, "sub", "deep")
	Write(t, Open(t, fsys, a, Create), 0, "a")
	Write(t, Open(t, fsys, b, Create), 0, "b")
	require.NoError(t, fsys.MkdirAll(sub, 0o700))
	require.NoError(t, fsys.MkdirAll(sub, 0o700))
	require.Error(t, fsys.MkdirAll(filepath.Join(a, "x"), 0o700))
	names, err := fsys.ReadDir(dir)
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b", "sub"}, names)

	require.NoError(t, fsys.Rename(a, b), "Rename must replace a file")
	require.Equal(t, "a", Content(t, fsys, b))
	require.ErrorIs(t, fsys.Rename(a, b), fs.ErrNotExist)
	require.NoError(t, fsys.Rename(b, b))
	require.ErrorIs(t, fsys.Remove(a), fs.ErrNotExist)
	require.Error(t, fsys.Rename(b, filepath.Join(dir, "sub")))
	require.Error(t, fsys.Remove(filepath.Join(dir, "sub")), "Remove must fail for a directory that is not empty")

	require.NoError(t, fsys.Rename(b, filepath.Join(sub, "c")))
	require.NoError(t, fsys.Rename(filepath.Join(dir, "sub"), filepath.Join(dir, "moved")))
	require.Equal(t, "a", Content(t, fsys, filepath.Join(dir, "moved", "deep", "c")))
	info, err := fsys.Stat(filepath.Join(dir, "moved"))
	require.NoError(t, err)
	require.True(t, info.IsDir)
	info, err = fsys.Stat(filepath.Join(dir, "moved", "deep", "c"))
	require.NoError(t, err)
	require.Equal(t, vfs.FileInfo{SizeBytes: 1}, info)
	_, err = fsys.Stat(a)
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = fsys.ReadDir(a)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorIs(t, fsys.SyncDir(a), fs.ErrNotExist)
	require.NoError(t, fsys.SyncDir(dir))
}

// testRemoveOpenFile requires that a removed file can be read until it is closed.
func testRemoveOpenFile(t *testing.T, fsys vfs.FS, dir string) {
	name := filepath.Join(dir, "a")
	f := Open(t, fsys, name, Create)
	Write(t, f, 0, "still here")
	require.NoError(t, fsys.Remove(name))
	Write(t, Open(t, fsys, name, Create), 0, "other")
	buf := make([]byte, 10)
	_, err := f.ReadAt(buf, 0)
	require.NoError(t, err)
	require.Equal(t, "still here", string(buf))
}

func testClosedFile(t *testing.T, fsys vfs.FS, dir string) {
	f, err := fsys.OpenFile(filepath.Join(dir, "a"), Create, 0o600)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	_, readErr := f.ReadAt(make([]byte, 1), 0)
	_, writeErr := f.WriteAt([]byte("x"), 0)
	_, vecErr := f.WriteVec(0, []byte("x"), []byte("y"))
	_, sizeErr := f.SizeBytes()
	for what, err := range map[string]error{
		"read": readErr, "write": writeErr, "vec": vecErr, "size": sizeErr, "close": f.Close(), "sync": f.Sync(),
		"truncate": f.Truncate(1), "allocate": f.Allocate(0, 1),
	} {
		require.ErrorIs(t, err, fs.ErrClosed, what)
	}
}

func testLock(t *testing.T, fsys vfs.FS, dir string) {
	name := filepath.Join(dir, "lock")
	held, err := fsys.Lock(name)
	require.NoError(t, err)
	_, err = fsys.Lock(name)
	require.ErrorIs(t, err, vfs.ErrLocked)
	require.ErrorContains(t, err, name)
	require.NoError(t, held.Close())
	held, err = fsys.Lock(name)
	require.NoError(t, err)
	require.NoError(t, held.Close())
}

func testUsage(t *testing.T, fsys vfs.FS, dir string) {
	u, err := fsys.Usage(dir)
	require.NoError(t, err)
	require.NotZero(t, u.TotalBytes)
	require.LessOrEqual(t, u.AvailableBytes, u.FreeBytes)
	require.LessOrEqual(t, u.FreeBytes, u.TotalBytes)
	_, err = fsys.Usage(filepath.Join(dir, "none"))
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func testReadFileAndWriteFileAtomic(t *testing.T, fsys vfs.FS, dir string) {
	name := filepath.Join(dir, "a")
	require.NoError(t, vfs.WriteFileAtomic(fsys, name, []byte("one")))
	require.NoError(t, vfs.WriteFileAtomic(fsys, name, []byte("two!")))
	require.Equal(t, "two!", Content(t, fsys, name))
	_, err := vfs.ReadFile(fsys, name, 3)
	require.ErrorContains(t, err, "4 bytes")
	names, err := fsys.ReadDir(dir)
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, names)
}

// testAgainstModel requires that random operations on a file have the same results as on a byte slice.
func testAgainstModel(t *testing.T, fsys vfs.FS, dir string) {
	rng := rand.New(rand.NewSource(7))
	f := Open(t, fsys, filepath.Join(dir, "a"), Create)
	var model []byte
	extend := func(n int) {
		if n > len(model) {
			model = append(model, make([]byte, n-len(model))...)
		}
	}
	for step := range 2000 {
		at, length := rng.Intn(30000), 1+rng.Intn(9000)
		switch rng.Intn(5) {
		case 0, 1:
			data := make([]byte, length)
			if rng.Intn(3) > 0 {
				_, _ = rng.Read(data)
			}
			cut := rng.Intn(length)
			_, err := f.WriteVec(int64(at), data[:cut], data[cut:])
			require.NoError(t, err)
			extend(at + length)
			copy(model[at:], data)
		case 2:
			require.NoError(t, f.Truncate(int64(at)))
			model = model[:min(at, len(model))]
			extend(at)
		case 3:
			require.NoError(t, f.Allocate(int64(at), int64(length)))
			extend(at + length)
		case 4:
			require.NoError(t, f.Sync())
		}
		buf := make([]byte, length)
		n, err := f.ReadAt(buf, int64(at))
		want := model[min(at, len(model)):min(at+length, len(model))]
		require.True(t, bytes.Equal(want, buf[:n]), "step %d", step)
		require.Equal(t, len(want) < length, errors.Is(err, io.EOF), "step %d: %v", step, err)
		size, err := f.SizeBytes()
		require.NoError(t, err)
		require.EqualValues(t, len(model), size)
	}
}

// testConcurrentUse requires that writes and syncs of concurrent users succeed, or fail with ErrClosed after Close.
func testConcurrentUse(t *testing.T, fsys vfs.FS, dir string) {
	f := Open(t, fsys, filepath.Join(dir, "a"), Create)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			buf := bytes.Repeat([]byte{byte(i)}, 3000)
			for {
				if _, err := f.WriteVec(int64(i)*3000, buf[:10], buf[10:]); err != nil {
					if !errors.Is(err, fs.ErrClosed) {
						t.Errorf("write: %v", err)
					}
					return
				}
				if err := f.Sync(); err != nil && !errors.Is(err, fs.ErrClosed) {
					t.Errorf("sync: %v", err)
				}
			}
		})
	}
	require.Eventually(t, func() bool {
		size, err := f.SizeBytes()
		return err == nil && size == 12000
	}, 10e9, 1e6)
	require.NoError(t, f.Close())
	wg.Wait()
}
