// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// RestoreTarget is a data directory that is being filled from a backup.
//
// The identity file makes the restore atomic. BeginRestore writes it with the field Restoring, and Commit replaces it
// without the field. While the field is set, page.db and the log may be in any state, store.Open rejects the directory
// (ErrRestoring), and a new restore may start.
type RestoreTarget struct {
	fsys vfs.FS
	dir  string
	lock io.Closer
	id   IdentityFile
}

// BeginRestore durably prepares a directory for the restore of the backup named source. The directory must be
// empty, or contain the files of an interrupted restore, which are removed. The node UUID and the store UUID are new;
// the pair and the fence are unset. The caller must call Commit or Abort, and then Close.
//
// It returns ErrNotEmpty if the directory contains other files, and ErrInUse if another process has locked it.
func BeginRestore(fsys vfs.FS, dir, source string) (*RestoreTarget, error) {
	if err := CheckRestore(fsys, dir); err != nil { // before any file is created
		return nil, err
	}
	if err := vfs.MkdirAllSync(fsys, dir, 0o750); err != nil {
		return nil, fmt.Errorf("create the data directory: %w", err)
	}
	lock, err := Lock(fsys, dir)
	if err != nil {
		return nil, err
	}
	t := &RestoreTarget{fsys: fsys, dir: dir, lock: lock, id: IdentityFile{
		Version: identityVersion, NodeID: uuid.New(), StoreID: uuid.New(), Incarnation: 1, Restoring: source,
		Sync: wal.SyncAlways.String(),
	}}
	if err = CheckRestore(fsys, dir); err == nil {
		err = t.id.Write(fsys, dir)
	}
	if err == nil {
		err = t.clear()
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return t, nil
}

// CheckRestore returns ErrNotEmpty if BeginRestore would reject the directory. It changes nothing.
func CheckRestore(fsys vfs.FS, dir string) error {
	names, err := fsys.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list the data directory: %w", err)
	}
	id, err := readIdentity(fsys, dir)
	if err == nil && id.Restoring != "" {
		return nil
	}
	for _, name := range names {
		switch name {
		case LockName, identityName + ".tmp", "lost+found": // lost+found is in the root of a new filesystem
		default:
			return fmt.Errorf("%w: found %s; use another directory, or move this one elsewhere", ErrNotEmpty,
				filepath.Join(dir, name))
		}
	}
	return nil
}

// NodeID returns the new node UUID.
func (t *RestoreTarget) NodeID() uuid.UUID { return t.id.NodeID }

// StoreID returns the new UUID for the page file and the log.
func (t *RestoreTarget) StoreID() uuid.UUID { return t.id.StoreID }

func (t *RestoreTarget) clear() error {
	logDir := LogDir(t.dir)
	names, err := t.fsys.ReadDir(logDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove files of an interrupted restore: %w", err)
	}
	hadLog := err == nil
	remove := []string{PageFile(t.dir), PageFile(t.dir) + ".tmp"}
	for _, name := range names {
		remove = append(remove, filepath.Join(logDir, name))
	}
	if hadLog {
		remove = append(remove, logDir)
	}
	for _, name := range remove {
		if err := t.fsys.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove files of an interrupted restore: %w", err)
		}
	}
	if err := t.fsys.SyncDir(t.dir); err != nil {
		return fmt.Errorf("remove files of an interrupted restore: %w", err)
	}
	return nil
}

// Commit durably completes the restore. page.db and the log must be complete and durable.
func (t *RestoreTarget) Commit() error {
	if err := t.fsys.SyncDir(t.dir); err != nil {
		return fmt.Errorf("finish the restore: %w", err)
	}
	id := t.id
	id.Restored, id.Restoring, id.Clean = id.Restoring, "", true
	if err := id.Write(t.fsys, t.dir); err != nil {
		return fmt.Errorf("finish the restore: %w", err)
	}
	return nil
}

// Abort removes the files of the restore, the identity last. The directory and its lock file remain.
func (t *RestoreTarget) Abort() error {
	if err := t.clear(); err != nil {
		return err
	}
	if err := t.fsys.Remove(filepath.Join(t.dir, identityName)); err != nil {
		return fmt.Errorf("empty the directory of a failed restore: %w", err)
	}
	if err := t.fsys.SyncDir(t.dir); err != nil {
		return fmt.Errorf("empty the directory of a failed restore: %w", err)
	}
	return nil
}

// Close unlocks the directory.
func (t *RestoreTarget) Close() error {
	if err := t.lock.Close(); err != nil {
		return fmt.Errorf("unlock the data directory: %w", err)
	}
	return nil
}
