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
	// ErrTooLarge means more than MaxKeyBytes or MaxValueBytes.
	ErrTooLarge = errors.New("tree: key or value is too large")
	// ErrEditFinished means use after Commit or Discard, or Commit after a failed call.
	ErrEditFinished = errors.New("tree: edit has finished")
	// ErrChanged is returned by an Iterator over an Edit that was changed.
	ErrChanged = errors.New("tree: edit was changed during a scan")
)

// Pager stores nodes; *page.File implements it.
type Pager interface {
	PageSize() int
	// AllocExtents allocates extents of the given numbers of pages, adjacent if possible.
	AllocExtents(pages []uint32) ([]page.Extent, error)
	// Free releases an extent that only readers of older Views may still read.
	Free(ext page.Extent)
	WriteExtents(first page.No, buf []byte) error
	// ReadExtent reads and verifies an extent; payload may alias buf.
	ReadExtent(ext page.Extent, buf []byte) (kind page.Kind, payload []byte, err error)
}

// Options of a tree. Zero values select the defaults.
type Options struct {
	CacheBytes int64 // maximum memory of clean nodes, by default 16 MiB
	// NodeBytes is the node size above which a node is split. It may change between uses of a tree. The default is the
	// capacity of one page, or of the pages that make up 4 KiB.
	NodeBytes int
}

const (
	defaultCacheBytes = 16 << 20
	defaultNodeBytes  = 4 << 10
	minNodeBytes      = 128
)

// Tree is a copy-on-write B+tree. Views are safe for concurrent use; Edit and Flush exclude each other.
type Tree struct {
	pager     Pager
	nodeBytes int
	cache     *cache

	root atomic.Pointer[childRef]

	writer   sync.Mutex // held by an Edit and by Flush; guards the fields below
	edits    uint64
	obsolete []page.Extent // freed by the next Flush
}

// New returns the tree with the given root from Flush, zero for an empty tree. Nothing is read.
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

// View returns the last committed version. A concurrent Flush requires a guard: see the package comment.
func (t *Tree) View() *View { return &View{reader{t: t, root: *t.root.Load()}} }

// load returns the node of k, which must have the given level unless that is negative. keep adds the node to the cache.
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
