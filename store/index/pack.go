// SPDX-License-Identifier: Apache-2.0

package index

import (
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/tree"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// RunBytes is how long a run of several messages is at most, with its header and what is unused at its end, unless a
// single page is longer. Each run costs an entry of the index, a checksum to begin and space to find, so that runs of a
// few hundred bytes are dear to write and to read one after another; and all of a run is read for one message of it,
// and stays until its last message is gone, so that runs are short all the same (docs/decisions/0023).
const RunBytes = 4 << 10

// Room is how many bytes of payload a run of several messages takes at most in a file with that page size: whole pages,
// at least one. A run with less has only the pages that it needs; a message that is longer has a run of its own.
func Room(pageSize int) int { return max(RunBytes/pageSize, 1)*pageSize - page.RunHeaderBytes }

// Packing is the run that is being filled with consecutive messages of one queue. It is the one place that says which
// messages share a run in a file that is written anew; the scan that predicts such a file uses it, too.
type Packing struct {
	Queue uint64
	First uint64
	Last  uint64
	Count uint32
	Size  int // of the payload
}

// Takes tells whether a record of size bytes still belongs to the run; room is what Room says.
func (p *Packing) Takes(queueID, seq uint64, size, room int) bool {
	return p.Count > 0 && p.Queue == queueID && seq-p.First < queue.MaxRunSpan &&
		p.Size+txn.UvarintBytes(seq-p.First)+size <= room
}

// Begin empties it for a queue.
func (p *Packing) Begin(queueID, seq uint64) {
	*p = Packing{Queue: queueID, First: seq, Size: RunHeaderBytes}
}

// Add takes a record of size bytes into the run.
func (p *Packing) Add(seq uint64, size int) {
	p.Size += txn.UvarintBytes(seq-p.First) + size
	p.Last = seq
	p.Count++
}

// Entry is the index entry of the run, which is in the pages of run.
func (p *Packing) Entry(run page.Run) Entry {
	return Entry{
		Queue: p.Queue, First: p.First, Span: p.Last - p.First + 1, Run: run,
		Count: uint64(p.Count), Bytes: uint64(p.Size - RunHeaderBytes),
	}
}

// RunKind is what a run of so many messages in so many pages is called.
func RunKind(messages uint64, pages uint32) page.Kind {
	if messages == 1 && pages > 1 {
		return page.KindLarge
	}
	return page.KindPacked
}

// Writer puts index entries into a tree that is built.
type Writer struct {
	Bulk       *tree.Bulk
	key, value []byte
}

// Put adds an entry. Entries come in the order of their keys.
func (x *Writer) Put(e Entry) error {
	x.key = AppendKey(x.key[:0], e.Queue, e.First)
	x.value = e.AppendValue(x.value[:0])
	return x.Bulk.Put(x.key, x.value)
}

// RecordSize is the size of the single message of a run, from its index entry alone; ok is false if there are several.
func (e *Entry) RecordSize() (size int, ok bool) {
	if e.Count != 1 || e.Span != 1 {
		return 0, false
	}
	return int(e.Bytes) - 1, true
}

// RecordSizes calls fn for each message of a run with its size, without looking at the messages themselves.
func RecordSizes(payload []byte, fn func(seq uint64, size int) error) error {
	r, err := NewRunReader(payload)
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
