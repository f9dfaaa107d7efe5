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

// ImportOptions describe a checkpoint that comes from elsewhere.
type ImportOptions struct {
	// Meta is the checkpoint's description: what Meta.Encode returned on the other side.
	Meta []byte
	// PageSize and FileBytes are what the sender said elsewhere; 0 means that it did not. They must agree with Meta.
	PageSize  int
	FileBytes int64
	// StoreID that the new file gets: the receiver's own.
	StoreID [16]byte
}

// Importer builds a page file from the used pages of another one's checkpoint. Until Finish it is no page file:
// whatever interrupts the import, Open refuses what is there. It is safe for concurrent use.
type Importer struct {
	fsys vfs.FS
	path string
	meta Meta

	mu   sync.Mutex // guards what follows
	file vfs.File   // nil when it is over
	// from and to are where what was written and not yet handed to the disk begins and ends; to is 0 when nothing was.
	// window is how far they may be apart.
	from, to, window int64
	past             vfs.Bypass // the file is not read before it is finished
}

// importWindow is how much of an import is written before it is handed to the disk. All of it at the end would hold up,
// for as long as that takes, the syncs of a log on the same disk.
const importWindow = 4 << 20

// errImportOver is the reason why an importer takes nothing any more.
var errImportOver = errors.New("the import is over")

// NewImporter begins an import into path; what is under that name is dropped. It returns ErrDamaged or ErrNewerVersion
// if the description does not make sense, ErrFull if there is not enough space for the whole file.
func NewImporter(fsys vfs.FS, path string, o ImportOptions) (*Importer, error) {
	meta, err := DecodeMeta(o.Meta)
	if err != nil {
		return nil, fmt.Errorf("import page file: %w", err)
	}
	if (o.PageSize != 0 && o.PageSize != meta.PageSize) || (o.FileBytes != 0 && o.FileBytes != meta.FileBytes()) {
		return nil, fmt.Errorf("import page file: %w", &DamagedError{Reason: fmt.Sprintf(
			"%d bytes with pages of %d are announced, the checkpoint has %d with pages of %d", o.FileBytes, o.PageSize,
			meta.FileBytes(), meta.PageSize)})
	}
	meta.StoreID = o.StoreID
	file, err := fsys.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o640)
	if err != nil {
		return nil, fmt.Errorf("import page file: %w", err)
	}
	// Only extended, not reserved: free pages need no space here. A disk that fills up fails the write.
	if err := file.Truncate(meta.FileBytes()); err != nil {
		return nil, errors.Join(fmt.Errorf("import page file: %w", err), file.Close())
	}
	im := &Importer{fsys: fsys, path: path, meta: meta, file: file, window: importWindow}
	im.past.Use(vfs.AvoidCache)
	return im, nil
}

// Meta describes the checkpoint that is imported.
func (im *Importer) Meta() Meta { return im.meta }

// WriteAt stores a piece of the other file at the same offset. It refuses with ErrMisuse what is not in the range of
// the pages. Pages are verified when they are read, as ever. After ErrFailed the import is to be aborted.
func (im *Importer) WriteAt(offset int64, data []byte) error {
	im.mu.Lock()
	defer im.mu.Unlock()
	if im.file == nil {
		return fmt.Errorf("import page file: %w", errImportOver)
	}
	if offset < DataOffset || offset > im.meta.FileBytes() || int64(len(data)) > im.meta.FileBytes()-offset {
		return fmt.Errorf("import page file: %w: %d bytes at offset %d, the pages lie from %d to %d", ErrMisuse,
			len(data), offset, DataOffset,
			im.meta.FileBytes())
	}
	if _, err := im.past.Write(im.file, offset, data); err != nil {
		return fmt.Errorf("import page file: write at offset %d: %w", offset, err)
	}
	return im.wrote(offset, int64(len(data)))
}

// wrote hands what was written to the disk when there is enough of it; durable it is with Finish only. mu is held.
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
	dropCache(im.file, stretch{im.from, im.to}) // it is not read before it is all there
	im.from, im.to = 0, 0
	return nil
}

// Finish makes the pages durable, then the file a page file, and closes it. It verifies that the bitmap arrived. When
// it returns nil, all is durable, the name included. After an error the import is over.
func (im *Importer) Finish() error {
	im.mu.Lock()
	defer im.mu.Unlock()
	if im.file == nil {
		return fmt.Errorf("import page file: %w", errImportOver)
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

// verify reads the bitmap.
func (im *Importer) verify(file vfs.File) error {
	f := &File{path: im.path, file: file, geo: geometry{pageSize: im.meta.PageSize}, durable: im.meta}
	f.pages.Store(im.meta.Pages)
	return f.loadSpace()
}

// Abort ends the import and removes what there is. After Finish or Abort it does nothing.
func (im *Importer) Abort() {
	im.mu.Lock()
	defer im.mu.Unlock()
	if im.file == nil {
		return
	}
	_ = im.file.Close() // nothing of it is wanted
	im.file = nil
	_ = im.fsys.Remove(im.path) // the next import drops it, too
}
