// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"
	"syscall"
)

// Errors of Run.
var (
	// ErrBusy is returned if another process, or another Run of this process, uses the same directory.
	ErrBusy = errors.New("another backup is running in this directory")
	// ErrNoSpace is returned if there is not enough free space. No files are left behind.
	ErrNoSpace = errors.New("not enough free space")
)

// Errors of Load, Verify and Restore.
var (
	// ErrIncomplete is returned for a directory that is not a complete backup.
	ErrIncomplete = errors.New("backup is incomplete")
	// ErrCorrupt is returned if a backup, or its content, does not match its checksums.
	ErrCorrupt = errors.New("backup is corrupt")
	// ErrNewerVersion is returned if a backup or an archive has a newer, unsupported format.
	ErrNewerVersion = errors.New("written in a newer format")
	// ErrTarget is returned if the requested record or time cannot be reached with this backup and archive.
	ErrTarget = errors.New("cannot restore the requested point in time")
)

// ErrRemote is returned if a remote location cannot be used: its server is unreachable, does not respond in time, or
// rejects the request. It does not indicate a problem of the content.
var ErrRemote = errors.New("object store is unavailable")

// isUnreadable reports whether an error is unrelated to the content.
func isUnreadable(err error) bool {
	return errors.Is(err, ErrRemote) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// Errors of the archive.
var (
	// ErrArchiveCorrupt is returned if an archived file is corrupt.
	ErrArchiveCorrupt = errors.New("log archive is corrupt")
	// ErrArchiveGap is returned if records are missing in the archive.
	ErrArchiveGap = errors.New("log archive has a gap")
	// ErrOtherHistory is returned if the archive and the store's log have different records under the same LSN, such
	// as after a restore. They must not be mixed.
	ErrOtherHistory = errors.New("log archive belongs to another history")
)

// noSpace adds ErrNoSpace to the system's errors for a full disk.
func noSpace(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return err
}
