// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

const readerChunk = 256 << 10

// Reader reads the log record by record while it grows. It must be used by one goroutine, and need not be closed. It
// does not prevent trimming of the log; use a Hold for that.
type Reader struct {
	l           *Log
	truncations uint64
	seg         *segment
	prev        lsn.Position // position of the last record read
	// anchored is false until prev is known from the first record.
	anchored bool
	offset   int64 // of the next block or frame
	left     int64 // remaining bytes of the block's frames at offset
	limit    int64 // the end of the segment at the last check
	window   window
	batch    []byte
}

// ReadFrom returns a reader that starts at the given record, which may be the one after End. It returns ErrTrimmed or
// ErrNotInLog if the record is not in the log, and otherwise the errors of Reader.Next.
func (l *Log) ReadFrom(record uint64) (*Reader, error) {
	if err := l.usableForReading(); err != nil {
		return nil, err
	}
	r, err := l.newReader(record)
	if err != nil || r.anchored {
		return r, err
	}
	if record != r.seg.first {
		if err := l.ensureIndexed(r.seg); err != nil {
			return nil, err
		}
	}
	l.mu.RLock()
	at := r.seg.seek(record)
	l.mu.RUnlock()
	r.offset = at.offset
	r.prev = lsn.Position{LSN: at.first - 1}
	if at.first == r.seg.first {
		r.prev, r.anchored = r.seg.prev, true
	}
	for r.prev.LSN+1 < record {
		if _, err := r.Next(); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// newReader returns a reader in the segment that contains the record. It sets the exact position only if the record
// is the one after End.
func (l *Log) newReader(record uint64) (*Reader, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	r := &Reader{l: l, truncations: l.truncations}
	at := len(l.segs) - 1
	switch {
	case record < l.segs[0].first:
		return nil, fmt.Errorf("%w: requested record %d, the oldest is %d", ErrTrimmed, record, l.segs[0].first)
	case record > l.end.LSN+1:
		return nil, fmt.Errorf("%w: requested record %d, the last is %d", ErrNotInLog, record, l.end.LSN)
	case record == l.end.LSN+1:
		r.prev, r.anchored, r.offset = l.end, true, l.segs[at].end
	}
	for !r.anchored && l.segs[at].first > record {
		at--
	}
	r.seg = l.segs[at]
	r.window = window{file: r.seg.file, chunk: readerChunk}
	return r, nil
}

func (l *Log) ensureIndexed(seg *segment) error {
	l.mu.RLock()
	indexed, expected := seg.indexed, seg.last
	l.mu.RUnlock()
	if indexed {
		return nil
	}
	found, err := scanIndex(seg)
	if err == nil && found.last != expected {
		err = &CorruptError{
			Segment: seg.path, Offset: found.badOffset, LSN: found.badLSN, DurableLSN: expected.LSN,
			Err: found.err,
		}
	}
	if err != nil {
		l.mu.RLock()
		defer l.mu.RUnlock()
		if seg.trimmed { // and possibly overwritten
			return fmt.Errorf("%w: trimmed during the search for record %d", ErrTrimmed, seg.first)
		}
		return err
	}
	found.termEnds = nil // already known: Open skips only segments with a single term
	l.adopt(seg, found)
	return nil
}

func (l *Log) usableForReading() error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		return ErrClosed
	}
	return nil
}

// Next verifies and returns the next record. io.EOF means that no further record exists yet; Next may be called again.
// The payload is valid until the next call. Any other error is final: ErrClosed, ErrTrimmed, ErrTruncated or a
// *CorruptError.
func (r *Reader) Next() (Frame, error) {
	f, _, err := r.next()
	return f, err
}

// ReadBatch returns as many frames as fit into maxBytes, but at least one. last is the position of the last frame,
// and n the number of frames. The bytes are valid until the next call. io.EOF means that no further record exists
// yet. The other errors are those of Next.
func (r *Reader) ReadBatch(maxBytes int) (frames []byte, last lsn.Position, n int, err error) {
	r.batch = r.batch[:0]
	for {
		size, err := r.peek()
		switch {
		case n > 0 && errors.Is(err, io.EOF):
			return r.batch, last, n, nil
		case err != nil:
			return nil, lsn.Position{}, 0, err
		case n > 0 && size > maxBytes-len(r.batch):
			return r.batch, last, n, nil
		}
		f, raw, err := r.next()
		if err != nil {
			return nil, lsn.Position{}, 0, err
		}
		r.batch = append(r.batch, raw...)
		last = f.Pos
		n++
	}
}

func (r *Reader) peek() (int, error) {
	for r.left == 0 {
		if err := r.enterBlock(); err != nil {
			return 0, err
		}
	}
	b, err := r.window.at(r.offset, FrameHeaderBytes, r.limit)
	if err != nil {
		return 0, r.corrupt(err)
	}
	_, size, err := frameHeader(b)
	if err != nil {
		return 0, r.corrupt(err)
	}
	return size, nil
}

func (r *Reader) next() (Frame, []byte, error) {
	size, err := r.peek()
	if err != nil {
		return Frame{}, nil, err
	}
	if int64(size) > r.left {
		return Frame{}, nil, r.corrupt(fmt.Errorf("%w: longer than its block", ErrBadFrame))
	}
	b, err := r.window.at(r.offset, size, r.limit)
	if err != nil {
		return Frame{}, nil, r.corrupt(err)
	}
	if !r.anchored {
		// The reader starts in the middle of the log. The record contains the checksum of its predecessor, and the record's
		// checksum covers this field.
		r.prev.Chain, r.anchored = binary.LittleEndian.Uint32(b[framePrevCRC:]), true
	}
	f, _, err := DecodeFrame(b, r.prev)
	if err != nil {
		return Frame{}, nil, r.corrupt(err)
	}
	r.prev = f.Pos
	r.offset += int64(size)
	r.left -= int64(size)
	return f, b, nil
}

func (r *Reader) enterBlock() error {
	next, err := r.refresh()
	if err != nil {
		return err
	}
	if r.offset >= r.limit {
		if next == nil {
			return io.EOF
		}
		r.seg, r.offset, r.limit = next, segmentDataStart, 0
		r.window.reset(next.file)
		return nil
	}
	b, err := r.window.at(r.offset, blockHeaderBytes, r.limit)
	if err != nil {
		return r.corrupt(err)
	}
	h, err := decodeBlockHeader(b, r.seg.seed, r.offset)
	if err != nil {
		return r.corrupt(err)
	}
	r.offset += blockHeaderBytes
	r.left = int64(h.length)
	if r.offset+r.left > r.limit {
		return r.corrupt(ErrShortFrame)
	}
	return nil
}

// refresh updates limit and returns the segment after the current one, or nil.
func (r *Reader) refresh() (next *segment, err error) {
	l := r.l
	l.mu.RLock()
	defer l.mu.RUnlock()
	if err := r.invalid(); err != nil {
		return nil, err
	}
	at := len(l.segs) - 1
	for l.segs[at] != r.seg {
		next = l.segs[at]
		at--
	}
	r.limit = r.seg.end
	if !r.seg.indexed && r.prev == r.seg.last {
		r.limit = r.offset // Open skipped this segment: its end is known only by its last record
	}
	return next, nil
}

// invalid returns the reason why the reader cannot continue, or nil. The caller must hold l.mu.
func (r *Reader) invalid() error {
	switch {
	case r.l.closed:
		return ErrClosed
	case r.truncations != r.l.truncations:
		return ErrTruncated
	case r.seg.trimmed:
		return fmt.Errorf("%w: trimmed while record %d was read", ErrTrimmed, r.prev.LSN+1)
	}
	return nil
}

// corrupt wraps err in a *CorruptError. If the reader became invalid during the read, corrupt returns the reason
// instead.
func (r *Reader) corrupt(err error) error {
	r.l.mu.RLock()
	defer r.l.mu.RUnlock()
	if err := r.invalid(); err != nil {
		return err
	}
	return &CorruptError{
		Segment: r.seg.path, Offset: r.offset, LSN: r.prev.LSN + 1, DurableLSN: r.l.synced.LSN,
		Err: err,
	}
}
