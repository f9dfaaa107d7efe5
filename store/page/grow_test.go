// SPDX-License-Identifier: Apache-2.0

package page

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A file grows in increasing steps, by at most an eighth. After Open, the steps start at the minimum again.
func TestGrow(t *testing.T) {
	mem := newMem(t)
	f, err := Create(mem, pageFile, CreateOptions{PageSize: 2048})
	require.NoError(t, err)
	grow := func(pages int) (steps int, bytes uint64) {
		before, last := f.Stats().Pages, f.Stats().Pages
		for range pages {
			_, err := f.Alloc(1)
			require.NoError(t, err)
			if now := f.Stats().Pages; now > last {
				require.LessOrEqual(t, now-last, max(last/8, minGrowBytes/2048))
				last = now
				steps++
			}
		}
		return steps, (last - before) * 2048
	}
	steps, bytes := grow(40_000)
	require.Less(t, steps, 40, "%d bytes", bytes)
	_, err = f.Checkpoint(Meta{})
	require.NoError(t, err)
	require.NoError(t, f.Close())

	f, err = Open(mem, pageFile, Options{})
	require.NoError(t, err)
	grow(int(f.Stats().Free)) // full
	_, bytes = grow(1)
	require.Equal(t, uint64(minGrowBytes), bytes)
	_, bytes = grow(2000)
	require.Less(t, bytes, uint64(8<<20), "4 MB, and at most the same preallocated")
	require.NoError(t, f.Close())
}
