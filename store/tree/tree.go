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
	// ErrTooLarge is returned when a key is longer than MaxKeyBytes or a value longer than MaxValueBytes.
	ErrTooLarge = errors.New("tree: key or value is too large")
	// ErrEditOver is returned when an Edit is used after Commit or Discard, or committed after one of its calls failed.
	ErrEditOver = errors.New("tree: the edit is over")
	// ErrChanged is returned by an Iterator over an Edit that was changed after the iterator was made.
	ErrChanged = errors.New("tree: the edit was changed during a scan")
)

// Pager is where nodes are kept; *page.File is one.
type Pager interface {
	// PageSize in bytes.
	PageSize() int
	// AllocRuns hands out runs of the given numbers of pages, next to each other where possible.
	AllocRuns(pages []uint32) ([]page.Run, error)
	// Free gives back a run that the tree does not refer to any more. Readers of older Views may still read it.
	Free(run page.Run)
	// WriteRuns writes encoded runs (page.AppendRun) that lie next to each other.
	WriteRuns(first page.No, buf []byte) error
	// ReadRun reads and verifies a run; payload may alias buf.
	ReadRun(run page.Run, buf []byte) (kind page.Kind, payload []byte, err error)
}

// Options of a tree; the zero value stands for the defaults.
type Options struct {
	// CacheBytes is how much memory clean nodes may take; 0 stands for 16 MiB.
	CacheBytes int64
	// NodeBytes is how large a node may grow before it is split; 0 stands for what fits in one page, or in as many as
	// make 4 KiB. It may change from one use of a tree to the next.
	NodeBytes int
}

const (
	defaultCacheBytes = 16 << 20
	defaultNodeBytes  = 4 << 10
	minNodeBytes      = 128
)

// Tree is the tree. Views may be taken and read at any time from any goroutine; Edit and Flush wait for each other.
type Tree struct {
	pager     Pager
	nodeBytes int
	cache     *cache

	root  atomic.Pointer[childRef] // what is published
	dirty atomic.Int64             // memory of the dirty nodes in root

	writer   sync.Mutex // held by an Edit until it is over, and during Flush; guards what follows
	edits    uint64     // how many Edits there were
	obsolete []page.Run // of nodes that root does not refer to any more; freed by the next Flush
}

// New returns the tree whose root node is at root, which Flush returned once; the zero Run is the empty tree. Nothing
// is read.
func New(p Pager, root page.Run, o Options) *Tree {
	if o.CacheBytes == 0 {
		o.CacheBytes = defaultCacheBytes
	}
	if o.NodeBytes == 0 {
		o.NodeBytes = defaultNode(p.PageSize())
	}
	t := &Tree{pager: p, nodeBytes: max(o.NodeBytes, minNodeBytes), cache: newCache(o.CacheBytes)}
	t.root.Store(&childRef{run: root})
	return t
}

// View returns the tree as it was last committed. See the package comment about the guard that it takes to use a View
// while Flush is called.
func (t *Tree) View() *View { return &View{reader{t: t, root: *t.root.Load()}} }

// Stats says how much memory the tree takes.
type Stats struct {
	// DirtyBytes is about what the nodes take that Flush would write.
	DirtyBytes int64
	// CachedBytes is about what the clean nodes take that are kept.
	CachedBytes int64
}

// Stats returns the current figures.
func (t *Tree) Stats() Stats { return Stats{DirtyBytes: t.dirty.Load(), CachedBytes: t.cache.size()} }

// load returns the node that k refers to; level is what it must have, or negative if that is not known. keep tells
// whether it is to be kept in the cache.
func (t *Tree) load(k childRef, level int, keep bool) (*node, error) {
	n := k.n
	if n == nil {
		var ok bool
		if n, ok = t.cache.get(k.run); !ok {
			var err error
			if n, err = t.read(k.run); err != nil {
				return nil, err
			}
			if keep {
				t.cache.put(k.run, n)
			}
		}
	}
	if level >= 0 && int(n.level) != level {
		return nil, &page.DamagedError{
			Page:   k.run.First,
			Reason: fmt.Sprintf("tree node of level %d where %d is expected", n.level, level),
		}
	}
	return n, nil
}

func (t *Tree) read(run page.Run) (*node, error) {
	kind, payload, err := t.pager.ReadRun(run, nil)
	if err != nil {
		return nil, fmt.Errorf("read tree node: %w", err)
	}
	if kind != page.KindNode {
		return nil, &page.DamagedError{Page: run.First, Reason: fmt.Sprintf("%v where a tree node is expected", kind)}
	}
	n, err := decodeNode(payload)
	var damage *page.DamagedError
	if errors.As(err, &damage) {
		damage.Page, damage.Offset = run.First, page.OffsetOf(run.First, t.pager.PageSize())
	}
	return n, err
}
