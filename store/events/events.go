// SPDX-License-Identifier: Apache-2.0

// Package events has what a store tells its owner while it works: a checkpoint was written, a page is damaged, a sync
// took long. Logs, metrics and conditions are made from the one stream of them.
//
// The owner gives a function in store.Options. It is called by the goroutine that finds the event, which may hold locks
// of the store: it must return at once, must not call the store, and must be safe for concurrent use. The events of one
// goroutine come in their order.
package events

import (
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

// Event is one of the types below.
type Event interface {
	// Name is the kind of the event, in lower case with hyphens. Names are labels of a metric.
	Name() string
	// log writes the event at the level that it deserves.
	log(to *zap.Logger)
}

// Log returns a function that writes each event to a log.
func Log(to *zap.Logger) func(Event) { return func(e Event) { e.log(to) } }

// Discard takes events and does nothing.
func Discard(Event) {}

// Names returns the names of all kinds of events.
func Names() []string {
	all := []Event{
		Failed{},
		CheckpointWritten{},
		DiskFull{},
		DiskHasSpace{},
		SnapshotInstalled{},
		Quarantined{},
		LogFailed{},
		SlowSync{},
		LogTailCut{},
		SegmentNotPrepared{},
		RecordUnreadable{},
		LogLost{},
		LogBehind{},
		RewriteBegun{},
		RewriteDone{},
		RewriteCanceled{},
		RewriteRecovered{},
		RewriteDamaged{},
		OldFileDropped{},
		OldFileNotClosed{},
		Shrunk{},
		PageDamaged{},
		PageRepaired{},
		MessagesDamaged{},
		IndexDamaged{},
		LogDamaged{},
		LogGivenUp{},
		SnapshotDamaged{},
	}
	names := make([]string, len(all))
	for i, e := range all {
		names[i] = e.Name()
	}
	return names
}

// Events of the store as a whole.
type (
	// Failed tells, once, that a write or an fsync failed (INV-7): the process must stop.
	Failed struct{ Err error }
	// CheckpointWritten tells that a checkpoint is durable, and how long its last step, the syncs, took.
	CheckpointWritten struct {
		Number   uint64
		Position lsn.Position
		Took     time.Duration
	}
	// DiskFull tells that pages cannot be written; messages stay in memory and in the log.
	DiskFull struct{ Err error }
	// DiskHasSpace tells that this is over.
	DiskHasSpace struct{}
	// SnapshotInstalled tells that another node's snapshot took the place of everything.
	SnapshotInstalled struct {
		Position lsn.Position
		Bytes    uint64
	}
	// Quarantined tells that the store could not be opened, and was moved to a directory beside the new, empty one.
	Quarantined struct {
		Dir string
		Err error
	}
)

// Events of the log.
type (
	// LogFailed tells, once, that a write or an fsync of the log failed, and that the log stopped (INV-7).
	LogFailed struct{ Err error }
	// SlowSync tells that a sync of the log took long.
	SlowSync struct{ Took time.Duration }
	// LogTailCut tells that the log ended with writes that were never synced.
	LogTailCut struct {
		Segment       string
		Offset, Bytes int64
		End           lsn.Position
	}
	// SegmentNotPrepared tells that the next segment could not be made ready.
	SegmentNotPrepared struct{ Err error }
	// RecordUnreadable tells that a record of the log is damaged.
	RecordUnreadable struct {
		LSN uint64
		Err error
	}
	// LogLost tells that there was no log beside the checkpoint.
	LogLost struct{ Checkpoint lsn.Position }
	// LogBehind tells that the log ended before the checkpoint.
	LogBehind struct{ LogEnd, Checkpoint lsn.Position }
)

// Events of the maintenance of page.db.
type (
	// RewriteBegun tells that a rewrite begins to copy.
	RewriteBegun struct {
		Reason                 string
		FromPageSize, PageSize int
		Messages, Bytes        uint64
	}
	// RewriteDone tells that the new file took the old one's place.
	RewriteDone struct {
		PageSize           int
		BytesBefore, Bytes uint64
		Paused             time.Duration
	}
	// RewriteCanceled tells that a rewrite ended with the old file in place.
	RewriteCanceled struct{ Reason string }
	// RewriteRecovered tells, at a start, that a rewrite had been interrupted: it was finished from the file From, or,
	// if that is empty, undone.
	RewriteRecovered struct{ From string }
	// RewriteDamaged tells, at a start, that the new file of a rewrite is damaged, and that the old one is used.
	RewriteDamaged struct{ Err error }
	// OldFileDropped tells that page.db_old was removed to make room for a rewrite.
	OldFileDropped struct{ Bytes uint64 }
	// OldFileNotClosed tells that the file that a rewrite replaced could not be closed.
	OldFileNotClosed struct{ Err error }
	// Shrunk tells that the end of page.db was given back.
	Shrunk struct{ BytesBefore, Bytes, Moved uint64 }
)

// Events of damage and repair.
type (
	// PageDamaged tells that the scrub found a damaged page, which is written anew from memory.
	PageDamaged struct{ Err error }
	// PageRepaired tells that a damaged page was written anew with the other node's messages.
	PageRepaired struct {
		Queue, First, Last uint64
		Messages           int
		Was                error
	}
	// MessagesDamaged tells of messages that were not known to be damaged before.
	MessagesDamaged struct {
		Queue, First, Last uint64
		Messages           int
		Err                error
	}
	// IndexDamaged tells that something other than messages is damaged, which a copy of the other node's store makes
	// good.
	IndexDamaged struct{ Err error }
	// LogDamaged tells that the scrub found a damaged place in the log.
	LogDamaged struct{ Err error }
	// LogGivenUp tells that the log up to a damaged record was dropped, which a checkpoint holds.
	LogGivenUp struct{ UpTo uint64 }
	// SnapshotDamaged tells that a snapshot is sent with a damaged page.
	SnapshotDamaged struct {
		ID  string
		Err error
	}
)
