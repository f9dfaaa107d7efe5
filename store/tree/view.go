// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"bytes"

	"github.com/lockstep-mq/lockstep/store/page"
)

type reader struct {
	t       *Tree
	root    childRef
	noCache bool // do not add leaves to the cache
}

// View is an immutable version of the tree. It is safe for concurrent use.
type View struct{ reader }

// Once returns a View of the same version that does not cache leaves, for a single pass over a large part of the tree.
func (v *View) Once() *View { return &View{reader{t: v.t, root: v.root, noCache: true}} }

func (r *reader) load(k childRef, level int) (*node, error) {
	if r.noCache && level == 0 {
		return r.t.load(k, 0, false)
	}
	return r.t.load(k, level, true)
}

// Get returns the value of key, or the error of a page read. ok is false if the key does not exist.
func (r *reader) Get(key []byte) (value []byte, ok bool, err error) {
	if r.root.isZero() {
		return nil, false, nil
	}
	n, err := r.load(r.root, -1)
	for err == nil && n.level > 0 {
		n, err = r.load(n.children[n.childIndex(key)], int(n.level)-1)
	}
	if err != nil {
		return nil, false, err
	}
	if i, found := n.find(key); found {
		return n.vals[i], true, nil
	}
	return nil, false, nil
}

// SeekFloor returns the entry with the greatest key that is not greater than key. ok is false if no such entry exists.
func (r *reader) SeekFloor(key []byte) (k, value []byte, ok bool, err error) {
	if r.root.isZero() {
		return nil, nil, false, nil
	}
	n, err := r.load(r.root, -1)
	if err != nil {
		return nil, nil, false, err
	}
	return r.floor(n, key)
}

func (r *reader) floor(n *node, key []byte) (k, value []byte, ok bool, err error) {
	i := n.floor(key)
	if n.level == 0 {
		if i < 0 {
			return nil, nil, false, nil
		}
		return n.keys[i], n.vals[i], true, nil
	}
	// If the child has only greater keys, the result is the last entry of the previous child.
	for i = max(i, 0); i >= 0; i-- {
		child, err := r.load(n.children[i], int(n.level)-1)
		if err != nil {
			return nil, nil, false, err
		}
		if k, value, ok, err = r.floor(child, key); ok || err != nil {
			return k, value, ok, err
		}
	}
	return nil, nil, false, nil
}

// Scan returns an iterator over the entries with from <= key < to, in ascending order; nil means unbounded. from and to
// must not be modified during the iteration.
func (r *reader) Scan(from, to []byte) *Iterator { return &Iterator{r: *r, from: from, to: to} }

// Iterator iterates over entries:
//
//	for it := view.Scan(from, to); it.Next(); {
//		use(it.Key(), it.Value())
//	}
//	if err := it.Err(); err != nil { … }
type Iterator struct {
	r        reader
	from, to []byte
	path     []step // from the root to the current leaf
	begun    bool
	ended    bool
	floor    bool // begin at the entry with the greatest key <= from
	err      error
	edit     *Edit
	changes  uint64
}

type step struct {
	n *node
	i int
}

// Next advances to the next entry. It returns false at the end and after an error.
func (it *Iterator) Next() bool {
	if it.err != nil || it.ended {
		return false
	}
	if it.edit != nil && it.edit.changes != it.changes {
		it.err = ErrChanged
		return false
	}
	if !it.begun {
		it.begun = true
		it.err = it.begin()
	} else if len(it.path) > 0 {
		it.path[len(it.path)-1].i++
	}
	for it.err == nil && len(it.path) > 0 {
		top := &it.path[len(it.path)-1]
		switch {
		case top.i >= len(top.n.keys):
			it.path = it.path[:len(it.path)-1]
			if len(it.path) > 0 {
				it.path[len(it.path)-1].i++
			}
		case top.n.level > 0:
			it.err = it.descend(top.n.children[top.i], int(top.n.level)-1, false)
		case it.to != nil && bytes.Compare(top.n.keys[top.i], it.to) >= 0:
			it.ended = true // and keep the path for SeekFloor
			return false
		default:
			return true
		}
	}
	return false
}

// SeekFloor restarts the iterator at the entry with the greatest key <= from, or at the first entry if no such entry
// exists. The argument to is as in Scan.
func (it *Iterator) SeekFloor(from, to []byte) {
	it.from, it.to, it.floor, it.begun, it.ended = from, to, true, false, false
}

func (it *Iterator) begin() error {
	if it.r.root.isZero() {
		return nil
	}
	if n := len(it.path); n > 0 && it.floor {
		top := &it.path[n-1]
		if keys := top.n.keys; top.n.level == 0 && bytes.Compare(keys[0], it.from) <= 0 &&
			bytes.Compare(it.from, keys[len(keys)-1]) < 0 {
			top.i = top.n.floor(it.from)
			return nil
		}
	}
	it.path = it.path[:0]
	if err := it.descend(it.r.root, -1, true); err != nil || !it.floor {
		return err
	}
	top := &it.path[len(it.path)-1]
	if i := top.n.floor(it.from); i >= 0 {
		top.i = i
		return nil
	}
	return it.stepBack()
}

// floor returns the position of the greatest key that is not greater than key, or -1.
func (n *node) floor(key []byte) int {
	i, found := n.find(key)
	if !found {
		i--
	}
	return i
}

// stepBack moves from the first entry of a leaf to the previous entry, if any.
func (it *Iterator) stepBack() error {
	for d := len(it.path) - 2; d >= 0; d-- {
		at := &it.path[d]
		if at.i == 0 {
			continue
		}
		at.i--
		it.path = it.path[:d+1]
		for at.n.level > 0 {
			n, err := it.r.load(at.n.children[at.i], int(at.n.level)-1)
			if err != nil {
				return err
			}
			it.path = append(it.path, step{n, len(n.keys) - 1})
			at = &it.path[len(it.path)-1]
		}
		return nil
	}
	return nil
}

// descend extends the path to the first leaf below k or, if seek and from are set, to the position of from in a leaf.
func (it *Iterator) descend(k childRef, level int, seek bool) error {
	for {
		n, err := it.r.load(k, level)
		if err != nil {
			return err
		}
		i := 0
		if seek && it.from != nil {
			if n.level > 0 {
				i = n.childIndex(it.from)
			} else {
				i, _ = n.find(it.from)
			}
		}
		it.path = append(it.path, step{n, i})
		if n.level == 0 {
			return nil
		}
		k, level = n.children[i], int(n.level)-1
	}
}

// Key returns the current key, which must not be modified.
func (it *Iterator) Key() []byte {
	top := it.path[len(it.path)-1]
	return top.n.keys[top.i]
}

// Value returns the current value, which must not be modified.
func (it *Iterator) Value() []byte {
	top := it.path[len(it.path)-1]
	return top.n.vals[top.i]
}

// Err returns the error that ended the iteration, or nil.
func (it *Iterator) Err() error { return it.err }

// WalkExtents calls fn with the extent and the level (0: leaf) of each flushed node, parents first. It reads no leaf
// below the root. It stops at the first error of fn or of a page read, and returns that error.
func (v *View) WalkExtents(fn func(ext page.Extent, level int) error) error {
	if v.root.isZero() {
		return nil
	}
	n, err := v.load(v.root, -1)
	if err != nil {
		return err
	}
	return v.walkExtents(v.root, int(n.level), fn)
}

func (v *View) walkExtents(k childRef, level int, fn func(ext page.Extent, level int) error) error {
	if k.n == nil {
		if err := fn(k.ext, level); err != nil {
			return err
		}
	}
	if level == 0 {
		return nil
	}
	n, err := v.load(k, level)
	if err != nil {
		return err
	}
	for _, child := range n.children {
		if err := v.walkExtents(child, level-1, fn); err != nil {
			return err
		}
	}
	return nil
}

func (n *node) bounds(i int, lo, hi []byte) (from, to []byte) {
	from, to = lo, hi
	if i > 0 { // the first child contains all keys below the second child
		from = n.keys[i]
	}
	if i+1 < len(n.keys) {
		to = n.keys[i+1]
	}
	return from, to
}
