// SPDX-License-Identifier: Apache-2.0

// Package datadir manages the files in a node's data directory: their names, the lock and the identity. It also
// quarantines an unusable store, prepares the restore of a backup, and lists unused files that an operator may remove.
// store/FORMAT.md documents the formats.
package datadir

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/lockstep-mq/lockstep/store/vfs"
)

// Errors of a data directory.
var (
	ErrInUse    = errors.New("data directory is in use by another process")
	ErrNone     = errors.New("not a data directory")
	ErrIdentity = errors.New("identity file cannot be used")
	// ErrIdentityLost means that the identity file is corrupt, or is missing although the directory contains a node's
	// data. It matches ErrIdentity.
	ErrIdentityLost = fmt.Errorf("%w: corrupt or missing", ErrIdentity)
	ErrRestoring    = errors.New("restore of the data directory is incomplete")
	ErrNotEmpty     = errors.New("directory is not empty")
)

// Names in the data directory.
const (
	LockName = "lock"
	LogName  = "log"
	// PageFileName is the name of the page file. ReceiveName is the name of the file of a snapshot that is being
	// received, NewFileName that of the output of a rewrite, and OldFileName that of the page file replaced last.
	PageFileName = "page.db"
	ReceiveName  = "page.db_recv"
	NewFileName  = "page.db_new"
	OldFileName  = "page.db_old"
	// AccessResetName is the name of a file that exists if the node must delete all access rules.
	AccessResetName = "access.reset"
	// StandaloneName is the name of a file that exists if the node was created without a coordinator.
	StandaloneName = "standalone"
)

// PageFile returns the path of the page file.
func PageFile(dir string) string { return filepath.Join(dir, PageFileName) }

// AccessReset returns the path of the file AccessResetName.
func AccessReset(dir string) string { return filepath.Join(dir, AccessResetName) }

// LogDir returns the path of the log directory.
func LogDir(dir string) string { return filepath.Join(dir, LogName) }

// Lock locks a data directory until the result is closed. It returns ErrInUse if another process has locked it, and
// ErrNone if it does not exist.
func Lock(fsys vfs.FS, dir string) (io.Closer, error) {
	lock, err := fsys.Lock(filepath.Join(dir, LockName))
	switch {
	case errors.Is(err, vfs.ErrLocked):
		return nil, fmt.Errorf("%w: %s; stop the node first, or use a command for the running node", ErrInUse,
			dir)
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: %s: %w", ErrNone, dir, err)
	case err != nil:
		return nil, fmt.Errorf("lock data directory %s: %w", dir, err)
	}
	return lock, nil
}
