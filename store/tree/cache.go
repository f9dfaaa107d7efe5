// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"container/list"
	"sync"

	"github.com/lockstep-mq/lockstep/store/page"
)

// nodeKey identifies the content of a node permanently.
type nodeKey struct {
	first page.No
	born  uint64
}

func keyOf(ext page.Extent) nodeKey { return nodeKey{ext.First, ext.Born} }

type cache struct {
	limit int64

	mu    sync.Mutex // guards the fields below
	bytes int64
	nodes map[nodeKey]*list.Element // values are *cached
	used  list.List
}

type cached struct {
	key   nodeKey
	n     *node
	bytes int64
}

func newCache(limit int64) *cache {
	return &cache{limit: limit, nodes: make(map[nodeKey]*list.Element)}
}

func (c *cache) get(ext page.Extent) (*node, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.nodes[keyOf(ext)]
	if !ok {
		return nil, false
	}
	c.used.MoveToFront(e)
	return e.Value.(*cached).n, true
}

func (c *cache) put(ext page.Extent, n *node) {
	item := &cached{key: keyOf(ext), n: n, bytes: n.memory()}
	if item.bytes > c.limit {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.nodes[item.key]; ok {
		return // a concurrent reader has added it
	}
	c.nodes[item.key] = c.used.PushFront(item)
	c.bytes += item.bytes
	for c.bytes > c.limit {
		c.removeLocked(c.used.Back())
	}
}

func (c *cache) remove(ext page.Extent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.nodes[keyOf(ext)]; ok {
		c.removeLocked(e)
	}
}

func (c *cache) removeLocked(e *list.Element) {
	item := c.used.Remove(e).(*cached)
	delete(c.nodes, item.key)
	c.bytes -= item.bytes
}
