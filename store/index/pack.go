// SPDX-License-Identifier: Apache-2.0

package index

import (
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/tree"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// ExtentBytes is the maximum length of an extent with several messages, including its header and padding, unless a
// single page is longer (docs/decisions/0023).
const ExtentBytes = 4 << 10

// Room returns the maximum payload of an extent with several messages for a page size. The extent consists of whole
// pages, at least one. With less payload, it has only the pages that it needs. A longer message gets its own extent.
func Room(pageSize int) int { return max(ExtentBytes/pageSize, 1)*pageSize - page.ExtentHeaderBytes }

// Packing is the extent that is filled with messages of one queue, in ascending order.
type Packing struct {
	Queue uint64
	First uint64
	Last  uint64
	Count uint32
	Size  int // of the payload
}

// Takes reports whether a record of size bytes can be added to the extent, which must contain a message. room is the
// result of Room.
func (p *Packing) Takes(queueID, seq uint64, size, room int) bool {
	return p.Count > 0 && p.Queue == queueID && seq-p.First < queue.MaxExtentSpan &&
		p.Size+txn.UvarintBytes(seq-p.First)+size <= room
}

// Begin starts an empty extent for a queue.
func (p *Packing) Begin(queueID, seq uint64) {
	*p = Packing{Queue: queueID, First: seq, Size: ExtentHeaderBytes}
}

// Add adds a record of size bytes to the extent.
func (p *Packing) Add(seq uint64, size int) {
	p.Size += txn.UvarintBytes(seq-p.First) + size
	p.Last = seq
	p.Count++
}

// Entry returns the index entry of the extent at position ext.
func (p *Packing) Entry(ext page.Extent) Entry {
	return Entry{
		Queue: p.Queue, First: p.First, Span: p.Last - p.First + 1, Extent: ext,
		Count: uint64(p.Count), Bytes: uint64(p.Size - ExtentHeaderBytes),
	}
}

// ExtentKind returns the kind of an extent with the given numbers of messages and pages.
func ExtentKind(messages uint64, pages uint32) page.Kind {
	if messages == 1 && pages > 1 {
		return page.KindLarge
	}
	return page.KindPacked
}

// Writer adds index entries to a tree that is built in key order.
type Writer struct {
	Bulk       *tree.Bulk
	key, value []byte
}

// Put adds an entry. Entries must be in key order.
func (x *Writer) Put(e Entry) error {
	x.key = AppendKey(x.key[:0], e.Queue, e.First)
	x.value = e.AppendValue(x.value[:0])
	return x.Bulk.Put(x.key, x.value)
}

// RecordSize returns the size of the only message in an extent. ok is false if the extent has several messages or
// spans several sequences.
func (e *Entry) RecordSize() (size int, ok bool) {
	if e.Count != 1 || e.Span != 1 {
		return 0, false
	}
	return int(e.Bytes) - 1, true
}

// RecordSizes calls fn with the size of each message of an extent, without decoding the messages. It ends with the
// first error of fn, or with an error that wraps ErrDataLoss if the payload is corrupt.
func RecordSizes(payload []byte, fn func(seq uint64, size int) error) error {
	r, err := NewExtentReader(payload)
	if err != nil {
		return err
	}
	for {
		seq, record, ok, err := r.Next()
		if err != nil || !ok {
			return err
		}
		if err := fn(seq, len(record)); err != nil {
			return err
		}
	}
}
