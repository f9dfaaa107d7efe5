// SPDX-License-Identifier: Apache-2.0

// Package index implements the storage format of messages in a page file: the index entries with their positions, and
// the extents that contain them.
package index

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// The index of stored messages is in the same tree as all other metadata. The keys are 'i' queue firstSequence. Both
// numbers are big endian, so the extents of a queue are adjacent and in order. One entry describes one extent:
//
//	span, page, pages, born, count, bytes   (uvarints)
//
// span is the number of sequences covered by the extent, and count is the number of stored messages. bytes is the
// length of the payload without its header. A message that was dead before its page was written is not stored. born
// is the checkpoint number in the extent's header.

const (
	// Letter is the first byte of every index key.
	Letter = 'i'
	// KeyBytes is the length of an index key.
	KeyBytes = 1 + 8 + 8
)

// Entry is a decoded index entry.
type Entry struct {
	Queue  uint64
	First  uint64
	Span   uint64
	Extent page.Extent
	Count  uint64
	Bytes  uint64
}

// Last returns the last sequence covered by the entry.
func (e *Entry) Last() uint64 { return e.First + e.Span - 1 }

// AppendKey appends the key of the entry that begins with the given queue and sequence.
func AppendKey(dst []byte, queue, seq uint64) []byte {
	dst = append(dst, Letter)
	dst = binary.BigEndian.AppendUint64(dst, queue)
	return binary.BigEndian.AppendUint64(dst, seq)
}

// KeyRange returns the range of the index keys of a queue: from, inclusive, to to, exclusive.
func KeyRange(queueID uint64) (from, to []byte) {
	from = binary.BigEndian.AppendUint64([]byte{Letter}, queueID)
	return from, binary.BigEndian.AppendUint64([]byte{Letter}, queueID+1) // numbers are assigned from 1 on: no overflow
}

// AppendValue appends the value of the entry.
func (e *Entry) AppendValue(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, e.Span)
	dst = binary.AppendUvarint(dst, uint64(e.Extent.First))
	dst = binary.AppendUvarint(dst, uint64(e.Extent.Pages))
	dst = binary.AppendUvarint(dst, e.Extent.Born)
	dst = binary.AppendUvarint(dst, e.Count)
	return binary.AppendUvarint(dst, e.Bytes)
}

// ErrDataLoss is returned if a stored message is corrupt or missing. It is also returned if the state in a checkpoint
// is corrupt.
var ErrDataLoss = errors.New("stored message is corrupt")

// ErrCorrupt is returned if a page of the index or of the state is corrupt. The store must then be replaced, by a copy
// of the other node's store or by a backup.
var ErrCorrupt = errors.New("store index is corrupt")

var errIndexEntry = errors.New("invalid index entry")

// Decode decodes and verifies an entry from its key and value.
func Decode(key, value []byte) (Entry, error) {
	var e Entry
	if len(key) != KeyBytes || key[0] != Letter {
		return e, fmt.Errorf("%w: key %x", errIndexEntry, key)
	}
	e.Queue = binary.BigEndian.Uint64(key[1:])
	e.First = binary.BigEndian.Uint64(key[9:])
	var fields [6]uint64
	for i := range fields {
		v, n := binary.Uvarint(value)
		if n <= 0 {
			return e, fmt.Errorf("%w: key %x value %x", errIndexEntry, key, value)
		}
		fields[i], value = v, value[n:]
	}
	e.Span, e.Count, e.Bytes = fields[0], fields[4], fields[5]
	e.Extent = page.Extent{First: page.No(fields[1]), Pages: uint32(fields[2]), Born: fields[3]}
	if e.Span == 0 || e.Count == 0 || e.Count > e.Span || fields[1] == 0 || fields[2] == 0 || fields[2] > 1<<31 ||
		e.First+e.Span < e.First || len(value) != 0 {
		return e, fmt.Errorf("%w: key %x", errIndexEntry, key)
	}
	return e, nil
}

// The payload of a message extent, packed (several messages, see Room, or one message in one page) or large (one
// message in several pages):
//
//	queue u64 | first sequence u64 | count u32 | (delta uvarint | message record)*
//
// delta is the sequence minus the first sequence. Records contain their own length.

// ExtentHeaderBytes is the length of the header of a payload.
const ExtentHeaderBytes = 8 + 8 + 4

// ExtentBuilder packs messages of one queue, in ascending order of their sequences, in place at the end of a larger
// buffer.
type ExtentBuilder struct {
	Buf   []byte
	Start int // start of the payload in Buf
	Queue uint64
	First uint64
	Last  uint64
	Count uint32
}

// Begin starts a payload at the end of buf; start must be the length of buf.
func (b *ExtentBuilder) Begin(buf []byte, start int, queueID uint64) {
	*b = ExtentBuilder{Buf: append(buf, make([]byte, ExtentHeaderBytes)...), Start: start, Queue: queueID}
}

// Size returns the length of the payload.
func (b *ExtentBuilder) Size() int { return len(b.Buf) - b.Start }

// SizeWith returns the length that the payload would have with the record of sequence seq added. The payload must
// contain a message.
func (b *ExtentBuilder) SizeWith(seq uint64, record []byte) int {
	return b.Size() + txn.UvarintBytes(seq-b.First) + len(record)
}

// Add appends a record. Sequences must increase.
func (b *ExtentBuilder) Add(seq uint64, record []byte) {
	if b.Count == 0 {
		b.First = seq
	}
	b.Buf = binary.AppendUvarint(b.Buf, seq-b.First)
	b.Buf = append(b.Buf, record...)
	b.Last = seq
	b.Count++
}

// Finish writes the header of the payload.
func (b *ExtentBuilder) Finish() {
	head := b.Buf[b.Start:]
	binary.LittleEndian.PutUint64(head, b.Queue)
	binary.LittleEndian.PutUint64(head[8:], b.First)
	binary.LittleEndian.PutUint32(head[16:], b.Count)
}

// ExtentReader iterates over the messages of an extent's payload without allocations. Its errors wrap ErrDataLoss.
type ExtentReader struct {
	Queue, First uint64
	Left         uint32
	rest         []byte
}

// NewExtentReader returns a reader of a payload, which must not change while it is read.
func NewExtentReader(payload []byte) (ExtentReader, error) {
	if len(payload) < ExtentHeaderBytes {
		return ExtentReader{}, fmt.Errorf("%w: extent of %d bytes is too short", ErrDataLoss, len(payload))
	}
	return ExtentReader{
		Queue: binary.LittleEndian.Uint64(payload),
		First: binary.LittleEndian.Uint64(payload[8:]),
		Left:  binary.LittleEndian.Uint32(payload[16:]),
		rest:  payload[ExtentHeaderBytes:],
	}, nil
}

// Next returns the next message; ok is false at the end.
func (r *ExtentReader) Next() (seq uint64, record []byte, ok bool, err error) {
	if r.Left == 0 {
		return 0, nil, false, nil
	}
	delta, n := binary.Uvarint(r.rest)
	if n <= 0 || len(r.rest) < n+4 {
		return 0, nil, false, fmt.Errorf("%w: message header in the extent of queue %d, sequence %d", ErrDataLoss, r.Queue,
			r.First)
	}
	size := int(binary.LittleEndian.Uint32(r.rest[n:])) + 4
	if size > len(r.rest)-n {
		return 0, nil, false, fmt.Errorf("%w: message of queue %d, sequence %d", ErrDataLoss, r.Queue, r.First+delta)
	}
	record = r.rest[n : n+size : n+size]
	r.rest = r.rest[n+size:]
	r.Left--
	return r.First + delta, record, true, nil
}

// EntryOf decodes the result of a tree search. found is false if the result is not an index entry of the queue. The
// errors are those of Decode.
func EntryOf(k, v []byte, ok bool, queueID uint64) (e Entry, found bool, err error) {
	if !ok || len(k) != KeyBytes || k[0] != Letter {
		return Entry{}, false, nil
	}
	e, err = Decode(k, v)
	if err != nil || e.Queue != queueID {
		return Entry{}, false, err
	}
	return e, true, nil
}
