// SPDX-License-Identifier: Apache-2.0

package events

import "go.uber.org/zap"

// Name implements Event.
func (Failed) Name() string { return "failed" }

func (e Failed) log(to *zap.Logger) {
	to.Error("store failed; the process must be restarted to recover", zap.Error(e.Err))
}

// Name implements Event.
func (CheckpointWritten) Name() string { return "checkpoint-written" }

func (e CheckpointWritten) log(to *zap.Logger) {
	to.Debug("checkpoint written", zap.Uint64("number", e.Number), zap.Stringer("position", e.Position),
		zap.Duration("sync_took", e.Took))
}

// Name implements Event.
func (DiskFull) Name() string { return "disk-full" }

func (e DiskFull) log(to *zap.Logger) {
	to.Error("disk is full: messages stay in memory and in the log, and publishing will stop; free some space",
		zap.Error(e.Err))
}

// Name implements Event.
func (DiskHasSpace) Name() string { return "disk-has-space" }

func (DiskHasSpace) log(to *zap.Logger) { to.Info("disk has free space again: writing pages") }

// Name implements Event.
func (SnapshotInstalled) Name() string { return "snapshot-installed" }

func (e SnapshotInstalled) log(to *zap.Logger) {
	to.Info("snapshot installed", zap.Stringer("position", e.Position), zap.Uint64("bytes", e.Bytes))
}

// Name implements Event.
func (Quarantined) Name() string { return "quarantined" }

func (e Quarantined) log(to *zap.Logger) {
	to.Error("store is corrupt and cannot be opened; it was quarantined, and this node must fetch everything from the "+
		"other node", zap.String("kept_in", e.Dir), zap.Error(e.Err))
}

// Name implements Event.
func (LogFailed) Name() string { return "log-failed" }

func (e LogFailed) log(to *zap.Logger) {
	to.Error("log failed; the node must be restarted", zap.Error(e.Err))
}

// Name implements Event.
func (SlowSync) Name() string { return "slow-sync" }

func (e SlowSync) log(to *zap.Logger) {
	to.Warn("slow log sync: the disk is slow, and every commit waits for it",
		zap.Duration("took", e.Took))
}

// Name implements Event.
func (LogTailTruncated) Name() string { return "log-tail-cut" }

func (e LogTailTruncated) log(to *zap.Logger) {
	to.Warn("truncated the torn tail of the log: writes that were never synced", zap.String("segment", e.Segment),
		zap.Int64("offset", e.Offset), zap.Int64("bytes", e.Bytes), zap.Stringer("end", e.End))
}

// Name implements Event.
func (SegmentNotPrepared) Name() string { return "segment-not-prepared" }

func (e SegmentNotPrepared) log(to *zap.Logger) {
	to.Warn("cannot prepare the next log segment", zap.Error(e.Err))
}

// Name implements Event.
func (RecordUnreadable) Name() string { return "record-unreadable" }

func (e RecordUnreadable) log(to *zap.Logger) {
	to.Error("cannot read a log record", zap.Uint64("lsn", e.LSN), zap.Error(e.Err))
}

// Name implements Event.
func (LogMissing) Name() string { return "log-lost" }

func (e LogMissing) log(to *zap.Logger) {
	to.Warn("log is missing; continuing from the checkpoint", zap.Stringer("checkpoint", e.Checkpoint))
}

// Name implements Event.
func (LogBehind) Name() string { return "log-behind" }

func (e LogBehind) log(to *zap.Logger) {
	to.Warn("log ends before the checkpoint; continuing from the checkpoint", zap.Stringer("log_end", e.LogEnd),
		zap.Stringer("checkpoint", e.Checkpoint))
}

// Name implements Event.
func (RewriteStarted) Name() string { return "rewrite-begun" }

func (e RewriteStarted) log(to *zap.Logger) {
	to.Info("rewriting page.db", zap.String("reason", e.Reason), zap.Int("from_page_size", e.FromPageSize),
		zap.Int("page_size", e.PageSize), zap.Uint64("messages", e.Messages), zap.Uint64("bytes", e.Bytes))
}

// Name implements Event.
func (RewriteDone) Name() string { return "rewrite-done" }

func (e RewriteDone) log(to *zap.Logger) {
	to.Info("page.db rewritten", zap.Int("page_size", e.PageSize), zap.Uint64("bytes_before", e.BytesBefore),
		zap.Uint64("bytes", e.Bytes), zap.Duration("paused", e.Paused))
}

// Name implements Event.
func (RewriteCanceled) Name() string { return "rewrite-canceled" }

func (e RewriteCanceled) log(to *zap.Logger) {
	to.Info("rewrite of page.db canceled", zap.String("reason", e.Reason))
}

// Name implements Event.
func (RewriteRecovered) Name() string { return "rewrite-recovered" }

func (e RewriteRecovered) log(to *zap.Logger) {
	if e.From == "" {
		to.Info("removing an interrupted rewrite of page.db")
		return
	}
	to.Info("finished an interrupted rewrite of page.db", zap.String("from", e.From))
}

// Name implements Event.
func (RewriteCorrupt) Name() string { return "rewrite-damaged" }

func (e RewriteCorrupt) log(to *zap.Logger) {
	to.Warn("rewritten page.db is corrupt; reverting to the old one", zap.Error(e.Err))
}

// Name implements Event.
func (OldFileDropped) Name() string { return "old-file-dropped" }

func (e OldFileDropped) log(to *zap.Logger) {
	to.Info("removing page.db_old to make room for a rewrite", zap.Uint64("bytes", e.Bytes))
}

// Name implements Event.
func (OldFileNotClosed) Name() string { return "old-file-not-closed" }

func (e OldFileNotClosed) log(to *zap.Logger) { to.Warn("close page.db_old", zap.Error(e.Err)) }

// Name implements Event.
func (Shrunk) Name() string { return "shrunk" }

func (e Shrunk) log(to *zap.Logger) {
	to.Info("page.db shrunk", zap.Uint64("bytes_before", e.BytesBefore), zap.Uint64("bytes", e.Bytes),
		zap.Uint64("moved", e.Moved))
}

// Name implements Event.
func (PageCorrupt) Name() string { return "page-damaged" }

func (e PageCorrupt) log(to *zap.Logger) {
	to.Warn("rewriting a corrupt page", zap.Error(e.Err))
}

// Name implements Event.
func (PageRepaired) Name() string { return "page-repaired" }

func (e PageRepaired) log(to *zap.Logger) {
	to.Warn("repaired a corrupt page with messages from the other node", zap.Uint64("queue_id", e.Queue),
		zap.Uint64("first", e.First), zap.Uint64("last", e.Last), zap.Int("messages", e.Messages),
		zap.NamedError("was", e.Was))
}

// Name implements Event.
func (MessagesCorrupt) Name() string { return "messages-damaged" }

func (e MessagesCorrupt) log(to *zap.Logger) {
	to.Error("messages are unreadable", zap.Uint64("queue_id", e.Queue), zap.Uint64("first", e.First),
		zap.Uint64("last", e.Last), zap.Int("messages", e.Messages), zap.Error(e.Err))
}

// Name implements Event.
func (IndexCorrupt) Name() string { return "index-damaged" }

func (e IndexCorrupt) log(to *zap.Logger) {
	to.Error("an index page is corrupt; the store must be replaced by a copy of the other node's",
		zap.Error(e.Err))
}

// Name implements Event.
func (LogCorrupt) Name() string { return "log-damaged" }

func (e LogCorrupt) log(to *zap.Logger) {
	to.Error("log is corrupt; a checkpoint makes the corrupt part obsolete", zap.Error(e.Err))
}

// Name implements Event.
func (LogDiscarded) Name() string { return "log-given-up" }

func (e LogDiscarded) log(to *zap.Logger) {
	to.Warn("discarded the corrupt part of the log; a checkpoint contains its records",
		zap.Uint64("up_to_lsn", e.UpTo))
}

// Name implements Event.
func (SnapshotCorrupt) Name() string { return "snapshot-damaged" }

func (e SnapshotCorrupt) log(to *zap.Logger) {
	to.Error("sending a snapshot that has a corrupt page", zap.String("id", e.ID), zap.Error(e.Err))
}
