// SPDX-License-Identifier: Apache-2.0

// Package memfs implements a filesystem in memory, for tests. FS.CrashClone simulates a power failure: it returns a
// copy with all synced data and a random part of the unsynced data.
package memfs

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/lockstep-mq/lockstep/store/vfs"
)

// FS is a filesystem in memory that tracks which data is synced. CrashClone simulates a power failure, and SetCapacity
// a full disk. Ranges of zeros use almost no memory, so large preallocated files are cheap.
type FS struct {
	// mu guards all fields and inodes.
	mu    sync.Mutex
	root  *inode
	locks map[string]bool
	// pending contains the changes of names that no SyncDir has made durable, the oldest first.
	pending       []*nameOp
	capacityBytes int64
	usedBytes     int64
}

// inode is a file or a directory. Names and open files refer to it.
type inode struct {
	// entries contains the current names in a directory. synced contains the names that survive a crash. Both are nil
	// for a file.
	entries, synced map[string]*inode

	chunks                []chunk
	sizeBytes, syncedSize int64
	dirty                 []int // indexes of the chunks that Sync must process
	names, handles        int   // reference counts; the space is freed when both are 0
}

func (n *inode) isDir() bool { return n.entries != nil }

// nameOp is an operation that changes names. It is atomic, even in a crash.
type nameOp struct {
	changes []nameChange
}

type nameChange struct {
	dir  *inode
	name string
	node *inode // nil if the name is removed
	old  *inode // previous inode of the name
}

// defaultCapacity is the capacity without SetCapacity.
const defaultCapacity = 1 << 40

// New returns a filesystem that contains only a root directory. All names are relative to the root, with or without a
// leading slash.
func New() *FS {
	return &FS{root: newDir(), locks: map[string]bool{}, capacityBytes: defaultCapacity}
}

func newDir() *inode {
	return &inode{entries: map[string]*inode{}, synced: map[string]*inode{}}
}

// SetCapacity limits the used space. Writes and allocations that exceed the limit fail with syscall.ENOSPC. The used
// space is the size of all 4 KiB chunks that were written or allocated.
func (m *FS) SetCapacity(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.capacityBytes = bytes
}

func pathErr(op, name string, err error) error { return &fs.PathError{Op: op, Path: name, Err: err} }

func split(name string) []string {
	clean := strings.Trim(filepath.ToSlash(filepath.Clean(name)), "/")
	if clean == "" || clean == "." {
		return nil
	}
	return strings.Split(clean, "/")
}

// lookup returns the inode with the given name, or nil.
func (m *FS) lookup(name string) *inode {
	node := m.root
	for _, part := range split(name) {
		if node = node.entries[part]; node == nil {
			return nil
		}
	}
	return node
}

// parent returns the parent directory and the base name of name.
func (m *FS) parent(op, name string) (*inode, string, error) {
	parts := split(name)
	if len(parts) == 0 {
		return nil, "", pathErr(op, name, fs.ErrInvalid)
	}
	dir := m.lookup(strings.Join(parts[:len(parts)-1], "/"))
	switch {
	case dir == nil:
		return nil, "", pathErr(op, name, fs.ErrNotExist)
	case !dir.isDir():
		return nil, "", pathErr(op, name, syscall.ENOTDIR)
	}
	return dir, parts[len(parts)-1], nil
}

// apply executes an atomic operation on names. Until SyncDir makes it durable, a crash may undo it.
func (m *FS) apply(changes ...nameChange) {
	for i := range changes {
		c := &changes[i]
		c.old = c.dir.entries[c.name]
		if c.node == nil {
			delete(c.dir.entries, c.name)
		} else {
			c.node.names++
			c.dir.entries[c.name] = c.node
		}
		if c.old != nil {
			c.old.names--
			m.reclaim(c.old)
		}
	}
	m.pending = append(m.pending, &nameOp{changes: changes})
}

// OpenFile implements vfs.FS.
func (m *FS) OpenFile(name string, flag int, _ fs.FileMode) (vfs.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, base, err := m.parent("open", name)
	if err != nil {
		return nil, err
	}
	node := dir.entries[base]
	switch {
	case node == nil && flag&os.O_CREATE == 0:
		return nil, pathErr("open", name, fs.ErrNotExist)
	case node == nil:
		node = &inode{}
		m.apply(nameChange{dir: dir, name: base, node: node})
	case flag&(os.O_CREATE|os.O_EXCL) == os.O_CREATE|os.O_EXCL:
		return nil, pathErr("open", name, fs.ErrExist)
	case node.isDir():
		return nil, pathErr("open", name, syscall.EISDIR)
	case flag&os.O_TRUNC != 0:
		m.truncate(node, 0)
	}
	node.handles++
	return &file{m: m, node: node, name: name, writable: flag&(os.O_RDWR|os.O_WRONLY) != 0}, nil
}

// Remove implements vfs.FS.
func (m *FS) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, base, err := m.parent("remove", name)
	if err != nil {
		return err
	}
	node := dir.entries[base]
	switch {
	case node == nil:
		return pathErr("remove", name, fs.ErrNotExist)
	case len(node.entries) > 0:
		return pathErr("remove", name, syscall.ENOTEMPTY)
	}
	m.apply(nameChange{dir: dir, name: base})
	return nil
}

// Rename implements vfs.FS.
func (m *FS) Rename(oldName, newName string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	oldDir, oldBase, err := m.parent("rename", oldName)
	if err != nil {
		return err
	}
	newDir, newBase, err := m.parent("rename", newName)
	if err != nil {
		return err
	}
	node, target := oldDir.entries[oldBase], newDir.entries[newBase]
	switch {
	case node == nil:
		return pathErr("rename", oldName, fs.ErrNotExist)
	case node == target:
		return nil
	case target != nil && target.isDir():
		return pathErr("rename", newName, fs.ErrExist)
	case target != nil && node.isDir():
		return pathErr("rename", newName, syscall.ENOTDIR)
	}
	m.apply(nameChange{dir: newDir, name: newBase, node: node}, nameChange{dir: oldDir, name: oldBase})
	return nil
}

// MkdirAll implements vfs.FS.
func (m *FS) MkdirAll(dir string, _ fs.FileMode) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	node := m.root
	for _, part := range split(dir) {
		next := node.entries[part]
		switch {
		case next == nil:
			next = newDir()
			m.apply(nameChange{dir: node, name: part, node: next})
		case !next.isDir():
			return pathErr("mkdir", dir, syscall.ENOTDIR)
		}
		node = next
	}
	return nil
}

// ReadDir implements vfs.FS.
func (m *FS) ReadDir(dir string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	node := m.lookup(dir)
	switch {
	case node == nil:
		return nil, pathErr("readdir", dir, fs.ErrNotExist)
	case !node.isDir():
		return nil, pathErr("readdir", dir, syscall.ENOTDIR)
	}
	return slices.Sorted(maps.Keys(node.entries)), nil
}

// Stat implements vfs.FS.
func (m *FS) Stat(name string) (vfs.FileInfo, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	node := m.lookup(name)
	if node == nil {
		return vfs.FileInfo{}, pathErr("stat", name, fs.ErrNotExist)
	}
	return vfs.FileInfo{SizeBytes: node.sizeBytes, IsDir: node.isDir()}, nil
}

// SyncDir implements vfs.FS. As in a journaling filesystem, a sync of either directory makes a rename between two
// directories durable.
func (m *FS) SyncDir(dir string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	node := m.lookup(dir)
	switch {
	case node == nil:
		return pathErr("sync dir", dir, fs.ErrNotExist)
	case !node.isDir():
		return pathErr("sync dir", dir, syscall.ENOTDIR)
	}
	// From the newest to the oldest, because a durable operation makes all earlier operations in its directories durable.
	dirs := map[*inode]bool{node: true}
	covered := make(map[*nameOp]bool)
	for _, op := range slices.Backward(m.pending) {
		if !slices.ContainsFunc(op.changes, func(c nameChange) bool { return dirs[c.dir] }) {
			continue
		}
		covered[op] = true
		for _, c := range op.changes {
			dirs[c.dir] = true
		}
	}
	for _, op := range m.pending {
		if covered[op] {
			op.makeDurable(func(n *inode) *inode { return n })
		}
	}
	m.pending = slices.DeleteFunc(m.pending, func(op *nameOp) bool { return covered[op] })
	return nil
}

// makeDurable applies the changes to the synced names. in maps each inode of the operation to the inode to use.
func (op *nameOp) makeDurable(in func(*inode) *inode) {
	for _, c := range op.changes {
		dir := in(c.dir)
		if c.node == nil {
			delete(dir.synced, c.name)
		} else {
			dir.synced[c.name] = in(c.node)
		}
	}
}

// Lock implements vfs.FS.
func (m *FS) Lock(name string) (io.Closer, error) {
	f, err := m.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	key := strings.Join(split(name), "/")
	if m.locks[key] {
		m.dropHandle(f)
		return nil, pathErr("lock", name, vfs.ErrLocked)
	}
	m.locks[key] = true
	return closerFunc(func() error {
		m.mu.Lock()
		delete(m.locks, key)
		m.mu.Unlock()
		return f.Close()
	}), nil
}

func (m *FS) dropHandle(f vfs.File) {
	if mf, ok := f.(*file); ok {
		mf.closed = true
		mf.node.handles--
		m.reclaim(mf.node)
	}
}

type closerFunc func() error

func (f closerFunc) Close() error { return f() }

// Usage implements vfs.FS.
func (m *FS) Usage(dir string) (vfs.Usage, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lookup(dir) == nil {
		return vfs.Usage{}, pathErr("usage", dir, fs.ErrNotExist)
	}
	free := uint64(max(m.capacityBytes-m.usedBytes, 0))
	return vfs.Usage{TotalBytes: uint64(max(m.capacityBytes, 0)), FreeBytes: free, AvailableBytes: free}, nil
}

// String returns the used space and the number of unsynced name changes, for test messages.
func (m *FS) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return fmt.Sprintf("mem: %d of %d bytes used, %d name changes not synced", m.usedBytes, m.capacityBytes,
		len(m.pending))
}

func sortedNames(names map[string]*inode) []string { return slices.Sorted(maps.Keys(names)) }
