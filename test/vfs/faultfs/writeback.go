// SPDX-License-Identifier: Apache-2.0

package faultfs

import (
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/lockstep-mq/lockstep/store/vfs"
)

// writeBackBlock is the size of a sector in bytes. WriteBack buffers and leaks whole sectors, which a disk writes
// atomically.
const writeBackBlock = 512

// writeBackRun is the maximum number of sectors per write. Systems accept at most 1024 buffers.
const writeBackRun = 512

// WriteBack is a filesystem that buffers file writes in memory until they are synced. Reads return all written data;
// the inner filesystem contains only synced and leaked data. So a kill of the process leaves the same files as a power
// failure. Without WriteBack, the page cache of the operating system retains the writes of a killed process.
//
// Only written contents are buffered. Names, truncations and allocations reach the inner filesystem immediately, as
// with some journaling filesystems. memfs.FS.CrashClone also loses these if they are unsynced.
type WriteBack struct {
	inner vfs.FS

	mu    sync.Mutex // guards nodes; locked before a node's mu
	nodes map[string]*heldFile

	policyMu sync.Mutex // guards the fields below; locked last
	// holding is set if new writes are buffered. leak is the fraction of their sectors that is also written immediately:
	// operating systems and disks may write unsynced data at any time, in any order.
	holding bool
	leak    float64
	rng     *rand.Rand
}

// NewWriteBack returns a WriteBack on inner, which no other program may write to. It buffers nothing until Hold
// enables it.
func NewWriteBack(inner vfs.FS) *WriteBack {
	return &WriteBack{inner: inner, nodes: make(map[string]*heldFile)}
}

// Hold sets whether later writes are buffered, and which fraction of their sectors, from 0 to 1, is also written
// immediately. The choice is random, with the given seed. Data already buffered stays buffered until it is synced,
// and so do later writes to the same file.
func (w *WriteBack) Hold(on bool, leak float64, seed uint64) {
	w.policyMu.Lock()
	defer w.policyMu.Unlock()
	w.holding, w.leak, w.rng = on, leak, rand.New(rand.NewPCG(seed, 11))
}

// leaks reports whether to leak a sector; the result is random.
func (w *WriteBack) leaks() bool {
	w.policyMu.Lock()
	defer w.policyMu.Unlock()
	return w.leak > 0 && w.rng.Float64() < w.leak
}

func (w *WriteBack) holds() bool {
	w.policyMu.Lock()
	defer w.policyMu.Unlock()
	return w.holding
}

// OpenFile implements vfs.FS.
func (w *WriteBack) OpenFile(name string, flag int, perm fs.FileMode) (vfs.File, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	inner, err := w.inner.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	key := filepath.Clean(name)
	n := w.nodes[key]
	if n == nil {
		n = &heldFile{sectors: make(map[int64][]byte)}
		w.nodes[key] = n
	}
	if flag&os.O_TRUNC != 0 {
		n.mu.Lock()
		n.drop(0)
		n.mu.Unlock()
	}
	return &writeBackFile{File: inner, fs: w, node: n, writable: flag&(os.O_RDWR|os.O_WRONLY) != 0}, nil
}

// Remove implements vfs.FS.
func (w *WriteBack) Remove(name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.inner.Remove(name); err != nil {
		return err
	}
	delete(w.nodes, filepath.Clean(name))
	return nil
}

// Rename implements vfs.FS.
func (w *WriteBack) Rename(oldName, newName string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.inner.Rename(oldName, newName); err != nil {
		return err
	}
	from, to := filepath.Clean(oldName), filepath.Clean(newName)
	if from == to {
		return nil
	}
	delete(w.nodes, to)
	moved := make(map[string]*heldFile)
	for name, n := range w.nodes {
		if name == from || strings.HasPrefix(name, from+string(filepath.Separator)) {
			moved[to+name[len(from):]] = n
			delete(w.nodes, name)
		}
	}
	for name, n := range moved {
		w.nodes[name] = n
	}
	return nil
}

// MkdirAll implements vfs.FS.
func (w *WriteBack) MkdirAll(dir string, perm fs.FileMode) error { return w.inner.MkdirAll(dir, perm) }

// ReadDir implements vfs.FS.
func (w *WriteBack) ReadDir(dir string) ([]string, error) { return w.inner.ReadDir(dir) }

// Stat implements vfs.FS.
func (w *WriteBack) Stat(name string) (vfs.FileInfo, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	info, err := w.inner.Stat(name)
	if n := w.nodes[filepath.Clean(name)]; err == nil && n != nil {
		n.mu.Lock()
		info.SizeBytes = max(info.SizeBytes, n.sizeBytes)
		n.mu.Unlock()
	}
	return info, err
}

// SyncDir implements vfs.FS.
func (w *WriteBack) SyncDir(dir string) error { return w.inner.SyncDir(dir) }

// Lock implements vfs.FS.
func (w *WriteBack) Lock(name string) (io.Closer, error) { return w.inner.Lock(name) }

// Usage implements vfs.FS.
func (w *WriteBack) Usage(dir string) (vfs.Usage, error) { return w.inner.Usage(dir) }

// heldFile is the buffered data of a file, shared by its handles.
type heldFile struct {
	mu        sync.Mutex       // guards the fields below, and serializes operations on the file
	sectors   map[int64][]byte // whole sectors, by number
	sizeBytes int64            // end of the buffered data; 0 if none
}

// drop discards the buffered data from an offset on. The caller holds mu.
func (n *heldFile) drop(from int64) {
	for s := range n.sectors {
		switch at := s * writeBackBlock; {
		case at >= from:
			delete(n.sectors, s)
		case at+writeBackBlock > from:
			clear(n.sectors[s][from-at:])
		}
	}
	if n.sizeBytes = min(n.sizeBytes, from); len(n.sectors) == 0 {
		n.sizeBytes = 0
	}
}

// writeBackFile is an open file of a WriteBack.
type writeBackFile struct {
	vfs.File
	fs       *WriteBack
	node     *heldFile
	writable bool
}

// ReadAt reads the file including its buffered data.
func (f *writeBackFile) ReadAt(p []byte, off int64) (int, error) {
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	return f.read(p, off)
}

// read is ReadAt for a caller that holds mu of the heldFile.
func (f *writeBackFile) read(p []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(p, off)
	if len(f.node.sectors) == 0 || (err != nil && !errors.Is(err, io.EOF)) || off < 0 {
		return n, err
	}
	size, sizeErr := f.size()
	if sizeErr != nil {
		return 0, sizeErr
	}
	end := min(off+int64(len(p)), size)
	if end <= off {
		return n, err
	}
	have := p[:end-off]
	clear(have[n:])
	for s := off / writeBackBlock; s*writeBackBlock < end; s++ {
		held := f.node.sectors[s]
		if held == nil {
			continue
		}
		if at := s*writeBackBlock - off; at >= 0 {
			copy(have[at:], held)
		} else {
			copy(have, held[-at:])
		}
	}
	if len(have) < len(p) {
		return len(have), io.EOF
	}
	return len(have), nil
}

func (f *writeBackFile) WriteAt(p []byte, off int64) (int, error) { return f.WriteVec(off, p) }

func (f *writeBackFile) WriteVec(off int64, bufs ...[]byte) (int, error) {
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	all := join(bufs)
	if off < 0 || !f.writable || len(all) == 0 || (!f.fs.holds() && len(f.node.sectors) == 0) {
		return f.File.WriteVec(off, bufs...) // returns the error for an invalid write
	}
	if _, err := f.File.SizeBytes(); err != nil {
		return 0, err // closed
	}
	end := off + int64(len(all))
	for s := off / writeBackBlock; s*writeBackBlock < end; s++ {
		sector := f.node.sectors[s]
		if sector == nil {
			sector = make([]byte, writeBackBlock)
			if _, err := f.File.ReadAt(sector, s*writeBackBlock); err != nil && !errors.Is(err, io.EOF) &&
				f.partial(s, off, end) {
				return 0, err
			}
			f.node.sectors[s] = sector
		}
		if at := s*writeBackBlock - off; at >= 0 {
			copy(sector, all[at:])
		} else {
			copy(sector[-at:], all)
		}
	}
	f.node.sizeBytes = max(f.node.sizeBytes, end)
	return len(all), f.leak(off, end)
}

// partial reports whether a write covers only a part of a sector.
func (f *writeBackFile) partial(s, off, end int64) bool {
	return s*writeBackBlock < off || (s+1)*writeBackBlock > end
}

// leak writes some of the buffered sectors of a range to the inner file. These sectors stay buffered.
func (f *writeBackFile) leak(off, end int64) error {
	for s := off / writeBackBlock; s*writeBackBlock < end; s++ {
		if f.fs.leaks() {
			if err := f.put(s); err != nil {
				return err
			}
		}
	}
	return nil
}

// put writes a buffered sector to the inner file, up to the end of the file.
func (f *writeBackFile) put(s int64) error {
	size, err := f.size()
	if err != nil {
		return err
	}
	sector := f.node.sectors[s][:min(writeBackBlock, max(0, size-s*writeBackBlock))]
	_, err = f.File.WriteAt(sector, s*writeBackBlock)
	return err
}

// release writes the buffered data of a range to the inner file, and removes it from the buffer. The caller holds mu
// of the heldFile.
func (f *writeBackFile) release(off, end int64) error {
	if len(f.node.sectors) == 0 {
		return nil
	}
	var due []int64
	for s := range f.node.sectors {
		if (s+1)*writeBackBlock > off && s*writeBackBlock < end {
			due = append(due, s)
		}
	}
	slices.Sort(due)
	size, err := f.size()
	if err != nil {
		return err
	}
	for len(due) > 0 { // adjacent sectors in one write
		run := 1
		for run < min(len(due), writeBackRun) && due[run] == due[0]+int64(run) {
			run++
		}
		bufs := make([][]byte, run)
		for i, s := range due[:run] {
			bufs[i] = f.node.sectors[s][:min(writeBackBlock, max(0, size-s*writeBackBlock))]
		}
		if _, err := f.File.WriteVec(due[0]*writeBackBlock, bufs...); err != nil {
			return err
		}
		for _, s := range due[:run] {
			delete(f.node.sectors, s)
		}
		due = due[run:]
	}
	if len(f.node.sectors) == 0 {
		f.node.sizeBytes = 0
	}
	return nil
}

func (f *writeBackFile) Sync() error {
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	if err := f.release(0, 1<<62); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *writeBackFile) SyncRange(offset, length int64) error {
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	if err := f.release(offset, offset+length); err != nil {
		return err
	}
	return f.File.SyncRange(offset, length)
}

func (f *writeBackFile) Truncate(sizeBytes int64) error {
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	if err := f.File.Truncate(sizeBytes); err != nil {
		return err
	}
	f.node.drop(sizeBytes)
	return nil
}

func (f *writeBackFile) Allocate(offset, length int64) error {
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	return f.File.Allocate(offset, length)
}

func (f *writeBackFile) SizeBytes() (int64, error) {
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	return f.size()
}

// size is SizeBytes for a caller that holds mu of the heldFile.
func (f *writeBackFile) size() (int64, error) {
	size, err := f.File.SizeBytes()
	return max(size, f.node.sizeBytes), err
}
