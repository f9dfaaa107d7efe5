// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"errors"
	"slices"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

// Hold prevents the removal of records. See Log.Hold.
type Hold struct{ l *Log }

// Hold prevents the removal of the given record and all later ones until Hold.Release. Some of them may already have
// been removed: check First, or read the record. A hold does not survive Close or Reset, and does not prevent Discard
// or TruncateAfter.
func (l *Log) Hold(record uint64) *Hold {
	h := &Hold{l: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holds[h] = max(record, 1)
	return h
}

// Advance releases the records before the given one.
func (h *Hold) Advance(record uint64) {
	h.l.mu.Lock()
	if at, ok := h.l.holds[h]; ok && record > at {
		h.l.holds[h] = record
	}
	h.l.mu.Unlock()
	wake(h.l.wakeTrim)
}

// Release ends the hold. It may be called repeatedly.
func (h *Hold) Release() {
	h.l.mu.Lock()
	delete(h.l.holds, h)
	h.l.mu.Unlock()
	wake(h.l.wakeTrim)
}

// Release marks the records up to upTo as contained in a durable checkpoint. It removes or recycles the segments that
// contain only such records, except for the last segment, Options.KeepBytes of log and held records.
func (l *Log) Release(upTo uint64) {
	l.mu.Lock()
	l.released = max(l.released, upTo)
	l.mu.Unlock()
	l.trim()
}

// Released returns the highest LSN passed to Release since the last Reset. A truncation reduces it to the new end.
func (l *Log) Released() uint64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.released
}

// SetLowSpace sets whether disk space is low. If it is, KeepBytes has no effect.
func (l *Log) SetLowSpace(lowSpace bool) {
	if l.lowSpace.Swap(lowSpace) != lowSpace {
		wake(l.wakeTrim)
	}
}

// Discard marks the records up to upTo for removal. Once released, their segments are removed regardless of
// KeepBytes, and of holds that begin with one of these records. If they are in the current segment, the next Append
// starts a new segment.
func (l *Log) Discard(upTo uint64) {
	l.mu.Lock()
	l.discarded = max(l.discarded, upTo)
	l.mu.Unlock()
	l.trim()
}

func (l *Log) trim() {
	l.trimMu.Lock()
	defer l.trimMu.Unlock()
	for l.usable() == nil {
		// The header and name of the next oldest segment must be durable first: recovery relies on it.
		if l.wantsTrim() && l.syncHeaders() != nil {
			return // the error is sticky, and reported by keep
		}
		seg := l.detachOldest()
		if seg == nil {
			return
		}
		if err := l.retire(seg); err != nil {
			// The file may or may not exist at the next Open. Removing further segments could leave a gap.
			_ = l.fail("removing an old segment", err) // the error is sticky, and reported by keep
			return
		}
	}
}

// wantsTrim reports whether the oldest segment can be removed as soon as the header of the second segment is durable.
func (l *Log) wantsTrim() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mayTrim() && !l.segs[1].headerSynced
}

// mayTrim reports whether the oldest segment is no longer needed. The caller must hold mu.
func (l *Log) mayTrim() bool {
	if len(l.segs) == 1 {
		return false
	}
	free := l.released
	for _, held := range l.holds {
		if held > l.discarded { // otherwise, its owner would have to read a corrupt record
			free = min(free, held-1)
		}
	}
	if l.segs[0].last.LSN > free {
		return false
	}
	if l.segs[0].first <= l.discarded || l.lowSpace.Load() {
		return true
	}
	var rest int64
	for _, s := range l.segs[1:] {
		rest += s.end - segmentDataStart
	}
	return rest >= l.o.KeepBytes
}

// detachOldest removes the oldest segment from l.segs and returns it, or nil if it must stay. The caller must hold
// trimMu.
func (l *Log) detachOldest() *segment {
	l.syncMu.Lock() // the file must not be closed during an fsync
	defer l.syncMu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.mayTrim() || !l.segs[1].headerSynced {
		return nil
	}
	seg := l.segs[0]
	seg.trimmed = true
	l.segs = slices.Delete(l.segs, 0, 1)
	l.dirty = slices.DeleteFunc(l.dirty, func(s *segment) bool { return s == seg }) // its content is in a checkpoint
	before := l.segs[0].prev.LSN
	l.termEnds = slices.DeleteFunc(l.termEnds, func(p lsn.Position) bool { return p.LSN < before })
	return seg
}

// retire recycles or removes the file of a segment. It syncs the directory: segments must disappear in order.
func (l *Log) retire(seg *segment) error {
	var err error
	if l.spares.wants(seg.sizeBytes) {
		spare := spareFile{
			path: l.spares.newPath() + spareSuffix, file: seg.file, sizeBytes: seg.sizeBytes,
			written: true,
		}
		if err = l.o.FS.Rename(seg.path, spare.path); err == nil {
			err = l.o.FS.SyncDir(l.o.Dir)
		}
		if err == nil {
			l.spares.offer(spare)
		}
		return err
	}
	err = errors.Join(seg.file.Close(), l.o.FS.Remove(seg.path))
	if err == nil {
		err = l.o.FS.SyncDir(l.o.Dir)
	}
	return err
}
