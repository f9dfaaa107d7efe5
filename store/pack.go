package store

import (
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/tree"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// packing is the run that is being filled with consecutive messages of one queue. It is the one place that says which
// messages share a page in a file that is written anew; the scan that predicts such a file uses it, too.
type packing struct {
	queue uint64
	first uint64
	last  uint64
	count uint32
	size  int // of the payload
}

// takes tells whether a record of size bytes still belongs to the run; room is what one page takes.
func (p *packing) takes(queueID, seq uint64, size, room int) bool {
	return p.count > 0 && p.queue == queueID && seq-p.first < queue.MaxRunSpan &&
		p.size+txn.UvarintBytes(seq-p.first)+size <= room
}

// begin empties it for a queue.
func (p *packing) begin(queueID, seq uint64) {
	*p = packing{queue: queueID, first: seq, size: runHeaderLen}
}

func (p *packing) add(seq uint64, size int) {
	p.size += txn.UvarintBytes(seq-p.first) + size
	p.last = seq
	p.count++
}

// entry is the index entry of the run, which is in the pages of run.
func (p *packing) entry(run page.Run) indexEntry {
	return indexEntry{
		queue: p.queue, first: p.first, span: p.last - p.first + 1, run: run,
		count: uint64(p.count), bytes: uint64(p.size - runHeaderLen),
	}
}

// runKind is what a run of messages with that many pages is called.
func runKind(pages uint32) page.Kind {
	if pages > 1 {
		return page.KindLarge
	}
	return page.KindPacked
}

// indexer puts index entries into a tree that is built.
type indexer struct {
	bulk       *tree.Bulk
	key, value []byte
}

func (x *indexer) put(e indexEntry) error {
	x.key = appendIndexKey(x.key[:0], e.queue, e.first)
	x.value = e.appendValue(x.value[:0])
	return x.bulk.Put(x.key, x.value)
}

// recordSize is the size of the single message of a run, from its index entry alone; ok is false if there are several.
func (e *indexEntry) recordSize() (size int, ok bool) {
	if e.count != 1 || e.span != 1 {
		return 0, false
	}
	return int(e.bytes) - 1, true
}

// recordSizes calls fn for each message of a run with its size, without looking at the messages themselves.
func recordSizes(payload []byte, fn func(seq uint64, size int) error) error {
	r, err := newRunReader(payload)
	if err != nil {
		return err
	}
	for {
		seq, record, ok, err := r.next()
		if err != nil || !ok {
			return err
		}
		if err := fn(seq, len(record)); err != nil {
			return err
		}
	}
}
