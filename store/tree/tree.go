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
	// ErrTooLarge is returned for a key above MaxKeyBytes or a value above MaxValueBytes.
	ErrTooLarge = errors.New("tree: key or value is too large")
	// ErrEditFinished is returned for a change or Commit of an Edit after Commit or Discard, by Commit after an
	// incomplete change, and for use of a Bulk after Finish.
	ErrEditFinished = errors.New("tree: edit is finished")
	// ErrChanged is returned by Iterator.Err if the Edit that created the Iterator was changed during the iteration.
	ErrChanged = errors.New("tree: edit was changed during a scan")
)

// Pager stores nodes; *page.File implements it.
type Pager interface {
	PageSize() int
	// AllocExtents allocates an extent for each number of pages. The extents are adjacent if possible.
	AllocExtents(pages []uint32) ([]page.Extent, error)
	// Free releases an extent that only readers of older Views may still read.
	Free(ext page.Extent)
	WriteExtents(first page.No, buf []byte) error
	// ReadExtent reads and verifies an extent; payload may alias buf.
	ReadExtent(ext page.Extent, buf []byte) (kind page.Kind, payload []byte, err error)
}

// Options configures a tree. The zero value of a field selects its default.
type Options struct {
	CacheBytes int64 // maximum memory of clean nodes, by default 16 MiB
	// NodeBytes is the size above which a node is split; the minimum is 128. It may differ each time a tree is opened.
	// The default is the payload capacity of one page, or of 4 KiB of pages if a page is smaller.
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

// New returns the tree with the given root, which Flush or Bulk.Finish returned. The zero Extent is an empty tree. New
// reads no pages.
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

// View returns the last committed version. If Flush may run concurrently, a guard is required (see the package
// comment).
func (t *Tree) View() *View { return &View{reader{t: t, root: *t.root.Load()}} }

// load returns the node of k. If level is not negative and the node has another level, load returns an error. If keep
// is set, load adds the node to the cache.
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
