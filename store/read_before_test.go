// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// A read with ReadRequest.Before returns only messages before that sequence, from pages and from memory.
func TestReadBefore(t *testing.T) {
	n := openNode(t, options(memfs.New()))
	n.commit(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{}, "default") })
	n.publishMany(1, 40, 512)
	_, err := n.s.Checkpoint(t.Context())
	require.NoError(t, err)
	n.publishMany(1, 20, 512)
	n.commit(func(b *txn.Builder) { b.Ack(1, 1, txn.Range{First: 20, Last: 29}) })
	for _, sub := range []uint32{0, 1} {
		for from := uint64(1); from <= 61; from += 3 {
			for _, before := range []uint64{1, from, from + 1, from + 17, 61, 1000} {
				var want, got []uint64
				for seq := from; seq < min(before, 61); seq++ {
					if seq < 20 || seq > 29 {
						want = append(want, seq)
					}
				}
				for at := from; ; {
					batch, next, err := n.s.Read(t.Context(), store.ReadRequest{
						Queue: 1, Sub: sub, From: at, Before: before, MaxMessages: 8, MaxBytes: 1 << 20,
					}, nil)
					require.NoError(t, err)
					for _, m := range batch {
						got = append(got, m.Sequence)
					}
					if len(batch) == 0 {
						require.Equal(t, at, next)
						break
					}
					at = next
				}
				require.Equal(t, want, got, "%d to %d", from, before)
			}
		}
	}
	n.check()
}
