// SPDX-License-Identifier: Apache-2.0

// Package datadir knows the names in a node's data directory, and its lock.
package datadir

import (
	"errors"
	"fmt"
	"io"
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
)

// ErrInUse is returned when another process has the data directory open.
var ErrInUse = errors.New("data directory is in use by another process")

// PageFile is the path of the page file.
func PageFile(dir string) string { return filepath.Join(dir, PageFileName) }

// LogDir is the path of the log's directory.
func LogDir(dir string) string { return filepath.Join(dir, LogName) }

// Lock takes the lock of a data directory, which is there. The error is an ErrInUse if another process has it.
func Lock(fsys vfs.FS, dir string) (io.Closer, error) {
	lock, err := fsys.Lock(filepath.Join(dir, LockName))
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrInUse, dir, err)
	}
	return lock, nil
}
