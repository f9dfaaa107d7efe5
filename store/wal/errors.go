// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"errors"
	"fmt"
)

// Errors of opening a log.
var (
	// ErrDamaged is returned when something that was durable cannot be read back. The details are in a *DamagedError.
	ErrDamaged = errors.New("the log is damaged")
	// ErrNewerVersion is returned when the log was written in a format that this program does not know.
	ErrNewerVersion = errors.New("the log was written by a newer version of lockstep")
	// ErrOtherLog is returned when a segment belongs to the log of another store.
	ErrOtherLog = errors.New("the log segment belongs to another store")
	// ErrOptions is returned when the options make no sense.
	ErrOptions = errors.New("bad log options")
)

// Errors of using a log.
var (
	// ErrFailed is returned when an earlier write or fsync of the log failed: nothing is known about the end of the log
	// until it is opened anew (INV-7). It wraps what failed.
	ErrFailed = errors.New("the log failed and accepts nothing until the node is restarted")
	// ErrClosed is returned when the log was closed.
	ErrClosed = errors.New("the log is closed")
	// ErrNotContiguous is returned when frames do not continue the end of the log.
	ErrNotContiguous = errors.New("the frames do not continue the log")
	// ErrTooLarge is returned when a record is larger than Options.MaxFrameBytes, or a block would not fit its length
	// field.
	ErrTooLarge = errors.New("the record is too large for the log")
	// ErrNoSpace is returned when the log needs a new segment and the disk is full. Nothing was written, the log is as
	// it was, and the Append may be tried again when there is space.
	ErrNoSpace = errors.New("no disk space for a new log segment")
	// ErrTrimmed is returned when records were asked for that the log does not hold any more.
	ErrTrimmed = errors.New("the log does not reach back that far any more")
	// ErrNotInLog is returned when a position was given that is not in the log: it lies beyond the end, or it is of
	// another history.
	ErrNotInLog = errors.New("the position is not in the log")
	// ErrCut is returned by a Reader when the log was cut or reset after the Reader was made. A new one is needed.
	ErrCut = errors.New("the log was cut under its reader")
)

// Errors of decoding a frame.
var (
	// ErrShortFrame is returned when the bytes end before the frame does.
	ErrShortFrame = errors.New("the log frame is incomplete")
	// ErrBadFrame is returned when a frame's checksum or form is wrong.
	ErrBadFrame = errors.New("the log frame is damaged")
	// ErrChain is returned when a frame is whole but does not follow the one it should follow.
	ErrChain = errors.New("the log frame does not follow its predecessor")
)

// DamagedError says where the log cannot be read although it was durable there. It is an ErrDamaged.
type DamagedError struct {
	// Segment is the name of the file.
	Segment string
	// Offset is where in the file the unreadable block or frame begins, in bytes.
	Offset int64
	// LSN is the first record that cannot be read.
	LSN uint64
	// DurableLSN is how far the log is known to have been durable; 0 if that is not known.
	DurableLSN uint64
	// Err says what is wrong there.
	Err error
}

// Error describes the damage and what can be done.
func (e *DamagedError) Error() string {
	proof := ""
	if e.DurableLSN > 0 {
		proof = fmt.Sprintf(", although everything up to record %d was durable", e.DurableLSN)
	}
	return fmt.Sprintf("the log is damaged at record %d (%s, offset %d)%s: %v. Nothing was cut. "+
		"Let the node fetch the store from its peer, or restore a backup; `lockstep store dump-log` shows what is readable",
		e.LSN, e.Segment, e.Offset, proof, e.Err)
}

// Is makes every DamagedError an ErrDamaged.
func (e *DamagedError) Is(target error) bool { return target == ErrDamaged }

// Unwrap returns what is wrong.
func (e *DamagedError) Unwrap() error { return e.Err }
