// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/events"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// Install receives another node's snapshot into a file next to page.db and then replaces page.db with it.
//
// A crash must not leave a new page.db with the old log. Commit therefore first writes a mark with the snapshot's
// position to the identity file, then renames the files, resets the log, and removes the mark. If Open finds the mark,
// it completes the second rename if page.db is missing, and compares the position in the mark with the position of
// page.db. If the two are equal, Open removes the old log. Otherwise no file was renamed, and Open removes the received
// file (recoverInstall).
type Install struct {
	s      *Store
	header SnapshotHeader
	imp    *page.Importer
	offset uint64 // minimum offset of the next piece
	bytes  uint64
}

// BeginInstall returns an Install that receives the snapshot described by h. Its first WriteAt discards the data of
// an interrupted transfer.
func (s *Store) BeginInstall(h SnapshotHeader) (*Install, error) {
	if err := s.Usable(); err != nil {
		return nil, err
	}
	return &Install{s: s, header: h}, nil
}

// WriteAt stores a piece of the page file. Pieces must be passed in ascending order of offset; gaps are free pages.
// The first piece, at offset 0, contains the metadata of the checkpoint.
func (in *Install) WriteAt(offset uint64, data []byte) error {
	if offset < in.offset {
		return fmt.Errorf("receive snapshot: piece at offset %d after one that ended at %d", offset, in.offset)
	}
	if in.imp == nil {
		if offset != 0 {
			return fmt.Errorf("receive snapshot: first piece is at offset %d", offset)
		}
		return in.begin(data)
	}
	if err := in.imp.WriteAt(int64(offset), data); err != nil {
		if errors.Is(err, page.ErrFailed) {
			in.s.fail(err) // INV-7
		}
		return fmt.Errorf("receive snapshot: %w", err)
	}
	in.offset = offset + uint64(len(data))
	in.bytes += uint64(len(data))
	return nil
}

func (in *Install) begin(data []byte) error {
	s, h := in.s, in.header
	imp, err := page.NewImporter(s.o.FS, s.path(datadir.ReceiveName), page.ImportOptions{
		Meta: data, PageSize: h.PageSize, FileBytes: int64(h.FileBytes), StoreID: s.Identity().StoreID,
	})
	if err != nil {
		return fmt.Errorf("receive snapshot: %w", err)
	}
	if at := imp.Meta().Position; at != h.Position {
		imp.Abort()
		return fmt.Errorf("receive snapshot: announced for %v, contains %v", h.Position, at)
	}
	in.imp, in.offset, in.bytes = imp, uint64(len(data)), uint64(len(data))
	return nil
}

// Offset returns the minimum offset of the next piece, from which a transfer can be resumed.
func (in *Install) Offset() uint64 { return in.offset }

// Abort discards the received data.
func (in *Install) Abort() {
	if in.imp != nil {
		in.imp.Abort()
	}
}

// Commit replaces page.db with the snapshot, empties the log and loads the new state. It keeps the old page.db as
// page.db_old, increments the incarnation and ends a quarantine. The change is durable when Commit returns nil. After
// an error during the replacement, the store is unusable. No append or apply may be in progress.
func (in *Install) Commit() error {
	s := in.s
	if in.imp == nil {
		return errors.New("receive snapshot: no data received")
	}
	if in.bytes != in.header.DataBytes {
		in.imp.Abort()
		return fmt.Errorf("receive snapshot: %d bytes announced, %d received", in.header.DataBytes, in.bytes)
	}
	if err := in.imp.Finish(); err != nil {
		return fmt.Errorf("receive snapshot: %w", err)
	}
	s.maint.Interrupt() // it would rewrite a file that is no longer used
	// Remove the old file before the locks are acquired: removing a large file takes time.
	old := s.path(datadir.OldFileName)
	if err := vfs.RemoveLarge(s.o.FS, old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("install the snapshot: %w", err)
	}
	return s.pages.Exclusive(in.replace)
}

func (in *Install) replace() error {
	s := in.s
	if err := s.Usable(); err != nil {
		return err
	}
	s.snapshots.closeAll() // they read the replaced file
	// The incarnation is incremented together with the mark. The snapshot may lack records that this store has
	// acknowledged. A cluster record that lists the old content as in sync must not match the new content (INV-4).
	if err := s.changeIdentity(func(id *datadir.IdentityFile) error {
		id.Install = &datadir.InstallMark{Position: in.header.Position}
		id.Incarnation++
		return nil
	}); err != nil {
		return err
	}
	err := s.swapFiles()
	if err == nil {
		err = s.finishInstall(in.header)
	}
	if err != nil {
		err = fmt.Errorf("install the snapshot: %w", err)
		s.fail(err)
		return err
	}
	s.o.Events(events.SnapshotInstalled{Position: in.header.Position, Bytes: in.header.DataBytes})
	return nil
}

func (s *Store) swapFiles() error {
	if err := s.pages.CloseFile(); err != nil {
		return fmt.Errorf("close page.db: %w", err)
	}
	if err := s.o.FS.Rename(s.path(datadir.PageFileName), s.path(datadir.OldFileName)); err != nil {
		return err
	}
	// A crash here leaves no page.db: recoverInstall then performs the second rename.
	if err := s.o.FS.Rename(s.path(datadir.ReceiveName), s.path(datadir.PageFileName)); err != nil {
		return err
	}
	return s.o.FS.SyncDir(s.o.Dir)
}

func (s *Store) path(name string) string { return filepath.Join(s.o.Dir, name) }

func (s *Store) finishInstall(h SnapshotHeader) error {
	if err := s.openPages(); err != nil {
		return err
	}
	if err := s.log.Reset(h.Position); err != nil {
		return fmt.Errorf("reset the log: %w", err)
	}
	s.recent.clear()
	s.sinceCheckpoint.Store(0)
	s.repair.Replaced()
	return s.changeIdentity(func(id *datadir.IdentityFile) error {
		id.Install, id.Quarantine, id.QuarantineReason = nil, "", ""
		return nil
	})
}

// recoverInstall completes or rolls back an interrupted replacement, and removes a partially received snapshot. emptied
// reports whether the log was removed.
func (s *Store) recoverInstall() (emptied bool, err error) {
	if s.id.Install != nil {
		if emptied, err = s.recoverFiles(*s.id.Install); err != nil {
			return false, fmt.Errorf("finish the interrupted installation of a snapshot: %w", err)
		}
		s.id.Install = nil
		if err := s.id.Write(s.o.FS, s.o.Dir); err != nil {
			return false, err
		}
	}
	if err := s.o.FS.Remove(s.path(datadir.ReceiveName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("remove a partially received snapshot: %w", err)
	}
	return emptied, nil
}

// recoverFiles renames the received file if page.db is missing. If page.db is the new file, recoverFiles removes the
// segments of the old log and sets emptied.
func (s *Store) recoverFiles(mark datadir.InstallMark) (emptied bool, err error) {
	_, err = s.o.FS.Stat(s.path(datadir.PageFileName))
	if errors.Is(err, fs.ErrNotExist) {
		err = s.o.FS.Rename(s.path(datadir.ReceiveName), s.path(datadir.PageFileName))
		if errors.Is(err, fs.ErrNotExist) {
			return false, fmt.Errorf("%w, and so is the received snapshot", ErrPagesMissing)
		}
	}
	if err != nil {
		return false, err
	}
	if err := s.o.FS.SyncDir(s.o.Dir); err != nil {
		return false, err
	}
	file, err := page.Open(s.o.FS, datadir.PageFile(s.o.Dir), page.Options{ReadOnly: true})
	if err != nil {
		return false, err
	}
	done := file.Meta().Position == mark.Position
	if err := file.Close(); err != nil || !done {
		return false, err
	}
	dir := datadir.LogDir(s.o.Dir)
	names, err := s.o.FS.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	for _, name := range names {
		if err := s.o.FS.Remove(filepath.Join(dir, name)); err != nil {
			return false, err
		}
	}
	return true, s.o.FS.SyncDir(dir)
}
