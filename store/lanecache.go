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
	// laneIdle is the time since the last read of a queue after which its cached messages may be evicted to free space.
	laneIdle = 10 * time.Second
	// laneExpiry is the time since the last read of a queue after which its cached messages are evicted even if the cache
	// is not full.
	laneExpiry = time.Minute
	// maxLaneGap is the maximum size, in bytes, of adjacent unwanted extents that one read may include.
	maxLaneGap = 32 << 10
	// laneEntryBytes is the memory used by an entry in addition to its record.
	laneEntryBytes = 32
)

// laneCache caches messages of queues with priorities. When an extent is read for messages of one priority, the cache
// stores the extent's further messages of this priority and of lower priorities. An entry is valid while the store
// uses the page file. Consumed entries are removed. A full cache first evicts the messages of idle queues (laneIdle).
// If that does not suffice, it accepts no new messages.
type laneCache struct {
	bytes atomic.Int64 // changed under mu

	mu     sync.Mutex // guards the fields below; it may be taken under Store.mu
	file   *page.File // file from which the messages were read
	queues map[uint64]*laneQueue
}

type laneQueue struct {
	lanes [queue.PriorityLevels]laneList
	used  time.Time
}

type laneList struct {
	list []laneEntry // valid from head
	head int
	room copyBuffer
}

type laneEntry struct {
	seq    uint64
	record []byte
}

func (e *laneEntry) bytes() int64 { return int64(len(e.record)) + laneEntryBytes }

// laneCacheBytes returns the limit of the cache: half of the memory budget, minus tailBytes, which is the size of the
// messages in memory.
func (s *Store) laneCacheBytes(tailBytes int64) int64 { return max(s.o.MemoryBudget/2-tailBytes, 0) }

// lock locks the cache and returns the cached messages of one priority of a queue. If the queue has no entry, it
// returns nil and leaves the cache unlocked.
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

// peek removes entries with sequences below seq. It returns the record of message seq, or nil if the message is not
// cached. mu must be held.
func (c *laneCache) peek(l *laneList, seq uint64) []byte {
	for l.head < len(l.list) && l.list[l.head].seq < seq {
		c.pop(l)
	}
	if l.head < len(l.list) && l.list[l.head].seq == seq {
		return l.list[l.head].record
	}
	return nil
}

// pop removes the first message. mu must be held.
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

// put appends a copy of a message, unless l already contains this or a later sequence. If the cache would then exceed
// limit bytes, put appends nothing and returns false. mu must be held.
func (c *laneCache) put(l *laneList, seq uint64, record []byte, limit int64) bool {
	if n := len(l.list); n > l.head && l.list[n-1].seq >= seq {
		return true // already cached, or out of order: it will be read from pages
	}
	e := laneEntry{seq: seq, record: record}
	if c.bytes.Load()+e.bytes() > limit {
		return false
	}
	e.record = l.room.copy(record)
	l.list = append(l.list, e)
	c.bytes.Add(e.bytes())
	return true
}

// keep caches messages of an extent that was read for one priority: the messages of that priority after sequence
// last, and the messages of lower priorities. It stops when the cache would exceed limit bytes.
func (c *laneCache) keep(file *page.File, e *index.Entry, payload []byte, lane uint8, last uint64, limit int64) {
	rr, err := index.NewExtentReader(payload)
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
		c.evictUnused(now.Add(-laneIdle))
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

// evictUnused evicts all messages of queues that were not read since the given time. mu must be held.
func (c *laneCache) evictUnused(since time.Time) {
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

func (c *laneCache) expire() {
	if c.bytes.Load() == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.evictUnused(time.Now().Add(-laneExpiry))
}

// trim evicts messages in excess of limit bytes, starting with the lowest priority, and the newest messages first in
// each queue.
func (c *laneCache) trim(limit int64) {
	if c.bytes.Load() <= limit {
		return // the usual case, without the lock
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for lane := range queue.PriorityLevels {
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
