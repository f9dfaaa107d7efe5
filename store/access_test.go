// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
	"github.com/stretchr/testify/require"
)

// Changes of the access table are signaled. The changes survive a crash, whether a checkpoint contains them or only
// the log.
func TestAccessTable(t *testing.T) {
	mem := memfs.New()
	n := openNode(t, options(mem))
	changed, cancel := query.WatchAccess(n.s)
	defer cancel()
	n.commit(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{}, "s") })
	require.Empty(t, changed)
	n.commit(func(b *txn.Builder) {
		b.ChangeAccess(0, 0, []txn.AccessChange{{Kind: 'r', Name: []byte("a"), Value: []byte("1")}})
	})
	require.Len(t, changed, 1)
	version, entries := query.Access(n.s)
	require.Equal(t, uint64(2), version)
	require.Len(t, entries, 1)
	_, err := n.s.Checkpoint(context.Background())
	require.NoError(t, err)
	n.commit(func(b *txn.Builder) {
		b.ChangeAccess(2, 0, []txn.AccessChange{
			{Kind: 'r', Name: []byte("a"), Remove: true}, {Kind: 'r', Name: []byte("b"), Value: []byte("2")},
		})
	})
	before, err := digestOf(context.Background(), n.s)
	require.NoError(t, err)

	crashed := mem.CrashClone(crashRand(rand.New(rand.NewPCG(1, 1))))
	require.NoError(t, n.s.Close())
	n = openNode(t, options(crashed))
	n.applyAll()
	after, err := digestOf(context.Background(), n.s)
	require.NoError(t, err)
	require.Equal(t, before, after)
	version, entries = query.Access(n.s)
	require.Equal(t, uint64(3), version)
	require.Len(t, entries, 1)
	require.Equal(t, "b", entries[0].Name)
	n.check()
}
