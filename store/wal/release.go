// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"errors"
	"slices"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

// Hold keeps records from being released. See Log.Hold.
type Hold struct{ l *Log }

// Hold keeps the record and all that follow it until the result is released, as far as they are still there: the caller
// compares with First, or reads. It does not survive Close or Reset.
func (l *Log) Hold(record uint64) *Hold {
	h := &Hold{l: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holds[h] = max(record, 1)
	return h
}

// Advance moves the hold up: the record and all that follow it are kept from now on. What it kept before is removed in
// the background.
func (h *Hold) Advance(record uint64) {
	h.l.mu.Lock()
	if at, ok := h.l.holds[h]; ok && record > at {
		h.l.holds[h] = record
	}
	h.l.mu.Unlock()
	wake(h.l.wakeTrim)
}

// Release ends the hold. What it kept is removed in the background. It may be called more than once.
func (h *Hold) Release() {
	h.l.mu.Lock()
	delete(h.l.holds, h)
	h.l.mu.Unlock()
	wake(h.l.wakeTrim)
}

// Release says that the records up to upTo are in a durable checkpoint. Whole segments of them are removed or recycled
// before it returns, but for Options.KeepBytes of log and for what is held. It writes to the disk, though not to the
// log.
func (l *Log) Release(upTo uint64) {
	l.mu.Lock()
	l.released = max(l.released, upTo)
	l.mu.Unlock()
	l.trim()
}

// Released is the highest record that Release was called with.
func (l *Log) Released() uint64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.released
}

// SetPressed sets whether space is short. While it is, released records are not kept for Options.KeepBytes.
func (l *Log) SetPressed(pressed bool) {
	if l.pressed.Swap(pressed) != pressed {
		wake(l.wakeTrim)
	}
}

// GiveUp says that no reader can use the records up to upTo, because one of them is damaged: what is released of them
// is not kept for Options.KeepBytes. They go with the whole segment that they are in; the segment that is being written
// ends with the next Append.
func (l *Log) GiveUp(upTo uint64) {
	l.mu.Lock()
	l.givenUp = max(l.givenUp, upTo)
	l.mu.Unlock()
	l.trim()
}

// trim removes the oldest segments as far as they are released.
func (l *Log) trim() {
	l.trimMu.Lock()
	defer l.trimMu.Unlock()
	for l.usable() == nil {
		// The header and the name of what will be the oldest segment must be durable first: recovery relies on it.
		if l.wantsTrim() && l.syncHeaders() != nil {
			return // sticky, and reported by keep
		}
		seg := l.detachOldest()
		if seg == nil {
			return
		}
		if err := l.retire(seg); err != nil {
			// The file may or may not be there at the next Open. If more segments were removed it could leave a gap.
			_ = l.fail("removing an old segment", err) // sticky, and reported by keep
			return
		}
	}
}

// wantsTrim tells whether the oldest segment may go but its successor is not known to be durable.
func (l *Log) wantsTrim() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mayTrim() && !l.segs[1].headerSynced
}

// mayTrim tells whether the oldest segment may go. mu is held.
func (l *Log) mayTrim() bool {
	if len(l.segs) == 1 {
		return false
	}
	free := l.released
	for _, held := range l.holds {
		free = min(free, held-1)
	}
	if l.segs[0].last.LSN > free {
		return false
	}
	if l.segs[0].first <= l.givenUp || l.pressed.Load() {
		return true
	}
	var rest int64
	for _, s := range l.segs[1:] {
		rest += s.end - segmentDataStart
	}
	return rest >= l.o.KeepBytes
}

// detachOldest takes the oldest segment out of the log, if that is allowed. trimMu is held.
func (l *Log) detachOldest() *segment {
	l.syncMu.Lock() // the file must not be in the middle of an fsync when it is closed
	defer l.syncMu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.mayTrim() || !l.segs[1].headerSynced {
		return nil
	}
	seg := l.segs[0]
	seg.trimmed = true
	l.segs = slices.Delete(l.segs, 0, 1)
	l.dirty = slices.DeleteFunc(l.dirty, func(s *segment) bool { return s == seg }) // a checkpoint holds what is in it
	before := l.segs[0].prev.LSN
	l.termEnds = slices.DeleteFunc(l.termEnds, func(p lsn.Position) bool { return p.LSN < before })
	return seg
}

// retire makes a spare of a detached segment's file, or removes it. The names are durable when it returns: one after
// the other, so that a crash never leaves a gap.
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
