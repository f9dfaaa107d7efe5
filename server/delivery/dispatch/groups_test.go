// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// The number of groups of a subscription is limited. A group with a message in flight is never evicted.
func TestManyGroups(t *testing.T) {
	var s groups
	c := new(Consumer)
	const busy, all = 1000, maxGroups + 50_000
	for i := range uint64(all) {
		rec, err := txn.AppendMessage(nil, 1, &txn.Attributes{Group: fmt.Sprint(i)}, nil, nil)
		require.NoError(t, err)
		s.deliver(s.of(&Message{Sequence: i + 1, Record: rec}), i+1, c)
		if i >= busy {
			s.done(i + 1)
		}
	}
	n := len(s.byHash) // several groups are evicted at a time
	require.InDelta(t, maxGroups, n, 64)
	require.LessOrEqual(t, n, maxGroups)
	require.Equal(t, n, c.groups, "number of groups of the consumer")
	require.Equal(t, busy, len(s.outs)) //nolint:testifylint // it would print all of them
	rec, err := txn.AppendMessage(nil, 1, &txn.Attributes{Group: "7"}, nil, nil)
	require.NoError(t, err)
	g := s.of(&Message{Sequence: all + 1, Record: rec})
	require.Equal(t, uint64(8), g.out, "the message in flight of the group")
	s.park(g, 4, all+1)
	s.park(g, 4, all+1)
	s.park(g, 9, all+2)
	s.park(g, 4, all)
	require.Equal(t, 3, s.parked, "a message is parked once")
	for i, want := range []uint64{all + 2, all, all + 1} { // ordered by priority, then by sequence
		next, lane, more := s.done([]uint64{8, all + 2, all}[i])
		require.True(t, more)
		require.Equal(t, want, next)
		require.Equal(t, []uint8{9, 4, 4}[i], lane)
	}
	require.Zero(t, s.parked)
	_, _, more := s.done(all + 1)
	require.False(t, more)
	_, _, more = s.done(all + 1)
	require.False(t, more, "it is no longer in flight")
}

// After random operations, a deferredSet contains the same sequences as a map.
func TestDeferredSet(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var s deferredSet
	want := map[uint64]bool{}
	draw := func() uint64 { return 1 + rng.Uint64N(5<<deferredBits) }
	for range 20_000 {
		switch k := rng.IntN(100); {
		case k < 90:
			sequence := draw()
			s.add(sequence)
			want[sequence] = true
		case k < 95:
			from, most := draw(), rng.IntN(50)
			got := s.take(from, most, nil)
			list := slices.Sorted(maps.Keys(want))
			at, _ := slices.BinarySearch(list, from)
			list = list[at:min(len(list), at+most)]
			require.True(t, slices.Equal(list, got), "from %d: %v, not %v", from, got, list)
			for _, sequence := range got {
				delete(want, sequence)
			}
		default:
			r := Range{First: draw()}
			r.Last = r.First + rng.Uint64N(3<<deferredBits)
			s.removeRange(r)
			maps.DeleteFunc(want, func(sequence uint64, _ bool) bool { return sequence >= r.First && sequence <= r.Last })
		}
		require.Equal(t, len(want), s.len())
	}
	s.removeRange(Range{First: 1, Last: 1 << 40})
	require.Empty(t, s.chunks)
}
