// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
)

var pageSizes = []int{2048, 4096, 32768}

// After random changes and reopens, each checkpoint has the expected content and uses exactly the pages that it refers
// to.
func TestRandomChanges(t *testing.T) {
	for _, pageSize := range pageSizes {
		for seed := range int64(4) {
			t.Run(fmt.Sprintf("page=%d/seed=%d", pageSize, seed), func(t *testing.T) {
				mem := newMem(t)
				w := newWorld(t, mem, pageSize, seed)
				for range 60 {
					w.step()
					if w.rng.Intn(3) == 0 {
						w.checkpoint()
						w.requireSound(w.steps)
					}
					if w.rng.Intn(10) == 0 {
						w.reopen(mem)
					}
				}
				require.NoError(t, w.f.Close())
			})
		}
	}
}

// Checkpoints on the filesystem of the operating system have the expected content, also when opened read-only.
func TestOSFilesystem(t *testing.T) {
	dir := t.TempDir()
	f, err := Create(vfs.OS(), dir+"/page.db", CreateOptions{PageSize: 4096})
	require.NoError(t, err)
	w := &world{
		t: t, f: f, rng: rand.New(rand.NewSource(1)), extents: map[uint64]Extent{}, next: 1,
		states: map[uint64]map[uint64]Extent{0: {}},
	}
	for range 5 {
		w.step()
		w.checkpoint()
	}
	w.requireSound(5)
	require.NoError(t, w.f.Close())
	w.f, err = Open(vfs.OS(), dir+"/page.db", Options{ReadOnly: true})
	require.NoError(t, err)
	w.requireSound(5)
	require.NoError(t, w.f.Close())
}

// Open returns different errors for a foreign file, a newer version and a corrupt file.
func TestOpenErrors(t *testing.T) {
	open := func(t *testing.T, change func(b []byte) []byte) error {
		mem := newMem(t)
		w := newWorld(t, mem, 2048, 1)
		w.step()
		w.checkpoint()
		require.NoError(t, w.f.Close())
		b, err := vfs.ReadFile(mem, pageFile, 1<<30)
		require.NoError(t, err)
		require.NoError(t, vfs.WriteFileAtomic(mem, pageFile, change(b)))
		for _, readOnly := range []bool{true, false} {
			f, openErr := Open(mem, pageFile, Options{ReadOnly: readOnly})
			if openErr == nil {
				require.NoError(t, f.Close())
			}
			err = openErr
		}
		return err
	}
	reseal := func(b []byte) []byte { // a header of another version with a valid checksum
		h := encodeHeader(header{pageSize: 2048, storeID: [16]byte{1, 2, 3}})
		h[12] = FormatVersion + 1
		putHeaderSum(h)
		return append(h, b[headerBytes:]...)
	}
	for _, tt := range []struct {
		name   string
		change func(b []byte) []byte
		want   error
	}{
		{"empty", func([]byte) []byte { return nil }, ErrNotPageFile},
		{"text", func([]byte) []byte { return []byte("hello, world, this is not a page file") }, ErrNotPageFile},
		{"zeros", func(b []byte) []byte { return make([]byte, len(b)) }, ErrNotPageFile},
		{"magic", func(b []byte) []byte { b[0] ^= 1; return b }, ErrNotPageFile},
		{"newer", reseal, ErrNewerVersion},
		{"version flipped", func(b []byte) []byte { b[12] ^= 2; return b }, ErrCorrupt},
		{"page size flipped", func(b []byte) []byte { b[17] ^= 8; return b }, ErrCorrupt},
		{"store id flipped", func(b []byte) []byte { b[30] ^= 8; return b }, ErrCorrupt},
		{"cut in the header", func(b []byte) []byte { return b[:20] }, ErrCorrupt},
		{"cut before the slots", func(b []byte) []byte { return b[:headerBytes] }, ErrCorrupt},
		{"cut in the pages", func(b []byte) []byte { return b[:len(b)-1] }, ErrCorrupt},
		{"both slots", func(b []byte) []byte {
			b[slotOffset(0)+50] ^= 1
			b[slotOffset(1)+50] ^= 1
			return b
		}, ErrCorrupt},
		{"slots of another store", func(b []byte) []byte {
			h := encodeHeader(header{pageSize: 2048, storeID: [16]byte{9}})
			return append(h, b[headerBytes:]...)
		}, ErrCorrupt},
		{"unchanged", func(b []byte) []byte { return b }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) { require.ErrorIs(t, open(t, tt.change), tt.want) })
	}
	_, err := Open(newMem(t), pageFile, Options{})
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// Create rejects invalid page sizes and an existing file.
func TestCreate(t *testing.T) {
	mem := newMem(t)
	for _, size := range []int{1, 1024, 2047, 3000, MaxPageBytes + 2048, -2048} {
		_, err := Create(mem, pageFile, CreateOptions{PageSize: size})
		require.ErrorIs(t, err, ErrPageSize)
	}
	f, err := Create(mem, pageFile, CreateOptions{StoreID: [16]byte{4}})
	require.NoError(t, err)
	require.Equal(t, DefaultPageBytes, f.PageSize())
	require.Equal(t, [16]byte{4}, f.StoreID())
	require.Equal(t, Recovery{}, f.Recovery())
	require.NoError(t, f.Close())
	_, err = Create(mem, pageFile, CreateOptions{})
	require.ErrorIs(t, err, fs.ErrExist)
}

// If the newest meta slot is corrupt, Open returns the complete older checkpoint and rewrites the slot.
func TestOpenWithCorruptSlot(t *testing.T) {
	for seed := range int64(10) {
		mem := newMem(t)
		w := newWorld(t, mem, 2048, seed)
		for range 20 {
			w.step()
			w.checkpoint()
		}
		slot := w.f.slot
		w.step() // writes to free pages
		require.NoError(t, w.f.Close())
		flip(t, mem, slotOffset(slot)+int64(w.rng.Intn(metaFields)), 1)
		f, err := Open(mem, pageFile, Options{})
		require.NoError(t, err)
		at, err := w.verify(f)
		require.NoError(t, err)
		require.Equal(t, w.steps-1, at)
		require.ErrorIs(t, f.Recovery().Other, ErrCorrupt)
		require.NoError(t, f.Close())
		f, err = Open(mem, pageFile, Options{})
		require.NoError(t, err)
		require.NoError(t, f.Recovery().Other, "Open rewrote the corrupt slot")
		require.NoError(t, f.Close())
	}
}

// An allocation on a full disk fails without side effects. The file remains usable.
func TestFullDisk(t *testing.T) {
	mem := newMem(t)
	w := newWorld(t, mem, 2048, 2)
	w.add(20)
	w.checkpoint()
	mem.SetCapacity(4 << 20)
	for {
		ext, err := w.f.Alloc(uint32(1 + w.rng.Intn(5)))
		if err != nil {
			require.ErrorIs(t, err, ErrFull)
			require.ErrorIs(t, err, syscall.ENOSPC)
			break
		}
		require.NoError(t, w.f.WriteExtent(ext, KindLarge, []byte("fills the disk")))
	}
	used := w.f.Stats().Used
	_, err := w.f.AllocExtents([]uint32{1, 700, 1})
	require.ErrorIs(t, err, ErrFull)
	require.Equal(t, used, w.f.Stats().Used, "allocation was undone")
	w.reopen(mem)
	w.requireSound(1)
	w.drop(10)
	w.checkpoint()
	w.requireSound(2)
	require.NoError(t, w.f.Close())
}

// After a failed page write the previous checkpoint remains, and a retry succeeds.
func TestCheckpointAfterFailedWrite(t *testing.T) {
	mem := newMem(t)
	fault := faultfs.New(mem)
	w := newWorld(t, fault, 2048, 2)
	w.step()
	w.checkpoint()
	for round := range 10 {
		w.step()
		w.writeRoot()
		fault.SetHook(func(op faultfs.Op) error {
			if op.Kind == faultfs.OpWrite && op.Offset >= DataOffset {
				return syscall.EIO
			}
			return nil
		})
		_, err := w.f.Checkpoint(w.meta())
		require.ErrorIs(t, err, syscall.EIO)
		require.NotErrorIs(t, err, ErrFailed)
		fault.SetHook(nil)
		w.requireSound(w.steps)
		if round%3 == 0 {
			w.reopen(fault)
		}
		w.checkpoint()
		w.requireSound(w.steps)
		w.checkpoint()
		w.checkpoint()
		w.requireSound(w.steps)
	}
	require.NoError(t, w.f.Close())
}

// A checkpoint writes the bitmap parts that a failed checkpoint did not write, even if they did not change again.
func TestRetryWritesUnchangedBitmap(t *testing.T) {
	mem := newMem(t)
	fault := faultfs.New(mem)
	w := newWorld(t, fault, 2048, 2)
	size := uint32(w.f.geo.chunkPages())
	extents, err := w.f.AllocExtents([]uint32{1, 3 * size, 1})
	require.NoError(t, err)
	_, err = w.f.Checkpoint(Meta{Root: extents[0]})
	require.NoError(t, err)
	w.f.Free(extents[1].sub(2*size, 100))
	fault.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.OpWrite {
			return syscall.EIO
		}
		return nil
	})
	_, err = w.f.Checkpoint(Meta{Root: extents[0]})
	require.ErrorIs(t, err, syscall.EIO)
	fault.SetHook(nil)
	m, err := w.f.Checkpoint(Meta{Root: extents[0]})
	require.NoError(t, err)
	require.NoError(t, w.f.Close())
	w.f, err = Open(mem, pageFile, Options{})
	require.NoError(t, err)
	require.Equal(t, m.UsedPages, w.f.Stats().Used)
	require.False(t, w.f.space.isLive(uint64(extents[1].First)-1+2*uint64(size), 1))
	require.NoError(t, w.f.Close())
}

// A failed sync, or a failed write of a meta slot, is final (INV-7).
func TestFailedSyncIsFinal(t *testing.T) {
	for _, broken := range []func(op faultfs.Op) bool{
		func(op faultfs.Op) bool { return op.Kind == faultfs.OpSync },
		func(op faultfs.Op) bool { return op.Kind == faultfs.OpWrite && op.Offset < DataOffset },
	} {
		mem := newMem(t)
		fault := faultfs.New(mem)
		w := newWorld(t, fault, 2048, 2)
		w.step()
		w.checkpoint()
		w.step()
		w.writeRoot()
		fault.SetHook(func(op faultfs.Op) error {
			if broken(op) {
				return syscall.EIO
			}
			return nil
		})
		_, err := w.f.Checkpoint(w.meta())
		require.ErrorIs(t, err, ErrFailed)
		require.ErrorIs(t, err, syscall.EIO)
		fault.SetHook(nil)
		_, err = w.f.Checkpoint(w.meta())
		require.ErrorIs(t, err, ErrFailed, "no retry")
		_, err = w.f.Alloc(1)
		require.ErrorIs(t, err, ErrFailed)
		w.requireSound(w.steps) // reads continue to work
		w.reopen(mem)
		w.requireSound(1)
		require.NoError(t, w.f.Close())
	}
}

// Invalid arguments and double frees result in ErrMisuse. Calls after Close return ErrClosed.
func TestMisuse(t *testing.T) {
	mem := newMem(t)
	w := newWorld(t, mem, 2048, 2)
	w.add(3)
	w.checkpoint()
	durable := w.extents[1]
	require.ErrorIs(t, w.f.WriteExtent(durable, KindLarge, nil), ErrMisuse, "extent of a durable checkpoint")
	require.ErrorIs(t, w.f.WriteExtent(Extent{First: durable.First, Pages: 1, Born: 99}, KindLarge, nil), ErrMisuse,
		"extent of a later checkpoint")
	ext, err := w.f.Alloc(2)
	require.NoError(t, err)
	require.ErrorIs(t, w.f.WriteExtent(ext, KindLarge, make([]byte, 4096)), ErrMisuse, "too long")
	require.ErrorIs(t, w.f.WriteExtent(ext, 0, nil), ErrMisuse, "no kind")
	require.NoError(t, w.f.WriteExtent(ext, KindLarge, make([]byte, 2*w.f.PageSize()-ExtentHeaderBytes)))
	require.ErrorIs(t, w.f.WriteExtents(ext.First, make([]byte, 4096)), ErrMisuse, "no header")
	require.ErrorIs(t, w.f.WriteExtent(Extent{First: ext.First + 100, Pages: 1, Born: ext.Born}, KindLarge, nil),
		ErrMisuse, "not allocated")
	_, err = w.f.Alloc(0)
	require.ErrorIs(t, err, ErrMisuse)
	_, err = w.f.Checkpoint(Meta{Root: Extent{First: 1 << 30, Pages: 1}})
	require.ErrorIs(t, err, ErrMisuse)
	w.f.Free(ext.sub(0, 1))
	w.f.Free(ext.sub(1, 1))
	w.f.Free(ext)
	_, err = w.f.Checkpoint(w.meta())
	require.ErrorIs(t, err, ErrMisuse, "freed twice")
	require.ErrorIs(t, err, ErrFailed)
	require.NoError(t, w.f.Close())
	require.NoError(t, w.f.Close())
	_, _, err = w.f.ReadExtent(durable, nil)
	require.ErrorIs(t, err, ErrClosed)
	_, err = w.f.Alloc(1)
	require.ErrorIs(t, err, ErrClosed)
}

// A file that is opened read-only has all content, writes nothing and rejects changes.
func TestReadOnly(t *testing.T) {
	mem := newMem(t)
	w := newWorld(t, mem, 2048, 2)
	w.step()
	w.checkpoint()
	before := w.f.Meta()
	require.NoError(t, w.f.Close())
	fault := faultfs.New(mem)
	fault.SetHook(func(op faultfs.Op) error {
		switch op.Kind {
		case faultfs.OpWrite, faultfs.OpSync, faultfs.OpTruncate, faultfs.OpCreate:
			return fmt.Errorf("%v", op.Kind)
		default:
			return nil
		}
	})
	f, err := Open(fault, pageFile, Options{ReadOnly: true})
	require.NoError(t, err)
	require.Equal(t, before, f.Meta())
	require.Equal(t, before.UsedPages, f.Stats().Used)
	_, err = w.verify(f)
	require.NoError(t, err)
	_, err = f.Alloc(1)
	require.ErrorIs(t, err, ErrReadOnly)
	_, err = f.Checkpoint(Meta{})
	require.ErrorIs(t, err, ErrReadOnly)
	require.ErrorIs(t, f.WriteExtents(1, nil), ErrReadOnly)
	f.Free(Extent{First: 1, Pages: 1})
	require.NoError(t, f.Close())
}

// A checkpoint with a small change to a large file writes at most 20 KiB with two syncs.
func TestCheckpointWritesLittle(t *testing.T) {
	mem := newMem(t)
	fault := faultfs.New(mem)
	w := newWorld(t, fault, 2048, 2)
	const pages = 200_000
	big, err := w.f.AllocExtents([]uint32{pages, 1})
	require.NoError(t, err)
	_, err = w.f.Checkpoint(Meta{Root: big[1]})
	require.NoError(t, err)
	w.f.Free(big[0].sub(100_000, 1000))
	for range 3 {
		_, err = w.f.Checkpoint(Meta{Root: big[1]})
		require.NoError(t, err)
	}
	var written, syncs, writes int64
	var mu sync.Mutex
	fault.SetHook(func(op faultfs.Op) error {
		mu.Lock()
		defer mu.Unlock()
		switch op.Kind {
		case faultfs.OpWrite:
			written += op.Length
			writes++
		case faultfs.OpSync:
			syncs++
		}
		return nil
	})
	ext, err := w.f.Alloc(3)
	require.NoError(t, err)
	require.NoError(t, w.f.WriteExtent(ext, KindLarge, make([]byte, 5000)))
	_, err = w.f.Checkpoint(Meta{Root: big[1]})
	require.NoError(t, err)
	require.EqualValues(t, 2, syncs)
	require.LessOrEqual(t, written, int64(20<<10))
	require.LessOrEqual(t, writes, int64(6))
	require.NoError(t, w.f.Close())
}

// An extent written from several buffers equals one written from a single buffer. Buffers that are not exactly one
// extent are rejected.
func TestWritePieces(t *testing.T) {
	w := newWorld(t, newMem(t), 2048, 2)
	w.add(1)
	ext, err := w.f.Alloc(3)
	require.NoError(t, err)
	payload := bytes.Repeat([]byte("piece"), 900)
	whole, err := w.f.encode(nil, ext, KindLarge, payload)
	require.NoError(t, err)
	require.NoError(t, w.f.WritePieces(ext, whole[:ExtentHeaderBytes+7], whole[ExtentHeaderBytes+7:5000], whole[5000:]))
	kind, got, err := w.f.ReadExtent(ext, nil)
	require.NoError(t, err)
	require.Equal(t, KindLarge, kind)
	require.Equal(t, payload, got)
	require.ErrorIs(t, w.f.WritePieces(ext, whole[:64], whole[64:5000]), ErrMisuse, "too short")
	require.ErrorIs(t, w.f.WritePieces(ext, whole, whole), ErrMisuse, "too long")
	require.ErrorIs(t, w.f.WritePieces(ext, make([]byte, 64), whole[64:]), ErrMisuse, "no header")
}
