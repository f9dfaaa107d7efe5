// SPDX-License-Identifier: Apache-2.0

// Package datadir knows the names in a node's data directory, and its lock.
package datadir

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/lockstep-mq/lockstep/store/vfs"
)

// Names in the data directory. The formats are in store/FORMAT.md.
const (
	LockName = "lock"
	// LogName is the directory of the log.
	LogName = "log"
	// PageFileName is the page file; the others are: one that a snapshot is received into, one that a rewrite writes,
	// and the one that was replaced last.
	PageFileName = "page.db"
	ReceiveName  = "page.db_recv"
	NewFileName  = "page.db_new"
	OldFileName  = "page.db_old"
	// AccessResetName is there when the node is to delete all rules of who may do what.
	AccessResetName = "access.reset"
)

// Errors of Lock.
var (
	// ErrInUse is returned when another process has the data directory open.
	ErrInUse = errors.New("data directory is in use by another process")
	// ErrNone is returned when there is no such directory.
	ErrNone = errors.New("not a data directory")
)

// PageFile is the path of the page file.
func PageFile(dir string) string { return filepath.Join(dir, PageFileName) }

// AccessReset is the path of the file that asks the node to delete all rules of who may do what.
func AccessReset(dir string) string { return filepath.Join(dir, AccessResetName) }

// LogDir is the path of the log's directory.
func LogDir(dir string) string { return filepath.Join(dir, LogName) }

// Lock takes the lock of a data directory. Errors: ErrInUse, ErrNone.
func Lock(fsys vfs.FS, dir string) (io.Closer, error) {
	lock, err := fsys.Lock(filepath.Join(dir, LockName))
	switch {
	case errors.Is(err, vfs.ErrLocked):
		return nil, fmt.Errorf("%w: %s; stop the node first, or use the admin command of the running node", ErrInUse,
			dir)
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: %s: %w", ErrNone, dir, err)
	case err != nil:
		return nil, fmt.Errorf("lock the data directory %s: %w", dir, err)
	}
	return lock, nil
}
