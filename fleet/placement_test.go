// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTag(t *testing.T) {
	for name, tag := range map[string]string{
		"a": "", "{a}b": "a", "b{a}": "a", "x{a}{b}": "a", "{}a": "", "{a": "", "}{": "", "{{a}}": "{a",
	} {
		require.Equal(t, tag, Tag(name), name)
	}
}

func TestRules(t *testing.T) {
	rules := []Rule{
		{Pattern: "*", Pair: "all"},
		{Pattern: "orders/*", Pair: "orders"},
		{Pattern: "*/eu", Pair: "eu"},
		{Pattern: "orders/x", Pair: "x"},
		{Pattern: "orders/?", Pair: "one"},
	}
	for queue, pair := range map[string]string{
		"a": "all", "orders/abc": "orders", "a/eu": "eu", "orders/eu": "orders", "orders/x": "x", "orders/y": "orders",
	} {
		r, found := match(rules, queue)
		require.True(t, found)
		require.Equal(t, pair, r.Pair, queue)
	}
	_, found := match(nil, "a")
	require.False(t, found)
}

func weighted(weights ...uint64) []candidate {
	var out []candidate
	for i, w := range weights {
		m := Member{Name: fmt.Sprintf("pair%d", i), State: StateOpen}
		out = append(out, candidate{Member: m, load: Load{FreeBytes: w}, live: true})
	}
	return out
}

func placeAll(t *testing.T, n int, pairs []candidate) []string {
	t.Helper()
	out := make([]string, n)
	for i := range out {
		name := fmt.Sprint("queue-", i)
		pair, err := choose(name, name, pairs, nil, nil)
		require.NoError(t, err)
		out[i] = pair
	}
	return out
}

// Pairs are chosen in proportion to their weights. If a pair is added, or its weight grows, keys change only to it.
func TestRendezvous(t *testing.T) {
	const n = 20_000
	before := placeAll(t, n, weighted(100, 200, 100))
	counts := map[string]int{}
	for _, p := range before {
		counts[p]++
	}
	require.InDelta(t, n/4, counts["pair0"], n/50)
	require.InDelta(t, n/2, counts["pair1"], n/50)
	require.InDelta(t, n/4, counts["pair2"], n/50)
	moved := 0
	for i, p := range placeAll(t, n, weighted(100, 200, 100, 400)) {
		if p != before[i] {
			require.Equal(t, "pair3", p)
			moved++
		}
	}
	require.InDelta(t, n/2, moved, n/50)
	for i, p := range placeAll(t, n, weighted(300, 200, 100)) {
		if p != before[i] {
			require.Equal(t, "pair0", p)
		}
	}
	counts = map[string]int{}
	for _, p := range placeAll(t, n, weighted(0, 0)) {
		counts[p]++
	}
	require.InDelta(t, n/2, counts["pair0"], n/50, "without free space, pairs are equal")
}

// A new pair moves no queue, and new queues prefer a pair with more free space.
func TestPlacementsAreStable(t *testing.T) {
	t.Parallel()
	client := start(t).client(t)
	p := pairs(t, client, "a", "b")
	placed := map[string]string{}
	assign := func(prefix string) map[string]int {
		counts := map[string]int{}
		for i := range 60 {
			q := fmt.Sprint(prefix, i)
			o, err := p[0].Assign(t.Context(), q, "")
			require.NoError(t, err)
			placed[q] = o.Pair
			counts[o.Pair]++
		}
		return counts
	}
	assign("old")
	c := newPair(t, client, "c")
	c.join(t)
	require.NoError(t, c.PutLoad(t.Context(), Load{FreeBytes: 100 << 30}))
	require.Greater(t, assign("new")["c"], 45)
	c.run(t)
	for q, pair := range placed {
		o, found, err := c.Owner(q)
		require.NoError(t, err)
		require.True(t, found)
		require.Equal(t, pair, o.Pair)
	}
}
