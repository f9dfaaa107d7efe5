// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

// load reads the log at Open, before any goroutine is started.
func (l *Log) load() error {
	if err := l.makeDir(); err != nil {
		return err
	}
	if err := l.finishTruncate(); err != nil {
		return err
	}
	names, err := l.o.FS.ReadDir(l.o.Dir)
	if err != nil {
		return fmt.Errorf("listing the log directory: %w", err)
	}
	if err := l.spares.clear(names); err != nil {
		return err
	}
	segs, err := l.openSegments(names)
	if err != nil {
		return err
	}
	if len(segs) == 0 {
		return l.begin(l.o.Start)
	}
	l.segs = segs
	r := recovering{l: l, segs: segs}
	if err := r.run(); err != nil {
		return err
	}
	return l.syncRecovered(r.marked)
}

func (l *Log) makeDir() error {
	if _, err := l.o.FS.Stat(l.o.Dir); err == nil {
		return nil
	} else if !isMissing(err) {
		return fmt.Errorf("checking for the log directory: %w", err)
	}
	if err := l.o.FS.MkdirAll(l.o.Dir, 0o700); err != nil {
		return fmt.Errorf("creating the log directory: %w", err)
	}
	if err := l.o.FS.SyncDir(filepath.Dir(l.o.Dir)); err != nil {
		return fmt.Errorf("syncing the parent of the log directory: %w", err)
	}
	return nil
}

func (l *Log) openSegments(names []string) ([]*segment, error) {
	var segs []*segment
	fail := func(err error) ([]*segment, error) {
		for _, s := range segs {
			err = errors.Join(err, s.file.Close())
		}
		return nil, err
	}
	for _, name := range names { // sorted by name, and thus by number
		first, ok := parseName(name, segmentSuffix)
		if !ok {
			continue
		}
		path := filepath.Join(l.o.Dir, name)
		f, err := l.openFile(path, os.O_RDWR)
		if err != nil {
			return fail(err)
		}
		seg := &segment{first: first, path: path, file: f, seed: segmentSeed(l.o.LogID, first)}
		segs = append(segs, seg)
		if seg.sizeBytes, err = f.SizeBytes(); err != nil {
			return fail(fmt.Errorf("reading the size of log segment %s: %w", path, err))
		}
	}
	return segs, nil
}

func (l *Log) begin(start lsn.Position) error {
	spare, _, err := l.spares.take()
	if err != nil {
		return err
	}
	// The header of the first segment is durable before the file gets its name.
	seg, err := l.newSegment(spare, start)
	if err == nil {
		err = seg.file.Sync()
	}
	if err == nil {
		err = l.o.FS.Rename(spare.path, seg.path)
	}
	if err == nil {
		err = l.o.FS.SyncDir(l.o.Dir)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("creating the first log segment: %w", err), seg.file.Close())
	}
	seg.headerSynced = true
	l.mu.Lock()
	defer l.mu.Unlock()
	l.segs = []*segment{seg}
	l.end, l.synced, l.marked = start, start, start.LSN
	l.committed, l.markedCommit = start.LSN, start.LSN
	l.termEnds, l.dirty, l.dirtyDir = nil, nil, false
	return nil
}

type recovering struct {
	l      *Log
	segs   []*segment
	last   lsn.Position
	marked uint64
	// committed is the highest commit LSN in a block.
	committed uint64
	stop      scanEnd
}

func (r *recovering) run() error {
	header, err := r.header(0)
	if err != nil {
		if errors.Is(err, errNoSegmentHeader) {
			return &CorruptError{Segment: r.segs[0].path, LSN: r.segs[0].first, Err: err}
		}
		return err
	}
	r.last, r.committed = header.prev, header.prev.LSN // trimmed records are in a checkpoint
	at := 0
	for {
		seg := r.segs[at]
		seg.prev, seg.last = r.last, r.last
		next, err := r.next(at)
		if err != nil {
			return err
		}
		if err := r.read(seg, next); err != nil {
			return err
		}
		if next == nil || next.prev != r.last {
			break
		}
		at++
	}
	if err := r.decide(at); err != nil {
		return err
	}
	if err := r.truncateTorn(at); err != nil {
		return err
	}
	l := r.l
	l.mu.Lock()
	defer l.mu.Unlock()
	l.segs = r.segs[:at+1]
	l.end, l.marked = r.last, r.marked
	l.committed, l.markedCommit = r.committed, r.committed
	return nil
}

func (r *recovering) header(i int) (segmentHeader, error) {
	h, err := readSegmentHeader(r.segs[i].file)
	if err == nil && h.logID != r.l.o.LogID {
		err = fmt.Errorf("%w: %s; the files of two nodes may have been mixed", ErrOtherLog, r.segs[i].path)
	}
	return h, err
}

// next returns the header of the next segment, or nil if it is missing or unreadable.
func (r *recovering) next(at int) (*segmentHeader, error) {
	if at+1 == len(r.segs) {
		return nil, nil // nil is a valid result
	}
	h, err := r.header(at + 1)
	if errors.Is(err, errNoSegmentHeader) {
		return nil, nil // nil is a valid result
	}
	return &h, err
}

// read scans one segment. It skips the segment if it is old, has only one term, and the header of the next segment
// contains the position of its end.
func (r *recovering) read(seg *segment, next *segmentHeader) error {
	l := r.l
	old := next != nil && next.first <= l.o.VerifyFrom && next.prev.LSN >= r.last.LSN
	if old && next.prev.Term == r.last.Term {
		r.last, seg.last, seg.end = next.prev, next.prev, seg.sizeBytes
		r.stop = scanEnd{offset: seg.sizeBytes, last: r.last}
		return nil
	}
	found, err := scanIndex(seg)
	if err != nil {
		return err
	}
	l.adopt(seg, found)
	end := found.scanEnd
	r.last, r.stop = end.last, end
	r.marked, r.committed = max(r.marked, end.marked), max(r.committed, end.committed)
	l.recovery.records += end.records
	return nil
}

type scanned struct {
	scanEnd
	index    []indexEntry
	termEnds []lsn.Position
}

func scanIndex(seg *segment) (scanned, error) {
	var found scanned
	var index segment
	last := seg.prev
	end, err := scanSegment(seg.file, seg.seed, seg.sizeBytes, seg.prev,
		func(offset int64, h blockHeader, frames []byte) error {
			if len(frames) == 0 {
				return nil
			}
			index.addBlock(h.firstLSN, offset)
			info, err := walkFrames(frames, last, func(pos lsn.Position) {
				found.termEnds = append(found.termEnds,
					pos)
			})
			last = info.last
			return err
		})
	if err != nil {
		return found, fmt.Errorf("reading log segment %s: %w", seg.path, err)
	}
	found.scanEnd, found.index = end, index.index
	return found, nil
}

func (l *Log) adopt(seg *segment, found scanned) {
	l.mu.Lock()
	defer l.mu.Unlock()
	seg.index, seg.indexed, seg.end, seg.last = found.index, true, found.offset, found.last
	l.termEnds = append(l.termEnds, found.termEnds...)
}

// decide distinguishes a torn tail from a corrupt middle. at is the index of the segment in which reading stopped.
// If any later block has a durable LSN that covers the first unread record, the log is corrupt. Otherwise, decide
// records the torn tail, if any, in l.recovery.
func (r *recovering) decide(at int) error {
	unread := r.last.LSN + 1
	stop := leftover{end: r.stop.offset + r.stop.torn}
	var proof uint64
	for i := at; i < len(r.segs); i++ {
		seg, from := r.segs[i], int64(segmentDataStart)
		if i == at {
			from = min(r.stop.offset, seg.sizeBytes)
		}
		found, err := searchBlocks(seg.file, seg.seed, from, seg.sizeBytes, unread)
		if err != nil {
			return fmt.Errorf("reading log segment %s: %w", seg.path, err)
		}
		proof = max(proof, found.proofLSN)
		if i == at {
			stop.end = max(stop.end, found.end)
		}
	}
	if proof >= unread {
		return r.corruption(at, proof)
	}
	rec := &r.l.recovery
	if rec.tornBytes = min(stop.end, r.segs[at].sizeBytes) - r.stop.offset; rec.tornBytes > 0 {
		rec.torn, rec.tornSegment, rec.tornOffset = true, r.segs[at].path, r.stop.offset
	}
	if at+1 < len(r.segs) {
		rec.torn, rec.tornSegment, rec.tornOffset = true, r.segs[at].path, r.stop.offset
	}
	return nil
}

func (r *recovering) corruption(at int, proof uint64) *CorruptError {
	d := &CorruptError{
		Segment: r.segs[at].path, Offset: r.stop.badOffset, LSN: r.stop.badLSN, DurableLSN: proof,
		Err: r.stop.err,
	}
	if d.LSN == 0 { // the segment was skipped, not read
		d.Offset, d.LSN, d.Err = r.stop.offset, r.last.LSN+1, errNoBlock
	}
	if at+1 < len(r.segs) && r.segs[at+1].first == d.LSN {
		// The record would be in the next segment, which has an unreadable header.
		d.Segment, d.Offset, d.Err = r.segs[at+1].path, 0, errNoSegmentHeader
	}
	return d
}

// truncateTorn removes a torn tail. If a crash interrupts it, the next Open finds a torn tail again.
func (r *recovering) truncateTorn(at int) error {
	l, seg := r.l, r.segs[at]
	for i := len(r.segs) - 1; i > at; i-- {
		// Do not keep the file as a spare: a later segment may begin with the same LSN.
		if err := errors.Join(r.segs[i].file.Close(), l.o.FS.Remove(r.segs[i].path)); err != nil {
			return fmt.Errorf("removing data after the end of the log: %w", err)
		}
		r.segs = r.segs[:i]
		l.segs = r.segs
	}
	if to := r.stop.offset + l.recovery.tornBytes; to > r.stop.offset {
		if err := zeroRange(seg.file, r.stop.offset, to); err != nil {
			return fmt.Errorf("truncating the torn tail of the log: %w", err)
		}
	}
	return nil
}

// syncRecovered makes the records of all scanned segments durable. Except in mode SyncOff, it first rewrites records
// that are not covered by a durable LSN: they may be only in the page cache.
func (l *Log) syncRecovered(marked uint64) error {
	for _, seg := range l.segs {
		if !seg.indexed {
			continue
		}
		if l.o.Sync != SyncOff && seg.last.LSN > marked {
			if err := l.rewrite(seg, marked+1); err != nil {
				return fmt.Errorf("rewriting the end of the log: %w", err)
			}
		}
		if err := seg.file.Sync(); err != nil {
			return fmt.Errorf("syncing log segment %s: %w", seg.path, err)
		}
	}
	if err := l.o.FS.SyncDir(l.o.Dir); err != nil {
		return fmt.Errorf("syncing the log directory: %w", err)
	}
	for _, seg := range l.segs {
		seg.headerSynced = true
	}
	l.synced = l.end
	return nil
}

// rewrite rewrites a segment in place, from the indexed block at or before the record to the end. If no earlier record
// is in the segment, it also rewrites the segment header.
func (l *Log) rewrite(seg *segment, record uint64) error {
	from := int64(0)
	if record > seg.first {
		from = seg.seek(record).offset
	}
	buf := make([]byte, scanChunk)
	for at := from; at < seg.end; {
		b := buf[:min(int64(len(buf)), seg.end-at)]
		if _, err := seg.file.ReadAt(b, at); err != nil {
			return err
		}
		if _, err := seg.file.WriteAt(b, at); err != nil {
			return err
		}
		at += int64(len(b))
	}
	return nil
}
