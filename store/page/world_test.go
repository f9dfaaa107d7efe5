// SPDX-License-Identifier: Apache-2.0

package page

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

const pageFile = "data/page.db"

// world changes a file. The content of an extent is derived from an ID, and a root lists the extents, so that each
// checkpoint can be verified.
type world struct {
	t       testing.TB
	rng     *rand.Rand
	f       *File
	extents map[uint64]Extent // extents of the checkpoint being built
	root    Extent
	next    uint64
	steps   uint64 // Position of the last checkpoint
	// states is the content of each checkpoint, by Position.
	states map[uint64]map[uint64]Extent
}

func newMem(t testing.TB) *memfs.FS {
	t.Helper()
	fs := memfs.New()
	require.NoError(t, fs.MkdirAll("data", 0o755))
	require.NoError(t, fs.SyncDir("."))
	return fs
}

func newWorld(t testing.TB, fs vfs.FS, pageSize int, seed int64) *world {
	t.Helper()
	f, err := Create(fs, pageFile, CreateOptions{PageSize: pageSize, StoreID: [16]byte{1, 2, 3}})
	require.NoError(t, err)
	return &world{
		t: t, f: f, rng: rand.New(rand.NewSource(seed)), extents: map[uint64]Extent{}, next: 1,
		states: map[uint64]map[uint64]Extent{0: {}},
	}
}

func content(id uint64) []byte {
	rng := rand.New(rand.NewSource(int64(id)))
	size := rng.Intn(2000)
	if rng.Intn(4) == 0 {
		size = rng.Intn(30_000)
	}
	b := make([]byte, size)
	rng.Read(b)
	return b
}

func kindOf(id uint64) Kind { return []Kind{KindPacked, KindLarge}[id%2] }

// add writes count new extents. It writes adjacent extents with one write.
func (w *world) add(count int) {
	w.t.Helper()
	payloads, sizes := make([][]byte, count), make([]uint32, count)
	for i := range payloads {
		payloads[i] = content(w.next + uint64(i))
		sizes[i] = w.f.PagesFor(len(payloads[i])) + uint32(w.rng.Intn(10)/9)
	}
	extents, err := w.f.AllocExtents(sizes)
	require.NoError(w.t, err)
	var buf []byte
	first, next := No(0), No(0)
	for i, ext := range extents {
		require.Equal(w.t, sizes[i], ext.Pages)
		if ext.First != next && len(buf) > 0 {
			require.NoError(w.t, w.f.WriteExtents(first, buf))
			buf = buf[:0]
		}
		if len(buf) == 0 {
			first = ext.First
		}
		buf, err = w.f.encode(buf, ext, kindOf(w.next), payloads[i])
		require.NoError(w.t, err)
		next = ext.End()
		w.extents[w.next] = ext
		w.next++
	}
	require.NoError(w.t, w.f.WriteExtents(first, buf))
}

func (w *world) drop(count int) {
	ids := slices.Sorted(maps.Keys(w.extents))
	for range min(count, len(ids)) {
		i := w.rng.Intn(len(ids))
		w.f.Free(w.extents[ids[i]])
		delete(w.extents, ids[i])
		ids = slices.Delete(ids, i, i+1)
	}
}

func (w *world) writeRoot() {
	w.t.Helper()
	if !w.root.IsZero() {
		w.f.Free(w.root)
	}
	b := rootPayload(w.extents)
	var err error
	w.root, err = w.f.Alloc(w.f.PagesFor(len(b)))
	require.NoError(w.t, err)
	require.NoError(w.t, w.f.WriteExtent(w.root, KindNode, b))
}

func rootPayload(extents map[uint64]Extent) []byte {
	var b []byte
	for _, id := range slices.Sorted(maps.Keys(extents)) {
		ext := extents[id]
		for _, v := range []uint64{id, uint64(ext.First), uint64(ext.Pages), ext.Born} {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
	}
	return b
}

func (w *world) meta() Meta {
	m := Meta{Position: lsn.Position{Term: 3, LSN: w.steps, Chain: 7}, Root: w.root, CreatedMS: int64(w.steps)}
	m.AppData[63] = byte(w.steps)
	return m
}

func (w *world) checkpoint() {
	w.t.Helper()
	w.writeRoot()
	w.steps++
	w.states[w.steps] = maps.Clone(w.extents)
	m, err := w.f.Checkpoint(w.meta())
	require.NoError(w.t, err)
	require.Equal(w.t, m, w.f.Meta())
}

// step makes a round of random changes.
func (w *world) step() {
	w.t.Helper()
	w.add(1 + w.rng.Intn(12))
	if w.rng.Intn(3) > 0 {
		w.drop(w.rng.Intn(len(w.extents) + 1))
	}
}

// verify reads all extents of a checkpoint of f. It verifies that their content matches a known checkpoint and that
// exactly their pages are in use. It returns the LSN of the checkpoint.
func (w *world) verify(f *File) (uint64, error) {
	pin := f.Pin()
	defer pin.Release()
	m := pin.Meta()
	at := m.Position.LSN
	want, ok := w.states[at]
	if !ok {
		return 0, fmt.Errorf("no checkpoint at position %d", at)
	}
	if m.AppData[63] != byte(at) || m.CreatedMS != int64(at) {
		return 0, fmt.Errorf("application data of checkpoint %d is wrong", at)
	}
	refs := make(map[No]bool)
	claim := func(ext Extent) error {
		for i := range No(ext.Pages) {
			if refs[ext.First+i] {
				return fmt.Errorf("page %d is referenced twice", ext.First+i)
			}
			refs[ext.First+i] = true
		}
		return nil
	}
	if at > 0 {
		kind, payload, err := f.ReadExtent(m.Root, nil)
		if err != nil {
			return 0, err
		}
		if kind != KindNode || string(payload) != string(rootPayload(want)) {
			return 0, fmt.Errorf("root of checkpoint %d is wrong", at)
		}
		if err := claim(m.Root); err != nil {
			return 0, err
		}
	}
	var buf []byte
	for id, ext := range want {
		kind, payload, err := f.ReadExtent(ext, buf)
		if err != nil {
			return 0, fmt.Errorf("extent %d: %w", id, err)
		}
		if kind != kindOf(id) || string(payload) != string(content(id)) {
			return 0, fmt.Errorf("content of extent %d is wrong", id)
		}
		if err := claim(ext); err != nil {
			return 0, err
		}
		buf = payload[:0]
	}
	return at, w.verifyUsed(f, pin, refs, claim)
}

func (w *world) verifyUsed(f *File, pin *Pin, refs map[No]bool, claim func(Extent) error) error {
	own, err := f.OwnExtents(pin)
	if err != nil {
		return err
	}
	for _, ext := range own {
		if err := claim(ext); err != nil {
			return err
		}
	}
	used := 0
	last := No(0)
	for ext, err := range f.UsedExtents(pin) {
		if err != nil {
			return err
		}
		if ext.First <= last {
			return fmt.Errorf("extent %v follows page %d", ext, last)
		}
		last = ext.End() // the page after an extent is free
		for i := range No(ext.Pages) {
			used++
			if !refs[ext.First+i] {
				return fmt.Errorf("page %d is in use but not referenced", ext.First+i)
			}
		}
	}
	if used != len(refs) || pin.Meta().UsedPages != uint64(used) {
		return fmt.Errorf("pages in use: %d in the bitmap, %d referenced, %d in the meta slot", used, len(refs),
			pin.Meta().UsedPages)
	}
	return nil
}

// requireSound verifies the last durable checkpoint, which must have the given position.
func (w *world) requireSound(at uint64) {
	w.t.Helper()
	got, err := w.verify(w.f)
	require.NoError(w.t, err)
	require.Equal(w.t, at, got)
}

// reopen closes and opens the file; changes after the last checkpoint are lost.
func (w *world) reopen(fs vfs.FS) {
	w.t.Helper()
	require.NoError(w.t, w.f.Close())
	w.open(fs)
}

func (w *world) open(fs vfs.FS) {
	w.t.Helper()
	var err error
	w.f, err = Open(fs, pageFile, Options{})
	require.NoError(w.t, err)
	at, err := w.verify(w.f)
	require.NoError(w.t, err)
	w.steps, w.root = at, w.f.Meta().Root
	w.extents = maps.Clone(w.states[at])
	st := w.f.Stats()
	require.Equal(w.t, w.f.Meta().UsedPages, st.Used)
	require.Zero(w.t, st.Pending, "pending pages after Open")
}

// sub returns the part of e that begins after skip pages and has count pages.
func (e Extent) sub(skip, count uint32) Extent {
	return Extent{First: e.First + No(skip), Pages: count, Born: e.Born}
}

func (f *File) encode(dst []byte, ext Extent, kind Kind, payload []byte) ([]byte, error) {
	return AppendExtent(dst, f.geo.pageSize, ext, kind, payload)
}
