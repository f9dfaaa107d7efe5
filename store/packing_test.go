// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/rewrite"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// Small messages of a queue are packed in extents of index.ExtentBytes, both in the running store and in a rewritten
// one. The last extent and the extent of a single message use only as many pages as needed. A longer message has its
// own extent.
func TestSmallMessagesShareAnExtent(t *testing.T) {
	ctx := context.Background()
	mem := memfs.New()
	n := openNode(t, options(mem))
	for _, name := range []string{"small", "one", "large"} {
		n.commit(func(b *txn.Builder) { b.CreateQueue(name, txn.Config{}, "default") })
	}
	n.publishMany(1, 100, 512)
	n.publishMany(2, 1, 512)
	n.publishMany(3, 2, 9000)
	_, err := n.s.Checkpoint(ctx)
	require.NoError(t, err)

	extents := func() map[uint64][]index.Entry {
		found := map[uint64][]index.Entry{}
		err := n.s.ReadCheckpoint(ctx, store.ReadOptions{}, func(c *checkpoint.Checkpoint) error {
			return c.Extents(ctx, checkpoint.WalkOptions{}, func(e *index.Entry, _ []byte, err error) error {
				found[e.Queue] = append(found[e.Queue], *e)
				return err
			})
		})
		require.NoError(t, err)
		return found
	}
	verify := func(found map[uint64][]index.Entry) {
		small := found[1]
		require.Len(t, small, 15)
		for _, e := range small[:len(small)-1] {
			require.Equal(t, uint64(7), e.Count)
			require.Equal(t, uint32(2), e.Extent.Pages)
		}
		last := small[len(small)-1]
		require.Equal(t, uint64(2), last.Count)
		require.Equal(t, uint32(1), last.Extent.Pages, "minimum number of pages")
		require.Len(t, found[2], 1)
		require.Equal(t, uint32(1), found[2][0].Extent.Pages)
		require.Len(t, found[3], 2)
		for _, e := range found[3] {
			require.Equal(t, uint32(5), e.Extent.Pages)
		}
	}
	verify(extents())
	_, err = n.s.Maintenance().Rewrite(ctx, rewrite.Options{})
	require.NoError(t, err)
	verify(extents())
	n.check()
}
