// SPDX-License-Identifier: Apache-2.0

package page

import (
	"errors"
	"fmt"
)

// Errors of Create and Open.
var (
	// ErrNotPageFile is returned when a file does not begin like a page file at all.
	ErrNotPageFile = errors.New("not a page file")
	// ErrNewerVersion is returned when a page file was written by a newer version of the program, in a format that this
	// one does not know.
	ErrNewerVersion = errors.New("page file has a newer format")
	// ErrDamaged is returned when something that was written does not read back as it was written: see DamagedError.
	ErrDamaged = errors.New("page file is damaged")
	// ErrPageSize is returned when a page size is not a multiple of 2048 between 2048 and 1 MiB.
	ErrPageSize = errors.New("page size must be a multiple of 2048, at most 1048576")
)

// Errors of an open file.
var (
	// ErrFull is returned when there is no free page and the file cannot grow: the file system is full, or the format's
	// limit is reached. What was allocated before stays valid, and a later try may succeed.
	ErrFull = errors.New("page file is full")
	// ErrFailed is returned by everything that writes after a sync or a write of a meta slot failed, or after a bug was
	// noticed. What is on disk is the last durable checkpoint; open the file again to go on from there (INV-7).
	ErrFailed = errors.New("page file has failed")
	// ErrReadOnly is returned when a file that was opened read-only is to be changed.
	ErrReadOnly = errors.New("page file is open read-only")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("page file is closed")
	// ErrMisuse is returned when a caller breaks the rules of this package, which is a bug in the caller.
	ErrMisuse = errors.New("page file is used wrongly")
)

// DamagedError says where and how a page file is damaged. errors.Is(err, ErrDamaged) holds for it.
type DamagedError struct {
	// Path of the file; empty where only bytes were looked at.
	Path string
	// Page is the first page of the run concerned; 0 for the header and the meta slots.
	Page No
	// Offset in the file, in bytes.
	Offset int64
	// Reason says what was found.
	Reason string
}

// Error says where, what, and what it means.
func (e *DamagedError) Error() string {
	where := fmt.Sprintf("offset %d", e.Offset)
	if e.Page != 0 {
		where = fmt.Sprintf("page %d at offset %d", e.Page, e.Offset)
	}
	if e.Path != "" {
		where = e.Path + ", " + where
	}
	return fmt.Sprintf("%s (%s): %s", ErrDamaged.Error(), where, e.Reason)
}

// Is makes errors.Is(err, ErrDamaged) hold.
func (e *DamagedError) Is(target error) bool { return target == ErrDamaged }

// at fills in where the damage is.
func damagedAt(err error, path string, page No, offset int64) error {
	var d *DamagedError
	if !errors.As(err, &d) {
		return err
	}
	filled := *d
	filled.Path, filled.Page, filled.Offset = path, page, offset
	return &filled
}
