// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"errors"
	"fmt"
)

// Errors of opening a log.
var (
	// ErrCorrupt is returned when durable data cannot be read back. The error is a *CorruptError with the details.
	ErrCorrupt = errors.New("log is corrupt")
	// ErrNewerVersion is returned when the log's format is newer than this program.
	ErrNewerVersion = errors.New("log was written by a newer version of lockstep")
	// ErrOtherLog is returned when a segment belongs to the log of another store.
	ErrOtherLog = errors.New("log segment belongs to another store")
	// ErrOptions is returned when the options are invalid.
	ErrOptions = errors.New("invalid log options")
)

// Errors of using a log.
var (
	// ErrFailed is returned when an earlier write or fsync of the log failed. The end of the log is unknown until it
	// is reopened (INV-7). It wraps the cause.
	ErrFailed = errors.New("log failed and accepts no records until the node is restarted")
	// ErrClosed is returned when the log is closed.
	ErrClosed = errors.New("log is closed")
	// ErrNotContiguous is returned when frames do not continue the end of the log.
	ErrNotContiguous = errors.New("frames do not continue the log")
	// ErrTooLarge is returned when a record is larger than Options.MaxFrameBytes, or a block would not fit its length
	// field.
	ErrTooLarge = errors.New("record is too large for the log")
	// ErrNoSpace is returned when the log needs a new segment and the disk is full. Nothing was written, the log is
	// unchanged, and the Append may be retried when space is available.
	ErrNoSpace = errors.New("no disk space for a new log segment")
	// ErrTrimmed is returned when the requested records are no longer in the log.
	ErrTrimmed = errors.New("log no longer contains the position")
	// ErrNotInLog is returned when a position is not in the log: it is beyond the end, or belongs to another history.
	ErrNotInLog = errors.New("position is not in the log")
	// ErrTruncated is returned by a Reader when the log was cut or reset after the Reader was created. A new Reader is
	// needed.
	ErrTruncated = errors.New("log was truncated under its reader")
)

// Errors of decoding a frame.
var (
	// ErrShortFrame is returned when the frame is incomplete.
	ErrShortFrame = errors.New("log frame is incomplete")
	// ErrBadFrame is returned when a frame's checksum or format is invalid.
	ErrBadFrame = errors.New("log frame is corrupt")
	// ErrChain is returned when a frame is valid but does not follow the expected predecessor.
	ErrChain = errors.New("log frame does not follow its predecessor")
)

// CorruptError describes a position at which the log is unreadable although it was durable. It matches ErrCorrupt.
type CorruptError struct {
	// Segment is the name of the file.
	Segment string
	// Offset is the offset of the unreadable block or frame in the file, in bytes.
	Offset int64
	// LSN is the first record that cannot be read.
	LSN uint64
	// DurableLSN is the LSN up to which the log is known to have been durable; 0 if unknown.
	DurableLSN uint64
	// Err is the underlying error.
	Err error
}

// Error describes the corruption and the remedies.
func (e *CorruptError) Error() string {
	proof := ""
	if e.DurableLSN > 0 {
		proof = fmt.Sprintf(", although everything up to record %d was durable", e.DurableLSN)
	}
	return fmt.Sprintf("log is corrupt at record %d (%s, offset %d)%s: %v. Nothing was truncated. "+
		"Let the node fetch the store from its peer, or restore a backup; `lockstep store dump-log` shows what is readable",
		e.LSN, e.Segment, e.Offset, proof, e.Err)
}

// Is reports whether target is ErrCorrupt.
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }

// Unwrap returns the underlying error.
func (e *CorruptError) Unwrap() error { return e.Err }
