// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"math/rand"
	"testing"

	"github.com/stretchr/testify/require"
)

// naive is a trivial allocator for comparison.
type naive []byte // 0 free, 1 live, 2 dropped

func (m naive) fits(n int) bool {
	run := 0
	for _, b := range m {
		if b != 0 {
			run = 0
		} else if run++; run >= n {
			return true
		}
	}
	return false
}

func (m naive) all(at, n int, want byte) bool {
	for _, b := range m[at : at+n] {
		if b != want {
			return false
		}
	}
	return true
}

func (m naive) set(at, n int, to byte) {
	for i := range n {
		m[at+i] = to
	}
}

// The allocator behaves like naive, over several chunks and with ranges across chunk boundaries.
func TestSpaceModel(t *testing.T) {
	for seed := range int64(6) {
		rng := rand.New(rand.NewSource(seed))
		s := newSpace(2048)
		var m naive
		type piece struct{ at, n int }
		var live, dropped []piece
		take := func(from *[]piece) piece {
			i := rng.Intn(len(*from))
			p := (*from)[i]
			(*from)[i] = (*from)[len(*from)-1]
			*from = (*from)[:len(*from)-1]
			return p
		}
		sizes := []int{1, 2, 7, 64, 500, 5000, 20_000}
		for step := range 3000 {
			switch op := rng.Intn(10); {
			case op < 5:
				n := 1 + rng.Intn(sizes[rng.Intn(len(sizes))])
				at, ok := s.find(uint64(n))
				require.Equal(t, m.fits(n), ok, "step %d: %d pages", step, n)
				if !ok {
					if len(m) < 150_000 {
						grow := 1 + rng.Intn(30_000)
						s.grow(uint64(grow))
						m = append(m, make(naive, grow)...)
					}
					continue
				}
				require.True(t, m.all(int(at), n, 0), "step %d: pages %d+%d are not free", step, at, n)
				s.take(at, uint64(n))
				m.set(int(at), n, 1)
				live = append(live, piece{int(at), n})
			case op < 8 && len(live) > 0:
				p := take(&live)
				if p.n > 1 && rng.Intn(2) == 0 { // free a part
					k := 1 + rng.Intn(p.n-1)
					live = append(live, piece{p.at + k, p.n - k})
					p.n = k
				}
				require.True(t, s.isLive(uint64(p.at), uint64(p.n)))
				s.drop(uint64(p.at), uint64(p.n))
				require.False(t, s.isLive(uint64(p.at), uint64(p.n)))
				m.set(p.at, p.n, 2)
				dropped = append(dropped, p)
			case len(dropped) > 0:
				p := take(&dropped)
				s.release(uint64(p.at), uint64(p.n))
				m.set(p.at, p.n, 0)
			}
		}
		requireCounts(t, s, m)
	}
}

func requireCounts(t *testing.T, s *space, m naive) {
	t.Helper()
	var live, busy uint64
	for i, b := range m {
		if b == 1 {
			live++
		}
		if b != 0 {
			busy++
		}
		require.Equal(t, b == 1, s.isLive(uint64(i), 1))
	}
	require.Equal(t, live, s.live)
	require.Equal(t, busy, s.busy)
	require.EqualValues(t, len(m), s.pages)
	var liveSum, busySum, missing uint64
	for i, c := range s.chunks {
		require.Equal(t, c.liveCount, countBits(c.live))
		require.Equal(t, c.busyCount, countBits(c.busy))
		liveSum += c.liveCount
		busySum += c.busyCount
		if i == len(s.chunks)-1 {
			missing = uint64(len(s.chunks))*s.geo.chunkPages() - s.pages
		}
	}
	require.Equal(t, s.live, liveSum)
	require.Equal(t, s.busy, busySum-missing)
}

// The bitmap functions agree with a slice of booleans.
func TestBits(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	for range 3000 {
		words := make([]uint64, 5)
		set := make([]bool, 320)
		for range rng.Intn(6) {
			from := rng.Intn(320)
			n := rng.Intn(320 - from + 1)
			value := rng.Intn(3) > 0
			if value {
				setBits(words, uint64(from), uint64(n))
			} else {
				clearBits(words, uint64(from), uint64(n))
			}
			for i := from; i < from+n; i++ {
				set[i] = value
			}
		}
		from := rng.Intn(320)
		to := from + rng.Intn(320-from+1)
		first := func(value bool) uint64 {
			for i := from; i < to; i++ {
				if set[i] == value {
					return uint64(i)
				}
			}
			return uint64(to)
		}
		require.Equal(t, first(true), nextBit(words, uint64(from), uint64(to)))
		require.Equal(t, first(false), nextClear(words, uint64(from), uint64(to)))
		tail := 0
		for i := 319; i >= 0 && !set[i]; i-- {
			tail++
		}
		require.EqualValues(t, tail, clearTail(words, 320))
	}
}

// BenchmarkAlloc allocates pages in a file of 64 GiB with pages of 2 KiB. One page in 64 is free, in ranges of 4
// pages.
func BenchmarkAlloc(b *testing.B) {
	for _, n := range []uint64{1, 4, 100} {
		b.Run(fmt.Sprintf("pages=%d", n), func(b *testing.B) {
			s := newSpace(2048)
			s.grow(32 << 20)
			s.take(0, s.pages)
			free := func() {
				for at := uint64(0); at < s.pages; at += 256 {
					if s.isLive(at, 4) {
						s.drop(at, 4)
						s.release(at, 4)
					}
				}
			}
			free()
			for b.Loop() {
				at, ok := s.find(n)
				switch {
				case ok:
					s.take(at, n)
				case n > 4:
					s.grow(n)
				default:
					free()
				}
			}
		})
	}
}
