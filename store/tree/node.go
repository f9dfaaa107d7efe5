// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/lockstep-mq/lockstep/store/page"
)

// Limits of keys and values.
const (
	MaxKeyBytes   = 1024
	MaxValueBytes = 1 << 20

	maxLevel = 64
)

// Format of the payload of a node. Keys are in strictly ascending order.
//
//	0  level u8       0: leaf
//	1  reserved u8    0
//	2  prefix u16     length of the common prefix of all keys
//	4  count u32      entries
//	8  prefix
//	   entries of a leaf:      key length uvarint, key, value length uvarint, value
//	   entries of other nodes: key length uvarint, key, child: page u64, checkpoint u64, pages u32
//
// Keys are stored without the prefix. The key of a child is not greater than any key below it, and greater than any
// key below the previous child. Keys less than the first child's key belong to the first child.
const (
	nodeHeaderBytes = 8
	childBytes      = 20
)

// childRef refers to a child by its extent or, while the child is dirty, by pointer.
type childRef struct {
	ext page.Extent
	n   *node
}

func (k childRef) isZero() bool { return k.n == nil && k.ext.IsZero() }

// node is immutable after it is published.
type node struct {
	level    uint8
	owner    uint64
	keys     [][]byte
	vals     [][]byte   // leaves only
	children []childRef // inner nodes only
	raw      int        // bytes of all entries, with whole keys
	last     int        // position of the last insertion (splitPoint); -2: unknown
}

func entryBytes(key []byte, rest int) int { return uvarintLen(len(key)) + len(key) + rest }

func leafRest(val []byte) int { return uvarintLen(len(val)) + len(val) }

func (n *node) entrySize(i int) int {
	if n.level == 0 {
		return entryBytes(n.keys[i], leafRest(n.vals[i]))
	}
	return entryBytes(n.keys[i], childBytes)
}

// size returns the encoded size of n, or slightly more.
func (n *node) size() int {
	if len(n.keys) == 0 {
		return nodeHeaderBytes
	}
	prefix := len(commonPrefix(n.keys[0], n.keys[len(n.keys)-1]))
	return nodeHeaderBytes + prefix + n.raw - prefix*len(n.keys)
}

func (n *node) memory() int64 {
	return int64(n.raw + (cap(n.keys)+cap(n.vals))*24 + cap(n.children)*32 + 160)
}

// pack copies the keys and values into one buffer.
func (n *node) pack() {
	size := 0
	for i, key := range n.keys {
		size += len(key)
		if n.level == 0 {
			size += len(n.vals[i])
		}
	}
	buf := make([]byte, 0, size)
	own := func(list [][]byte) [][]byte {
		packed := make([][]byte, len(list))
		for i, b := range list {
			start := len(buf)
			buf = append(buf, b...)
			packed[i] = buf[start:len(buf):len(buf)]
		}
		return packed
	}
	n.keys = own(n.keys)
	if n.level == 0 {
		n.vals = own(n.vals)
	}
}

func (n *node) find(key []byte) (int, bool) {
	return slices.BinarySearchFunc(n.keys, key, bytes.Compare)
}

func (n *node) childIndex(key []byte) int {
	i, found := n.find(key)
	if !found && i > 0 {
		i--
	}
	return i
}

// clone returns a copy that owner may change.
func (n *node) clone(owner uint64) *node {
	c := &node{level: n.level, owner: owner, raw: n.raw, last: n.last}
	c.keys = append(make([][]byte, 0, len(n.keys)+4), n.keys...)
	if n.level == 0 {
		c.vals = append(make([][]byte, 0, len(n.vals)+4), n.vals...)
	} else {
		c.children = append(make([]childRef, 0, len(n.children)+4), n.children...)
	}
	return c
}

func (n *node) insert(i int, key, val []byte, k childRef) {
	n.keys = slices.Insert(n.keys, i, key)
	if n.level == 0 {
		n.vals = slices.Insert(n.vals, i, val)
	} else {
		n.children = slices.Insert(n.children, i, k)
	}
	n.raw += n.entrySize(i)
}

func (n *node) remove(i, j int) {
	for x := i; x < j; x++ {
		n.raw -= n.entrySize(x)
	}
	n.keys = slices.Delete(n.keys, i, j)
	if n.level == 0 {
		n.vals = slices.Delete(n.vals, i, j)
	} else {
		n.children = slices.Delete(n.children, i, j)
	}
	n.last = -2
}

func (n *node) cut(at int) *node {
	right := &node{level: n.level, owner: n.owner, last: n.last - at}
	right.keys = slices.Clone(n.keys[at:])
	if n.level == 0 {
		right.vals = slices.Clone(n.vals[at:])
	} else {
		right.children = slices.Clone(n.children[at:])
	}
	for i := range right.keys {
		right.raw += right.entrySize(i)
	}
	last := n.last
	n.remove(at, len(n.keys))
	n.last = last
	return right
}

func (n *node) encodedBytes() int {
	if len(n.keys) == 0 {
		return nodeHeaderBytes
	}
	prefix := len(commonPrefix(n.keys[0], n.keys[len(n.keys)-1]))
	size := nodeHeaderBytes + prefix
	for i, key := range n.keys {
		if n.level == 0 {
			size += entryBytes(key[prefix:], leafRest(n.vals[i]))
		} else {
			size += entryBytes(key[prefix:], childBytes)
		}
	}
	return size
}

// appendTo appends the encoded node to dst. childExtent returns the extent of a child that is referenced by pointer.
func (n *node) appendTo(dst []byte, childExtent func(*node) page.Extent) []byte {
	var prefix []byte
	if len(n.keys) > 0 {
		prefix = commonPrefix(n.keys[0], n.keys[len(n.keys)-1])
	}
	dst = append(dst, n.level, 0)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(prefix)))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(n.keys)))
	dst = append(dst, prefix...)
	for i, key := range n.keys {
		dst = binary.AppendUvarint(dst, uint64(len(key)-len(prefix)))
		dst = append(dst, key[len(prefix):]...)
		if n.level == 0 {
			dst = binary.AppendUvarint(dst, uint64(len(n.vals[i])))
			dst = append(dst, n.vals[i]...)
			continue
		}
		ext := n.children[i].ext
		if n.children[i].n != nil {
			ext = childExtent(n.children[i].n)
		}
		dst = binary.LittleEndian.AppendUint64(dst, uint64(ext.First))
		dst = binary.LittleEndian.AppendUint64(dst, ext.Born)
		dst = binary.LittleEndian.AppendUint32(dst, ext.Pages)
	}
	return dst
}

// decodeNode decodes the payload b of a node. The node aliases b. The error is a page.CorruptError without a
// position.
func decodeNode(b []byte) (*node, error) {
	damaged := func(format string, args ...any) (*node, error) {
		return nil, &page.CorruptError{Reason: "tree node: " + fmt.Sprintf(format, args...)}
	}
	if len(b) < nodeHeaderBytes || b[0] > maxLevel || b[1] != 0 {
		return damaged("missing header")
	}
	prefixLen, count := int(binary.LittleEndian.Uint16(b[2:])), int(binary.LittleEndian.Uint32(b[4:]))
	rest := b[nodeHeaderBytes:]
	if prefixLen > len(rest) || prefixLen > MaxKeyBytes {
		return damaged("prefix of %d bytes", prefixLen)
	}
	prefix, rest := rest[:prefixLen], rest[prefixLen:]
	if count == 0 || count > len(rest)/2 { // an entry has at least two bytes
		return damaged("%d entries in %d bytes", count, len(rest))
	}
	n := &node{level: b[0], last: -2}
	if n.level == 0 {
		lists := make([][]byte, 2*count)
		n.keys, n.vals = lists[:0:count], lists[count:count]
	} else {
		n.keys, n.children = make([][]byte, 0, count), make([]childRef, 0, count)
	}
	var whole []byte // keys with their prefix, if any
	if prefixLen > 0 {
		whole = make([]byte, 0, count*(prefixLen+8))
	}
	var before []byte
	for i := range count {
		suffix, after, ok := field(rest, MaxKeyBytes-prefixLen)
		if !ok {
			return damaged("entry %d: key", i)
		}
		if i > 0 && bytes.Compare(before, suffix) >= 0 { // the prefix is the same
			return damaged("entry %d: keys not in ascending order", i)
		}
		before = suffix
		key := suffix
		if prefixLen > 0 {
			start := len(whole)
			whole = append(append(whole, prefix...), suffix...)
			key = whole[start:len(whole):len(whole)]
		}
		n.keys = append(n.keys, key)
		if rest, ok = n.decodeRest(after); !ok {
			return damaged("entry %d: value or child", i)
		}
		n.raw += n.entrySize(i)
	}
	if len(rest) != 0 {
		return damaged("%d trailing bytes", len(rest))
	}
	return n, nil
}

func (n *node) decodeRest(b []byte) (rest []byte, ok bool) {
	if n.level == 0 {
		val, rest, ok := field(b, MaxValueBytes)
		n.vals = append(n.vals, val)
		return rest, ok
	}
	if len(b) < childBytes {
		return nil, false
	}
	ext := page.Extent{
		First: page.No(binary.LittleEndian.Uint64(b)),
		Born:  binary.LittleEndian.Uint64(b[8:]),
		Pages: binary.LittleEndian.Uint32(b[16:]),
	}
	n.children = append(n.children, childRef{ext: ext})
	return b[childBytes:], ext.First != 0 && ext.Pages != 0
}

func field(b []byte, limit int) (val, rest []byte, ok bool) {
	if len(b) > 0 && b[0] < 0x80 && int(b[0]) <= limit && int(b[0]) < len(b) { // the usual case
		end := 1 + int(b[0])
		return b[1:end:end], b[end:], true
	}
	size, n := binary.Uvarint(b)
	if n <= 0 || size > uint64(limit) || size > uint64(len(b)-n) {
		return nil, nil, false
	}
	end := n + int(size)
	return b[n:end:end], b[end:], true
}

func uvarintLen(v int) int {
	n := 1
	for ; v >= 0x80; v >>= 7 {
		n++
	}
	return n
}

func commonPrefix(a, b []byte) []byte {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return a[:i]
		}
	}
	return a[:n]
}

// separator returns a short key that is greater than left and not greater than right.
func separator(left, right []byte) []byte {
	return right[:len(commonPrefix(left, right))+1]
}
