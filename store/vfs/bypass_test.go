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
	t      *testing.T
	direct []int // lengths of direct writes
	// directTime is the duration of a direct write, cachedTime that of a cached write.
	directTime, cachedTime time.Duration
	err                    error // result of direct writes
}

func (f *directFile) WriteUncached(p []byte, offset int64) (int, error) {
	require.Zero(f.t, offset%vfs.UncachedAlign)
	require.Zero(f.t, len(p)%vfs.UncachedAlign)
	require.NotEmpty(f.t, p)
	require.Zero(f.t, uintptr(unsafe.Pointer(unsafe.SliceData(p)))%vfs.SectorBytes)
	f.direct = append(f.direct, len(p))
	time.Sleep(f.directTime) //nolint:forbidigo // in a synctest bubble
	if f.err != nil {
		return 0, f.err
	}
	return f.WriteAt(p, offset)
}

// WriteVec simulates a write through the page cache.
func (f *directFile) WriteVec(offset int64, bufs ...[]byte) (int, error) {
	time.Sleep(f.cachedTime) //nolint:forbidigo // in a synctest bubble
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

// For any offsets and buffers, the file contains the written data. Writes of at least BypassBytes use direct I/O,
// except for unaligned ends.
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
		f.direct = nil
		wrote, err := b.Write(f, int64(at), bufs...)
		require.NoError(t, err)
		require.Equal(t, n, wrote)
		direct := 0
		for _, n := range f.direct {
			direct += n
		}
		if n < vfs.BypassBytes {
			require.Zero(t, direct)
		} else {
			require.Greater(t, direct, n-2*vfs.UncachedAlign)
		}
	}
	have := make([]byte, len(want))
	_, err := f.ReadAt(have, 0)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, have))
}

// Bypass writes aligned data without a copy.
func TestBypassDoesNotCopyAlignedData(t *testing.T) {
	t.Parallel()
	f := newDirectFile(t)
	var b vfs.Bypass
	b.Use(vfs.AvoidCache)
	_, err := b.Write(f, 2048, vfs.AlignedBlock(3<<20))
	require.NoError(t, err)
	require.Equal(t, []int{3<<20 - vfs.UncachedAlign}, f.direct)
	require.Nil(t, b.Bounce())
}

// Bypass uses direct I/O if the cache use allows it and the file supports it.
func TestBypassCacheUse(t *testing.T) {
	t.Parallel()
	for use, want := range map[vfs.CacheUse]bool{vfs.UseCache: false, vfs.AvoidCache: true, vfs.FasterPath: true} {
		t.Run(fmt.Sprint(use), func(t *testing.T) {
			t.Parallel()
			f := newDirectFile(t)
			var b vfs.Bypass
			b.Use(use)
			_, err := b.Write(f, 0, make([]byte, vfs.BypassBytes))
			require.NoError(t, err)
			require.Equal(t, want, len(f.direct) > 0)
			n, err := b.Write(f.File, 0, make([]byte, vfs.BypassBytes))
			require.NoError(t, err, "a file without cache control")
			require.Equal(t, vfs.BypassBytes, n)
		})
	}
}

// FasterPath uses the faster of direct and cached writes, and measures the other path once a second.
func TestBypassFasterPath(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newDirectFile(t)
		var b vfs.Bypass
		b.Use(vfs.FasterPath)
		block := vfs.AlignedBlock(vfs.BypassBytes)
		direct := func(count int) int {
			f.direct = nil
			for range count {
				_, err := b.Write(f, 0, block)
				require.NoError(t, err)
			}
			return len(f.direct)
		}
		f.directTime, f.cachedTime = 500*time.Microsecond, 3*time.Millisecond
		require.Equal(t, 998, direct(1000), "two measurements of the other path at the start")
		require.Equal(t, 19_990, direct(20_000), "one measurement of the other path per second")

		f.directTime = 5 * time.Millisecond
		require.LessOrEqual(t, direct(100), 8)
		require.LessOrEqual(t, direct(1000), 8)

		f.directTime = time.Millisecond
		direct(1000)
		require.GreaterOrEqual(t, direct(1000), 995)
	})
}

// A failed direct write returns its error and the number of bytes written before it.
func TestBypassWriteError(t *testing.T) {
	t.Parallel()
	f := newDirectFile(t)
	f.err = os.ErrDeadlineExceeded
	var b vfs.Bypass
	b.Use(vfs.AvoidCache)
	n, err := b.Write(f, 1, make([]byte, vfs.BypassBytes))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Equal(t, vfs.UncachedAlign-1, n)
}
