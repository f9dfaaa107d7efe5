// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"
	"syscall"
)

// Errors of locations and of disk space.
var (
	// ErrBusy means that another Run or Archiver, in any process, has locked the location.
	ErrBusy = errors.New("another backup or log archive uses this directory")
	// ErrNoSpace means that the location, or the target of a restore, has too little free space. The operation has then
	// written nothing, or removed its files if possible.
	ErrNoSpace = errors.New("not enough free space")
)

// Errors of Load, Verify, Restore and Receive.
var (
	ErrIncomplete = errors.New("backup is incomplete")
	// ErrCorrupt means that a backup, or its content, does not match its checksums.
	ErrCorrupt = errors.New("backup is corrupt")
	// ErrNewerVersion means that a newer release wrote the backup or the archive.
	ErrNewerVersion = errors.New("written in a newer format")
	// ErrTarget means that the requested record or time cannot be reached with this backup and archive, or that the
	// request is contradictory.
	ErrTarget = errors.New("cannot restore the requested point in time")
	// ErrNoSites means that no replica can be made from the backup or snapshot, usually because the pair has no sites.
	ErrNoSites = errors.New("pair does not belong to a group of sites")
)

// ErrRemote means that the server of a remote location is unreachable, does not respond in time, or rejects a request.
// The content may be valid.
var ErrRemote = errors.New("object store is unavailable")

// isUnreadable reports whether err means that the content could not be read.
func isUnreadable(err error) bool {
	return errors.Is(err, ErrRemote) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// Errors of the archive.
var (
	ErrArchiveCorrupt = errors.New("log archive is corrupt")
	ErrArchiveGap     = errors.New("log archive has a gap")
	// ErrOtherHistory means that the archive does not belong to the history of the store or of the backup, such as
	// after a restore of the store.
	ErrOtherHistory = errors.New("log archive belongs to another history")
)

func noSpace(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return err
}
