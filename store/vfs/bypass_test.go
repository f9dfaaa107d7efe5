// SPDX-License-Identifier: Apache-2.0

package vfs_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// directFile is a file in memory that records direct writes.
type directFile struct {
	vfs.File
	t    *testing.T
	past []int // lengths of direct writes
	// takes is the duration of a direct write, takesThrough that of another write.
	takes, takesThrough time.Duration
	fails               error
}

func (f *directFile) WriteUncached(p []byte, offset int64) (int, error) {
	require.Zero(f.t, offset%vfs.UncachedAlign)
	require.Zero(f.t, len(p)%vfs.UncachedAlign)
	require.NotEmpty(f.t, p)
	require.Zero(f.t, uintptr(unsafe.Pointer(unsafe.SliceData(p)))%vfs.SectorBytes)
	f.past = append(f.past, len(p))
	time.Sleep(f.takes) //nolint:forbidigo // a disk that takes so long, by synctest's clock
	if f.fails != nil {
		return 0, f.fails
	}
	return f.WriteAt(p, offset)
}

// WriteVec is a write through the page cache.
func (f *directFile) WriteVec(offset int64, bufs ...[]byte) (int, error) {
	time.Sleep(f.takesThrough) //nolint:forbidigo // as above
	return f.File.WriteVec(offset, bufs...)
}

func (f *directFile) WriteBehind(int64, int64)                         {}
func (f *directFile) DropCache(int64, int64)                           {}
func (f *directFile) CachedBytes(int64, int64) (int64, bool)           { return 0, false }
func (f *directFile) ReadExactly(p []byte, at int64) (int, error)      { return f.ReadAt(p, at) }
func (f *directFile) ReadUncached(p []byte, offset int64) (int, error) { return f.ReadAt(p, offset) }

func newDirectFile(t *testing.T) *directFile {
	t.Helper()
	mem := memfs.New()
	require.NoError(t, mem.MkdirAll("d", 0o700))
	f, err := mem.OpenFile("d/f", os.O_RDWR|os.O_CREATE, 0o600)
	require.NoError(t, err)
	return &directFile{File: f, t: t}
}

// For any offsets and buffers, the file contains the written data, and nearly all of it was written with direct I/O.
func TestBypassWrites(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	f := newDirectFile(t)
	var b vfs.Bypass
	b.Use(vfs.AvoidCache)
	want := make([]byte, 16<<20)
	require.NoError(t, f.Truncate(int64(len(want))))
	room := vfs.AlignedBlock(4 << 20)
	for range 300 {
		n := random.IntN(3<<20) + 1
		at := random.IntN(len(want) - n)
		skip := random.IntN(2) * random.IntN(10_000)
		data := room[skip : skip+n]
		for i := 0; i < n; i += 1 + random.IntN(97) {
			data[i] = byte(random.Uint32())
		}
		copy(want[at:], data)
		var bufs [][]byte
		for rest := data; ; {
			cut := random.IntN(len(rest) + 1)
			bufs, rest = append(bufs, rest[:cut]), rest[cut:]
			if len(bufs) == random.IntN(5) {
				bufs = append(bufs, rest)
				break
			}
			if len(rest) == 0 {
				break
			}
		}
		f.past = nil
		wrote, err := b.Write(f, int64(at), bufs...)
		require.NoError(t, err)
		require.Equal(t, n, wrote)
		past := 0
		for _, p := range f.past {
			past += p
		}
		if n < vfs.BypassBytes {
			require.Zero(t, past)
		} else {
			require.Greater(t, past, n-2*vfs.UncachedAlign)
		}
	}
	have := make([]byte, len(want))
	_, err := f.ReadAt(have, 0)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, have))
}

// Aligned data is not copied.
func TestBypassDoesNotCopyAligned(t *testing.T) {
	t.Parallel()
	f := newDirectFile(t)
	var b vfs.Bypass
	b.Use(vfs.AvoidCache)
	_, err := b.Write(f, 2048, vfs.AlignedBlock(3<<20))
	require.NoError(t, err)
	require.Equal(t, []int{3<<20 - vfs.UncachedAlign}, f.past)
	require.Nil(t, b.Bounce())
}

func TestBypassUse(t *testing.T) {
	t.Parallel()
	for use, want := range map[vfs.CacheUse]bool{vfs.UseCache: false, vfs.AvoidCache: true, vfs.FasterPath: true} {
		t.Run(fmt.Sprint(use), func(t *testing.T) {
			t.Parallel()
			f := newDirectFile(t)
			var b vfs.Bypass
			b.Use(use)
			_, err := b.Write(f, 0, make([]byte, vfs.BypassBytes))
			require.NoError(t, err)
			require.Equal(t, want, len(f.past) > 0)
			n, err := b.Write(f.File, 0, make([]byte, vfs.BypassBytes))
			require.NoError(t, err, "a file without cache control")
			require.Equal(t, vfs.BypassBytes, n)
		})
	}
}

// The faster path is used, and the other one is measured again once a second.
func TestBypassFasterPath(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newDirectFile(t)
		var b vfs.Bypass
		b.Use(vfs.FasterPath)
		block := vfs.AlignedBlock(vfs.BypassBytes)
		past := func(count int) int {
			f.past = nil
			for range count {
				_, err := b.Write(f, 0, block)
				require.NoError(t, err)
			}
			return len(f.past)
		}
		f.takes, f.takesThrough = 500*time.Microsecond, 3*time.Millisecond
		require.Equal(t, 998, past(1000), "in 0.5 s: the other path was measured twice, at the start")
		require.Equal(t, 19_990, past(20_000), "in 10 s: once a second")

		f.takes = 5 * time.Millisecond // the disk became slow
		require.LessOrEqual(t, past(100), 8)
		require.LessOrEqual(t, past(1000), 8)

		f.takes = time.Millisecond // and fast again
		past(1000)
		require.GreaterOrEqual(t, past(1000), 995)
	})
}

func TestBypassFails(t *testing.T) {
	t.Parallel()
	f := newDirectFile(t)
	f.fails = os.ErrDeadlineExceeded
	var b vfs.Bypass
	b.Use(vfs.AvoidCache)
	n, err := b.Write(f, 1, make([]byte, vfs.BypassBytes))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Equal(t, vfs.UncachedAlign-1, n)
}
