// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// Truncating the log takes several steps. The intent is first written to a separate file, atomically. While the file
// exists, Open performs the truncation, again if necessary, before it reads anything else. The file, little endian:
//
//	 0          8         12   16       32                   52      56         64           72         80
//	+----------+---------+----+--------+--------------------+-------+----------+------------+----------+
//	| LSLOGCUT | version | op | log id | term, LSN, crc of  | seal: | segment: | zero from: | zero to: |
//	| 8 bytes  | u32     |u32 | 16     | the new end        | u32   | first LSN| offset     | offset   |
//	+----------+---------+----+--------+--------------------+-------+----------+------------+----------+
//	 80           88                    120    124
//	+------------+---------------------+------+
//	| header at: | block header to be  | crc  |
//	| offset, 0  | written there       | u32  |
//	+------------+---------------------+------+
//
// op 1 truncates: later segments are removed, the range is zeroed, and a block that contains the end gets a header
// with the shorter length. If seal is not 0, a seal follows the new end. It records that all remaining records are
// durable, and that the records up to LSN (new end + 1 - seal) are committed (INV-13). op 2 resets: everything is
// removed and the log starts again after the new end.
const (
	truncateFile    = "cut.intent"
	truncateMagic   = "LSLOGCUT"
	truncateVersion = 1
	truncateBytes   = 124

	truncateTail  = 1
	truncateReset = 2
)

type truncateIntent struct {
	op               uint32
	logID            [16]byte
	end              lsn.Position
	seal             uint32 // 0: none
	segment          uint64
	zeroFrom, zeroTo int64
	headerAt         int64 // 0: none
	header           [blockHeaderBytes]byte
}

func (c *truncateIntent) encode() []byte {
	b := make([]byte, truncateBytes)
	copy(b, truncateMagic)
	binary.LittleEndian.PutUint32(b[8:], truncateVersion)
	binary.LittleEndian.PutUint32(b[12:], c.op)
	copy(b[16:], c.logID[:])
	binary.LittleEndian.PutUint64(b[32:], c.end.Term)
	binary.LittleEndian.PutUint64(b[40:], c.end.LSN)
	binary.LittleEndian.PutUint32(b[48:], c.end.Chain)
	binary.LittleEndian.PutUint32(b[52:], c.seal)
	binary.LittleEndian.PutUint64(b[56:], c.segment)
	binary.LittleEndian.PutUint64(b[64:], uint64(c.zeroFrom))
	binary.LittleEndian.PutUint64(b[72:], uint64(c.zeroTo))
	binary.LittleEndian.PutUint64(b[80:], uint64(c.headerAt))
	copy(b[88:], c.header[:])
	binary.LittleEndian.PutUint32(b[120:], checksum(0, b[:120]))
	return b
}

// sealAt makes the truncation write a seal with the given commit LSN, unless it is 0 or cannot be encoded.
func (c *truncateIntent) sealAt(committed uint64) {
	if behind := c.end.LSN - committed; committed > 0 && behind < maxCommitBehind {
		c.seal = uint32(behind) + 1
	}
}

func (c *truncateIntent) writeSeal(f vfs.File) error {
	if c.seal == 0 {
		return nil
	}
	h := blockHeader{
		seal: true, durableLSN: c.end.LSN, firstLSN: c.end.LSN + 1,
		committedLSN: c.end.LSN + 1 - uint64(c.seal),
	}
	var b [blockHeaderBytes]byte
	h.encode(b[:], segmentSeed(c.logID, c.segment), c.zeroFrom)
	_, err := f.WriteAt(b[:], c.zeroFrom)
	return err
}

var errBadIntent = errors.New("truncation intent is unreadable")

func decodeTruncateIntent(b []byte) (*truncateIntent, error) {
	if len(b) != truncateBytes || string(b[:8]) != truncateMagic ||
		checksum(0, b[:120]) != binary.LittleEndian.Uint32(b[120:]) {
		return nil, errBadIntent
	}
	if version := binary.LittleEndian.Uint32(b[8:]); version != truncateVersion {
		return nil, fmt.Errorf("%w: interrupted truncation of format %d, this program supports format %d", ErrNewerVersion,
			version, truncateVersion)
	}
	c := &truncateIntent{
		op:    binary.LittleEndian.Uint32(b[12:]),
		logID: [16]byte(b[16:32]),
		end: lsn.Position{
			Term:  binary.LittleEndian.Uint64(b[32:]),
			LSN:   binary.LittleEndian.Uint64(b[40:]),
			Chain: binary.LittleEndian.Uint32(b[48:]),
		},
		seal:     binary.LittleEndian.Uint32(b[52:]),
		segment:  binary.LittleEndian.Uint64(b[56:]),
		zeroFrom: int64(binary.LittleEndian.Uint64(b[64:])),
		zeroTo:   int64(binary.LittleEndian.Uint64(b[72:])),
		headerAt: int64(binary.LittleEndian.Uint64(b[80:])),
		header:   [blockHeaderBytes]byte(b[88:120]),
	}
	known := (c.op == truncateTail || c.op == truncateReset) && uint64(c.seal) <= c.end.LSN
	if !known || c.zeroFrom < 0 || c.zeroTo < c.zeroFrom || c.zeroTo > 2*maxSegmentBytes || c.headerAt < 0 ||
		c.headerAt > c.zeroFrom {
		return nil, errBadIntent
	}
	return c, nil
}

func (l *Log) finishTruncate() error {
	path := filepath.Join(l.o.Dir, truncateFile)
	b, err := vfs.ReadFile(l.o.FS, path, truncateBytes)
	if isMissing(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading an interrupted truncation of the log: %w", err)
	}
	c, err := decodeTruncateIntent(b)
	switch {
	case errors.Is(err, errBadIntent):
		return &CorruptError{Segment: path, Err: err}
	case err != nil:
		return err
	case c.logID != l.o.LogID:
		return fmt.Errorf("%w: %s; the files of two nodes may have been mixed", ErrOtherLog, path)
	}
	if err := l.redoTruncate(c); err != nil {
		return fmt.Errorf("finishing an interrupted truncation of the log: %w", err)
	}
	l.recovery.finishedTruncate = true
	if c.op == truncateReset {
		if err := l.begin(c.end); err != nil {
			return err
		}
		if err := l.segs[0].file.Close(); err != nil { // load opens it again
			return fmt.Errorf("closing the first log segment: %w", err)
		}
		l.segs = nil
	}
	return l.removeIntent()
}

// redoTruncate executes the truncation in c. For a reset, it only removes all segments and spares. It is idempotent.
func (l *Log) redoTruncate(c *truncateIntent) error {
	names, err := l.o.FS.ReadDir(l.o.Dir)
	if err != nil {
		return err
	}
	for _, name := range slices.Backward(names) {
		first, isSegment := parseName(name, segmentSuffix)
		_, isSpare := parseName(name, spareSuffix)
		if isSegment && (c.op == truncateReset || first > c.segment) || isSpare {
			// Remove the spares too: they contain blocks with LSNs that the log may use again.
			if err := l.o.FS.Remove(filepath.Join(l.o.Dir, name)); err != nil {
				return err
			}
		}
	}
	if err := l.o.FS.SyncDir(l.o.Dir); err != nil {
		return err
	}
	if c.op == truncateReset {
		return nil
	}
	f, err := l.openFile(filepath.Join(l.o.Dir, segmentName(c.segment)), os.O_RDWR)
	if err != nil {
		return err
	}
	if c.headerAt > 0 {
		_, err = f.WriteAt(c.header[:], c.headerAt)
	}
	if err == nil {
		err = zeroRange(f, c.zeroFrom, c.zeroTo)
	}
	if err == nil {
		err = c.writeSeal(f)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func (l *Log) removeIntent() error {
	if err := l.o.FS.Remove(filepath.Join(l.o.Dir, truncateFile)); err != nil {
		return fmt.Errorf("removing the intent of a finished truncation: %w", err)
	}
	if err := l.o.FS.SyncDir(l.o.Dir); err != nil {
		return fmt.Errorf("syncing the log directory after a truncation: %w", err)
	}
	return nil
}

// TruncateAfter removes all records after pos, which must be in the log or directly before its first record, and
// returns their number. If savePath is not empty, it first copies them to the file at savePath, which InspectFile can
// read. The truncation is durable in every sync mode. Open readers get ErrTruncated. ErrTrimmed and ErrNotInLog, which
// is also returned if the record at pos is unreadable, leave the log unchanged. Any other error may be final
// (ErrFailed).
func (l *Log) TruncateAfter(pos lsn.Position, savePath string) (truncatedRecords int, err error) {
	l.trimMu.Lock()
	defer l.trimMu.Unlock()
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	if err := l.usable(); err != nil {
		return 0, err
	}
	if err := l.checkTruncate(pos); err != nil {
		return 0, err
	}
	// The remaining records may not be synced yet.
	if err := l.syncDirty(); err != nil || pos == l.end {
		return 0, err
	}
	if savePath != "" {
		if _, err := l.saveRecords(pos, l.end.LSN, savePath); err != nil {
			return 0, fmt.Errorf("saving the tail of the log to %s: %w", savePath, err)
		}
	}
	intent, at, err := l.planTruncate(pos)
	if err != nil {
		return 0, err
	}
	intent.sealAt(min(l.Committed(), pos.LSN))
	truncatedRecords = int(l.end.LSN - pos.LSN)
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	if err := l.applyTruncate(intent); err != nil {
		return 0, l.fail("truncating the log", err)
	}
	l.afterTruncate(intent, at)
	return truncatedRecords, nil
}

func (l *Log) checkTruncate(pos lsn.Position) error {
	l.mu.RLock()
	before := l.segs[0].prev.LSN
	l.mu.RUnlock()
	if pos.LSN < before {
		return fmt.Errorf("%w: log begins after record %d, cannot truncate after %s", ErrTrimmed, before, pos)
	}
	if at, ok := l.PositionOf(pos.LSN); !ok || at != pos {
		return fmt.Errorf("%w: %s; the log has %s at that position and ends with %s", ErrNotInLog, pos, at, l.end)
	}
	return nil
}

// planTruncate returns the intent, and the index of the segment that contains the new end. The caller must hold
// writeMu.
func (l *Log) planTruncate(pos lsn.Position) (*truncateIntent, int, error) {
	l.mu.RLock()
	at := len(l.segs) - 1
	for at > 0 && l.segs[at].first > pos.LSN {
		at--
	}
	seg := l.segs[at]
	l.mu.RUnlock()
	if err := l.ensureIndexed(seg); err != nil {
		return nil, 0, err
	}
	c := &truncateIntent{
		op: truncateTail, logID: l.o.LogID, end: pos, segment: seg.first, zeroFrom: segmentDataStart,
		zeroTo: seg.end,
	}
	if pos.LSN < seg.first {
		return c, at, nil
	}
	_, err := scanSegment(seg.file, seg.seed, seg.end, seg.prev,
		func(offset int64, h blockHeader, frames []byte) error {
			body := offset + blockHeaderBytes
			switch {
			case h.length == 0: // a seal
				return nil
			case h.firstLSN > pos.LSN:
				return io.EOF
			}
			for rest := frames; len(rest) > 0; {
				head, size, err := frameHeader(rest)
				if err != nil {
					return err
				}
				rest = rest[size:]
				c.zeroFrom = body + int64(len(frames)-len(rest))
				if head.pos.LSN == pos.LSN && len(rest) > 0 {
					h.length = uint32(len(frames) - len(rest))
					c.headerAt = offset
					h.encode(c.header[:], seg.seed, offset)
				}
				if head.pos.LSN == pos.LSN {
					return io.EOF
				}
			}
			return nil
		})
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, 0, fmt.Errorf("reading log segment %s: %w", seg.path, err)
	}
	return c, at, nil
}

func (l *Log) applyTruncate(c *truncateIntent) error {
	if err := vfs.WriteFileAtomic(l.o.FS, filepath.Join(l.o.Dir, truncateFile), c.encode()); err != nil {
		return err
	}
	l.spares.makeMu.Lock() // no spare may be created during their removal
	defer l.spares.makeMu.Unlock()
	if err := l.spares.drop(); err != nil {
		return err
	}
	if err := l.redoTruncate(c); err != nil {
		return err
	}
	if c.op == truncateReset {
		if err := l.begin(c.end); err != nil {
			return err
		}
	}
	return l.removeIntent()
}

// afterTruncate updates the state in memory. The caller must hold writeMu and syncMu.
func (l *Log) afterTruncate(c *truncateIntent, at int) {
	pos, end := c.end, c.zeroFrom
	l.mu.Lock()
	removed := slices.Clone(l.segs[at+1:])
	l.segs = l.segs[:at+1]
	seg := l.segs[at]
	seg.end, seg.last, seg.headerSynced = end, pos, true
	seg.index = slices.DeleteFunc(seg.index, func(e indexEntry) bool { return e.offset >= end })
	l.end, l.synced, l.marked = pos, pos, min(l.marked, pos.LSN)
	l.committed = min(l.committed, pos.LSN)
	l.markedCommit = min(l.markedCommit, l.segs[0].prev.LSN) // a lower bound; a seal follows soon
	if c.seal > 0 {
		seg.end += blockHeaderBytes
		seg.sizeBytes = max(seg.sizeBytes, seg.end)
		l.marked, l.markedCommit = pos.LSN, l.committed
	}
	l.termEnds = slices.DeleteFunc(l.termEnds, func(p lsn.Position) bool { return p.LSN >= pos.LSN })
	l.dirty, l.dirtyDir = nil, false
	l.discarded = min(l.discarded, pos.LSN)
	l.released = min(l.released, pos.LSN) // new records with these LSNs are not in a checkpoint
	l.truncations++
	l.mu.Unlock()
	for _, s := range removed {
		_ = s.file.Close() // the file is already removed
	}
	wake(l.wakePrepare)
}

// SaveTail durably copies the records that follow the given LSN, and are still in the log, to the file at path, which
// InspectFile can read. It returns the position before the first of these records, and their number. If there are no
// such records, it creates no file.
func (l *Log) SaveTail(after uint64, path string) (before lsn.Position, records int, err error) {
	l.trimMu.Lock()
	defer l.trimMu.Unlock()
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	if err := l.usable(); err != nil {
		return lsn.Position{}, 0, err
	}
	l.mu.RLock()
	begin, end := l.segs[0].prev.LSN, l.end
	l.mu.RUnlock()
	if after = max(after, begin); after >= end.LSN {
		return end, 0, nil
	}
	before, ok := l.PositionOf(after)
	if !ok {
		return before, 0, fmt.Errorf("saving the tail of the log: %w: record %d cannot be read", ErrCorrupt,
			after)
	}
	if _, err := l.saveRecords(before, end.LSN, path); err != nil {
		return before, 0, fmt.Errorf("saving the tail of the log to %s: %w", path, err)
	}
	return before, int(end.LSN - before.LSN), nil
}

// CopyTail is like SaveTail, but for a log in use: records may be appended and old segments removed during the copy.
// It copies at least the records up to the current end. It returns the position before the first copied record, and
// the position of the last one. After an error, it removes the file.
func (l *Log) CopyTail(after uint64, path string) (before, last lsn.Position, err error) {
	hold := l.Hold(after + 1)
	defer hold.Release()
	if err := l.usable(); err != nil {
		return before, last, err
	}
	l.mu.RLock()
	begin, end := l.segs[0].prev.LSN, l.end
	l.mu.RUnlock()
	if after = max(after, begin); after >= end.LSN {
		return end, end, nil
	}
	before, ok := l.PositionOf(after)
	if !ok {
		return before, last, fmt.Errorf("copying the tail of the log: %w: record %d cannot be read", ErrCorrupt, after)
	}
	if last, err = l.saveRecords(before, end.LSN, path); err != nil {
		return before, last, fmt.Errorf("copying the tail of the log to %s: %w", path,
			errors.Join(err, l.removePartial(path)))
	}
	return before, last, nil
}

func (l *Log) removePartial(path string) error {
	if err := l.o.FS.Remove(path); err != nil && !isMissing(err) {
		return err
	}
	return nil
}

// saveRecords durably copies the records after pos to a new file, at least up to the given LSN, and returns the
// position of the last copied record.
func (l *Log) saveRecords(pos lsn.Position, through uint64, path string) (lsn.Position, error) {
	f, err := l.openFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return pos, err
	}
	last, err := l.copyTail(pos, through, f)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return last, err
	}
	return last, l.o.FS.SyncDir(filepath.Dir(path))
}

func (l *Log) copyTail(pos lsn.Position, through uint64, f vfs.File) (last lsn.Position, err error) {
	header := segmentHeader{logID: l.o.LogID, first: pos.LSN + 1, prev: pos}
	if _, err := f.WriteAt(header.encode(), 0); err != nil {
		return pos, err
	}
	r, err := l.ReadFrom(pos.LSN + 1)
	if err != nil {
		return pos, err
	}
	seed, offset, first := segmentSeed(l.o.LogID, pos.LSN+1), int64(segmentDataStart), pos.LSN+1
	for last = pos; last.LSN < through; {
		frames, end, _, err := r.ReadBatch(scanChunk)
		if err != nil {
			return last, err
		}
		var b [blockHeaderBytes]byte
		blockHeader{length: uint32(len(frames)), firstLSN: first}.encode(b[:], seed, offset)
		n, err := f.WriteVec(offset, b[:], frames)
		if err != nil {
			return last, err
		}
		offset, first, last = offset+int64(n), end.LSN+1, end
	}
	return last, nil
}

// Reset durably removes all records and makes the log continue after start. Open readers get ErrTruncated, and
// existing holds no longer have an effect.
func (l *Log) Reset(start lsn.Position) error {
	l.trimMu.Lock()
	defer l.trimMu.Unlock()
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	l.mu.RLock()
	old := slices.Clone(l.segs)
	l.mu.RUnlock()
	if err := l.applyTruncate(&truncateIntent{op: truncateReset, logID: l.o.LogID, end: start}); err != nil {
		return l.fail("resetting the log", err)
	}
	l.mu.Lock()
	l.truncations++
	l.released, l.discarded = 0, 0
	clear(l.holds)
	l.mu.Unlock()
	for _, s := range old {
		_ = s.file.Close() // the file is already removed
	}
	wake(l.wakePrepare)
	return nil
}
