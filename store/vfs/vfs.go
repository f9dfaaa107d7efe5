// SPDX-License-Identifier: Apache-2.0

// Package vfs implements the store's access to the disk: the interface FS, and OS, which implements it with the
// operating system's filesystem. The store accesses files only through an FS.
//
// The sub-packages are for tests only, and no release build links them:
//
//   - memfs keeps files in memory; a clone of it contains the data that a power failure would have left;
//   - faultfs wraps another FS, and can fail, delay, shorten or drop each operation;
//   - faultdisk is a faultfs that a test controls from another process;
//   - vfstest is the conformance suite of all of them.
//
// The durability guarantees are exactly those of POSIX. File.Sync makes the content and the size of a file durable,
// but not its name. FS.SyncDir makes the names in one directory durable, but not the content of the files. A file
// that was created and synced, but whose directory was never synced, may be missing after a crash. memfs simulates
// that, so that tests detect missing syncs.
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

// ErrLocked is returned by FS.Lock when the lock is held by another holder.
var ErrLocked = errors.New("lock is held by another process")

// FS is a filesystem. All methods are safe for concurrent use. Errors satisfy errors.Is with fs.ErrNotExist,
// fs.ErrExist, fs.ErrClosed and the syscall errors (such as syscall.ENOSPC) where these apply.
type FS interface {
	// OpenFile opens a regular file; flag is built from os.O_RDONLY, O_RDWR, O_CREATE, O_EXCL and O_TRUNC. A created
	// file is durable only after its own Sync and a SyncDir of its directory.
	OpenFile(name string, flag int, perm fs.FileMode) (File, error)
	// Remove removes a file or an empty directory. Durable after SyncDir of its directory.
	Remove(name string) error
	// Rename moves a file or a directory and replaces an existing file with the new name. It is atomic: a crash
	// leaves the old or the new state. Durable after SyncDir.
	Rename(oldName, newName string) error
	// MkdirAll creates a directory and its missing parents. Durable after SyncDir of the parent of each that was
	// created.
	MkdirAll(dir string, perm fs.FileMode) error
	// ReadDir returns the sorted base names of the entries of dir.
	ReadDir(dir string) ([]string, error)
	// Stat returns information about a file or directory.
	Stat(name string) (FileInfo, error)
	// SyncDir must not return nil until all names created, removed or renamed in dir are durable.
	SyncDir(dir string) error
	// Lock takes an exclusive advisory lock on the named file, which it creates if necessary. It holds the lock until
	// the result is closed or the process ends. It does not wait: it returns ErrLocked if another holder exists.
	Lock(name string) (io.Closer, error)
	// Usage returns the space of the filesystem that contains dir.
	Usage(dir string) (Usage, error)
}

// File is an open regular file. All methods are safe for concurrent use; overlapping reads and writes may be
// interleaved. After Close every method fails with fs.ErrClosed.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// WriteVec writes the buffers consecutively at offset, as one write if the system supports it. It returns the
	// number of bytes written, and a non-nil error if that is less than all of them. It retains neither bufs nor the
	// buffers.
	WriteVec(offset int64, bufs ...[]byte) (int, error)
	// Sync must not return nil until the file's content and the metadata needed to read it (its size, its extents)
	// are durable. After an error, the state of all writes since the last successful Sync is unknown. A retry does
	// not help: the system may have dropped the data and cleared the error (INV-7).
	Sync() error
	// SyncRange writes the range to the disk without the rest of the file. It is durable after the next SyncDir of
	// the file's directory. The range must have been synced before, so that its disk blocks are allocated. On systems
	// without support it is Sync. An error has the same meaning as one of Sync.
	SyncRange(offset, length int64) error
	// Truncate sets the size. Added bytes read as zeros.
	Truncate(sizeBytes int64) error
	// Allocate reserves space for the range and extends the file to the end of the range if it is shorter. Added
	// bytes read as zeros. On filesystems without support it only extends the file.
	Allocate(offset, length int64) error
	// PunchHole frees the space of the range. The range reads as zeros from then on; the size does not change.
	PunchHole(offset, length int64) error
	// SizeBytes returns the size of the file.
	SizeBytes() (int64, error)
	// Name returns the name with which the file was opened.
	Name() string
}

// Cached is a File with control over the system's page cache. Not every system supports it; only speed may depend on
// it.
type Cached interface {
	// WriteBehind makes the system start to write the range to the disk. It waits only for space in the disk's queue.
	// The data is not durable before the next Sync, which then has less to write.
	WriteBehind(offset, length int64)
	// DropCache evicts the range from the system's page cache, except for data that is not on the disk yet.
	DropCache(offset, length int64)
	// CachedBytes returns the size of the cached part of the range; false if the system does not report it.
	CachedBytes(offset, length int64) (int64, bool)
	// ReadExactly reads the given range without read-ahead by the system.
	ReadExactly(p []byte, offset int64) (int, error)
	// ReadUncached is ReadAt that leaves nothing in the page cache, if the filesystem supports it. The address and
	// length of p and the offset must be multiples of UncachedAlign (AlignedBlock).
	ReadUncached(p []byte, offset int64) (int, error)
	// WriteUncached is WriteAt that leaves nothing in the page cache, if the filesystem supports it. The length of p
	// and the offset must be multiples of UncachedAlign; p must begin in an AlignedBlock, at a multiple of 512 bytes.
	// Bypass documents the allowed concurrent writes.
	WriteUncached(p []byte, offset int64) (int, error)
}

// UncachedAlign is a multiple of the block size of every disk.
const UncachedAlign = 4096

// AlignedBlock allocates memory for ReadUncached and WriteUncached.
func AlignedBlock(n int) []byte {
	b := make([]byte, n+UncachedAlign)
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(b))) % UncachedAlign //nolint:gosec // G103: only the address matters
	return b[skip : int(skip)+n : int(skip)+n]
}

// FileInfo is the result of FS.Stat.
type FileInfo struct {
	// SizeBytes is the size of a regular file.
	SizeBytes int64
	// IsDir is set for a directory.
	IsDir bool
}

// Usage is the state of a filesystem's space, in bytes.
type Usage struct {
	// TotalBytes is the size of the filesystem.
	TotalBytes uint64
	// FreeBytes is the unused space, including the space reserved for root.
	FreeBytes uint64
	// AvailableBytes is the space that this process may use.
	AvailableBytes uint64
	// NoInodes is true when no further file can be created, regardless of the free space.
	NoInodes bool
}

// ReadFile returns the whole content of a file of at most limitBytes bytes.
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
		return nil, fmt.Errorf("%s has %d bytes, expected at most %d", name, size,
			limitBytes)
	}
	data := make([]byte, size)
	n, err := f.ReadAt(data, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return data[:n], nil
}

// WriteFileAtomic replaces the content of a file atomically: a crash leaves either the old or the new content. The
// new content is durable when it returns nil. It uses name+".tmp" as a temporary file.
func WriteFileAtomic(fsys FS, name string, data []byte) error {
	tmp := name + ".tmp"
	f, err := fsys.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.WriteAt(data, 0); err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	if err := fsys.Rename(tmp, name); err != nil {
		return err
	}
	return fsys.SyncDir(filepath.Dir(name))
}
