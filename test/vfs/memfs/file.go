// SPDX-License-Identifier: Apache-2.0

package memfs

import (
	"bytes"
	"io"
	"io/fs"
	"slices"
	"syscall"
)

const (
	chunkBytes  = 4096
	sectorBytes = 512 // unit that a device writes atomically
)

type chunkData = [chunkBytes]byte

// chunk is a part of a file. A nil pointer means zeros. The data that synced points to never changes, so clones can
// share it; live is copied before the first change after a Sync.
type chunk struct {
	live, synced *chunkData
	dirty        bool // in the dirty list of the inode
	allocated    bool // counted as used space
}

// file is an open file of an FS.
type file struct {
	m        *FS
	node     *inode
	name     string
	writable bool
	closed   bool // guarded by m.mu, like the inode
}

func (f *file) Name() string { return f.name }

// usable returns an error for a closed file, and for a change to a read-only file. The caller holds m.mu.
func (f *file) usable(op string, change bool) error {
	switch {
	case f.closed:
		return pathErr(op, f.name, fs.ErrClosed)
	case change && !f.writable:
		return pathErr(op, f.name, syscall.EBADF)
	}
	return nil
}

func (f *file) Close() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.usable("close", false); err != nil {
		return err
	}
	f.m.dropHandle(f)
	return nil
}

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.usable("read", false); err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, pathErr("read", f.name, fs.ErrInvalid)
	}
	total := int(min(int64(len(p)), max(f.node.sizeBytes-off, 0)))
	for done := 0; done < total; {
		at := off + int64(done)
		i, in := int(at/chunkBytes), int(at%chunkBytes)
		n := min(total-done, chunkBytes-in)
		if i < len(f.node.chunks) && f.node.chunks[i].live != nil {
			copy(p[done:done+n], f.node.chunks[i].live[in:])
		} else {
			clear(p[done : done+n])
		}
		done += n
	}
	if total < len(p) {
		return total, io.EOF
	}
	return total, nil
}

func (f *file) WriteAt(p []byte, off int64) (int, error) { return f.WriteVec(off, p) }

func (f *file) WriteVec(off int64, bufs ...[]byte) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.usable("write", true); err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, pathErr("write", f.name, fs.ErrInvalid)
	}
	var total int64
	for _, b := range bufs {
		total += int64(len(b))
	}
	if err := f.m.allocate(f.node, off, total); err != nil {
		return 0, pathErr("write", f.name, err)
	}
	at := off
	for _, b := range bufs {
		f.node.write(b, at)
		at += int64(len(b))
	}
	f.node.sizeBytes = max(f.node.sizeBytes, at)
	return int(total), nil
}

// write stores p at offset at. The chunks of the range must exist.
func (n *inode) write(p []byte, at int64) {
	for len(p) > 0 {
		i, in := int(at/chunkBytes), int(at%chunkBytes)
		part := p[:min(len(p), chunkBytes-in)]
		if n.chunks[i].live != nil || !allZero(part) {
			copy(n.touch(i)[in:], part)
		}
		p, at = p[len(part):], at+int64(len(part))
	}
}

// touch returns a chunk for writing, and marks it dirty.
func (n *inode) touch(i int) *chunkData {
	c := &n.chunks[i]
	n.markDirty(i)
	if c.live == nil {
		c.live = new(chunkData)
	} else if c.live == c.synced {
		data := *c.live
		c.live = &data
	}
	return c.live
}

func (n *inode) markDirty(i int) {
	if !n.chunks[i].dirty {
		n.chunks[i].dirty = true
		n.dirty = append(n.dirty, i)
	}
}

// allZero reports whether p contains only zeros. It compares p with itself shifted by one, which is much faster than a
// loop.
func allZero(p []byte) bool {
	return len(p) == 0 || p[0] == 0 && bytes.Equal(p[1:], p[:len(p)-1])
}

// allocate creates the chunks of a range and counts their space as used.
func (m *FS) allocate(n *inode, off, length int64) error {
	if length <= 0 {
		return nil
	}
	first, last := int(off/chunkBytes), int((off+length-1)/chunkBytes)
	var need int64
	for i := first; i <= last; i++ {
		if i >= len(n.chunks) || !n.chunks[i].allocated {
			need += chunkBytes
		}
	}
	if need > 0 && m.usedBytes+need > m.capacityBytes {
		return syscall.ENOSPC
	}
	n.grow(last + 1)
	for i := first; i <= last; i++ {
		n.chunks[i].allocated = true
	}
	m.usedBytes += need
	return nil
}

func (n *inode) grow(chunks int) {
	if more := chunks - len(n.chunks); more > 0 {
		n.chunks = append(n.chunks, make([]chunk, more)...)
	}
}

// clear zeroes a range and frees the chunks that it covers completely.
func (m *FS) clear(n *inode, from, to int64) {
	to = min(to, int64(len(n.chunks))*chunkBytes)
	for from < to {
		i, in := int(from/chunkBytes), from%chunkBytes
		length := min(to-from, chunkBytes-in)
		c := &n.chunks[i]
		switch {
		case length == chunkBytes:
			if c.live != nil {
				c.live = nil
				n.markDirty(i)
			}
			if c.allocated {
				c.allocated = false
				m.usedBytes -= chunkBytes
			}
		case c.live != nil:
			clear(n.touch(i)[in : in+length])
		}
		from += length
	}
}

func (m *FS) truncate(n *inode, sizeBytes int64) {
	if sizeBytes < n.sizeBytes {
		m.clear(n, sizeBytes, int64(len(n.chunks))*chunkBytes)
	}
	n.sizeBytes = sizeBytes
}

// reclaim frees the space of a file that has no names and no handles.
func (m *FS) reclaim(n *inode) {
	if n.names > 0 || n.handles > 0 || n.isDir() {
		return
	}
	for i := range n.chunks {
		if n.chunks[i].allocated {
			n.chunks[i].allocated = false
			m.usedBytes -= chunkBytes
		}
	}
}

func (f *file) Sync() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.usable("sync", false); err != nil {
		return err
	}
	n := f.node
	for _, i := range n.dirty {
		n.chunks[i].synced, n.chunks[i].dirty = n.chunks[i].live, false
	}
	n.dirty = n.dirty[:0]
	n.syncedSize = n.sizeBytes
	return nil
}

// SyncRange makes the chunks of a range durable, but not the size of the file.
func (f *file) SyncRange(offset, length int64) error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.usable("sync range", false); err != nil {
		return err
	}
	if offset < 0 || length <= 0 {
		return pathErr("sync range", f.name, fs.ErrInvalid)
	}
	n := f.node
	n.dirty = slices.DeleteFunc(n.dirty, func(i int) bool {
		at := int64(i) * chunkBytes
		if at+chunkBytes <= offset || at >= offset+length {
			return false
		}
		n.chunks[i].synced, n.chunks[i].dirty = n.chunks[i].live, false
		return true
	})
	return nil
}

func (f *file) Truncate(sizeBytes int64) error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.usable("truncate", true); err != nil {
		return err
	}
	if sizeBytes < 0 {
		return pathErr("truncate", f.name, fs.ErrInvalid)
	}
	f.m.truncate(f.node, sizeBytes)
	return nil
}

func (f *file) Allocate(offset, length int64) error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.usable("allocate", true); err != nil {
		return err
	}
	if offset < 0 || length <= 0 {
		return pathErr("allocate", f.name, fs.ErrInvalid)
	}
	if err := f.m.allocate(f.node, offset, length); err != nil {
		return pathErr("allocate", f.name, err)
	}
	f.node.sizeBytes = max(f.node.sizeBytes, offset+length)
	return nil
}

func (f *file) SizeBytes() (int64, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.usable("stat", false); err != nil {
		return 0, err
	}
	return f.node.sizeBytes, nil
}
