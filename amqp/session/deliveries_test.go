// SPDX-License-Identifier: Apache-2.0

package session

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDeliveries compares deliveries with a map: with wraparound, gaps, late settlements, and arbitrary ranges.
func TestDeliveries(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 3))
		var d deliveries
		model := map[uint32]*Link{}
		links := []*Link{{}, {}, {}}
		first := -rng.Uint32N(1000)
		next := first
		for range 1000 {
			switch rng.IntN(8) {
			case 0, 1, 2, 3:
				if rng.IntN(200) == 0 {
					next += rng.Uint32N(100)
				}
				l := links[rng.IntN(3)]
				*d.add(next) = delivery{link: l, ref: uint64(next)}
				model[next] = l
				next++
			case 4, 5: // mostly the oldest ones
				id := first + rng.Uint32N(next-first+1)
				d.remove(id)
				delete(model, id)
				if len(model) > 100 {
					for range 50 {
						d.remove(first)
						delete(model, first)
						first++
					}
				}
			case 6:
				from, span := rng.Uint32(), rng.Uint32()>>rng.IntN(32)
				if rng.IntN(4) > 0 {
					from = next - rng.Uint32N(2000)
				}
				var want, got []uint32
				for id := range model {
					if span < 1<<31 && id-from <= span {
						want = append(want, id)
					}
				}
				d.each(from, from+span, func(id uint32, e *delivery) {
					require.Equal(t, uint64(id), e.ref)
					got = append(got, id)
				})
				slices.SortFunc(want, func(a, b uint32) int { return int(distance(b, a)) })
				require.Equal(t, want, got, "seed %d", seed)
			case 7:
				if rng.IntN(50) == 0 {
					l := links[rng.IntN(3)]
					d.removeLink(l)
					for id, of := range model {
						if of == l {
							delete(model, id)
						}
					}
				}
			}
			require.Equal(t, len(model), d.live)
			require.LessOrEqual(t, d.n, len(d.ring))
		}
		for id, l := range model {
			require.Same(t, l, d.get(id).link)
		}
	}
}
