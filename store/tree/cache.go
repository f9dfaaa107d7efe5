// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"container/list"
	"sync"

	"github.com/lockstep-mq/lockstep/store/page"
)

// nodeKey identifies the content of a node permanently: pages are reused, but not within one checkpoint.
type nodeKey struct {
	first page.No
	born  uint64
}

func keyOf(run page.Run) nodeKey { return nodeKey{run.First, run.Born} }

// cache is an LRU cache of clean nodes with a byte limit.
type cache struct {
	limit int64

	mu    sync.Mutex // guards the fields below
	bytes int64
	nodes map[nodeKey]*list.Element // values are *cached
	used  list.List                 // most recently used first
}

type cached struct {
	key   nodeKey
	n     *node
	bytes int64
}

func newCache(limit int64) *cache {
	return &cache{limit: limit, nodes: make(map[nodeKey]*list.Element)}
}

func (c *cache) get(run page.Run) (*node, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.nodes[keyOf(run)]
	if !ok {
		return nil, false
	}
	c.used.MoveToFront(e)
	return e.Value.(*cached).n, true
}

func (c *cache) put(run page.Run, n *node) {
	item := &cached{key: keyOf(run), n: n, bytes: n.memory()}
	if item.bytes > c.limit {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.nodes[item.key]; ok {
		return // two readers read it concurrently
	}
	c.nodes[item.key] = c.used.PushFront(item)
	c.bytes += item.bytes
	for c.bytes > c.limit {
		c.removeLocked(c.used.Back())
	}
}

func (c *cache) remove(run page.Run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.nodes[keyOf(run)]; ok {
		c.removeLocked(e)
	}
}

func (c *cache) removeLocked(e *list.Element) {
	item := c.used.Remove(e).(*cached)
	delete(c.nodes, item.key)
	c.bytes -= item.bytes
}

func (c *cache) size() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes
}
