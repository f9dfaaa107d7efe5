// SPDX-License-Identifier: Apache-2.0

// Package vfs defines the interface FS, through which the store accesses all files, and implements it with the
// operating system's filesystem (OS).
//
// FS has the durability guarantees of POSIX. File.Sync makes the content and the size of a file durable, but not its
// name. FS.SyncDir makes the names in one directory durable, but not the content of the files. A file that was
// created and synced may be missing after a crash if its directory was never synced.
package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"unsafe"
)

// ErrLocked is returned by FS.Lock if another holder has the lock.
var ErrLocked = errors.New("lock is held by another process")

// ErrTooLarge is returned by ReadFile if the file exceeds the limit.
var ErrTooLarge = errors.New("file is too large")

// FS is a filesystem. All methods are safe for concurrent use. Errors match fs.ErrNotExist, fs.ErrExist, fs.ErrClosed
// and the syscall errors (such as syscall.ENOSPC) where these apply.
type FS interface {
	// OpenFile opens a regular file; flag is built from os.O_RDONLY, O_RDWR, O_CREATE, O_EXCL and O_TRUNC. A created file
	// is durable after its own Sync and a SyncDir of its directory.
	OpenFile(name string, flag int, perm fs.FileMode) (File, error)
	// Remove removes a file or an empty directory. The removal is durable after a SyncDir of the parent directory.
	Remove(name string) error
	// Rename moves a file or a directory and replaces an existing file atomically. The new name is durable after
	// SyncDir.
	Rename(oldName, newName string) error
	// MkdirAll creates a directory and its missing parents. They are durable after SyncDir of each parent directory.
	MkdirAll(dir string, perm fs.FileMode) error
	// ReadDir returns the sorted base names in dir.
	ReadDir(dir string) ([]string, error)
	Stat(name string) (FileInfo, error)
	// SyncDir makes all names that were created, removed or renamed in dir durable before it returns nil.
	SyncDir(dir string) error
	// Lock acquires an exclusive advisory lock on the named file, which it creates if necessary. The lock is released
	// when the result is closed or the process ends. If another holder has the lock, Lock returns ErrLocked
	// immediately.
	Lock(name string) (io.Closer, error)
	Usage(dir string) (Usage, error)
}

// File is an open regular file. All methods are safe for concurrent use; overlapping reads and writes may be
// interleaved. After Close, every method that returns an error fails with fs.ErrClosed.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// WriteVec writes the buffers consecutively at offset, as one write if the system supports it. It returns the number
	// of bytes written, and an error if not all bytes were written. It does not retain bufs or the buffers.
	WriteVec(offset int64, bufs ...[]byte) (int, error)
	// Sync makes the file's content durable before it returns nil, with the metadata needed to read it (size and
	// extents). After an error, the state of all writes since the last successful Sync is unknown, and a retry does not
	// help (INV-7).
	Sync() error
	// SyncRange writes the range to the disk. If Sync has covered the range before, the range is durable after the next
	// SyncDir of the file's directory. On systems without support, SyncRange calls Sync. An error has the same meaning
	// as an error of Sync.
	SyncRange(offset, length int64) error
	// Truncate sets the size. Added bytes read as zeros.
	Truncate(sizeBytes int64) error
	// Allocate reserves disk space for the range. If the range ends after the file, it extends the file with zeros. On
	// filesystems without support it only extends the file.
	Allocate(offset, length int64) error
	SizeBytes() (int64, error)
	// Name returns the name with which the file was opened.
	Name() string
}

// Cached is implemented by a File that can control its use of the page cache.
type Cached interface {
	// WriteBehind starts writeback of the range. The data is durable after the next Sync.
	WriteBehind(offset, length int64)
	// DropCache evicts the range from the page cache, except for dirty data.
	DropCache(offset, length int64)
	// CachedBytes returns the number of bytes of the range in the page cache, or false if the system does not report it.
	CachedBytes(offset, length int64) (int64, bool)
	// ReadExactly is ReadAt without readahead.
	ReadExactly(p []byte, offset int64) (int, error)
	// ReadUncached is like ReadAt, but leaves nothing in the page cache if the filesystem supports that. The address and
	// length of p and the offset must be multiples of UncachedAlign (AlignedBlock).
	ReadUncached(p []byte, offset int64) (int, error)
	// WriteUncached is like WriteAt, but leaves nothing in the page cache if the filesystem supports that. The length of p
	// and the offset must be multiples of UncachedAlign; p must begin in an AlignedBlock, at a multiple of 512 bytes.
	// Bypass documents the allowed concurrent writes.
	WriteUncached(p []byte, offset int64) (int, error)
}

// UncachedAlign is the alignment that ReadUncached and WriteUncached require.
const UncachedAlign = 4096

// AlignedBlock allocates memory for ReadUncached and WriteUncached.
func AlignedBlock(n int) []byte {
	b := make([]byte, n+UncachedAlign)
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(b))) % UncachedAlign //nolint:gosec // G103: only the address matters
	return b[skip : int(skip)+n : int(skip)+n]
}

// FileInfo is the result of FS.Stat.
type FileInfo struct {
	SizeBytes int64 // of a regular file
	IsDir     bool
}

// Usage is the space usage of a filesystem.
type Usage struct {
	TotalBytes uint64
	// FreeBytes includes the space reserved for root; AvailableBytes does not.
	FreeBytes      uint64
	AvailableBytes uint64
	// NoInodes reports whether no further file can be created, regardless of the free space.
	NoInodes bool
}

// ReadFile returns the content of a file. It returns ErrTooLarge if the file has more than limitBytes bytes.
func ReadFile(fsys FS, name string, limitBytes int64) ([]byte, error) {
	f, err := fsys.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // read-only: nothing can be lost
	size, err := f.SizeBytes()
	if err != nil {
		return nil, err
	}
	if size > limitBytes {
		return nil, fmt.Errorf("%w: %s has %d bytes, expected at most %d", ErrTooLarge, name, size, limitBytes)
	}
	data := make([]byte, size)
	n, err := f.ReadAt(data, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return data[:n], nil
}

// WriteFileAtomic replaces the content of a file atomically and durably. It uses name+".tmp" as a temporary file.
func WriteFileAtomic(fsys FS, name string, data []byte) error {
	tmp := name + ".tmp"
	f, err := fsys.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.WriteAt(data, 0); err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := fsys.Rename(tmp, name); err != nil {
		return err
	}
	return fsys.SyncDir(filepath.Dir(name))
}

// MkdirAllSync creates a directory and its missing parents durably.
func MkdirAllSync(fsys FS, dir string, perm fs.FileMode) error {
	dir = filepath.Clean(dir)
	sync := []string{filepath.Dir(dir)} // always: an earlier attempt may have created the directory without a sync
	for at := filepath.Dir(dir); at != filepath.Dir(at); at = filepath.Dir(at) {
		_, err := fsys.Stat(at)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		sync = append(sync, filepath.Dir(at))
	}
	if err := fsys.MkdirAll(dir, perm); err != nil {
		return err
	}
	for _, at := range sync {
		if err := fsys.SyncDir(at); err != nil {
			return err
		}
	}
	return nil
}
