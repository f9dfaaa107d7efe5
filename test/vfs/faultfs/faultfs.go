// SPDX-License-Identifier: Apache-2.0

// Package faultfs implements filesystems that inject faults into an inner filesystem, for tests. FS calls a hook
// before each operation, which can fail, delay, shorten, corrupt or drop the operation. WriteBack loses unsynced data
// when its process is killed.
package faultfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync/atomic"

	"github.com/lockstep-mq/lockstep/store/vfs"
)

// OpKind is the kind of an operation.
type OpKind uint8

// The kinds of operations.
const (
	OpOpen   OpKind = iota + 1 // OpenFile without os.O_CREATE
	OpCreate                   // OpenFile with os.O_CREATE, even if the file exists
	OpRead
	OpWrite // WriteAt and WriteVec
	OpSync
	OpTruncate
	OpAllocate
	OpRemove
	OpRename
	OpMkdir
	OpReadDir
	OpStat
	OpSyncDir
	OpLock
	OpUsage
	opKinds
)

// String returns the name of the operation.
func (k OpKind) String() string {
	names := [opKinds]string{
		OpOpen: "open", OpCreate: "create", OpRead: "read", OpWrite: "write", OpSync: "sync", OpTruncate: "truncate",
		OpAllocate: "allocate", OpRemove: "remove", OpRename: "rename", OpMkdir: "mkdir",
		OpReadDir: "readdir", OpStat: "stat", OpSyncDir: "sync dir", OpLock: "lock", OpUsage: "usage",
	}
	if k == 0 || int(k) >= len(names) {
		return fmt.Sprintf("operation %d", uint8(k))
	}
	return names[k]
}

// Op describes an operation before its execution.
type Op struct {
	// Kind is the kind of the operation.
	Kind OpKind
	// Name is the name of the file or directory; for a rename, the old name.
	Name string
	// NewName is the new name of a rename.
	NewName string
	// Offset and Length are the range of a read, write, allocate or SyncRange, in bytes. For a truncate, Length is the
	// new size.
	Offset, Length int64
	// Count is the number of operations of this kind so far, including this one.
	Count uint64
}

// ErrDropped, returned by a hook, makes an operation report success without executing it, for example a write or a
// sync. An operation with a result (open, read, stat, …) fails with ErrDropped instead.
var ErrDropped = errors.New("operation was dropped by a fault hook")

// ShortWrite, returned by a hook, makes a write store only its first Bytes bytes and fail with ShortWrite.
type ShortWrite struct {
	// Bytes is the number of bytes that are written.
	Bytes int64
}

// Error describes the fault.
func (e *ShortWrite) Error() string {
	return fmt.Sprintf("fault hook: only the first %d bytes were written", e.Bytes)
}

// Is reports whether target is io.ErrShortWrite.
func (e *ShortWrite) Is(target error) bool { return target == io.ErrShortWrite }

// FlipBit, returned by a hook, makes a read return, or a write store, data with one bit flipped.
type FlipBit struct {
	// Bit is the number of the bit in the data, modulo the number of bits. Bit 0 is the lowest bit of the first byte.
	Bit int64
}

// Error describes the fault.
func (e *FlipBit) Error() string { return fmt.Sprintf("fault hook: bit %d flipped", e.Bit) }

// FS is a filesystem with a hook for fault injection.
type FS struct {
	inner  vfs.FS
	hook   atomic.Pointer[func(Op) error]
	counts [opKinds]atomic.Uint64
}

// New returns an FS on inner. Without a hook it only counts operations.
func New(inner vfs.FS) *FS { return &FS{inner: inner} }

// SetHook sets the hook that is called before every operation, in the goroutine of the operation and without locks.
// The hook may block, and may use the inner filesystem. If it returns an error, the operation fails without being
// executed, except for ErrDropped, *ShortWrite and *FlipBit. The hook must be safe for concurrent use. nil removes
// it.
func (f *FS) SetHook(hook func(Op) error) {
	if hook == nil {
		f.hook.Store(nil)
		return
	}
	f.hook.Store(&hook)
}

// Count returns the number of operations of a kind so far, including failed ones.
func (f *FS) Count(kind OpKind) uint64 { return f.counts[kind].Load() }

func (f *FS) before(op Op) error {
	op.Count = f.counts[op.Kind].Add(1)
	hook := f.hook.Load()
	if hook == nil {
		return nil
	}
	err := (*hook)(op)
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op.Kind.String(), Path: op.Name, Err: err}
}

// change runs an operation that only returns an error, unless the hook fails or drops it.
func (f *FS) change(op Op, do func() error) error {
	err := f.before(op)
	switch {
	case err == nil:
		return do()
	case errors.Is(err, ErrDropped):
		return nil
	default:
		return err
	}
}

// OpenFile implements vfs.FS.
func (f *FS) OpenFile(name string, flag int, perm fs.FileMode) (vfs.File, error) {
	kind := OpOpen
	if flag&os.O_CREATE != 0 {
		kind = OpCreate
	}
	if err := f.before(Op{Kind: kind, Name: name}); err != nil {
		return nil, err
	}
	inner, err := f.inner.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return &faultFile{File: inner, fault: f}, nil
}

// Remove implements vfs.FS.
func (f *FS) Remove(name string) error {
	return f.change(Op{Kind: OpRemove, Name: name}, func() error { return f.inner.Remove(name) })
}

// Rename implements vfs.FS.
func (f *FS) Rename(oldName, newName string) error {
	return f.change(Op{Kind: OpRename, Name: oldName, NewName: newName},
		func() error { return f.inner.Rename(oldName, newName) })
}

// MkdirAll implements vfs.FS.
func (f *FS) MkdirAll(dir string, perm fs.FileMode) error {
	return f.change(Op{Kind: OpMkdir, Name: dir}, func() error { return f.inner.MkdirAll(dir, perm) })
}

// ReadDir implements vfs.FS.
func (f *FS) ReadDir(dir string) ([]string, error) {
	if err := f.before(Op{Kind: OpReadDir, Name: dir}); err != nil {
		return nil, err
	}
	return f.inner.ReadDir(dir)
}

// Stat implements vfs.FS.
func (f *FS) Stat(name string) (vfs.FileInfo, error) {
	if err := f.before(Op{Kind: OpStat, Name: name}); err != nil {
		return vfs.FileInfo{}, err
	}
	return f.inner.Stat(name)
}

// SyncDir implements vfs.FS.
func (f *FS) SyncDir(dir string) error {
	return f.change(Op{Kind: OpSyncDir, Name: dir}, func() error { return f.inner.SyncDir(dir) })
}

// Lock implements vfs.FS.
func (f *FS) Lock(name string) (io.Closer, error) {
	if err := f.before(Op{Kind: OpLock, Name: name}); err != nil {
		return nil, err
	}
	return f.inner.Lock(name)
}

// Usage implements vfs.FS.
func (f *FS) Usage(dir string) (vfs.Usage, error) {
	if err := f.before(Op{Kind: OpUsage, Name: dir}); err != nil {
		return vfs.Usage{}, err
	}
	return f.inner.Usage(dir)
}

type faultFile struct {
	vfs.File
	fault *FS
}

func (f *faultFile) ReadAt(p []byte, off int64) (int, error) {
	err := f.fault.before(Op{Kind: OpRead, Name: f.Name(), Offset: off, Length: int64(len(p))})
	var flip *FlipBit
	if err != nil && !errors.As(err, &flip) {
		return 0, err
	}
	n, err := f.File.ReadAt(p, off)
	if flip != nil {
		flipBit(p[:n], flip.Bit)
	}
	return n, err
}

func (f *faultFile) WriteAt(p []byte, off int64) (int, error) { return f.WriteVec(off, p) }

func (f *faultFile) WriteVec(off int64, bufs ...[]byte) (int, error) {
	var total int64
	for _, b := range bufs {
		total += int64(len(b))
	}
	err := f.fault.before(Op{Kind: OpWrite, Name: f.Name(), Offset: off, Length: total})
	if err == nil {
		return f.File.WriteVec(off, bufs...)
	}
	var short *ShortWrite
	var flip *FlipBit
	switch {
	case errors.Is(err, ErrDropped):
		return int(total), nil
	case errors.As(err, &short):
		n, writeErr := f.File.WriteAt(join(bufs)[:min(short.Bytes, total)], off)
		return n, errors.Join(err, writeErr)
	case errors.As(err, &flip):
		all := join(bufs)
		flipBit(all, flip.Bit)
		return f.File.WriteAt(all, off)
	default:
		return 0, err
	}
}

func (f *faultFile) Sync() error {
	return f.fault.change(Op{Kind: OpSync, Name: f.Name()}, f.File.Sync)
}

func (f *faultFile) SyncRange(offset, length int64) error {
	op := Op{Kind: OpSync, Name: f.Name(), Offset: offset, Length: length}
	return f.fault.change(op, func() error { return f.File.SyncRange(offset, length) })
}

func (f *faultFile) Truncate(sizeBytes int64) error {
	return f.fault.change(Op{Kind: OpTruncate, Name: f.Name(), Length: sizeBytes},
		func() error { return f.File.Truncate(sizeBytes) })
}

func (f *faultFile) Allocate(offset, length int64) error {
	op := Op{Kind: OpAllocate, Name: f.Name(), Offset: offset, Length: length}
	return f.fault.change(op, func() error { return f.File.Allocate(offset, length) })
}

func join(bufs [][]byte) []byte {
	var all []byte
	for _, b := range bufs {
		all = append(all, b...)
	}
	return all
}

func flipBit(p []byte, bit int64) {
	if len(p) == 0 {
		return
	}
	bit %= int64(len(p)) * 8
	p[bit/8] ^= 1 << (bit % 8)
}
