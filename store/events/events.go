// SPDX-License-Identifier: Apache-2.0

// Package events defines the events that a store reports to its owner, such as CheckpointWritten.
//
// The function store.Options.Events is called by the goroutine that detects the event, which may hold locks of the
// store. The function must return immediately, must not call the store, and must be safe for concurrent use. The events
// of one goroutine are reported in order.
package events

import (
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

// Event is one of the types below.
type Event interface{ entry() entry }

// Name returns the kind of an event, in lower case with hyphens. Names are label values of a metric.
func Name(e Event) string { return e.entry().name }

// Log returns a function that writes each event to a log.
func Log(to *zap.Logger) func(Event) {
	return func(e Event) {
		x := e.entry()
		to.Log(x.level, x.text, x.fields...)
	}
}

// Discard ignores events.
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
		LogTailTruncated{},
		SegmentNotPrepared{},
		RecordUnreadable{},
		LogMissing{},
		LogBehind{},
		RewriteStarted{},
		RewriteDone{},
		RewriteCanceled{},
		RewriteRecovered{},
		RewriteCorrupt{},
		OldFileDropped{},
		OldFileNotClosed{},
		Shrunk{},
		PageCorrupt{},
		PageRepaired{},
		MessagesCorrupt{},
		IndexCorrupt{},
		LogCorrupt{},
		LogDiscarded{},
		SnapshotCorrupt{},
	}
	names := make([]string, len(all))
	for i, e := range all {
		names[i] = Name(e)
	}
	return names
}

// Events of the store as a whole.
type (
	// Failed is reported once, when the store has become unusable (INV-7). The process must stop.
	Failed struct{ Err error }
	// CheckpointWritten is reported when a checkpoint is durable. Took is the duration of its last step: the writes of
	// the bitmap of used pages and of the meta slot, and the syncs.
	CheckpointWritten struct {
		Number   uint64
		Position lsn.Position
		Took     time.Duration
	}
	// DiskFull is reported when pages cannot be written for lack of space; messages stay in memory and in the log.
	DiskFull     struct{ Err error }
	DiskHasSpace struct{}
	// SnapshotInstalled is reported when another node's snapshot has replaced the store's content.
	SnapshotInstalled struct {
		Position lsn.Position
		Bytes    uint64
	}
	// Quarantined is reported when the store could not be opened and its files were moved to Dir. A new, empty store is
	// then opened.
	Quarantined struct {
		Dir string
		Err error
	}
)

// Events of the log.
type (
	LogFailed struct{ Err error }
	SlowSync  struct{ Took time.Duration }
	// LogTailTruncated is reported when Open has truncated a torn tail: writes that no later block header proves to be
	// durable.
	LogTailTruncated struct {
		Segment       string
		Offset, Bytes int64
		End           lsn.Position
	}
	SegmentNotPrepared struct{ Err error }
	RecordUnreadable   struct {
		LSN uint64
		Err error
	}
	LogMissing struct{ Checkpoint lsn.Position }
	LogBehind  struct{ LogEnd, Checkpoint lsn.Position }
)

// Events of the maintenance of page.db.
type (
	RewriteStarted struct {
		Reason                 string
		FromPageSize, PageSize int
		Messages, Bytes        uint64
	}
	// RewriteDone is reported when the new file has replaced the old one.
	RewriteDone struct {
		PageSize           int
		BytesBefore, Bytes uint64
		Paused             time.Duration
	}
	RewriteCanceled struct{ Reason string }
	// RewriteRecovered is reported for an interrupted rewrite: when Open has renamed file From to page.db, or, with an
	// empty From, when it removes the new file.
	RewriteRecovered struct{ From string }
	// RewriteCorrupt is reported when Open uses the old file because the new file of a rewrite is corrupt.
	RewriteCorrupt struct{ Err error }
	// OldFileDropped is reported before page.db_old is removed to free space for a rewrite.
	OldFileDropped   struct{ Bytes uint64 }
	OldFileNotClosed struct{ Err error }
	// Shrunk is reported after a shrink of page.db.
	Shrunk struct{ BytesBefore, Bytes, Moved uint64 }
)

// Events of corruption and repair.
type (
	// PageCorrupt is reported when the scrub finds a corrupt header, meta slot or bitmap page, which the node rewrites
	// from memory.
	PageCorrupt struct{ Err error }
	// PageRepaired is reported when corrupt or missing messages were written to new pages from the other node's copies.
	PageRepaired struct {
		Queue, First, Last uint64
		Messages           int
		Was                error
	}
	MessagesCorrupt struct {
		Queue, First, Last uint64
		Messages           int
		Err                error
	}
	// IndexCorrupt is reported when data other than messages is corrupt. The store must be replaced.
	IndexCorrupt struct{ Err error }
	LogCorrupt   struct{ Err error }
	// LogDiscarded is reported when the log up to a corrupt record was discarded. A checkpoint contains the discarded
	// part.
	LogDiscarded    struct{ UpTo uint64 }
	SnapshotCorrupt struct {
		ID  string
		Err error
	}
)
