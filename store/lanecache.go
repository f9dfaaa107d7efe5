// SPDX-License-Identifier: Apache-2.0

package store

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	// laneIdle is how long messages are kept that no read has asked for, although others could have their room.
	laneIdle = 10 * time.Second
	// laneForgotten is how long they are kept at all.
	laneForgotten = time.Minute
	// laneChunk is how much memory is taken at once for messages of one lane.
	laneChunk = 32 << 10
	// maxLaneGap is how much may lie between two messages of a priority that is read together with them.
	maxLaneGap = 32 << 10
	// laneEntryBytes is what a message takes besides its record.
	laneEntryBytes = 32
)

// laneCache keeps messages of queues with priorities, from pages that were read for the sake of higher ones: a page of
// a backlog has messages of all priorities that are mixed in it, and would be read once for each of them. A message
// never changes, and its number is never given to another one, so that an entry is good for as long as the file is the
// store's. It goes when a read takes it. Reads that find nothing here read the pages.
//
// When it is full, the newest is left out: what is here is read before that.
type laneCache struct {
	bytes atomic.Int64 // is changed under mu

	mu     sync.Mutex // guards all below; it may be taken under Store.mu
	file   *page.File // that the messages are from
	queues map[uint64]*laneQueue
}

// laneQueue is what is kept of one queue.
type laneQueue struct {
	lanes [queue.Lanes]laneList
	used  time.Time
}

// laneList is the messages of one priority, in order of sequence.
type laneList struct {
	list []laneEntry // from head on
	head int
	room []byte // for copies
}

type laneEntry struct {
	seq    uint64
	record []byte
}

func (e *laneEntry) bytes() int64 { return int64(len(e.record)) + laneEntryBytes }

// laneCacheBytes is what the cache may hold: what the messages in memory, of so many bytes, leave of their part.
func (s *Store) laneCacheBytes(tailBytes int64) int64 { return max(s.o.MemoryBudget/2-tailBytes, 0) }

// lock returns what is kept of a priority of a queue from a file, which is for the caller until unlock; nil if nothing
// is.
func (c *laneCache) lock(file *page.File, id uint64, lane uint8) *laneList {
	if c.bytes.Load() == 0 {
		return nil
	}
	c.mu.Lock()
	if q := c.queues[id]; q != nil && c.file == file {
		q.used = time.Now()
		return &q.lanes[lane]
	}
	c.mu.Unlock()
	return nil
}

func (c *laneCache) unlock(l *laneList) {
	if l != nil {
		c.mu.Unlock()
	}
}

// peek returns the record of a message, nil if it is not there, and lets go of those before it. The caller holds mu.
func (c *laneCache) peek(l *laneList, seq uint64) []byte {
	for l.head < len(l.list) && l.list[l.head].seq < seq {
		c.pop(l)
	}
	if l.head < len(l.list) && l.list[l.head].seq == seq {
		return l.list[l.head].record
	}
	return nil
}

// pop removes the first message. The caller holds mu.
func (c *laneCache) pop(l *laneList) {
	c.bytes.Add(-l.list[l.head].bytes())
	l.list[l.head] = laneEntry{}
	if l.head++; l.head == len(l.list) {
		l.list, l.head = l.list[:0], 0
	}
	if cap(l.list) > 64 && len(l.list) == 0 {
		l.list, l.room = nil, nil
	}
}

// put adds a copy of a message behind those of its priority, if there is room within limit bytes. It returns false when
// there is none. The caller holds mu.
func (c *laneCache) put(l *laneList, seq uint64, record []byte, limit int64) bool {
	if n := len(l.list); n > l.head && l.list[n-1].seq >= seq {
		return true // it is there, or out of order, and will be read again
	}
	e := laneEntry{seq: seq, record: record}
	if c.bytes.Load()+e.bytes() > limit {
		return false
	}
	if len(l.room) < len(record) {
		l.room = make([]byte, max(len(record), laneChunk))
	}
	n := copy(l.room, record)
	e.record, l.room = l.room[:n:n], l.room[n:]
	l.list = append(l.list, e)
	c.bytes.Add(e.bytes())
	return true
}

// keep puts in what a run that was read for the sake of one priority has of that behind last, and of the lower ones.
func (c *laneCache) keep(file *page.File, e *index.Entry, payload []byte, lane uint8, last uint64, limit int64) {
	rr, err := index.NewRunReader(payload)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.file != file || c.queues == nil {
		c.file, c.queues = file, make(map[uint64]*laneQueue)
		c.bytes.Store(0)
	}
	if c.bytes.Load()+int64(len(payload)) > limit {
		c.forget(now.Add(-laneIdle))
	}
	q := c.queues[e.Queue]
	if q == nil {
		q = &laneQueue{}
		c.queues[e.Queue] = q
	}
	q.used = now
	for {
		seq, record, ok, err := rr.Next()
		if err != nil || !ok {
			return
		}
		of := txn.RecordPriority(record)
		if of > lane || of == lane && seq <= last {
			continue
		}
		if !c.put(&q.lanes[of], seq, record, limit) {
			return
		}
	}
}

// forget lets go of all that no read has asked for since then. The caller holds mu.
func (c *laneCache) forget(since time.Time) {
	for id, q := range c.queues {
		if q.used.After(since) {
			continue
		}
		for i := range q.lanes {
			l := &q.lanes[i]
			for _, e := range l.list[l.head:] {
				c.bytes.Add(-e.bytes())
			}
		}
		delete(c.queues, id)
	}
}

// expire lets go of what seems to be read by nothing any more.
func (c *laneCache) expire() {
	if c.bytes.Load() == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(time.Now().Add(-laneForgotten))
}

// trim lets go of what is more than limit bytes, since messages in memory need the room: of the newest of the lowest
// priorities, which would be read last.
func (c *laneCache) trim(limit int64) {
	if c.bytes.Load() <= limit {
		return // without the lock: nearly always
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for lane := range queue.Lanes {
		for _, q := range c.queues {
			l := &q.lanes[lane]
			for c.bytes.Load() > limit && l.head < len(l.list) {
				last := len(l.list) - 1
				c.bytes.Add(-l.list[last].bytes())
				l.list[last] = laneEntry{}
				l.list = l.list[:last]
			}
		}
	}
}
