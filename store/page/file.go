// SPDX-License-Identifier: Apache-2.0

package page

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/lockstep-mq/lockstep/store/iolock"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// File is an open page file. The package comment describes its concurrency rules.
type File struct {
	path     string
	file     vfs.File
	geo      geometry
	storeID  [16]byte
	readOnly bool
	recovery Recovery

	building     atomic.Uint64 // checkpoint that Alloc and Free belong to
	pages        atomic.Uint64
	readers      readers
	failure      atomic.Pointer[error]
	closed       atomic.Bool
	onCorruption atomic.Pointer[func(No, error)]
	drops        atomic.Bool

	checkpointing sync.Mutex // held during Checkpoint; acquired before mu
	// writing serializes cached and direct writes (vfs.Bypass), which must not overlap; acquired last.
	writing iolock.Mutex
	past    vfs.Bypass

	mu      sync.Mutex // guards all fields below
	space   *space
	pending pendingPages
	grown   uint64
	durable Meta
	slot    int         // meta slot of durable
	older   uint64      // checkpoint in the other slot; 0: none
	fresh   []byteRange // written since the last checkpoint began
}

// CreateOptions configures Create.
type CreateOptions struct {
	// PageSize is DefaultPageBytes if 0.
	PageSize int
	StoreID  [16]byte
}

// Options configures Open.
type Options struct {
	// ReadOnly opens the file without writing to it. A corrupt bitmap is detected only when it is read.
	ReadOnly bool
}

// Recovery describes the state found by Open.
type Recovery struct {
	Slot int
	// Other is the reason why the meta slot that is not used is invalid, or nil. If no crash interrupted a slot write,
	// an error indicates corruption.
	Other error
}

// Create creates an empty page file. After a crash at any point, the file is durable under its name or does not exist.
// If path exists, the error matches fs.ErrExist.
func Create(fsys vfs.FS, path string, o CreateOptions) (*File, error) {
	if o.PageSize == 0 {
		o.PageSize = DefaultPageBytes
	}
	if err := CheckPageSize(o.PageSize); err != nil {
		return nil, err
	}
	if _, err := fsys.Stat(path); err == nil {
		return nil, fmt.Errorf("create page file %s: %w", path, fs.ErrExist)
	}
	meta := Meta{Checkpoint: 1, PageSize: o.PageSize, StoreID: o.StoreID}
	tmp := path + ".tmp"
	if err := writeEmpty(fsys, tmp, meta); err != nil {
		return nil, fmt.Errorf("create page file %s: %w", path, err)
	}
	if err := fsys.Rename(tmp, path); err != nil {
		return nil, fmt.Errorf("create page file %s: %w", path, err)
	}
	if err := fsys.SyncDir(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("create page file %s: sync directory entry: %w", path, err)
	}
	return Open(fsys, path, Options{})
}

func writeEmpty(fsys vfs.FS, name string, meta Meta) error {
	file, err := fsys.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o640)
	if err != nil {
		return err
	}
	err = file.Truncate(DataOffset)
	if err == nil {
		err = writeIdentity(file, meta)
	}
	return errors.Join(err, file.Close())
}

// writeIdentity writes the header and both meta slots, and makes them and all earlier writes durable.
func writeIdentity(file vfs.File, meta Meta) error {
	if _, err := file.WriteAt(encodeHeader(header{pageSize: meta.PageSize, storeID: meta.StoreID}), 0); err != nil {
		return err
	}
	for slot := range 2 {
		if _, err := file.WriteAt(meta.Encode(), slotOffset(slot)); err != nil {
			return err
		}
	}
	return file.Sync()
}

// Open opens a page file at its last durable checkpoint. Without Options.ReadOnly, it reads the bitmap (1 byte per 8
// pages), and writes a meta slot with a new checkpoint of the same content (see the package comment). It returns
// ErrNotPageFile, ErrNewerVersion, ErrCorrupt, ErrFailed if the slot cannot be written, or an error of the
// filesystem.
func Open(fsys vfs.FS, path string, o Options) (*File, error) {
	flag := os.O_RDWR
	if o.ReadOnly {
		flag = os.O_RDONLY
	}
	file, err := fsys.OpenFile(path, flag, 0)
	if err != nil {
		return nil, fmt.Errorf("page file: %w", err)
	}
	f := &File{path: path, file: file, readOnly: o.ReadOnly}
	f.readers.guards, f.readers.pins = make(map[uint64]int), make(map[uint64]int)
	err = f.readIdentity()
	if err == nil && !o.ReadOnly {
		err = f.begin()
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return f, nil
}

// OpenImage opens a checkpoint that is not stored in a page file, such as one in a backup. image must serve reads at
// the offsets that the pages have in a page file. The result is read-only and owns image. Nothing is verified before it
// is read.
func OpenImage(path string, image vfs.File, meta Meta) *File {
	f := &File{
		path: path, file: image, geo: geometry{pageSize: meta.PageSize}, storeID: meta.StoreID, readOnly: true,
		durable: meta,
		older:   meta.Checkpoint,
	}
	f.readers.guards, f.readers.pins = make(map[uint64]int), make(map[uint64]int)
	f.building.Store(meta.Checkpoint + 1)
	f.pages.Store(meta.Pages)
	return f
}

func (f *File) readIdentity() error {
	b, err := f.readUpTo(0, headerBytes)
	if err != nil {
		return err
	}
	h, err := decodeHeader(b)
	if err != nil {
		return f.explain(err, 0, 0)
	}
	f.geo, f.storeID = geometry{pageSize: h.pageSize}, h.storeID
	var metas [2]Meta
	var errs [2]error
	for slot := range metas {
		metas[slot], errs[slot] = f.readSlot(slot)
		if errs[slot] != nil && !errors.Is(errs[slot], ErrCorrupt) {
			return errs[slot] // an I/O error or a newer version: do not fall back to an older checkpoint
		}
	}
	if errs[0] != nil && errs[1] != nil {
		return fmt.Errorf("no readable checkpoint: %w; %w", errs[0], errs[1])
	}
	if errs[0] != nil || (errs[1] == nil && metas[1].Checkpoint > metas[0].Checkpoint) {
		f.slot = 1
	}
	f.durable, f.older = metas[f.slot], metas[1-f.slot].Checkpoint
	f.recovery = Recovery{Slot: f.slot, Other: errs[1-f.slot]}
	f.building.Store(f.durable.Checkpoint + 1)
	f.pages.Store(f.durable.Pages)
	size, err := f.file.SizeBytes()
	if err != nil {
		return fmt.Errorf("open page file %s: %w", f.path, err)
	}
	if size < f.durable.FileBytes() {
		return &CorruptError{
			Path: f.path, Offset: size,
			Reason: fmt.Sprintf("file is truncated; checkpoint %d has %d bytes", f.durable.Checkpoint,
				f.durable.FileBytes()),
		}
	}
	return nil
}

func (f *File) readSlot(slot int) (Meta, error) {
	b, err := f.readUpTo(slotOffset(slot), slotBytes)
	if err != nil {
		return Meta{}, err
	}
	m, err := DecodeMeta(b)
	if err == nil && (m.PageSize != f.geo.pageSize || m.StoreID != f.storeID) {
		err = &CorruptError{Reason: "meta slot belongs to another page file"}
	}
	if err != nil {
		return Meta{}, f.explain(err, 0, slotOffset(slot))
	}
	return m, nil
}

// begin loads the bitmap and starts a new checkpoint number. Both slots then describe the same content.
func (f *File) begin() error {
	if err := f.loadSpace(); err != nil {
		return err
	}
	meta := f.durable
	meta.Checkpoint++
	if err := f.writeSlot(1-f.slot, meta); err != nil {
		return fmt.Errorf("open checkpoint %d: %w", meta.Checkpoint, err)
	}
	f.slot, f.older, f.durable = 1-f.slot, f.durable.Checkpoint, meta
	f.building.Store(meta.Checkpoint + 1)
	return nil
}

func (f *File) loadSpace() error {
	f.space = newSpace(f.geo.pageSize)
	f.space.grow(f.durable.Pages)
	b := bitmapReader{f: f, meta: f.durable}
	for i, l := range f.durable.leaves {
		f.space.leaves[i].at = l
	}
	for i := range f.space.chunks {
		words, at, err := b.chunk(i)
		if err != nil {
			return err
		}
		if words != nil {
			f.space.load(i, at, words)
		}
	}
	if f.space.live != f.durable.UsedPages {
		return &CorruptError{
			Path: f.path, Offset: slotOffset(f.slot),
			Reason: fmt.Sprintf("checkpoint %d has %d pages in use, its bitmap has %d", f.durable.Checkpoint,
				f.durable.UsedPages, f.space.live),
		}
	}
	return nil
}

// writeSlot makes a meta slot durable. A failure is final.
func (f *File) writeSlot(slot int, meta Meta) error {
	if err := f.write(meta.Encode(), slotOffset(slot)); err != nil {
		return f.fail(fmt.Errorf("write meta slot %d: %w", slot, err))
	}
	return f.sync()
}

func (f *File) write(buf []byte, offset int64) error {
	f.writing.Lock()
	defer f.writing.Unlock()
	_, err := f.file.WriteAt(buf, offset)
	return err
}

func (f *File) sync() error {
	if err := f.file.Sync(); err != nil {
		return f.fail(fmt.Errorf("sync: %w", err))
	}
	return nil
}

// fail marks the file as failed (INV-7). All later writes return the first error.
func (f *File) fail(err error) error {
	err = fmt.Errorf("%w: %s: %w", ErrFailed, f.path, err)
	if f.failure.CompareAndSwap(nil, &err) {
		return err
	}
	return *f.failure.Load()
}

func (f *File) writable() error {
	switch {
	case f.closed.Load():
		return ErrClosed
	case f.readOnly:
		return ErrReadOnly
	case f.failure.Load() != nil:
		return *f.failure.Load()
	}
	return nil
}

func (f *File) explain(err error, page No, offset int64) error {
	if errors.Is(err, ErrCorrupt) {
		return corruptAt(err, f.path, page, offset)
	}
	return fmt.Errorf("%s: %w", f.path, err)
}

func (f *File) readUpTo(offset int64, n int) ([]byte, error) {
	b := make([]byte, n)
	got, err := f.file.ReadAt(b, offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read %s at offset %d: %w", f.path, offset, err)
	}
	return b[:got], nil
}

// Recovery returns the state found by Open.
func (f *File) Recovery() Recovery { return f.recovery }

// PageSize returns the page size in bytes.
func (f *File) PageSize() int { return f.geo.pageSize }

// StoreID returns the ID of the store to which the file belongs.
func (f *File) StoreID() [16]byte { return f.storeID }

// Path returns the name under which the file was opened.
func (f *File) Path() string { return f.path }

// Meta returns the description of the last durable checkpoint.
func (f *File) Meta() Meta {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.durable
}

// SizeBytes returns the size of the file.
func (f *File) SizeBytes() (uint64, error) {
	n, err := f.file.SizeBytes()
	if err != nil {
		return 0, fmt.Errorf("stat %s: %w", f.path, err)
	}
	return uint64(n), nil
}

// PagesFor returns the number of pages that an extent with the given payload needs.
func (f *File) PagesFor(payloadBytes int) uint32 { return PagesFor(f.geo.pageSize, payloadBytes) }

// Close closes the file. Changes since the last Checkpoint are lost.
func (f *File) Close() error {
	if !f.closed.CompareAndSwap(false, true) {
		return nil
	}
	f.checkpointing.Lock() // wait for a running checkpoint
	defer f.checkpointing.Unlock()
	if err := f.file.Close(); err != nil {
		return fmt.Errorf("close page file: %w", err)
	}
	return nil
}
