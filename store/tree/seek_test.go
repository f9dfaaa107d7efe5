// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"math/rand"
	"sort"
	"testing"

	"github.com/stretchr/testify/require"
)

// requireSeeks reads the tree with one seeking iterator.
func requireSeeks(t *testing.T, m model, r readable, rng *rand.Rand) {
	t.Helper()
	sorted := m.sorted()
	it := r.Scan(nil, nil)
	var key []byte
	for range 20 {
		if key = randomKey(rng); rng.Intn(2) == 0 && len(sorted) > 0 { // an existing key, or one close to it
			key = append([]byte(sorted[rng.Intn(len(sorted))]), make([]byte, rng.Intn(2))...)
		}
		to := randomKey(rng)
		if rng.Intn(3) == 0 {
			to = nil
		}
		at := max(0, sort.SearchStrings(sorted, string(key)+"\x00")-1)
		it.SeekFloor(key, to)
		for range rng.Intn(200) {
			if at >= len(sorted) || to != nil && sorted[at] >= string(to) {
				require.False(t, it.Next())
				break
			}
			if !it.Next() || string(it.Key()) != sorted[at] { // an assertion for each key would take most of the time
				require.FailNow(t, "wrong key", "from %x to %x: %x instead of %x: %v", key, to, it.Key(), sorted[at],
					it.Err())
			}
			at++
		}
		require.NoError(t, it.Err())
	}
}
