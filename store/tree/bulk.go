// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/lockstep-mq/lockstep/store/page"
)

// ErrOrder is returned when a Bulk is given keys that do not rise.
var ErrOrder = errors.New("tree: keys must rise")

// NodeWriter takes the nodes of a tree that is built from its first key to its last; *page.Builder is one.
type NodeWriter interface {
	// PageSize in bytes.
	PageSize() int
	// WriteNode gives a node a run of its own. appendTo appends its payload, payloadBytes long, to dst; who only wants
	// to know how large a tree would become need not call it.
	WriteNode(payloadBytes int, appendTo func(dst []byte) []byte) (page.Run, error)
}

// Bulk builds a tree from entries in rising order. Nodes are full, and each is written as soon as it is: memory holds
// one node for each level. It is for one goroutine.
type Bulk struct {
	w         NodeWriter
	nodeBytes int
	levels    []*bulkLevel // the leaf first
	err       error
}

// bulkLevel is the node of a level that is being filled.
type bulkLevel struct {
	node node
	// arena holds the keys and values of the node; it is used again for the next one.
	arena []byte
	// before is the last key of the leaf before this one; nil for the first.
	before []byte
	first  bool
}

// NewBulk begins a tree. Of the options NodeBytes counts.
func NewBulk(w NodeWriter, o Options) *Bulk {
	if o.NodeBytes == 0 {
		o.NodeBytes = defaultNode(w.PageSize())
	}
	return &Bulk{w: w, nodeBytes: max(o.NodeBytes, minNodeBytes)}
}

// defaultNode is how large a node becomes when nothing else is asked for.
func defaultNode(pageSize int) int {
	pages := (defaultNodeBytes + pageSize - 1) / pageSize
	return pages*pageSize - page.RunHeaderBytes
}

// Put adds an entry behind all others. Both are copied. It returns ErrOrder, ErrTooLarge, or what the writer says; then
// the tree cannot be finished.
func (b *Bulk) Put(key, value []byte) error {
	if b.err != nil {
		return b.err
	}
	if len(key) > MaxKeyBytes || len(value) > MaxValueBytes {
		b.err = fmt.Errorf("%w: key of %d bytes, value of %d", ErrTooLarge, len(key), len(value))
		return b.err
	}
	leaf := b.level(0)
	if n := len(leaf.node.keys); n > 0 && bytes.Compare(leaf.node.keys[n-1], key) >= 0 ||
		n == 0 && leaf.before != nil && bytes.Compare(leaf.before, key) >= 0 {
		b.err = fmt.Errorf("%w: %x", ErrOrder, key)
		return b.err
	}
	b.err = b.add(0, key, value, page.Run{})
	return b.err
}

func (b *Bulk) level(i int) *bulkLevel {
	for len(b.levels) <= i {
		b.levels = append(b.levels, &bulkLevel{node: node{level: uint8(len(b.levels)), last: -2}, first: true})
	}
	return b.levels[i]
}

// add puts an entry into the node of a level, after it wrote that node if there is no room.
func (b *Bulk) add(level int, key, value []byte, run page.Run) error {
	l := b.level(level)
	if len(l.node.keys) > 0 && l.sizeWith(key, value) > b.nodeBytes && (level == 0 || len(l.node.keys) > 1) {
		if err := b.write(level); err != nil {
			return err
		}
	}
	n, start := &l.node, len(l.arena)
	l.arena = append(append(l.arena, key...), value...)
	mid, end := start+len(key), len(l.arena)
	n.keys = append(n.keys, l.arena[start:mid:mid])
	if level == 0 {
		n.vals = append(n.vals, l.arena[mid:end:end])
	} else {
		n.children = append(n.children, childRef{run: run})
	}
	n.raw += n.entrySize(len(n.keys) - 1)
	return nil
}

// sizeWith is the node's size if an entry were added at its end.
func (l *bulkLevel) sizeWith(key, value []byte) int {
	rest := childBytes
	if l.node.level == 0 {
		rest = leafRest(value)
	}
	prefix := len(commonPrefix(l.node.keys[0], key))
	return nodeHeaderBytes + prefix + l.node.raw + entryBytes(key, rest) - prefix*(len(l.node.keys)+1)
}

// write gives the node of a level its run and tells the level above.
func (b *Bulk) write(level int) error {
	l := b.levels[level]
	run, err := b.writeNode(l)
	if err != nil {
		return err
	}
	if err := b.add(level+1, l.separator(), nil, run); err != nil {
		return err
	}
	l.begin()
	return nil
}

func (b *Bulk) writeNode(l *bulkLevel) (page.Run, error) {
	run, err := b.w.WriteNode(l.node.encodedBytes(), func(dst []byte) []byte { return l.node.appendTo(dst, nil) })
	if err != nil {
		return page.Run{}, fmt.Errorf("write tree node: %w", err)
	}
	return run, nil
}

// separator is the key that the level above knows the node under.
func (l *bulkLevel) separator() []byte {
	if l.node.level > 0 || l.first {
		return l.node.keys[0]
	}
	return separator(l.before, l.node.keys[0])
}

// begin empties the node for what comes behind it.
func (l *bulkLevel) begin() {
	if l.node.level == 0 {
		l.before = append(l.before[:0], l.node.keys[len(l.node.keys)-1]...)
	}
	l.node = node{
		level: l.node.level, last: -2, keys: l.node.keys[:0], vals: l.node.vals[:0], children: l.node.children[:0],
	}
	if l.arena = l.arena[:0]; cap(l.arena) > 2*MaxValueBytes {
		l.arena = nil
	}
	l.first = false
}

// Finish writes what is left and returns the root; the zero Run if there was no entry.
func (b *Bulk) Finish() (page.Run, error) {
	if b.err != nil {
		return page.Run{}, b.err
	}
	b.err = ErrEditOver
	for i := 0; i < len(b.levels); i++ {
		l := b.levels[i]
		if i == len(b.levels)-1 {
			if i > 0 && len(l.node.keys) == 1 { // a level with one child is none
				return l.node.children[0].run, nil
			}
			return b.writeNode(l)
		}
		if err := b.write(i); err != nil {
			return page.Run{}, err
		}
	}
	return page.Run{}, nil
}
