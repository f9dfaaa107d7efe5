// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/lockstep-mq/lockstep/store/page"
)

// ErrOrder is returned by Bulk.Put for keys that are not in ascending order.
var ErrOrder = errors.New("tree: keys are not in ascending order")

// NodeWriter writes the nodes of a Bulk; *page.Builder implements it.
type NodeWriter interface {
	PageSize() int
	// WriteNode writes a node to a new extent. appendTo appends the payload of payloadBytes bytes to dst. A NodeWriter
	// that only measures the size of a tree need not call appendTo.
	WriteNode(payloadBytes int, appendTo func(dst []byte) []byte) (page.Extent, error)
}

// Bulk builds a tree from entries in ascending order. One node per level is in memory. A Bulk is not safe for
// concurrent use.
type Bulk struct {
	w         NodeWriter
	nodeBytes int
	levels    []*bulkLevel // starting with the leaf
	err       error
}

type bulkLevel struct {
	node node
	// arena contains the keys and values of the node; it is reused.
	arena []byte
	// before is the last key of the previous leaf.
	before []byte
	first  bool
}

// NewBulk returns a Bulk that writes a new tree to w. It uses only o.NodeBytes.
func NewBulk(w NodeWriter, o Options) *Bulk {
	if o.NodeBytes == 0 {
		o.NodeBytes = defaultNode(w.PageSize())
	}
	return &Bulk{w: w, nodeBytes: max(o.NodeBytes, minNodeBytes)}
}

func defaultNode(pageSize int) int {
	pages := (defaultNodeBytes + pageSize - 1) / pageSize
	return pages*pageSize - page.ExtentHeaderBytes
}

// Put appends an entry, and copies key and value. It returns ErrOrder, ErrTooLarge or an error of the writer. After an
// error, Put and Finish return the same error.
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
	b.err = b.add(0, key, value, page.Extent{})
	return b.err
}

func (b *Bulk) level(i int) *bulkLevel {
	for len(b.levels) <= i {
		b.levels = append(b.levels, &bulkLevel{node: node{level: uint8(len(b.levels)), last: -2}, first: true})
	}
	return b.levels[i]
}

func (b *Bulk) add(level int, key, value []byte, ext page.Extent) error {
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
		n.children = append(n.children, childRef{ext: ext})
	}
	n.raw += n.entrySize(len(n.keys) - 1)
	return nil
}

func (l *bulkLevel) sizeWith(key, value []byte) int {
	rest := childBytes
	if l.node.level == 0 {
		rest = leafRest(value)
	}
	prefix := len(commonPrefix(l.node.keys[0], key))
	return nodeHeaderBytes + prefix + l.node.raw + entryBytes(key, rest) - prefix*(len(l.node.keys)+1)
}

func (b *Bulk) write(level int) error {
	l := b.levels[level]
	ext, err := b.writeNode(l)
	if err != nil {
		return err
	}
	if err := b.add(level+1, l.separator(), nil, ext); err != nil {
		return err
	}
	l.begin()
	return nil
}

func (b *Bulk) writeNode(l *bulkLevel) (page.Extent, error) {
	ext, err := b.w.WriteNode(l.node.encodedBytes(), func(dst []byte) []byte { return l.node.appendTo(dst, nil) })
	if err != nil {
		return page.Extent{}, fmt.Errorf("write tree node: %w", err)
	}
	return ext, nil
}

func (l *bulkLevel) separator() []byte {
	if l.node.level > 0 || l.first {
		return l.node.keys[0]
	}
	return separator(l.before, l.node.keys[0])
}

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

// Finish writes the remaining nodes and returns the root, which is the zero Extent if the tree is empty. The Bulk must
// not be used afterwards.
func (b *Bulk) Finish() (page.Extent, error) {
	if b.err != nil {
		return page.Extent{}, b.err
	}
	b.err = ErrEditFinished
	for i := 0; i < len(b.levels); i++ {
		l := b.levels[i]
		if i == len(b.levels)-1 {
			if i > 0 && len(l.node.keys) == 1 {
				return l.node.children[0].ext, nil
			}
			return b.writeNode(l)
		}
		if err := b.write(i); err != nil {
			return page.Extent{}, err
		}
	}
	return page.Extent{}, nil
}
