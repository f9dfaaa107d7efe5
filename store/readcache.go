// SPDX-License-Identifier: Apache-2.0

package store

import (
	"sync"

	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/page"
)

const (
	// runCachePart of the memory budget, and at most maxRunCache bytes, are for what subscriptions read from pages.
	runCachePart = 16
	maxRunCache  = 16 << 20
)

// runCache keeps what was read last from the pages of queues with several subscriptions: those that fall behind mostly
// do so together, so that what one reads is read by the others soon. It is read, checked and decoded once.
//
// An entry is good for as long as the index has the very same entry, in the same file: messages never change, so that a
// page that was used again for the same messages of the same queue has the same content.
type runCache struct {
	mu    sync.Mutex // guards all below
	file  *page.File // that the runs are of
	runs  map[page.No]cachedRun
	order []page.No // oldest first
	bytes int
}

type cachedRun struct {
	entry   index.Entry
	payload []byte
}

// get returns the payload of a run, nil if it is not there.
func (c *runCache) get(file *page.File, e *index.Entry) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if have, ok := c.runs[e.Run.First]; ok && c.file == file && have.entry == *e {
		return have.payload
	}
	return nil
}

// put keeps the payload of a run, which must not change any more, and lets go of the oldest ones beyond limit bytes.
func (c *runCache) put(file *page.File, e *index.Entry, payload []byte, limit int) {
	size := int(e.Run.Pages) * file.PageSize()
	if size > limit/4 {
		return // it would drive out what others need
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file != file || c.runs == nil {
		c.file, c.runs, c.order, c.bytes = file, make(map[page.No]cachedRun), nil, 0
	}
	if old, ok := c.runs[e.Run.First]; ok {
		c.bytes -= int(old.entry.Run.Pages) * file.PageSize() // it has its place in the order
	} else {
		c.order = append(c.order, e.Run.First)
	}
	c.runs[e.Run.First] = cachedRun{entry: *e, payload: payload}
	c.bytes += size
	for c.bytes > limit {
		oldest := c.order[0]
		c.order = c.order[1:]
		c.bytes -= int(c.runs[oldest].entry.Run.Pages) * file.PageSize()
		delete(c.runs, oldest)
	}
}

// runCacheBytes is what the cache may hold.
func (s *Store) runCacheBytes() int { return int(min(s.o.MemoryBudget/runCachePart, maxRunCache)) }

// drop forgets a run.
func (c *runCache) drop(e *index.Entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if have, ok := c.runs[e.Run.First]; ok {
		have.payload = nil // its place in the order, and its bytes, stay until its turn comes
		c.runs[e.Run.First] = have
	}
}

// fromCache takes what it can of the first runs of the group. It returns those that must be read: none if it took
// something.
func (r *reading) fromCache(group []index.Entry) (toRead []index.Entry) {
	if !r.shared {
		return group
	}
	for i := range group {
		payload := r.s.runs.get(r.s.file, &group[i])
		if payload != nil && r.takeFrom(&group[i], payload) != nil {
			r.s.runs.drop(&group[i]) // whatever is wrong with it, the file may be repaired
			payload = nil
		}
		switch {
		case r.full, payload == nil && i > 0:
			return nil
		case payload == nil:
			return r.missing(group)
		}
	}
	return nil
}

// missing returns the first of the runs, and those behind it up to the next one that is there.
func (r *reading) missing(group []index.Entry) []index.Entry {
	for n := 1; n < len(group); n++ {
		if r.s.runs.get(r.s.file, &group[n]) != nil {
			return group[:n]
		}
	}
	return group
}
