// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

func benchKey(dst []byte, i int) []byte {
	return binary.BigEndian.AppendUint64(append(dst[:0], "i queue  "...), uint64(i))
}

// BenchmarkPut writes an index like the store: ascending keys, a thousand per edit, and periodic flushes.
func BenchmarkPut(b *testing.B) {
	fs := memfs.New()
	f, err := page.Create(fs, "page.db", page.CreateOptions{PageSize: 4096})
	require.NoError(b, err)
	tr := New(f, page.Extent{}, Options{})
	var key []byte
	i := 0
	for b.Loop() {
		e := tr.Edit()
		for range 1000 {
			key = benchKey(key, i)
			i++
			require.NoError(b, e.Put(key, key[:12]))
		}
		require.NoError(b, e.Commit())
		if i%50_000 == 0 {
			root, err := tr.Flush()
			require.NoError(b, err)
			_, err = f.Checkpoint(page.Meta{Root: root})
			require.NoError(b, err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(i), "ns/put")
	require.NoError(b, f.Close())
}

// BenchmarkGet reads entries of a fully cached tree of a million entries.
func BenchmarkGet(b *testing.B) {
	fs := memfs.New()
	f, err := page.Create(fs, "page.db", page.CreateOptions{PageSize: 4096})
	require.NoError(b, err)
	tr := New(f, page.Extent{}, Options{CacheBytes: 1 << 30})
	e := tr.Edit()
	var key []byte
	for i := range 1_000_000 {
		key = benchKey(key, i)
		require.NoError(b, e.Put(key, key[:12]))
	}
	require.NoError(b, e.Commit())
	_, err = tr.Flush()
	require.NoError(b, err)
	v := tr.View()
	i := 0
	for b.Loop() {
		key = benchKey(key, i*7919%1_000_000)
		i++
		_, _, ok, err := v.SeekFloor(key)
		if !ok || err != nil {
			b.Fatal(ok, err)
		}
	}
	require.NoError(b, f.Close())
}

// BenchmarkDecode decodes a leaf like the leaves of the store's message index.
func BenchmarkDecode(b *testing.B) {
	n := &node{last: -2}
	for i := range 145 {
		key := binary.BigEndian.AppendUint64([]byte{'i'}, 1)
		key = binary.BigEndian.AppendUint64(key, uint64(70_000_000+14*i))
		n.insert(i, key, []byte("\x0e\xc0\x84\x3d\x01\x8c\x01\x0e\xd2\x0d"), childRef{})
	}
	payload := n.appendTo(nil, nil)
	b.SetBytes(int64(len(payload)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := decodeNode(payload); err != nil {
			b.Fatal(err)
		}
	}
}
