// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"fmt"

	"github.com/lockstep-mq/lockstep/store/page"
)

const writeBytes = 1 << 20

// Flush writes all dirty nodes to new pages and then frees the pages of replaced nodes. It returns the root for the
// Meta of the next checkpoint, which is the zero Extent if the tree is empty. It blocks until a concurrent Edit has
// finished.
//
// The nodes are durable only after the checkpoint. After an error the tree is unchanged and Flush can be retried.
func (t *Tree) Flush() (page.Extent, error) {
	t.writer.Lock()
	defer t.writer.Unlock()
	f := flush{t: t, index: make(map[*node]int)}
	root, err := f.flush(*t.root.Load())
	if err != nil {
		return page.Extent{}, err
	}
	t.root.Store(&root)
	// The new root is stored, so later Views do not refer to these extents.
	for _, ext := range t.obsolete {
		t.free(ext)
	}
	t.obsolete = nil
	return root.ext, nil
}

func (t *Tree) free(ext page.Extent) {
	t.cache.remove(ext)
	t.pager.Free(ext)
}

type flush struct {
	t       *Tree
	nodes   []*node // children before their parents
	index   map[*node]int
	extents []page.Extent
}

// flush writes all dirty nodes at and below root, adds them to the cache, and returns the clean root.
func (f *flush) flush(root childRef) (childRef, error) {
	if root.n == nil {
		return root, nil
	}
	f.collect(root.n)
	if err := f.write(); err != nil {
		return childRef{}, fmt.Errorf("write tree nodes: %w", err)
	}
	f.keep()
	return childRef{ext: f.childExtent(root.n)}, nil
}

func (f *flush) collect(n *node) {
	for _, k := range n.children {
		if k.n != nil {
			f.collect(k.n)
		}
	}
	f.index[n] = len(f.nodes)
	f.nodes = append(f.nodes, n)
}

func (f *flush) childExtent(n *node) page.Extent { return f.extents[f.index[n]] }

// write allocates the extents and writes the nodes. On an error it frees all extents.
func (f *flush) write() error {
	pageSize := f.t.pager.PageSize()
	sizes := make([]uint32, len(f.nodes))
	for i, n := range f.nodes {
		sizes[i] = page.PagesFor(pageSize, n.encodedBytes())
	}
	var err error
	if f.extents, err = f.t.pager.AllocExtents(sizes); err != nil {
		return err
	}
	var buf, payload []byte
	var first, next page.No
	put := func() error {
		if len(buf) == 0 {
			return nil
		}
		err := f.t.pager.WriteExtents(first, buf)
		buf = buf[:0]
		return err
	}
	for i, n := range f.nodes {
		ext := f.extents[i]
		if ext.First != next || len(buf) >= writeBytes {
			if err = put(); err != nil {
				break
			}
			first = ext.First
		}
		payload = n.appendTo(payload[:0], f.childExtent)
		if buf, err = page.AppendExtent(buf, pageSize, ext, page.KindNode, payload); err != nil {
			break
		}
		next = ext.End()
	}
	if err == nil {
		err = put()
	}
	if err != nil {
		for _, ext := range f.extents {
			f.t.pager.Free(ext)
		}
	}
	return err
}

// keep adds the written nodes to the cache, with extents instead of pointers as child references.
func (f *flush) keep() {
	for i, n := range f.nodes {
		clean := *n
		clean.owner = 0
		if n.level > 0 {
			clean.children = make([]childRef, len(n.children))
			for j, k := range n.children {
				if k.n != nil {
					k = childRef{ext: f.childExtent(k.n)}
				}
				clean.children[j] = k
			}
		}
		clean.pack()
		f.t.cache.put(f.extents[i], &clean)
	}
}
