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

// writeBackBlock is the piece in which WriteBack holds back what is written, and lets some of it through. It is a
// sector: what a disk writes whole.
const writeBackBlock = 512

// writeBackRun is how many of them are written together at most; a system takes no more than 1024 buffers at once.
const writeBackRun = 512

// WriteBack is a filesystem that holds back what is written to files, in memory, until it is synced. Its user
// sees everything; the filesystem under it has only what was synced, and what leaked. So a process that is killed
// leaves what a power failure would have left, which a kill alone does not: the system's own cache outlives a process.
//
// Only content is held back. Names, sizes and holes reach the filesystem at once, as a journal may well have them do;
// memfs's CrashClone loses those, too.
type WriteBack struct {
	inner vfs.FS

	mu    sync.Mutex // guards nodes; taken before a node's
	nodes map[string]*heldFile

	policyMu sync.Mutex // guards what follows; taken last
	// holding says whether new writes are held back, and leak which part of them is written all the same, at once and
	// in no order: a disk's cache and a system's write what they like first.
	holding bool
	leak    float64
	rng     *rand.Rand
}

// NewWriteBack wraps inner, which no other program may write to. It holds nothing back until Hold says so.
func NewWriteBack(inner vfs.FS) *WriteBack {
	return &WriteBack{inner: inner, nodes: make(map[string]*heldFile)}
}

// Hold says whether writes are held back from now on, and which part of their sectors, from 0 to 1, is written all the
// same, by the dice of seed. What is held back already stays so until it is synced.
func (w *WriteBack) Hold(on bool, leak float64, seed uint64) {
	w.policyMu.Lock()
	defer w.policyMu.Unlock()
	w.holding, w.leak, w.rng = on, leak, rand.New(rand.NewPCG(seed, 11))
}

// leaks draws for one sector.
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

// OpenFile is vfs.FS.OpenFile.
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
		n.forget(0)
		n.mu.Unlock()
	}
	return &writeBackFile{File: inner, fs: w, node: n, writable: flag&(os.O_RDWR|os.O_WRONLY) != 0}, nil
}

// Remove is vfs.FS.Remove.
func (w *WriteBack) Remove(name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.inner.Remove(name); err != nil {
		return err
	}
	delete(w.nodes, filepath.Clean(name))
	return nil
}

// Rename is vfs.FS.Rename.
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

// MkdirAll is vfs.FS.MkdirAll.
func (w *WriteBack) MkdirAll(dir string, perm fs.FileMode) error { return w.inner.MkdirAll(dir, perm) }

// ReadDir is vfs.FS.ReadDir.
func (w *WriteBack) ReadDir(dir string) ([]string, error) { return w.inner.ReadDir(dir) }

// Stat is vfs.FS.Stat.
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

// SyncDir is vfs.FS.SyncDir.
func (w *WriteBack) SyncDir(dir string) error { return w.inner.SyncDir(dir) }

// Lock is vfs.FS.Lock.
func (w *WriteBack) Lock(name string) (io.Closer, error) { return w.inner.Lock(name) }

// Usage is vfs.FS.Usage.
func (w *WriteBack) Usage(dir string) (vfs.Usage, error) { return w.inner.Usage(dir) }

// heldFile is what is held back of a file, whatever handles it has.
type heldFile struct {
	mu        sync.Mutex       // guards what follows, and the order of what is done to the file
	sectors   map[int64][]byte // whole sectors, by number
	sizeBytes int64            // where what is held back ends; 0: nothing is
}

// forget drops what is held back from an offset on. mu is held.
func (n *heldFile) forget(from int64) {
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

// writeBackFile is a handle.
type writeBackFile struct {
	vfs.File
	fs       *WriteBack
	node     *heldFile
	writable bool
}

// ReadAt reads the file with what is held back over it.
func (f *writeBackFile) ReadAt(p []byte, off int64) (int, error) {
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	return f.read(p, off)
}

// read is ReadAt with the node's mu held.
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
		return f.File.WriteVec(off, bufs...) // which says what is wrong, if something is
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

// partial tells whether a write covers only a part of a sector.
func (f *writeBackFile) partial(s, off, end int64) bool {
	return s*writeBackBlock < off || (s+1)*writeBackBlock > end
}

// leak writes some of the sectors of a range that is held back, which stay held back all the same.
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

// put writes a sector that is held back, as far as the file goes.
func (f *writeBackFile) put(s int64) error {
	size, err := f.size()
	if err != nil {
		return err
	}
	sector := f.node.sectors[s][:min(writeBackBlock, max(0, size-s*writeBackBlock))]
	_, err = f.File.WriteAt(sector, s*writeBackBlock)
	return err
}

// release writes what is held back of a range. The node's mu is held.
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
	for len(due) > 0 { // neighbours together
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
	f.node.forget(sizeBytes)
	return nil
}

func (f *writeBackFile) Allocate(offset, length int64) error {
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	return f.File.Allocate(offset, length)
}

func (f *writeBackFile) PunchHole(offset, length int64) error {
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	if err := f.File.PunchHole(offset, length); err != nil {
		return err
	}
	end := offset + length
	for s, sector := range f.node.sectors {
		from, to := s*writeBackBlock, (s+1)*writeBackBlock
		if from < end && to > offset {
			clear(sector[max(offset-from, 0):min(end-from, writeBackBlock)])
		}
	}
	return nil
}

func (f *writeBackFile) SizeBytes() (int64, error) {
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	return f.size()
}

// size is SizeBytes with the node's mu held.
func (f *writeBackFile) size() (int64, error) {
	size, err := f.File.SizeBytes()
	return max(size, f.node.sizeBytes), err
}
