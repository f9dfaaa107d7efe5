// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"bytes"
	"fmt"

	"github.com/lockstep-mq/lockstep/store/page"
)

// Edit is an uncommitted version of the tree. Its reads see its uncommitted changes. It is not safe for concurrent use.
// The methods that change it return the error of a page read or write, and ErrEditFinished after Commit or Discard. An
// error that leaves a change incomplete is returned again by all later changes.
type Edit struct {
	reader
	id       uint64
	over     bool
	err      error // of the first change that is incomplete
	changes  uint64
	obsolete []page.Extent // extents of clean nodes that are not part of this version
	bytes    int64         // approximate memory of the dirty nodes, without those of earlier edits
	spilled  []page.Extent // see spill
	slab     []byte        // unused rest of the current slab for keys and values
}

// slabBytes is the allocation size for keys and values.
const slabBytes = 8 << 10

func (e *Edit) room(n int) []byte {
	if n > slabBytes/8 {
		return make([]byte, 0, n)
	}
	if n > len(e.slab) {
		e.slab = make([]byte, slabBytes)
	}
	b := e.slab[:0:n]
	e.slab = e.slab[n:]
	return b
}

// Edit begins a new version. It blocks until a concurrent Edit or Flush has finished. The caller must call Commit or
// Discard.
func (t *Tree) Edit() *Edit {
	t.writer.Lock()
	t.edits++
	return &Edit{reader: reader{t: t, root: *t.root.Load()}, id: t.edits}
}

// Commit publishes the version, in memory only, to later Views. If an error has left a change incomplete, Commit
// publishes nothing and returns an error that wraps ErrEditFinished and that error.
func (e *Edit) Commit() error {
	if e.over {
		return ErrEditFinished
	}
	defer e.Discard()
	if e.err != nil {
		return fmt.Errorf("%w: a call failed: %w", ErrEditFinished, e.err)
	}
	root := e.root
	e.t.root.Store(&root)
	e.t.obsolete = append(e.t.obsolete, e.obsolete...)
	e.spilled = nil
	return nil
}

// Discard cancels the edit. After Commit it does nothing.
func (e *Edit) Discard() {
	if e.over {
		return
	}
	e.over = true
	for _, ext := range e.spilled {
		e.t.free(ext)
	}
	e.t.writer.Unlock()
}

func (e *Edit) begin() error {
	if e.over {
		return ErrEditFinished
	}
	if e.err != nil {
		return e.err
	}
	e.changes++
	if e.bytes > e.t.cache.limit {
		return e.spill()
	}
	return nil
}

// spill writes all dirty nodes to pages, as Flush does. Discard frees the pages.
func (e *Edit) spill() error {
	f := flush{t: e.t, index: make(map[*node]int)}
	root, err := f.flush(e.root)
	if err != nil {
		return e.failed(err)
	}
	e.root, e.bytes = root, 0
	e.spilled = append(e.spilled, f.extents...)
	return nil
}

// Scan is like View.Scan, but includes the changes of the edit. A later change of the edit ends the iterator with
// ErrChanged.
func (e *Edit) Scan(from, to []byte) *Iterator {
	it := e.reader.Scan(from, to)
	it.edit, it.changes = e, e.changes
	return it
}

// Put sets the value of key. It copies key and value. If one of them is too large, it returns ErrTooLarge and changes
// nothing. Edit documents the other errors.
func (e *Edit) Put(key, value []byte) error {
	if err := e.begin(); err != nil {
		return err
	}
	if len(key) > MaxKeyBytes || len(value) > MaxValueBytes {
		return fmt.Errorf("%w: key of %d bytes, value of %d", ErrTooLarge, len(key), len(value))
	}
	buf := append(append(e.room(len(key)+len(value)), key...), value...)
	key, value = buf[:len(key):len(key)], buf[len(key):]
	if e.root.isZero() {
		e.root = childRef{n: &node{owner: e.id, last: -2}}
	}
	root, err := e.own(&e.root, -1)
	if err != nil {
		return e.failed(err)
	}
	siblings, err := e.put(root, key, value)
	if err != nil {
		return e.failed(err)
	}
	for len(siblings) > 0 {
		above := &node{level: root.level + 1, owner: e.id, last: -2}
		above.insert(0, root.keys[0], nil, childRef{n: root})
		siblings = e.split(above, above.adopt(0, siblings))
		root = above
	}
	e.root = childRef{n: root}
	return nil
}

func (e *Edit) failed(err error) error {
	e.err = err
	return err
}

func (e *Edit) own(k *childRef, level int) (*node, error) {
	n, err := e.load(*k, level)
	if err != nil {
		return nil, err
	}
	if n.owner == e.id {
		return n, nil
	}
	e.retire(*k)
	n = n.clone(e.id)
	e.bytes += n.memory()
	*k = childRef{n: n}
	return n, nil
}

func (e *Edit) retire(k childRef) {
	if k.n == nil {
		e.obsolete = append(e.obsolete, k.ext)
	}
}

// put sets a value below n, which must be owned, and returns the nodes to insert after n.
func (e *Edit) put(n *node, key, value []byte) ([]*node, error) {
	if n.level > 0 {
		i := n.childIndex(key)
		child, err := e.own(&n.children[i], int(n.level)-1)
		if err != nil {
			return nil, err
		}
		if bytes.Compare(key, n.keys[0]) < 0 {
			n.raw += entryBytes(key, 0) - entryBytes(n.keys[0], 0)
			n.keys[0] = key
		}
		siblings, err := e.put(child, key, value)
		if err != nil || len(siblings) == 0 {
			return nil, err
		}
		return e.splitAfter(n, n.adopt(i, siblings)), nil
	}
	i, found := n.find(key)
	if found {
		n.raw += leafRest(value) - leafRest(n.vals[i])
		n.vals[i] = value
		return e.split(n, -1), nil
	}
	n.insert(i, key, value, childRef{})
	return e.splitAfter(n, i), nil
}

func (e *Edit) splitAfter(n *node, pos int) []*node {
	siblings := e.split(n, pos)
	if len(siblings) == 0 {
		n.last = pos
	}
	return siblings
}

func (n *node) adopt(i int, siblings []*node) int {
	left := n.children[i].n
	for _, s := range siblings {
		i++
		key := s.keys[0] // in an inner node, the key that separated two of its children
		if s.level == 0 {
			key = separator(left.keys[len(left.keys)-1], key)
		}
		n.insert(i, key, nil, childRef{n: s})
		left = s
	}
	return i
}

// split divides n if it is too large, and returns the nodes to insert after n. pos is the position of an inserted
// entry, or -1.
func (e *Edit) split(n *node, pos int) []*node {
	if n.size() <= e.t.nodeBytes || len(n.keys) < 2 || (n.level > 0 && len(n.keys) < 4) {
		return nil
	}
	at := n.splitPoint(pos)
	right := n.cut(at)
	e.bytes += right.memory()
	siblings := append(e.split(n, -1), right)
	return append(siblings, e.split(right, -1)...)
}

// splitPoint returns the position of the first entry of the second part. If the new entry is the last one, or
// directly follows the previously inserted entry, the first part stays full. Otherwise, the parts have about equal
// size.
func (n *node) splitPoint(pos int) int {
	least := 1
	if n.level > 0 {
		least = 2
	}
	count := len(n.keys)
	if pos == count-1 {
		return count - least
	}
	if pos > 0 && pos == n.last+1 && pos+1 >= least && count-pos-1 >= least {
		return pos + 1
	}
	best, bestSize, left := least, n.raw, 0
	for i := range count - least {
		left += n.entrySize(i)
		if larger := max(left, n.raw-left); i+1 >= least && larger < bestSize {
			best, bestSize = i+1, larger
		}
	}
	return best
}

// Delete removes a key and reports whether it existed. Edit documents the errors.
func (e *Edit) Delete(key []byte) (bool, error) {
	if err := e.begin(); err != nil {
		return false, err
	}
	_, found, err := e.Get(key)
	if err != nil || !found {
		return false, err
	}
	root, err := e.own(&e.root, -1)
	if err == nil {
		err = e.remove(root, key)
	}
	if err == nil {
		err = e.shrinkRoot(root)
	}
	if err != nil {
		return false, e.failed(err)
	}
	return true, nil
}

// remove removes a key below n, which must be owned and may be empty afterwards.
func (e *Edit) remove(n *node, key []byte) error {
	if n.level == 0 {
		if i, found := n.find(key); found {
			n.remove(i, i+1)
		}
		return nil
	}
	i := n.childIndex(key)
	child, err := e.own(&n.children[i], int(n.level)-1)
	if err != nil {
		return err
	}
	if err := e.remove(child, key); err != nil {
		return err
	}
	e.rebalance(n, i)
	return nil
}

// DeleteRange removes the keys with from <= key < to; nil means unbounded. It does not read leaves that are entirely
// inside the range. Edit documents the errors.
func (e *Edit) DeleteRange(from, to []byte) error {
	if err := e.begin(); err != nil {
		return err
	}
	if e.root.isZero() || (from != nil && to != nil && bytes.Compare(from, to) >= 0) {
		return nil
	}
	root, err := e.own(&e.root, -1)
	if err == nil {
		err = e.removeRange(root, from, to, nil, nil)
	}
	if err == nil {
		err = e.shrinkRoot(root)
	}
	if err != nil {
		return e.failed(err)
	}
	return nil
}

// removeRange removes keys below n, which must be owned and covers [lo, hi). n may be empty afterwards.
func (e *Edit) removeRange(n *node, from, to, lo, hi []byte) error {
	first, last := 0, len(n.keys)
	if from != nil {
		first, _ = n.find(from)
	}
	if to != nil {
		last, _ = n.find(to)
	}
	if n.level == 0 {
		n.remove(first, last)
		return nil
	}
	if from != nil {
		first = n.childIndex(from)
	}
	for i := max(last, 1) - 1; i >= first; i-- {
		childLo, childHi := n.bounds(i, lo, hi)
		if covers(from, to, childLo, childHi) {
			if err := e.drop(n.children[i], int(n.level)-1); err != nil {
				return err
			}
			n.remove(i, i+1)
			continue
		}
		child, err := e.own(&n.children[i], int(n.level)-1)
		if err != nil {
			return err
		}
		if err := e.removeRange(child, from, to, childLo, childHi); err != nil {
			return err
		}
		if len(child.keys) == 0 {
			n.remove(i, i+1)
		}
	}
	// The remainders at the two bounds are now neighbors.
	e.rebalance(n, first+1)
	e.rebalance(n, first)
	return nil
}

func covers(from, to, lo, hi []byte) bool {
	return (from == nil || (lo != nil && bytes.Compare(from, lo) <= 0)) &&
		(to == nil || (hi != nil && bytes.Compare(hi, to) <= 0))
}

func (e *Edit) drop(k childRef, level int) error {
	if level > 0 {
		n, err := e.load(k, level)
		if err != nil {
			return err
		}
		for _, child := range n.children {
			if err := e.drop(child, level-1); err != nil {
				return err
			}
		}
	}
	e.retire(k)
	return nil
}

// rebalance removes child i of n if it is empty, or merges it with a neighbor if it is small and merge permits it. It
// does nothing unless the edit owns child i.
func (e *Edit) rebalance(n *node, i int) {
	if i >= len(n.children) || n.children[i].n == nil || n.children[i].n.owner != e.id {
		return
	}
	child := n.children[i].n
	if len(child.keys) == 0 {
		n.remove(i, i+1)
		return
	}
	if child.size() >= e.t.nodeBytes/4 {
		return
	}
	for _, left := range []int{i, i - 1} {
		if left >= 0 && left+1 < len(n.children) && e.merge(n, left) {
			return
		}
	}
}

// merge merges the children left and left+1 of n and returns true. It changes nothing and returns false if the result
// would be nearly full, or if one of the children cannot be read.
func (e *Edit) merge(n *node, left int) bool {
	level := int(n.level) - 1
	a, err := e.load(n.children[left], level)
	if err != nil {
		return false
	}
	b, err := e.load(n.children[left+1], level)
	if err != nil {
		return false
	}
	prefix := len(commonPrefix(a.keys[0], b.keys[len(b.keys)-1]))
	raw := a.raw + b.raw
	if nodeHeaderBytes+prefix+raw-prefix*(len(a.keys)+len(b.keys)) > e.t.nodeBytes*3/4 {
		return false
	}
	if a, err = e.own(&n.children[left], level); err != nil {
		return false
	}
	e.retire(n.children[left+1])
	for i, key := range b.keys {
		if level == 0 {
			a.insert(len(a.keys), key, b.vals[i], childRef{})
		} else {
			a.insert(len(a.keys), key, nil, b.children[i])
		}
	}
	a.last = -2
	n.remove(left+1, left+2)
	return true
}

func (e *Edit) shrinkRoot(root *node) error {
	for root.level > 0 && len(root.children) == 1 {
		k := root.children[0]
		n, err := e.load(k, int(root.level)-1)
		if err != nil {
			return err
		}
		e.root, root = k, n
	}
	if len(root.keys) == 0 {
		e.root = childRef{}
	}
	return nil
}
