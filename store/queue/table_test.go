// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTable(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var tab table
	want := map[uint64]*Queue{}
	var ids []uint64
	next := uint64(1)
	for range 5000 {
		if len(ids) == 0 || rng.IntN(5) < 3 {
			q := &Queue{id: next}
			next += 1 + rng.Uint64N(100)
			tab.put(q)
			want[q.id] = q
			ids = append(ids, q.id)
		} else {
			i := rng.IntN(len(ids))
			tab.remove(want[ids[i]])
			delete(want, ids[i])
			ids[i] = ids[len(ids)-1]
			ids = ids[:len(ids)-1]
		}
		id := rng.Uint64N(next)
		require.Same(t, want[id], tab.get(id))
		require.Equal(t, len(want), tab.n)
	}
	for id := range next {
		require.Same(t, want[id], tab.get(id))
	}
	for _, id := range ids {
		tab.remove(want[id])
	}
	require.Empty(t, tab.pages, "an empty table uses no memory")
}
