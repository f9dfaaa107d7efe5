// SPDX-License-Identifier: Apache-2.0

package page

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/lockstep-mq/lockstep/store/vfs"
)

// ImportOptions configures an Importer.
type ImportOptions struct {
	Meta []byte // from Meta.Encode at the source
	// PageSize and FileBytes are announced by the sender and must match Meta; 0 means not announced.
	PageSize  int
	FileBytes int64
	StoreID   [16]byte // receiver's ID
}

// Importer builds a page file from the used pages of another file's checkpoint. Until Finish, Open rejects the result.
// An Importer is safe for concurrent use.
type Importer struct {
	fsys vfs.FS
	path string
	meta Meta

	mu   sync.Mutex // guards the fields below
	file vfs.File   // nil after Finish or Abort
	// from and to delimit the range of writes that were not yet written back to the disk; to is 0 if the range is empty.
	// window is the length at which the range is written back.
	from, to, window int64
	past             vfs.Bypass // the file is not read before Finish
}

// importWindow is the length of a written range at which writeback starts.
const importWindow = 4 << 20

var errImportFinished = errors.New("import has finished")

// NewImporter creates or truncates the file at path. It returns ErrNewerVersion, or ErrCorrupt if o.Meta is invalid
// or does not match the announced sizes.
func NewImporter(fsys vfs.FS, path string, o ImportOptions) (*Importer, error) {
	meta, err := DecodeMeta(o.Meta)
	if err != nil {
		return nil, fmt.Errorf("import page file: %w", err)
	}
	if (o.PageSize != 0 && o.PageSize != meta.PageSize) || (o.FileBytes != 0 && o.FileBytes != meta.FileBytes()) {
		return nil, fmt.Errorf("import page file: %w", &CorruptError{Reason: fmt.Sprintf(
			"announced %d bytes with pages of %d, the checkpoint has %d with pages of %d", o.FileBytes, o.PageSize,
			meta.FileBytes(), meta.PageSize)})
	}
	meta.StoreID = o.StoreID
	file, err := fsys.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o640)
	if err != nil {
		return nil, fmt.Errorf("import page file: %w", err)
	}
	// No space is reserved, since free pages need none. A full disk fails the write.
	if err := file.Truncate(meta.FileBytes()); err != nil {
		return nil, errors.Join(fmt.Errorf("import page file: %w", err), file.Close())
	}
	im := &Importer{fsys: fsys, path: path, meta: meta, file: file, window: importWindow}
	im.past.Use(vfs.AvoidCache)
	return im, nil
}

// Meta returns the description of the imported checkpoint.
func (im *Importer) Meta() Meta { return im.meta }

// WriteAt writes data of the source file at the same offset; pages are verified when they are read. It returns
// ErrMisuse for data outside the range of the pages. After ErrFailed the import must be aborted.
func (im *Importer) WriteAt(offset int64, data []byte) error {
	im.mu.Lock()
	defer im.mu.Unlock()
	if im.file == nil {
		return fmt.Errorf("import page file: %w", errImportFinished)
	}
	if offset < DataOffset || offset > im.meta.FileBytes() || int64(len(data)) > im.meta.FileBytes()-offset {
		return fmt.Errorf("import page file: %w: %d bytes at offset %d, pages span %d to %d", ErrMisuse,
			len(data), offset, DataOffset,
			im.meta.FileBytes())
	}
	if _, err := im.past.Write(im.file, offset, data); err != nil {
		return fmt.Errorf("import page file: write at offset %d: %w", offset, err)
	}
	return im.wrote(offset, int64(len(data)))
}

// wrote records a write. If the recorded range fills the window, wrote writes the range back and evicts it from the
// page cache. The caller must hold mu.
func (im *Importer) wrote(offset, length int64) error {
	if im.to == 0 {
		im.from = offset
	}
	im.from, im.to = min(im.from, offset), max(im.to, offset+length)
	if im.to-im.from < im.window {
		return nil
	}
	if err := im.file.SyncRange(im.from, im.to-im.from); err != nil {
		return fmt.Errorf("import page file: %w: %w", ErrFailed, err) // INV-7
	}
	dropCache(im.file, byteRange{im.from, im.to})
	im.from, im.to = 0, 0
	return nil
}

// Finish verifies the bitmap, makes the file durable under its name, and closes it. After an error the Importer must
// not be used, and the file remains.
func (im *Importer) Finish() error {
	im.mu.Lock()
	defer im.mu.Unlock()
	if im.file == nil {
		return fmt.Errorf("import page file: %w", errImportFinished)
	}
	file := im.file
	im.file = nil
	err := im.verify(file)
	if err == nil {
		err = file.Sync()
	}
	if err == nil {
		err = writeIdentity(file, im.meta)
	}
	err = errors.Join(err, file.Close())
	if err == nil {
		err = im.fsys.SyncDir(filepath.Dir(im.path))
	}
	if err != nil {
		return fmt.Errorf("import page file %s: %w", im.path, err)
	}
	return nil
}

func (im *Importer) verify(file vfs.File) error {
	f := &File{path: im.path, file: file, geo: geometry{pageSize: im.meta.PageSize}, durable: im.meta}
	f.pages.Store(im.meta.Pages)
	return f.loadSpace()
}

// Abort cancels the import and removes the file. After Finish or Abort it does nothing.
func (im *Importer) Abort() {
	im.mu.Lock()
	defer im.mu.Unlock()
	if im.file == nil {
		return
	}
	_ = im.file.Close() // the file is discarded
	im.file = nil
	_ = im.fsys.Remove(im.path) // the next import truncates it as well
}
