// SPDX-License-Identifier: Apache-2.0

package events

import (
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// entry is the log entry of an event.
type entry struct {
	name   string
	level  zapcore.Level
	text   string
	fields []zap.Field
}

func at(level zapcore.Level, name, text string, fields ...zap.Field) entry {
	return entry{name, level, text, fields}
}

func (e Failed) entry() entry {
	return at(zap.ErrorLevel, "failed", "store failed; the process must be restarted to recover", zap.Error(e.Err))
}

func (e CheckpointWritten) entry() entry {
	return at(zap.DebugLevel, "checkpoint-written", "checkpoint written", zap.Uint64("number", e.Number),
		zap.Stringer("position", e.Position), zap.Duration("sync_took", e.Took))
}

func (e DiskFull) entry() entry {
	return at(zap.ErrorLevel, "disk-full", "disk is full: messages stay in memory and in the log, and publishing will "+
		"stop; free some space", zap.Error(e.Err))
}

func (DiskHasSpace) entry() entry {
	return at(zap.InfoLevel, "disk-has-space", "disk has free space again")
}

func (e SnapshotInstalled) entry() entry {
	return at(zap.InfoLevel, "snapshot-installed", "snapshot installed", zap.Stringer("position", e.Position),
		zap.Uint64("bytes", e.Bytes))
}

func (e Quarantined) entry() entry {
	return at(zap.ErrorLevel, "quarantined", "store is corrupt and cannot be opened; it was quarantined, and this node "+
		"must copy the store from the other node", zap.String("kept_in", e.Dir), zap.Error(e.Err))
}

func (e LogFailed) entry() entry {
	return at(zap.ErrorLevel, "log-failed", "log failed; the node must be restarted", zap.Error(e.Err))
}

func (e SlowSync) entry() entry {
	return at(zap.WarnLevel, "slow-sync", "slow log sync: the disk is slow, and every commit waits for it",
		zap.Duration("took", e.Took))
}

func (e LogTailTruncated) entry() entry {
	return at(zap.WarnLevel, "log-tail-cut", "torn tail of the log truncated: these writes were never synced",
		zap.String("segment", e.Segment), zap.Int64("offset", e.Offset), zap.Int64("bytes", e.Bytes),
		zap.Stringer("end", e.End))
}

func (e SegmentNotPrepared) entry() entry {
	return at(zap.WarnLevel, "segment-not-prepared", "cannot prepare the next log segment", zap.Error(e.Err))
}

func (e RecordUnreadable) entry() entry {
	return at(zap.ErrorLevel, "record-unreadable", "cannot read a log record", zap.Uint64("lsn", e.LSN), zap.Error(e.Err))
}

func (e LogMissing) entry() entry {
	return at(zap.WarnLevel, "log-lost", "log is missing; continuing from the checkpoint",
		zap.Stringer("checkpoint", e.Checkpoint))
}

func (e LogBehind) entry() entry {
	return at(zap.WarnLevel, "log-behind", "log ends before the checkpoint; continuing from the checkpoint",
		zap.Stringer("log_end", e.LogEnd), zap.Stringer("checkpoint", e.Checkpoint))
}

func (e RewriteStarted) entry() entry {
	return at(zap.InfoLevel, "rewrite-begun", "rewriting page.db", zap.String("reason", e.Reason),
		zap.Int("from_page_size", e.FromPageSize), zap.Int("page_size", e.PageSize), zap.Uint64("messages", e.Messages),
		zap.Uint64("bytes", e.Bytes))
}

func (e RewriteDone) entry() entry {
	return at(zap.InfoLevel, "rewrite-done", "page.db rewritten", zap.Int("page_size", e.PageSize),
		zap.Uint64("bytes_before", e.BytesBefore), zap.Uint64("bytes", e.Bytes), zap.Duration("paused", e.Paused))
}

func (e RewriteCanceled) entry() entry {
	return at(zap.InfoLevel, "rewrite-canceled", "rewrite of page.db canceled", zap.String("reason", e.Reason))
}

func (e RewriteRecovered) entry() entry {
	if e.From == "" {
		return at(zap.InfoLevel, "rewrite-recovered", "removing the new file of an interrupted rewrite of page.db")
	}
	return at(zap.InfoLevel, "rewrite-recovered", "finished an interrupted rewrite of page.db", zap.String("from", e.From))
}

func (e RewriteCorrupt) entry() entry {
	return at(zap.WarnLevel, "rewrite-damaged", "rewritten page.db is corrupt; reverting to the old one", zap.Error(e.Err))
}

func (e OldFileDropped) entry() entry {
	return at(zap.InfoLevel, "old-file-dropped", "removing page.db_old to make room for a rewrite",
		zap.Uint64("bytes", e.Bytes))
}

func (e OldFileNotClosed) entry() entry {
	return at(zap.WarnLevel, "old-file-not-closed", "cannot close page.db_old", zap.Error(e.Err))
}

func (e Shrunk) entry() entry {
	return at(zap.InfoLevel, "shrunk", "page.db shrunk", zap.Uint64("bytes_before", e.BytesBefore),
		zap.Uint64("bytes", e.Bytes), zap.Uint64("moved", e.Moved))
}

func (e PageCorrupt) entry() entry {
	return at(zap.WarnLevel, "page-damaged", "rewriting a corrupt page", zap.Error(e.Err))
}

func (e PageRepaired) entry() entry {
	return at(zap.WarnLevel, "page-repaired", "repaired a corrupt page with messages from the other node",
		zap.Uint64("queue_id", e.Queue), zap.Uint64("first", e.First), zap.Uint64("last", e.Last),
		zap.Int("messages", e.Messages), zap.NamedError("was", e.Was))
}

func (e MessagesCorrupt) entry() entry {
	return at(zap.ErrorLevel, "messages-damaged", "messages are unreadable", zap.Uint64("queue_id", e.Queue),
		zap.Uint64("first", e.First), zap.Uint64("last", e.Last), zap.Int("messages", e.Messages), zap.Error(e.Err))
}

func (e IndexCorrupt) entry() entry {
	return at(zap.ErrorLevel, "index-damaged", "an index page is corrupt; the store must be replaced by a copy of the "+
		"other node's store", zap.Error(e.Err))
}

func (e LogCorrupt) entry() entry {
	return at(zap.ErrorLevel, "log-damaged", "log is corrupt; a checkpoint makes the corrupt part obsolete",
		zap.Error(e.Err))
}

func (e LogDiscarded) entry() entry {
	return at(zap.WarnLevel, "log-given-up", "discarded the corrupt part of the log; a checkpoint contains its records",
		zap.Uint64("up_to_lsn", e.UpTo))
}

func (e SnapshotCorrupt) entry() entry {
	return at(zap.ErrorLevel, "snapshot-damaged", "snapshot has a corrupt page", zap.String("id", e.ID),
		zap.Error(e.Err))
}
