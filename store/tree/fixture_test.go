// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// newFile creates a page file in memory. Every test that uses it ends with checkPages.
func newFile(t *testing.T, pageSize int) (*page.File, *memfs.FS) {
	t.Helper()
	fs := memfs.New()
	require.NoError(t, fs.MkdirAll("data", 0o755))
	f, err := page.Create(fs, "data/page.db", page.CreateOptions{PageSize: pageSize})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return f, fs
}

// checkpoint flushes the tree and verifies that the checkpoint uses exactly the pages of the tree and the file.
func checkpoint(t *testing.T, f *page.File, tr *Tree) {
	t.Helper()
	root, err := tr.Flush()
	require.NoError(t, err)
	require.Nil(t, tr.root.Load().n, "dirty")
	_, err = f.Checkpoint(page.Meta{Root: root})
	require.NoError(t, err)
	checkPages(t, f)
}

func checkPages(t *testing.T, f *page.File) {
	t.Helper()
	pin := f.Pin()
	defer pin.Release()
	used := make(map[page.No]bool)
	for ext, err := range f.UsedExtents(pin) {
		require.NoError(t, err)
		for i := range page.No(ext.Pages) {
			used[ext.First+i] = true
		}
	}
	claim := func(ext page.Extent) {
		for i := range page.No(ext.Pages) {
			if !used[ext.First+i] {
				require.FailNow(t, "wrong page", "page %d is free or referenced twice", ext.First+i)
			}
			delete(used, ext.First+i)
		}
	}
	own, err := f.OwnExtents(pin)
	require.NoError(t, err)
	for _, ext := range own {
		claim(ext)
	}
	v := New(f, pin.Meta().Root, Options{}).View()
	require.NoError(t, v.WalkExtents(func(ext page.Extent, _ int) error { claim(ext); return nil }))
	require.Empty(t, used, "unreferenced pages are in use")
	require.NoError(t, v.Verify())
}

// model is the expected content of a tree.
type model map[string]string

func (m model) sorted() []string { return slices.Sorted(maps.Keys(m)) }

func (m model) floor(key []byte) (floor string, ok bool) {
	for k := range m {
		if k <= string(key) && (!ok || k > floor) {
			floor, ok = k, true
		}
	}
	return floor, ok
}

type readable interface {
	Get(key []byte) ([]byte, bool, error)
	SeekFloor(key []byte) (k, v []byte, ok bool, err error)
	Scan(from, to []byte) *Iterator
}

func requireSame(t *testing.T, m model, r readable, from, to []byte) {
	t.Helper()
	var keys []string
	for _, k := range m.sorted() {
		if (from == nil || k >= string(from)) && (to == nil || k < string(to)) {
			keys = append(keys, k)
		}
	}
	it := r.Scan(from, to)
	for _, k := range keys {
		if !it.Next() || string(it.Key()) != k || string(it.Value()) != m[k] {
			require.FailNow(t, "wrong entry", "%q: %x instead of %q: %x: %v", it.Key(), it.Value(), k, m[k], it.Err())
		}
	}
	require.False(t, it.Next())
	require.NoError(t, it.Err())
}

func requireReads(t *testing.T, m model, r readable, key []byte) {
	t.Helper()
	v, ok, err := r.Get(key)
	require.NoError(t, err)
	want, wantOK := m[string(key)]
	require.Equal(t, wantOK, ok, "get %x", key)
	require.Equal(t, want, string(v))
	k, v, ok, err := r.SeekFloor(key)
	require.NoError(t, err)
	floor, wantOK := m.floor(key)
	require.Equal(t, wantOK, ok, "floor of %x", key)
	require.Equal(t, floor, string(k))
	require.Equal(t, m[floor], string(v))
}

// randomKey returns a random key in the format of the store, with few queues and sequences so that keys collide.
func randomKey(rng *rand.Rand) []byte {
	if rng.Intn(10) == 0 {
		return fmt.Appendf(nil, "p%0*d", rng.Intn(40), rng.Intn(100))
	}
	key := binary.BigEndian.AppendUint64([]byte{"aiqs"[rng.Intn(4)]}, uint64(rng.Intn(4)))
	return binary.BigEndian.AppendUint64(key, uint64(rng.Intn(400)))
}

func randomValue(rng *rand.Rand) []byte {
	n := rng.Intn(40)
	switch rng.Intn(200) {
	case 0:
		n = rng.Intn(60_000)
	case 1, 2, 3:
		n = rng.Intn(3000)
	}
	b := make([]byte, n)
	rng.Read(b)
	return b
}

// Verify reads every node and returns the first violation of the tree's invariants as a page.CorruptError.
func (v *View) Verify() error {
	if v.root.isZero() {
		return nil
	}
	n, err := v.load(v.root, -1)
	if err != nil {
		return err
	}
	return v.verify(v.root, int(n.level), nil, nil)
}

// verify checks the nodes at and below k. Their keys must be in [lo, hi).
func (v *View) verify(k childRef, level int, lo, hi []byte) error {
	n, err := v.load(k, level)
	if err != nil {
		return err
	}
	corrupt := func(format string, args ...any) error {
		return &page.CorruptError{Page: k.ext.First, Reason: fmt.Sprintf("tree node: "+format, args...)}
	}
	if len(n.keys) == 0 {
		return corrupt("empty node")
	}
	raw := 0
	for i, key := range n.keys {
		raw += n.entrySize(i)
		if i > 0 && bytes.Compare(n.keys[i-1], key) >= 0 {
			return corrupt("keys not in ascending order at %d", i)
		}
		if (lo != nil && bytes.Compare(key, lo) < 0) || (hi != nil && bytes.Compare(key, hi) >= 0) {
			return corrupt("key %x is not in [%x, %x)", key, lo, hi)
		}
	}
	if raw != n.raw {
		return corrupt("size is %d, recorded as %d", raw, n.raw)
	}
	for i := range n.children {
		from, to := n.bounds(i, lo, hi)
		if err := v.verify(n.children[i], level-1, from, to); err != nil {
			return err
		}
	}
	return nil
}
