// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/page"
)

func sampleNodes() []*node {
	leaf := &node{}
	inner := &node{level: 3}
	for i, key := range []string{"", "a", "ab", "abc", "b"} {
		leaf.insert(i, []byte(key), []byte("value "+key), childRef{})
		inner.insert(i, []byte("prefix "+key), nil, childRef{ext: page.Extent{First: page.No(i + 1), Pages: 2, Born: 7}})
	}
	single := &node{}
	single.insert(0, []byte("alone"), nil, childRef{})
	return []*node{leaf, inner, single}
}

// A node survives encoding and decoding, and a truncated encoding is rejected.
func TestNodeRoundTrip(t *testing.T) {
	for _, n := range sampleNodes() {
		b := n.appendTo(nil, nil)
		require.Len(t, b, n.encodedBytes())
		require.LessOrEqual(t, len(b), n.size())
		got, err := decodeNode(b)
		require.NoError(t, err)
		require.Equal(t, n.level, got.level)
		require.Equal(t, n.raw, got.raw)
		require.Equal(t, b, got.appendTo(nil, nil))
		for cut := range b {
			_, err := decodeNode(b[:cut])
			require.ErrorIs(t, err, page.ErrCorrupt, "cut at %d", cut)
		}
	}
}

// FuzzNode verifies that arbitrary bytes are rejected or decoded to a valid node.
func FuzzNode(f *testing.F) {
	for _, n := range sampleNodes() {
		f.Add(n.appendTo(nil, nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := decodeNode(b)
		if err != nil {
			require.ErrorIs(t, err, page.ErrCorrupt)
			return
		}
		again, err := decodeNode(n.appendTo(nil, nil))
		require.NoError(t, err)
		require.Equal(t, n.keys, again.keys)
		require.Equal(t, n.vals, again.vals)
		require.Equal(t, n.children, again.children)
		require.Equal(t, n.raw, again.raw)
	})
}

// The encoding of a leaf and an inner node is stable. If it changes, existing files can no longer be read: the change
// needs a new page.FormatVersion.
func TestGolden(t *testing.T) {
	leaf, inner := &node{}, &node{level: 1}
	leaf.insert(0, []byte("key-a"), []byte("1"), childRef{})
	leaf.insert(1, []byte("key-bc"), nil, childRef{})
	inner.insert(0, []byte("k"), nil, childRef{ext: page.Extent{First: 0x11, Pages: 0x22, Born: 0x33}})
	inner.insert(1, []byte("m"), nil, childRef{ext: page.Extent{First: 0x44, Pages: 0x55, Born: 0x66}})
	require.Equal(t, "00000400"+"02000000"+"6b65792d"+"0161"+"0131"+"026263"+"00",
		hex.EncodeToString(leaf.appendTo(nil, nil)))
	require.Equal(t, "01000000"+"02000000016b"+"1100000000000000"+"3300000000000000"+"22000000"+
		"016d"+"4400000000000000"+"6600000000000000"+"55000000", hex.EncodeToString(inner.appendTo(nil, nil)))
}
