// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"errors"
	"fmt"
)

// Errors of opening a log.
var (
	// ErrCorrupt means that durable data cannot be read back. See CorruptError.
	ErrCorrupt      = errors.New("log is corrupt")
	ErrNewerVersion = errors.New("log was written by a newer version of lockstep")
	ErrOtherLog     = errors.New("log segment belongs to another store")
	ErrOptions      = errors.New("invalid log options")
)

// Errors of using a log.
var (
	// ErrFailed means that a write, an fsync or another change of a log file failed. The end of the log is unknown until
	// the log is reopened (INV-7).
	ErrFailed        = errors.New("log failed and accepts no records until the node is restarted")
	ErrClosed        = errors.New("log is closed")
	ErrNotContiguous = errors.New("frames do not continue the log")
	// ErrTooLarge means that a record exceeds Options.MaxFrameBytes, or that a block exceeds the range of its length
	// field.
	ErrTooLarge = errors.New("record is too large for the log")
	// ErrNoSpace means that no segment could be created. The log is unchanged, and Append can be retried when space is
	// available.
	ErrNoSpace = errors.New("no disk space for a new log segment")
	ErrTrimmed = errors.New("log no longer contains the position")
	// ErrNotInLog means that a position is beyond the end, or belongs to another history.
	ErrNotInLog = errors.New("position is not in the log")
	// ErrTruncated means that the log was truncated or reset after the Reader was created.
	ErrTruncated = errors.New("log was truncated during the read")
)

// Errors of decoding a frame.
var (
	ErrShortFrame = errors.New("log frame is incomplete")
	ErrBadFrame   = errors.New("log frame is corrupt")
	ErrChain      = errors.New("log frame does not follow its predecessor")
)

// CorruptError describes durable data that cannot be read. It matches ErrCorrupt.
type CorruptError struct {
	// Segment is the path of the file, Offset the position of the unreadable block or frame in it, and LSN the first
	// unreadable record. If the intent of an interrupted truncation is unreadable, Segment is its path, and LSN is 0.
	Segment string
	Offset  int64
	LSN     uint64
	// DurableLSN is the LSN up to which the log is known to have been durable; 0 if unknown.
	DurableLSN uint64
	Err        error
}

func (e *CorruptError) Error() string {
	proof := ""
	if e.DurableLSN > 0 {
		proof = fmt.Sprintf(", although everything up to record %d was durable", e.DurableLSN)
	}
	return fmt.Sprintf("log is corrupt at record %d (%s, offset %d)%s: %v. Nothing was truncated; "+
		"`lockstep store dump-log` shows the readable records",
		e.LSN, e.Segment, e.Offset, proof, e.Err)
}

// Is reports whether target is ErrCorrupt.
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }

func (e *CorruptError) Unwrap() error { return e.Err }
