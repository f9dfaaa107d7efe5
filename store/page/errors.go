// SPDX-License-Identifier: Apache-2.0

package page

import (
	"errors"
	"fmt"
	"syscall"
)

// Errors of the file format. Reads of an open file can also return ErrCorrupt.
var (
	ErrNotPageFile  = errors.New("not a page file")
	ErrNewerVersion = errors.New("page file has a newer format")
	// ErrCorrupt means that the data read from the file is not the data that was written. See CorruptError.
	ErrCorrupt  = errors.New("page file is corrupt")
	ErrPageSize = errors.New("page size must be a multiple of 2048, at most 1048576")
)

// Errors of an open file.
var (
	// ErrFull means that no free range is large enough, and that the filesystem is full or the file has its maximum
	// size. Earlier allocations stay valid, and a retry may succeed.
	ErrFull = errors.New("page file is full")
	// ErrFailed means that a sync or a meta slot write failed, or that a bug was detected. All writing methods return it
	// from then on. Reopen the file to continue from the last durable checkpoint (INV-7).
	ErrFailed   = errors.New("page file has failed")
	ErrReadOnly = errors.New("page file is open read-only")
	ErrClosed   = errors.New("page file is closed")
	// ErrMisuse means a bug in the caller.
	ErrMisuse = errors.New("invalid use of the page file")
)

// CorruptError describes corruption in a page file. It matches ErrCorrupt.
type CorruptError struct {
	Path string // empty if only bytes were decoded
	// Page is the first page of the extent or of the read; 0 for the header, the meta slots and the file as a whole.
	Page   No
	Offset int64
	Reason string
}

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

func addFull(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG) {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return err
}

func corruptAt(err error, path string, page No, offset int64) error {
	var d *CorruptError
	if !errors.As(err, &d) {
		return err
	}
	filled := *d
	filled.Path, filled.Page, filled.Offset = path, page, offset
	return &filled
}
