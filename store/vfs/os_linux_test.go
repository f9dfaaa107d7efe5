// SPDX-License-Identifier: Apache-2.0

package vfs_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/vfstest"
)

// Cached, uncached and direct reads return the same content up to the end of the file, also after direct writes, cache
// eviction and a rename of the file.
func TestCacheOperationsKeepContent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := filepath.Join(dir, "f")
	f := vfstest.Open(t, vfs.OS(), name, os.O_RDWR|os.O_CREATE)
	c, ok := f.(vfs.Cached)
	require.True(t, ok)
	const blocks = 64
	want := make([]byte, blocks*vfs.UncachedAlign+1000)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(want)
	vfstest.Write(t, f, 0, string(want))
	require.NoError(t, vfs.OS().Rename(name, name+"-2"))

	room := vfs.AlignedBlock((blocks + 2) * vfs.UncachedAlign)
	same := func(read func(p []byte, offset int64) (int, error)) {
		t.Helper()
		for _, from := range []int{0, 7 * vfs.UncachedAlign, blocks * vfs.UncachedAlign} {
			clear(room)
			n, _ := read(room, int64(from)) // io.EOF
			require.Equal(t, len(want)-from, n)
			require.True(t, bytes.Equal(want[from:], room[:n]))
		}
	}
	same(c.ReadUncached) // including data that is not yet on the disk
	c.WriteBehind(0, int64(len(want)))
	require.NoError(t, f.Sync())
	c.DropCache(0, int64(len(want)))
	same(c.ReadUncached)
	same(c.ReadExactly)
	_, _ = random.Read(room)
	n, err := c.WriteUncached(room[:8*vfs.UncachedAlign], 4*vfs.UncachedAlign) // some of it is in the page cache
	require.NoError(t, err)
	require.Equal(t, 8*vfs.UncachedAlign, n)
	copy(want[4*vfs.UncachedAlign:], room[:n])
	same(c.ReadUncached)
	same(f.ReadAt)
	require.NoError(t, f.Sync())
	if n, known := c.CachedBytes(0, int64(len(want))); known {
		require.Positive(t, n)
		require.LessOrEqual(t, n, int64(len(want)))
	}
	require.NoError(t, f.Close())
	_, err = c.ReadUncached(room, 0)
	require.ErrorIs(t, err, os.ErrClosed)
	_, err = c.WriteUncached(room, 0)
	require.ErrorIs(t, err, os.ErrClosed)
	_, err = c.ReadExactly(room, 0)
	require.ErrorIs(t, err, os.ErrClosed)
	_, known := c.CachedBytes(0, 1)
	require.False(t, known)
}
