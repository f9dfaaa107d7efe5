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
	// ErrBusy is returned when another process (or another Run of this one) is at work in the same directory.
	ErrBusy = errors.New("another backup is at work in this directory")
	// ErrNoSpace is returned when there is not enough free space. Nothing is left behind.
	ErrNoSpace = errors.New("not enough free space")
)

// Errors of Load, Verify and Restore.
var (
	// ErrIncomplete is returned for a directory that is no complete save-set.
	ErrIncomplete = errors.New("save-set is incomplete")
	// ErrDamagedSet is returned when a save-set, or what is in it, is not what was written.
	ErrDamagedSet = errors.New("save-set is damaged")
	// ErrNewerVersion is returned when a save-set or an archive was written in a format that this program does not
	// know.
	ErrNewerVersion = errors.New("written in a newer format")
	// ErrTarget is returned when the wanted record or time cannot be reached from this save-set with this archive.
	ErrTarget = errors.New("the wanted point in time cannot be restored")
)

// ErrRemote is returned when a place that is not a directory cannot be used: its server cannot be reached, does not
// answer in time, or refuses. It says nothing about what is in it.
var ErrRemote = errors.New("the object store cannot be used")

// notRead tells an error that says nothing about what should have been read.
func notRead(err error) bool {
	return errors.Is(err, ErrRemote) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// Errors of the archive.
var (
	// ErrArchiveDamaged is returned when an archived file is not what was written.
	ErrArchiveDamaged = errors.New("log archive is damaged")
	// ErrArchiveGap is returned when records are missing in the archive.
	ErrArchiveGap = errors.New("log archive has a gap")
	// ErrOtherHistory is returned when the archive and the store's log hold different records under the same LSN, as
	// after the restore of an older state: they must not be mixed.
	ErrOtherHistory = errors.New("log archive belongs to another history")
)

// noSpace adds ErrNoSpace to an error that says so in the system's words.
func noSpace(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return err
}
