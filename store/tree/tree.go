// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/lockstep-mq/lockstep/store/page"
)

var (
	// ErrTooLarge is returned if a key is longer than MaxKeyBytes or a value longer than MaxValueBytes.
	ErrTooLarge = errors.New("tree: key or value is too large")
	// ErrEditFinished is returned if an Edit is used after Commit or Discard, or committed after a failed call.
	ErrEditFinished = errors.New("tree: edit has finished")
	// ErrChanged is returned by an Iterator over an Edit that was changed after the iterator was created.
	ErrChanged = errors.New("tree: edit was changed during a scan")
)

// Pager stores nodes; *page.File implements it.
type Pager interface {
	// PageSize in bytes.
	PageSize() int
	// AllocExtents allocates extents of the given numbers of pages, adjacent if possible.
	AllocExtents(pages []uint32) ([]page.Extent, error)
	// Free releases an extent to which the tree no longer refers. Readers of older Views may still read it.
	Free(ext page.Extent)
	// WriteExtents writes adjacent encoded extents (page.AppendExtent).
	WriteExtents(first page.No, buf []byte) error
	// ReadExtent reads and verifies an extent; payload may alias buf.
	ReadExtent(ext page.Extent, buf []byte) (kind page.Kind, payload []byte, err error)
}

// Options of a tree; the zero value selects the defaults.
type Options struct {
	// CacheBytes is the maximum memory of clean nodes; 0 means 16 MiB.
	CacheBytes int64
	// NodeBytes is the node size above which a node is split. 0 means the capacity of one page, or of the pages that
	// make up 4 KiB. It may change between uses of a tree.
	NodeBytes int
}

const (
	defaultCacheBytes = 16 << 20
	defaultNodeBytes  = 4 << 10
	minNodeBytes      = 128
)

// Tree is a copy-on-write B+tree. Views can be taken and read at any time from any goroutine; Edit and Flush exclude
// each other.
type Tree struct {
	pager     Pager
	nodeBytes int
	cache     *cache

	root  atomic.Pointer[childRef] // published root
	dirty atomic.Int64             // memory of the dirty nodes in root

	writer   sync.Mutex    // held by an Edit until it ends, and during Flush; guards the fields below
	edits    uint64        // number of Edits so far
	obsolete []page.Extent // of nodes that root no longer refers to; freed by the next Flush
}

// New returns the tree with the given root extent, as returned by Flush; the zero Extent is the empty tree. Nothing is
// read.
func New(p Pager, root page.Extent, o Options) *Tree {
	if o.CacheBytes == 0 {
		o.CacheBytes = defaultCacheBytes
	}
	if o.NodeBytes == 0 {
		o.NodeBytes = defaultNode(p.PageSize())
	}
	t := &Tree{pager: p, nodeBytes: max(o.NodeBytes, minNodeBytes), cache: newCache(o.CacheBytes)}
	t.root.Store(&childRef{ext: root})
	return t
}

// View returns the last committed version of the tree. The package comment describes the guard needed to use a View
// while Flush is called.
func (t *Tree) View() *View { return &View{reader{t: t, root: *t.root.Load()}} }

// Stats is the memory use of a tree.
type Stats struct {
	// DirtyBytes is the approximate memory of dirty nodes.
	DirtyBytes int64
	// CachedBytes is the approximate memory of cached clean nodes.
	CachedBytes int64
}

// Stats returns the current memory use.
func (t *Tree) Stats() Stats { return Stats{DirtyBytes: t.dirty.Load(), CachedBytes: t.cache.size()} }

// load returns the node of k. level is its expected level, or negative if unknown. keep adds the node to the cache.
func (t *Tree) load(k childRef, level int, keep bool) (*node, error) {
	n := k.n
	if n == nil {
		var ok bool
		if n, ok = t.cache.get(k.ext); !ok {
			var err error
			if n, err = t.read(k.ext); err != nil {
				return nil, err
			}
			if keep {
				t.cache.put(k.ext, n)
			}
		}
	}
	if level >= 0 && int(n.level) != level {
		return nil, &page.CorruptError{
			Page:   k.ext.First,
			Reason: fmt.Sprintf("tree node of level %d, expected %d", n.level, level),
		}
	}
	return n, nil
}

func (t *Tree) read(ext page.Extent) (*node, error) {
	kind, payload, err := t.pager.ReadExtent(ext, nil)
	if err != nil {
		return nil, fmt.Errorf("read tree node: %w", err)
	}
	if kind != page.KindNode {
		return nil, &page.CorruptError{Page: ext.First, Reason: fmt.Sprintf("found %v, expected a tree node", kind)}
	}
	n, err := decodeNode(payload)
	var damage *page.CorruptError
	if errors.As(err, &damage) {
		damage.Page, damage.Offset = ext.First, page.OffsetOf(ext.First, t.pager.PageSize())
	}
	return n, err
}
