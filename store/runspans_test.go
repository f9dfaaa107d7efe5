// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// After acknowledgements in random order, each checkpoint frees exactly the extents that no subscription needs.
// Extents contain one or more messages. The result is the same after restarts.
func TestAcksOutOfOrderFreeMessages(t *testing.T) {
	for seed := range uint64(6) {
		rng := rand.New(rand.NewPCG(seed, 15))
		fs := memfs.New()
		n := openNode(t, options(fs))
		n.commit(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{}) })
		n.commit(func(b *txn.Builder) { b.CreateSubscription(1, "a", txn.StartLatest) })
		ctx, published := context.Background(), uint64(0)
		alive := map[uint64]bool{}
		published += publishSome(n, rng, alive, published)
		for round := range 40 {
			for range rng.IntN(4) { // each checkpoint ends an extent early
				published += publishSome(n, rng, alive, published)
				_, err := n.s.Checkpoint(ctx)
				require.NoError(t, err)
			}
			n.commit(func(b *txn.Builder) { ackSome(b, rng, alive, published) })
			if round%8 == 7 {
				require.NoError(t, n.s.Close())
				n = openNode(t, options(fs))
				n.term = uint64(round)
			}
			n.check()
		}
		for seq := range alive {
			n.commit(func(b *txn.Builder) { b.Ack(1, 1, txn.Range{First: seq, Last: seq}) })
		}
		n.check()
	}
}

// publishSome publishes messages of one size: small, nearly a page, or more than a page.
func publishSome(n *node, rng *rand.Rand, alive map[uint64]bool, published uint64) uint64 {
	size, count := []int{0, 20, 100, 700, 3000}[rng.IntN(5)], 1+rng.IntN(1500)
	if size >= 700 {
		count = 1 + count/50
	}
	n.commit(func(b *txn.Builder) {
		b.BeginPublish(1)
		for range count {
			b.Message(1_000, nil, make([]byte, size))
		}
		b.EndPublish()
	})
	for i := range uint64(count) {
		alive[published+1+i] = true
	}
	return uint64(count)
}

// ackSome acknowledges single messages, short ranges and long ranges.
func ackSome(b *txn.Builder, rng *rand.Rand, alive map[uint64]bool, published uint64) {
	for range 1 + rng.IntN(60) {
		first := 1 + rng.Uint64N(published)
		last := min(first+[]uint64{0, 0, 5, 20, 64, 300}[rng.IntN(6)], published)
		b.Ack(1, 1, txn.Range{First: first, Last: last})
		for seq := first; seq <= last; seq++ {
			delete(alive, seq)
		}
	}
}

// A checkpoint searches the index only for chunks in which the acknowledgements may have emptied an extent. After a
// restart it searches each chunk once.
func TestAcksOutOfOrderSearchNoIndex(t *testing.T) {
	const chunks = 24
	fs := memfs.New()
	n := openNode(t, options(fs))
	n.commit(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{}) })
	n.commit(func(b *txn.Builder) { b.CreateSubscription(1, "a", txn.StartLatest) })
	for range chunks {
		n.commit(func(b *txn.Builder) {
			b.BeginPublish(1)
			for range queue.ChunkSize {
				b.Message(1_000, nil, make([]byte, 100))
			}
			b.EndPublish()
		})
	}
	ctx := context.Background()
	_, err := n.s.Checkpoint(ctx)
	require.NoError(t, err)
	known, _ := n.s.Pager().SpanStats()
	require.GreaterOrEqual(t, known, chunks-1)
	ackRound := func(round uint64) (lookups uint64) {
		n.commit(func(b *txn.Builder) {
			for chunk := range uint64(chunks) {
				seq := chunk*queue.ChunkSize + 1 + round*100
				b.Ack(1, 1, txn.Range{First: seq, Last: seq})
			}
		})
		_, err := n.s.Checkpoint(ctx)
		require.NoError(t, err)
		_, lookups = n.s.Pager().SpanStats()
		return lookups
	}
	before := ackRound(1) // the first chunk is not yet known
	require.Equal(t, before, ackRound(2))
	require.Equal(t, before, ackRound(3))
	require.NoError(t, n.s.Close())
	n = openNode(t, options(fs))
	require.Equal(t, uint64(chunks), ackRound(4))
	require.Equal(t, uint64(chunks), ackRound(5))
	n.check()
}
