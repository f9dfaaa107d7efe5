// SPDX-License-Identifier: Apache-2.0

package store

import (
	"sync"

	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/page"
)

const (
	extentCachePart = 16
	maxExtentCache  = 16 << 20
)

// extentCache caches recently read extents of queues with several subscriptions.
//
// An entry is valid as long as the index has an equal entry in the same file.
type extentCache struct {
	mu      sync.Mutex // guards the fields below
	file    *page.File // contains the extents
	extents map[page.No]cachedExtent
	order   []page.No // oldest first
	bytes   int
}

type cachedExtent struct {
	entry   index.Entry
	payload []byte
}

func (c *extentCache) get(file *page.File, e *index.Entry) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if have, ok := c.extents[e.Extent.First]; ok && c.file == file && have.entry == *e {
		return have.payload
	}
	return nil
}

// put caches the payload of an extent and evicts the oldest extents beyond limit bytes. It ignores an extent that is
// larger than a quarter of the limit. The payload must not be modified.
func (c *extentCache) put(file *page.File, e *index.Entry, payload []byte, limit int) {
	size := int(e.Extent.Pages) * file.PageSize()
	if size > limit/4 {
		return // it would evict too many other extents
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file != file || c.extents == nil {
		c.file, c.extents, c.order, c.bytes = file, make(map[page.No]cachedExtent), nil, 0
	}
	if old, ok := c.extents[e.Extent.First]; ok {
		c.bytes -= int(old.entry.Extent.Pages) * file.PageSize() // already in the order
	} else {
		c.order = append(c.order, e.Extent.First)
	}
	c.extents[e.Extent.First] = cachedExtent{entry: *e, payload: payload}
	c.bytes += size
	for c.bytes > limit {
		oldest := c.order[0]
		c.order = c.order[1:]
		c.bytes -= int(c.extents[oldest].entry.Extent.Pages) * file.PageSize()
		delete(c.extents, oldest)
	}
}

func (s *Store) extentCacheBytes() int {
	return int(min(s.o.MemoryBudget/extentCachePart, maxExtentCache))
}

func (c *extentCache) drop(e *index.Entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if have, ok := c.extents[e.Extent.First]; ok {
		have.payload = nil // order and bytes include the entry until it is evicted
		c.extents[e.Extent.First] = have
	}
}

// fromCache appends messages from cached extents, up to the first extent that is not cached. It returns the extents
// that the caller must read; nil if the first extent was cached.
func (r *reading) fromCache(group []index.Entry) (toRead []index.Entry) {
	if !r.shared {
		return group
	}
	for i := range group {
		payload := r.s.extents.get(r.file, &group[i])
		if payload != nil && r.takeFrom(&group[i], payload) != nil {
			r.s.extents.drop(&group[i]) // the copy may differ from the file, which may be repaired
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

func (r *reading) missing(group []index.Entry) []index.Entry {
	for n := 1; n < len(group); n++ {
		if r.s.extents.get(r.file, &group[n]) != nil {
			return group[:n]
		}
	}
	return group
}
