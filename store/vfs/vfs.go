// SPDX-License-Identifier: Apache-2.0

// Package vfs is the store's access to the disk: the interface FS, and OS, which implements it with the operating
// system's filesystem. The store reaches files through an FS only.
//
// What serves tests only is below it, and no release build links it:
//
//   - memfs keeps files in memory; a clone of it has what a power failure would have left;
//   - faultfs wraps another FS, and a test has it fail, delay, shorten or drop each operation;
//   - faultdisk is a faultfs that a test controls from another process;
//   - vfstest is the conformance suite of all of them.
//
// The rules of durability are the ones that POSIX promises and no more: File.Sync makes the content and the size of a
// file durable, but not its name; FS.SyncDir makes the names in one directory durable, but not what is in the files. A
// file that was created, synced and never had its directory synced may be gone after a crash, and memfs takes care that
// tests notice.
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

// ErrLocked is returned when FS.Lock finds the lock held by another holder.
var ErrLocked = errors.New("the lock is held by another process")

// FS is a filesystem. All methods are safe for concurrent use. Errors satisfy errors.Is with fs.ErrNotExist,
// fs.ErrExist, fs.ErrClosed and the syscall errors (such as syscall.ENOSPC) where these apply.
type FS interface {
	// OpenFile opens a regular file; flag is built from os.O_RDONLY, O_RDWR, O_CREATE, O_EXCL and O_TRUNC. A created
	// file is durable only after its own Sync and a SyncDir of its directory.
	OpenFile(name string, flag int, perm fs.FileMode) (File, error)
	// Remove removes a file or an empty directory. Durable after SyncDir of the directory it was in.
	Remove(name string) error
	// Rename moves a file or a directory and replaces a file that has the new name. It is atomic: a crash leaves the
	// old or the new state. Durable after SyncDir.
	Rename(oldName, newName string) error
	// MkdirAll creates a directory and its missing parents. Durable after SyncDir of the parent of each that was
	// created.
	MkdirAll(dir string, perm fs.FileMode) error
	// ReadDir returns the sorted base names of what is in dir.
	ReadDir(dir string) ([]string, error)
	// Stat describes a file or directory.
	Stat(name string) (FileInfo, error)
	// SyncDir must not return nil until all names created, removed or renamed in dir are durable.
	SyncDir(dir string) error
	// Lock takes an exclusive advisory lock on the file called name, which it creates if it must, and holds it until
	// the result is closed or the process ends. It does not wait: ErrLocked says that another holder exists.
	Lock(name string) (io.Closer, error)
	// Usage tells how full the filesystem is on which dir lies.
	Usage(dir string) (Usage, error)
}

// File is an open regular file. All methods are safe for concurrent use; overlapping reads and writes may see each
// other's parts. After Close every method fails with fs.ErrClosed.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// WriteVec writes the buffers one behind the other at offset, as one write where the system can do that. It returns
	// the number of bytes written, and a non-nil error if that is less than all of them. It keeps neither bufs nor what
	// they refer to.
	WriteVec(offset int64, bufs ...[]byte) (int, error)
	// Sync must not return nil until the file's content and what is needed to read it back (its size, its extents) are
	// durable. After an error nothing is known about what was written since the last successful Sync, and trying again
	// does not help: the system may have dropped the data and forgotten the error (INV-7).
	Sync() error
	// SyncRange hands the range to the disk without the rest of the file. It is durable when the next SyncDir of the
	// file's directory has returned as well. The range must have been synced before, so that it has its place on the
	// disk. Where the system cannot do a part, it is Sync. An error means what one of Sync does.
	SyncRange(offset, length int64) error
	// Truncate sets the size. What is gained reads as zeros.
	Truncate(sizeBytes int64) error
	// Allocate reserves space for the range and extends the file to its end if it is shorter; what is gained reads as
	// zeros. Where the filesystem cannot reserve, it only extends.
	Allocate(offset, length int64) error
	// PunchHole gives the space of the range back to the filesystem. The range reads as zeros from then on; the size
	// stays.
	PunchHole(offset, length int64) error
	// SizeBytes returns the size of the file.
	SizeBytes() (int64, error)
	// Name returns the name that the file was opened under.
	Name() string
}

// Cached is a File whose place in the system's cache can be looked at and controlled. Not every system's can; nothing
// but speed may depend on it.
type Cached interface {
	// WriteBehind has the system begin to write the range to the disk, and waits for nothing but a place in the disk's
	// queue. What is in it is not durable before the next Sync, which then has less to write.
	WriteBehind(offset, length int64)
	// DropCache has the system forget what it holds of the range, but for what is not on the disk yet.
	DropCache(offset, length int64)
	// CachedBytes is how much of the range the system holds; false if it does not say.
	CachedBytes(offset, length int64) (int64, bool)
	// ReadExactly reads what is asked for, and has the system read nothing ahead.
	ReadExactly(p []byte, offset int64) (int, error)
	// ReadUncached is ReadAt that leaves nothing in the system's cache, if the filesystem can do that. p, its length
	// and the offset are multiples of UncachedAlign, p by its address (AlignedBlock).
	ReadUncached(p []byte, offset int64) (int, error)
	// WriteUncached is WriteAt that leaves nothing in the system's cache, if the filesystem can do that. The length of
	// p and the offset are multiples of UncachedAlign; p begins in an AlignedBlock, at a multiple of 512 bytes. See
	// Bypass for what else may be written meanwhile.
	WriteUncached(p []byte, offset int64) (int, error)
}

// UncachedAlign is a multiple of every disk's block.
const UncachedAlign = 4096

// AlignedBlock allocates memory for ReadUncached and WriteUncached.
func AlignedBlock(n int) []byte {
	b := make([]byte, n+UncachedAlign)
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(b))) % UncachedAlign //nolint:gosec // G103: only the address matters
	return b[skip : int(skip)+n : int(skip)+n]
}

// FileInfo is what FS.Stat tells about a file or directory.
type FileInfo struct {
	// SizeBytes is the size of a regular file.
	SizeBytes int64
	// IsDir tells a directory from a file.
	IsDir bool
}

// Usage is the state of a filesystem's space, in bytes.
type Usage struct {
	// TotalBytes is the size of the filesystem.
	TotalBytes uint64
	// FreeBytes is what is not in use, including what is reserved for root.
	FreeBytes uint64
	// AvailableBytes is what this process may still use.
	AvailableBytes uint64
	// NoInodes is true when the filesystem can take no further file, whatever space it has.
	NoInodes bool
}

// ReadFile returns the whole content of a file of at most limitBytes bytes.
func ReadFile(fsys FS, name string, limitBytes int64) ([]byte, error) {
	f, err := fsys.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened for reading: nothing can be lost
	size, err := f.SizeBytes()
	if err != nil {
		return nil, err
	}
	if size > limitBytes {
		return nil, fmt.Errorf("%s has %d bytes, at most %d were expected: it is not the file it should be", name, size,
			limitBytes)
	}
	data := make([]byte, size)
	n, err := f.ReadAt(data, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return data[:n], nil
}

// WriteFileAtomic replaces the content of a file so that a crash leaves either all of the old or all of the new. The
// new content is durable when it returns nil. It uses name+".tmp" on its way.
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
