// SPDX-License-Identifier: Apache-2.0

package events

import "go.uber.org/zap"

// Name implements Event.
func (Failed) Name() string { return "failed" }

func (e Failed) log(to *zap.Logger) {
	to.Error("store failed; the process must stop and recover by a restart", zap.Error(e.Err))
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
	to.Error("the disk is full: messages stay in memory and in the log, and publishing will stop; free some space",
		zap.Error(e.Err))
}

// Name implements Event.
func (DiskHasSpace) Name() string { return "disk-has-space" }

func (DiskHasSpace) log(to *zap.Logger) { to.Info("the disk has space again: pages are written") }

// Name implements Event.
func (SnapshotInstalled) Name() string { return "snapshot-installed" }

func (e SnapshotInstalled) log(to *zap.Logger) {
	to.Info("snapshot installed", zap.Stringer("position", e.Position), zap.Uint64("bytes", e.Bytes))
}

// Name implements Event.
func (Quarantined) Name() string { return "quarantined" }

func (e Quarantined) log(to *zap.Logger) {
	to.Error("the store is damaged and cannot be opened; it was set aside, and this node has to get everything from the "+
		"other one", zap.String("kept_in", e.Dir), zap.Error(e.Err))
}

// Name implements Event.
func (LogFailed) Name() string { return "log-failed" }

func (e LogFailed) log(to *zap.Logger) {
	to.Error("the log failed; the node must be restarted", zap.Error(e.Err))
}

// Name implements Event.
func (SlowSync) Name() string { return "slow-sync" }

func (e SlowSync) log(to *zap.Logger) {
	to.Warn("a sync of the log took long: the disk is slow, and every commit waits for it",
		zap.Duration("took", e.Took))
}

// Name implements Event.
func (LogTailCut) Name() string { return "log-tail-cut" }

func (e LogTailCut) log(to *zap.Logger) {
	to.Warn("cut the torn tail of the log: writes that were never synced", zap.String("segment", e.Segment),
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
	to.Error("cannot read a record of the log", zap.Uint64("lsn", e.LSN), zap.Error(e.Err))
}

// Name implements Event.
func (LogLost) Name() string { return "log-lost" }

func (e LogLost) log(to *zap.Logger) {
	to.Warn("the log is gone; going on from the checkpoint", zap.Stringer("checkpoint", e.Checkpoint))
}

// Name implements Event.
func (LogBehind) Name() string { return "log-behind" }

func (e LogBehind) log(to *zap.Logger) {
	to.Warn("the log ends before the checkpoint; going on from the checkpoint", zap.Stringer("log_end", e.LogEnd),
		zap.Stringer("checkpoint", e.Checkpoint))
}

// Name implements Event.
func (RewriteBegun) Name() string { return "rewrite-begun" }

func (e RewriteBegun) log(to *zap.Logger) {
	to.Info("rewriting page.db", zap.String("reason", e.Reason), zap.Int("from_page_size", e.FromPageSize),
		zap.Int("page_size", e.PageSize), zap.Uint64("messages", e.Messages), zap.Uint64("bytes", e.Bytes))
}

// Name implements Event.
func (RewriteDone) Name() string { return "rewrite-done" }

func (e RewriteDone) log(to *zap.Logger) {
	to.Info("page.db was rewritten", zap.Int("page_size", e.PageSize), zap.Uint64("bytes_before", e.BytesBefore),
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
		to.Info("removing a rewrite of page.db that was interrupted")
		return
	}
	to.Info("finished a rewrite of page.db that was interrupted", zap.String("from", e.From))
}

// Name implements Event.
func (RewriteDamaged) Name() string { return "rewrite-damaged" }

func (e RewriteDamaged) log(to *zap.Logger) {
	to.Warn("the rewritten page.db is damaged; going back to the old one", zap.Error(e.Err))
}

// Name implements Event.
func (OldFileDropped) Name() string { return "old-file-dropped" }

func (e OldFileDropped) log(to *zap.Logger) {
	to.Info("dropping page.db_old to make room for a rewrite", zap.Uint64("bytes", e.Bytes))
}

// Name implements Event.
func (OldFileNotClosed) Name() string { return "old-file-not-closed" }

func (e OldFileNotClosed) log(to *zap.Logger) { to.Warn("close page.db_old", zap.Error(e.Err)) }

// Name implements Event.
func (Shrunk) Name() string { return "shrunk" }

func (e Shrunk) log(to *zap.Logger) {
	to.Info("page.db was shrunk", zap.Uint64("bytes_before", e.BytesBefore), zap.Uint64("bytes", e.Bytes),
		zap.Uint64("moved", e.Moved))
}

// Name implements Event.
func (PageDamaged) Name() string { return "page-damaged" }

func (e PageDamaged) log(to *zap.Logger) {
	to.Warn("a damaged page is written anew", zap.Error(e.Err))
}

// Name implements Event.
func (PageRepaired) Name() string { return "page-repaired" }

func (e PageRepaired) log(to *zap.Logger) {
	to.Warn("a damaged page was repaired with the other node's messages", zap.Uint64("queue_id", e.Queue),
		zap.Uint64("first", e.First), zap.Uint64("last", e.Last), zap.Int("messages", e.Messages),
		zap.NamedError("was", e.Was))
}

// Name implements Event.
func (MessagesDamaged) Name() string { return "messages-damaged" }

func (e MessagesDamaged) log(to *zap.Logger) {
	to.Error("messages cannot be read", zap.Uint64("queue_id", e.Queue), zap.Uint64("first", e.First),
		zap.Uint64("last", e.Last), zap.Int("messages", e.Messages), zap.Error(e.Err))
}

// Name implements Event.
func (IndexDamaged) Name() string { return "index-damaged" }

func (e IndexDamaged) log(to *zap.Logger) {
	to.Error("a page with the index is damaged; the store has to be replaced by a copy of the other node's",
		zap.Error(e.Err))
}

// Name implements Event.
func (LogDamaged) Name() string { return "log-damaged" }

func (e LogDamaged) log(to *zap.Logger) {
	to.Error("the log is damaged; a checkpoint makes that part of it superfluous", zap.Error(e.Err))
}

// Name implements Event.
func (LogGivenUp) Name() string { return "log-given-up" }

func (e LogGivenUp) log(to *zap.Logger) {
	to.Warn("the damaged part of the log was given up; a checkpoint holds what was in it",
		zap.Uint64("up_to_lsn", e.UpTo))
}

// Name implements Event.
func (SnapshotDamaged) Name() string { return "snapshot-damaged" }

func (e SnapshotDamaged) log(to *zap.Logger) {
	to.Error("a snapshot is being sent with a damaged page", zap.String("id", e.ID), zap.Error(e.Err))
}
