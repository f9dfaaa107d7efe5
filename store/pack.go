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

// simulation finds out how large a page file would become, by doing everything that a rewrite does but the writing:
// same packing, same tree, same bitmap.
type simulation struct {
	packing
	pageSize int
	room     int
	born     uint64
	index    indexer
	pages    uint64 // taken so far
	runs     uint64
	msgPages uint64
	nodes    uint64 // pages of tree nodes
	payload  uint64 // bytes in message pages: run headers included
	records  uint64 // bytes of messages alone
}

func newSimulation(pageSize int, born uint64) *simulation {
	s := &simulation{pageSize: pageSize, room: pageSize - page.RunHeaderBytes, born: born}
	s.index = indexer{bulk: tree.NewBulk(s, tree.Options{})}
	return s
}

// PageSize is for tree.Bulk.
func (s *simulation) PageSize() int { return s.pageSize }

// WriteNode counts a node of the tree instead of writing it.
func (s *simulation) WriteNode(payloadBytes int, _ func([]byte) []byte) (page.Run, error) {
	run := s.take(payloadBytes)
	s.nodes += uint64(run.Pages)
	return run, nil
}

func (s *simulation) take(payloadBytes int) page.Run {
	run := page.Run{First: page.No(s.pages + 1), Pages: page.PagesFor(s.pageSize, payloadBytes), Born: s.born}
	s.pages += uint64(run.Pages)
	return run
}

// message counts a stored message.
func (s *simulation) message(queueID, seq uint64, size int) error {
	if !s.takes(queueID, seq, size, s.room) {
		if err := s.endRun(); err != nil {
			return err
		}
		s.begin(queueID, seq)
	}
	s.add(seq, size)
	s.records += uint64(size)
	return nil
}

// endRun closes the run that is being filled, if there is one.
func (s *simulation) endRun() error {
	if s.count == 0 {
		return nil
	}
	run := s.take(s.size)
	s.runs++
	s.msgPages += uint64(run.Pages)
	s.payload += uint64(s.size) + page.RunHeaderBytes
	e := s.entry(run)
	s.count = 0
	return s.index.put(e)
}

// candidate is the outcome.
func (s *simulation) candidate() (Candidate, error) {
	if _, err := s.index.bulk.Finish(); err != nil {
		return Candidate{}, err
	}
	total, bitmap, fileBytes := page.BuiltSize(s.pageSize, s.pages)
	c := Candidate{
		PageSize: s.pageSize, FileBytes: uint64(fileBytes), Pages: total, Runs: s.runs,
		MessagePages: s.msgPages, IndexPages: s.nodes, OtherPages: bitmap,
	}
	c.PaddingBytes = s.msgPages*uint64(s.pageSize) - s.payload
	c.WasteBytes = c.FileBytes - s.records
	return c, nil
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
