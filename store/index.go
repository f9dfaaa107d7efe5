package store

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// The index of stored messages lives in the same tree as everything else, under keys 'i' queue firstSequence (both big
// endian, so that the tree keeps a queue's runs together and in order). One entry stands for one run of pages:
//
//	span, page, pages, born, count, bytes   (uvarints)
//
// span is how many sequences the run stands for, count how many messages it really holds: a message that every
// subscription had acknowledged before its page was written is left out. born is the checkpoint number in the run's
// header.

const (
	// indexLetter begins every index key.
	indexLetter = 'i'
	// indexKeyLen is the length of an index key.
	indexKeyLen = 1 + 8 + 8
)

// indexEntry is a decoded index entry.
type indexEntry struct {
	queue uint64
	first uint64
	span  uint64
	run   page.Run
	count uint64
	bytes uint64
}

// last is the last sequence that the entry stands for.
func (e *indexEntry) last() uint64 { return e.first + e.span - 1 }

func appendIndexKey(dst []byte, queue, seq uint64) []byte {
	dst = append(dst, indexLetter)
	dst = binary.BigEndian.AppendUint64(dst, queue)
	return binary.BigEndian.AppendUint64(dst, seq)
}

// indexKeys returns the range [from, to) of the index keys of a queue.
func indexKeys(queueID uint64) (from, to []byte) {
	from = binary.BigEndian.AppendUint64([]byte{indexLetter}, queueID)
	return from, binary.BigEndian.AppendUint64([]byte{indexLetter}, queueID+1) // ids are counted from 1: no overflow
}

func (e *indexEntry) appendValue(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, e.span)
	dst = binary.AppendUvarint(dst, uint64(e.run.First))
	dst = binary.AppendUvarint(dst, uint64(e.run.Pages))
	dst = binary.AppendUvarint(dst, e.run.Born)
	dst = binary.AppendUvarint(dst, e.count)
	return binary.AppendUvarint(dst, e.bytes)
}

// ErrDataLoss is returned when a stored message cannot be read because its page is damaged.
var ErrDataLoss = errors.New("stored message is damaged")

var errIndexEntry = errors.New("index entry does not decode")

func decodeIndexEntry(key, value []byte) (indexEntry, error) {
	var e indexEntry
	if len(key) != indexKeyLen || key[0] != indexLetter {
		return e, fmt.Errorf("%w: key %x", errIndexEntry, key)
	}
	e.queue = binary.BigEndian.Uint64(key[1:])
	e.first = binary.BigEndian.Uint64(key[9:])
	var fields [6]uint64
	for i := range fields {
		v, n := binary.Uvarint(value)
		if n <= 0 {
			return e, fmt.Errorf("%w: key %x value %x", errIndexEntry, key, value)
		}
		fields[i], value = v, value[n:]
	}
	e.span, e.count, e.bytes = fields[0], fields[4], fields[5]
	e.run = page.Run{First: page.No(fields[1]), Pages: uint32(fields[2]), Born: fields[3]}
	if e.span == 0 || e.count == 0 || e.count > e.span || fields[1] == 0 || fields[2] == 0 || fields[2] > 1<<31 ||
		e.first+e.span < e.first || len(value) != 0 {
		return e, fmt.Errorf("%w: key %x", errIndexEntry, key)
	}
	return e, nil
}

// A run of messages, packed (several in one page) or large (one in as many pages as it takes), holds:
//
//	queue u64 | first sequence u64 | count u32 | (delta uvarint | message record)*
//
// delta is the sequence minus the first sequence. Records carry their own length.

const runHeaderLen = 8 + 8 + 4

// runBuilder packs consecutive messages of one queue, in place, at the end of a larger buffer.
type runBuilder struct {
	buf   []byte
	start int // of the payload in buf
	queue uint64
	first uint64
	last  uint64
	count uint32
}

// begin starts a payload at buf[start:], which is the end of buf.
func (b *runBuilder) begin(buf []byte, start int, queueID uint64) {
	*b = runBuilder{buf: append(buf, make([]byte, runHeaderLen)...), start: start, queue: queueID}
}

// size is the payload's length.
func (b *runBuilder) size() int { return len(b.buf) - b.start }

// sizeWith is the payload's length if record were added as seq.
func (b *runBuilder) sizeWith(seq uint64, record []byte) int {
	return b.size() + txn.UvarintBytes(seq-b.first) + len(record)
}

func (b *runBuilder) add(seq uint64, record []byte) {
	if b.count == 0 {
		b.first = seq
	}
	b.buf = binary.AppendUvarint(b.buf, seq-b.first)
	b.buf = append(b.buf, record...)
	b.last = seq
	b.count++
}

// finish fills in the header.
func (b *runBuilder) finish() {
	head := b.buf[b.start:]
	binary.LittleEndian.PutUint64(head, b.queue)
	binary.LittleEndian.PutUint64(head[8:], b.first)
	binary.LittleEndian.PutUint32(head[16:], b.count)
}

// runReader walks the messages of a run's payload without allocating.
type runReader struct {
	queue, first uint64
	left         uint32
	rest         []byte
}

func newRunReader(payload []byte) (runReader, error) {
	if len(payload) < runHeaderLen {
		return runReader{}, fmt.Errorf("%w: run of %d bytes is too short", ErrDataLoss, len(payload))
	}
	return runReader{
		queue: binary.LittleEndian.Uint64(payload),
		first: binary.LittleEndian.Uint64(payload[8:]),
		left:  binary.LittleEndian.Uint32(payload[16:]),
		rest:  payload[runHeaderLen:],
	}, nil
}

// next returns the next message; ok is false at the end.
func (r *runReader) next() (seq uint64, record []byte, ok bool, err error) {
	if r.left == 0 {
		return 0, nil, false, nil
	}
	delta, n := binary.Uvarint(r.rest)
	if n <= 0 || len(r.rest) < n+4 {
		return 0, nil, false, fmt.Errorf("%w: message directory of queue %d, sequence %d", ErrDataLoss, r.queue,
			r.first)
	}
	size := int(binary.LittleEndian.Uint32(r.rest[n:])) + 4
	if size > len(r.rest)-n {
		return 0, nil, false, fmt.Errorf("%w: message of queue %d, sequence %d", ErrDataLoss, r.queue, r.first+delta)
	}
	record = r.rest[n : n+size : n+size]
	r.rest = r.rest[n+size:]
	r.left--
	return r.first + delta, record, true, nil
}
