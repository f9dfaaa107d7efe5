// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// At the limit, the sequences with the earliest last expiry are removed, regardless of how often they have expired.
func TestLateSet(t *testing.T) {
	var l lateSet
	late := func() []uint64 { return slices.Sorted(maps.Keys(l.numbers)) }
	l.remove(1)
	require.Empty(t, late())
	l.add([]uint64{1}, 2)
	l.remove(1)
	l.add([]uint64{2, 1}, 2)
	require.Equal(t, []uint64{1, 2}, late())
	l.add([]uint64{1}, 2)
	require.Equal(t, []uint64{1}, late(), "2 has the oldest expiry")
	l.add([]uint64{3}, 2)
	require.Equal(t, []uint64{1, 3}, late())
	l.add([]uint64{4}, 2)
	require.Equal(t, []uint64{3, 4}, late())
}
