// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"fmt"

	"github.com/lockstep-mq/lockstep/store/page"
)

// writeBytes is how much is collected for one write.
const writeBytes = 1 << 20

// Flush writes all dirty nodes to new pages, and then frees the pages of nodes that are no longer part of the tree. It
// returns the run of the root, for the next checkpoint's Meta; the zero Run if the tree is empty. It waits for an Edit
// to end.
//
// Nothing is durable before the checkpoint. After an error the tree is as it was before: Flush can be called again.
// Each node that was written stays in the cache as far as that allows.
func (t *Tree) Flush() (page.Run, error) {
	t.writer.Lock()
	defer t.writer.Unlock()
	root := *t.root.Load()
	if root.n != nil {
		f := flush{t: t, index: make(map[*node]int)}
		f.collect(root.n)
		if err := f.write(); err != nil {
			return page.Run{}, fmt.Errorf("write tree nodes: %w", err)
		}
		root = childRef{run: f.runs[f.index[root.n]]}
		f.keep()
		t.root.Store(&root)
		t.dirty.Store(0)
	}
	// Only now: who takes a View from here on does not find these runs any more.
	for _, run := range t.obsolete {
		t.cache.remove(run)
		t.pager.Free(run)
	}
	t.obsolete = nil
	return root.run, nil
}

// flush is the writing of the dirty nodes.
type flush struct {
	t     *Tree
	nodes []*node // children before their parents
	index map[*node]int
	runs  []page.Run
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

func (f *flush) childRun(n *node) page.Run { return f.runs[f.index[n]] }

// write gives each node a run and writes it. On an error no run is left allocated.
func (f *flush) write() error {
	pageSize := f.t.pager.PageSize()
	sizes := make([]uint32, len(f.nodes))
	for i, n := range f.nodes {
		sizes[i] = page.PagesFor(pageSize, n.encodedBytes())
	}
	var err error
	if f.runs, err = f.t.pager.AllocRuns(sizes); err != nil {
		return err
	}
	var buf, payload []byte
	var first, next page.No
	put := func() error {
		if len(buf) == 0 {
			return nil
		}
		err := f.t.pager.WriteRuns(first, buf)
		buf = buf[:0]
		return err
	}
	for i, n := range f.nodes {
		run := f.runs[i]
		if run.First != next || len(buf) >= writeBytes {
			if err = put(); err != nil {
				break
			}
			first = run.First
		}
		payload = n.appendTo(payload[:0], f.childRun)
		if buf, err = page.AppendRun(buf, pageSize, run, page.KindNode, payload); err != nil {
			break
		}
		next = run.End()
	}
	if err == nil {
		err = put()
	}
	if err != nil {
		for _, run := range f.runs {
			f.t.pager.Free(run)
		}
	}
	return err
}

// keep puts the nodes into the cache, with references to runs in the place of those to nodes.
func (f *flush) keep() {
	for i, n := range f.nodes {
		clean := *n
		clean.owner = 0
		if n.level > 0 {
			clean.children = make([]childRef, len(n.children))
			for j, k := range n.children {
				if k.n != nil {
					k = childRef{run: f.childRun(k.n)}
				}
				clean.children[j] = k
			}
		}
		clean.pack()
		f.t.cache.put(f.runs[i], &clean)
	}
}
