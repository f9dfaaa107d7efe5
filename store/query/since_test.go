// SPDX-License-Identifier: Apache-2.0

package query

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// For up to a billion messages, searchTime needs at most one read more than the number of messages has binary
// digits.
func TestSearchTimeReadsAreLogarithmic(t *testing.T) {
	for _, n := range []uint64{1, 10, 1000, 1_000_000, 100_000_000, 1_000_000_000} {
		most, digits := 0, 0
		for v := n; v > 0; v >>= 1 {
			digits++
		}
		rng := rand.New(rand.NewPCG(n, 1))
		for range 300 {
			want := 1 + rng.Uint64N(n)
			reads := 0
			// Three messages per millisecond, the first one at 1000.
			at := func(seq uint64) int64 { return 1000 + int64(seq/3) }
			got, ms, ok, err := searchTime(1, func() (uint64, error) { return n + 1, nil },
				func(from uint64) (uint64, int64, bool, error) {
					reads++
					return from, at(from), from <= n, nil
				}, at(want))
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, at(want), ms)
			require.True(t, got <= want && at(got) == at(want) && (got == 1 || at(got-1) < at(want)), "%d: %d", want, got)
			most = max(most, reads)
		}
		t.Logf("%d messages: at most %d reads", n, most)
		require.LessOrEqual(t, most, digits+1, "%d messages", n)
	}
}

// searchTime finds the first message at or after a time from any start, across gaps and at both ends. It returns the
// errors of its functions.
func TestSearchTime(t *testing.T) {
	times := map[uint64]int64{5: 50, 6: 60, 1000: 60, 1001: 70, 5000: 80}
	search := func(from uint64, since int64) (uint64, bool) {
		seq, ms, ok, err := searchTime(from, func() (uint64, error) { return 7000, nil },
			func(from uint64) (uint64, int64, bool, error) {
				for seq := from; seq < 7000; seq++ {
					if ms, ok := times[seq]; ok {
						return seq, ms, true, nil
					}
				}
				return 0, 0, false, nil
			}, since)
		require.NoError(t, err)
		require.Equal(t, times[seq], ms)
		return seq, ok
	}
	for _, tc := range []struct {
		from  uint64
		since int64
		want  uint64
	}{
		{1, 0, 5},
		{0, 50, 5},
		{1, 51, 6},
		{1, 60, 6},
		{7, 0, 1000},
		{1, 61, 1001},
		{1, 80, 5000},
		{5001, 0, 7000},
		{1, 81, 7000},
		{7000, 0, 7000},
		{9000, 0, 7000},
	} {
		seq, ok := search(tc.from, tc.since)
		require.Equal(t, tc.want, seq, "from %d, since %d", tc.from, tc.since)
		require.Equal(t, tc.want < 7000, ok)
	}
	broken := errors.New("broken")
	_, _, _, err := searchTime(1, func() (uint64, error) { return 10, nil },
		func(uint64) (uint64, int64, bool, error) { return 0, 0, false, broken }, 1)
	require.ErrorIs(t, err, broken)
	_, _, _, err = searchTime(1, func() (uint64, error) { return 0, broken }, nil, 1)
	require.ErrorIs(t, err, broken)
}
