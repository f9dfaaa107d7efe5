// SPDX-License-Identifier: Apache-2.0

package page

import (
	"errors"
	"fmt"
)

// Errors of Create and Open.
var (
	// ErrNotPageFile is returned if a file does not start with the header of a page file.
	ErrNotPageFile = errors.New("not a page file")
	// ErrNewerVersion is returned if a page file was written by a newer version of the program, in an unsupported
	// format.
	ErrNewerVersion = errors.New("page file has a newer format")
	// ErrCorrupt is returned if data does not read back as it was written: see CorruptError.
	ErrCorrupt = errors.New("page file is corrupt")
	// ErrPageSize is returned if a page size is not a multiple of 2048 between 2048 and 1 MiB.
	ErrPageSize = errors.New("page size must be a multiple of 2048, at most 1048576")
)

// Errors of an open file.
var (
	// ErrFull is returned if there is no free page and the file cannot grow: the filesystem is full, or the format's
	// limit is reached. Earlier allocations stay valid, and a retry may succeed.
	ErrFull = errors.New("page file is full")
	// ErrFailed is returned by all writing methods after a failed sync, a failed meta slot write, or a detected bug.
	// The last durable checkpoint is on disk; reopen the file to continue from it (INV-7).
	ErrFailed = errors.New("page file has failed")
	// ErrReadOnly is returned by writing methods of a file that is open read-only.
	ErrReadOnly = errors.New("page file is open read-only")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("page file is closed")
	// ErrMisuse is returned if a caller violates the rules of this package, which is a bug in the caller.
	ErrMisuse = errors.New("invalid use of the page file")
)

// CorruptError describes corruption in a page file. It matches ErrCorrupt with errors.Is.
type CorruptError struct {
	// Path of the file; empty if only bytes were decoded.
	Path string
	// Page is the first page of the extent, or 0 for the header and the meta slots.
	Page No
	// Offset in the file, in bytes.
	Offset int64
	// Reason describes the corruption.
	Reason string
}

// Error returns the position and the reason.
func (e *CorruptError) Error() string {
	where := fmt.Sprintf("offset %d", e.Offset)
	if e.Page != 0 {
		where = fmt.Sprintf("page %d at offset %d", e.Page, e.Offset)
	}
	if e.Path != "" {
		where = e.Path + ", " + where
	}
	return fmt.Sprintf("%s (%s): %s", ErrCorrupt.Error(), where, e.Reason)
}

// Is reports whether target is ErrCorrupt.
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }

// corruptAt sets the position of a CorruptError.
func corruptAt(err error, path string, page No, offset int64) error {
	var d *CorruptError
	if !errors.As(err, &d) {
		return err
	}
	filled := *d
	filled.Path, filled.Page, filled.Offset = path, page, offset
	return &filled
}
