// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// The cost of the search for a high-priority message does not depend on the number of low-priority messages before it.
func TestNextOfPriorityCost(t *testing.T) {
	s, lsn := New(), uint64(0)
	apply := func(fill func(b *txn.Builder)) txn.Result {
		var b txn.Builder
		b.Begin(nil, 1, nil)
		fill(&b)
		payload, err := b.Finish()
		require.NoError(t, err)
		lsn++
		r := s.Apply(lsn, payload)
		require.Equal(t, txn.OK, r.Code)
		return r
	}
	apply(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{Priorities: 1}, "default") })
	low, err := txn.AppendMessage(nil, 1, &txn.Attributes{Priority: new(uint8(1))}, nil, nil)
	require.NoError(t, err)
	high, err := txn.AppendMessage(nil, 1, &txn.Attributes{Priority: new(uint8(9))}, nil, nil)
	require.NoError(t, err)
	const batches, batch = 100, 5000
	for range batches {
		apply(func(b *txn.Builder) {
			b.BeginPublish(1)
			for range batch {
				b.Record(low)
			}
			b.EndPublish()
		})
	}
	apply(func(b *txn.Builder) {
		b.BeginPublish(1)
		b.Record(high)
		b.EndPublish()
	})
	sub := s.Queue(1).Sub(1)
	require.Equal(t, uint64(batches*batch+1), sub.NextUnackedIn(9, 1))
	require.Equal(t, uint64(1), sub.NextUnackedIn(1, 1))
	require.Equal(t, uint64(batches*batch+2), sub.NextUnackedIn(4, 1), "no message")
	// Chunks of one priority need no bitmaps.
	with := 0
	for _, c := range s.Queue(1).lanes.chunks {
		if !c.only() {
			with++
		}
	}
	require.Equal(t, 1, with)
	require.Len(t, s.Queue(1).lanes.byPriority[9], 1, "a search of priority 9 visits one chunk of half a million messages")
	require.Empty(t, s.Check())
	// When the messages are dead, their priorities are removed.
	apply(func(b *txn.Builder) { b.Purge(1, 0) })
	require.Empty(t, s.Queue(1).lanes.chunks)
	require.Empty(t, s.Check())
}
