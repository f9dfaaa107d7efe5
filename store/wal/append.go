// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"time"

	"github.com/lockstep-mq/lockstep/store/events"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/mutate"
)

// Append writes frames as one block. The frames must follow End, and the last one must have the position end. The
// caller must have verified the frames: Append reads only their headers. They are durable after the next Sync,
// according to the sync mode.
//
// ErrNotContiguous, ErrTooLarge and ErrNoSpace leave the log unchanged. Any other error is final (ErrFailed,
// ErrClosed). Only one goroutine may call Append. Append retains no reference to frames.
func (l *Log) Append(frames []byte, end lsn.Position) error {
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	l.ended = l.ended[:0]
	info, err := walkFrames(frames, l.end, func(pos lsn.Position) { l.ended = append(l.ended, pos) })
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrNotContiguous, err)
	case len(frames) == 0 || info.last != end:
		return fmt.Errorf("%w: %d bytes after %s end with %s, expected %s", ErrNotContiguous, len(frames),
			l.end, info.last, end)
	case info.maxPayload > l.o.MaxFrameBytes:
		return fmt.Errorf("%w: %d bytes, limit %d", ErrTooLarge, info.maxPayload, l.o.MaxFrameBytes)
	case len(frames) > math.MaxUint32-frameAlign:
		return fmt.Errorf("%w: block of %d bytes", ErrTooLarge, len(frames))
	}
	seg, err := l.room(int64(len(frames)))
	if err != nil {
		return err
	}
	if err := l.writeBlock(seg, blockHeader{firstLSN: info.first.LSN}, frames, end); err != nil {
		return err
	}
	if l.o.Sync == SyncInterval {
		wake(l.wakeKeeper)
	}
	return nil
}

// room returns the segment for a block with frames of the given total size, and starts a new segment if necessary. The
// caller must hold writeMu.
func (l *Log) room(frameBytes int64) (*segment, error) {
	l.mu.RLock()
	seg := l.segs[len(l.segs)-1]
	// A seal must always fit after the block. A block larger than a segment gets its own segment. (A segment without
	// records stays current: the next one would have the same name.)
	fits := seg.end+blockHeaderBytes+frameBytes+blockHeaderBytes <= seg.sizeBytes && seg.first > l.discarded ||
		seg.empty()
	l.mu.RUnlock()
	if fits {
		return seg, nil
	}
	return l.roll()
}

// roll starts a new segment. Its header and name become durable with the next sync, or by syncHeaders. The caller
// must hold writeMu.
func (l *Log) roll() (*segment, error) {
	spare, ready, err := l.spares.take()
	wake(l.wakePrepare)
	if err != nil {
		if errors.Is(err, ErrNoSpace) {
			return nil, err
		}
		return nil, l.fail("creating a segment", err)
	}
	seg, err := l.newSegment(spare, l.end)
	if err != nil {
		return nil, errors.Join(l.fail("writing a segment header", err), seg.file.Close())
	}
	if err := l.o.FS.Rename(spare.path, seg.path); err != nil {
		return nil, errors.Join(l.fail("naming a segment", err), seg.file.Close())
	}
	l.counters.rolls.Add(1)
	if !ready {
		l.counters.stalledRolls.Add(1)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.segs = append(l.segs, seg)
	l.dirty, l.dirtyDir = append(l.dirty, seg), true
	if l.o.Sync != SyncAlways {
		wake(l.wakeHeaders)
	}
	return seg, nil
}

func (l *Log) newSegment(spare spareFile, prev lsn.Position) (*segment, error) {
	first := prev.LSN + 1
	seg := &segment{
		first: first, prev: prev, last: prev, file: spare.file, sizeBytes: spare.sizeBytes,
		seed: segmentSeed(l.o.LogID, first), path: filepath.Join(l.o.Dir, segmentName(first)),
		end: segmentDataStart, indexed: true, reused: spare.written,
	}
	header := segmentHeader{logID: l.o.LogID, first: first, prev: prev}
	_, err := seg.file.WriteAt(header.encode(), 0)
	return seg, err
}

// writeBlock writes a block at the end of seg. The caller must hold writeMu.
func (l *Log) writeBlock(seg *segment, h blockHeader, frames []byte, end lsn.Position) error {
	h.length = uint32(len(frames))
	l.mu.RLock()
	offset := seg.end
	h.durableLSN, h.committedLSN = l.synced.LSN, l.committed
	l.mu.RUnlock()
	h.encode(l.header[:], seg.seed, offset)

	l.vec[0], l.vec[1] = l.header[:], frames
	n, err := l.past.Write(seg.file, offset, l.vec[:]...)
	l.vec[1] = nil
	if err != nil {
		return l.fail("writing a block", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(frames) > 0 {
		seg.addBlock(h.firstLSN, offset)
		l.termEnds = append(l.termEnds, l.ended...)
	}
	seg.end, seg.last, l.end = offset+int64(n), end, end
	seg.sizeBytes = max(seg.sizeBytes, seg.end)
	l.marked, l.markedCommit = max(l.marked, h.durableLSN), max(l.markedCommit, h.committedLSN)
	if n := len(l.dirty); n == 0 || l.dirty[n-1] != seg {
		l.dirty = append(l.dirty, seg)
	}
	return nil
}

// NoteCommitted marks the log's records up to the given one as committed. The header of the next block contains the
// commit LSN; if the log is idle, that block is a seal (INV-13, Options.SealAfter). Records after End are ignored,
// and a call with a lower record than an earlier call has no effect.
func (l *Log) NoteCommitted(record uint64) {
	l.mu.Lock()
	record = min(record, l.end.LSN)
	advanced := record > l.committed
	l.committed = max(l.committed, record)
	l.mu.Unlock()
	if advanced {
		l.wakeKeeperLater()
	}
}

// Committed returns the LSN of the last record known to be committed. After Open, this is the highest commit LSN that
// Open has read from the log, but at least the LSN before the first record.
func (l *Log) Committed() uint64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.committed
}

// wantsSeal reports whether a new durable LSN or commit LSN is not yet in a block header. It returns false while
// records are unsynced, except for a commit LSN in mode SyncOff.
func (l *Log) wantsSeal() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.synced == l.end && l.marked < l.end.LSN ||
		l.markedCommit < l.committed && (l.synced == l.end || l.o.Sync == SyncOff)
}

// writeSeal writes a seal if wantsSeal reports true. The caller must hold writeMu, and must sync the log afterwards
// unless the mode is SyncOff.
func (l *Log) writeSeal() error {
	if err := l.failure.Load(); err != nil {
		return *err
	}
	if !l.wantsSeal() {
		return nil
	}
	l.mu.RLock()
	seg, end := l.segs[len(l.segs)-1], l.end
	l.mu.RUnlock()
	l.counters.seals.Add(1)
	return l.writeBlock(seg, blockHeader{seal: true, firstLSN: end.LSN + 1}, nil, end)
}

// Sync makes all earlier appends durable with SyncAlways; in the other modes it returns immediately. It may run
// concurrently with Append, and one sync serves all concurrent callers. An error is final (INV-7).
func (l *Log) Sync() error {
	if err := l.usable(); err != nil {
		return err
	}
	if l.o.Sync != SyncAlways {
		return nil
	}
	err := l.syncDirty()
	if err == nil && l.wantsSeal() {
		l.wakeKeeperLater()
	}
	return err
}

func (l *Log) syncDirty() error {
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	if err := l.failure.Load(); err != nil {
		return *err
	}
	l.mu.Lock()
	target, dir := l.end, l.dirtyDir
	l.syncing, l.dirty, l.dirtyDir = l.dirty, l.syncing[:0], false
	l.mu.Unlock()

	began := time.Now()
	for _, seg := range l.syncing {
		if err := seg.file.Sync(); err != nil && !mutate.Off("INV-7-failed-fsync-is-forgotten") {
			return l.fail("fsync", err)
		}
	}
	if dir {
		if err := l.o.FS.SyncDir(l.o.Dir); err != nil {
			return l.fail("fsync of the log directory", err)
		}
	}
	if took := time.Since(began); took >= l.o.SlowSync {
		l.o.Events(events.SlowSync{Took: took})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.synced = target
	for _, seg := range l.syncing {
		seg.headerSynced = true
	}
	return nil
}

// syncHeaders makes the headers and names of all segments durable. A segment can only be removed after its
// successor's header is durable.
func (l *Log) syncHeaders() error {
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	if err := l.failure.Load(); err != nil {
		return *err
	}
	l.mu.Lock()
	var segs []*segment
	for _, seg := range l.segs {
		if !seg.headerSynced {
			segs = append(segs, seg)
		}
	}
	l.dirtyDir = l.dirtyDir && len(segs) == 0
	l.mu.Unlock()
	if len(segs) == 0 {
		return nil
	}
	for _, seg := range segs {
		sync := seg.file.Sync // SyncRange requires allocated blocks
		if seg.reused {
			sync = func() error { return seg.file.SyncRange(0, segmentDataStart) }
		}
		if err := sync(); err != nil {
			return l.fail("fsync of a segment header", err)
		}
	}
	if err := l.o.FS.SyncDir(l.o.Dir); err != nil {
		return l.fail("fsync of the log directory", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, seg := range segs {
		seg.headerSynced = true
	}
	return nil
}
