// SPDX-License-Identifier: Apache-2.0

package crc

import (
	"hash/crc32"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// Join and Suffix are correct for any lengths.
func TestJoinAndSuffix(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, 3<<20)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	lengths := []int{0, 1, 7, 28, 255, 256, 257, 4095, 4096, 15_000, 65_535, 65_536, 65_537, 1<<20 - 1, 1 << 20}
	for _, m := range lengths {
		for _, n := range lengths {
			at := r.IntN(len(b) - m - n + 1)
			one, two, whole := b[at:at+m], b[at+m:at+m+n], b[at:at+m+n]
			want := crc32.Checksum(whole, crc32.MakeTable(crc32.Castagnoli))
			require.Equal(t, want, Of(whole))
			require.Equal(t, want, Join(Of(one), Of(two), n), "%d and %d", m, n)
			require.Equal(t, Of(two), Suffix(want, Of(one), n), "%d and %d", m, n)
			start := r.Uint32()
			require.Equal(t, Update(start, two), Join(start, Of(two), n), "%d", n)
		}
	}
}

// Join and Suffix are correct up to the maximum size of a frame. The data are zeros, to save memory.
func TestJoinAndSuffixOfMaximumLength(t *testing.T) {
	zeros := make([]byte, 1<<20)
	long := uint32(0)
	for range 1 << 10 {
		long = Update(long, zeros)
	}
	head := []byte("head")
	want := Of(head)
	for range 1 << 10 {
		want = Update(want, zeros)
	}
	require.Equal(t, want, Join(Of(head), long, 1<<30))
	require.Equal(t, long, Suffix(want, Of(head), 1<<30))
}

func BenchmarkJoin(b *testing.B) {
	for b.Loop() {
		Join(0x12345678, 0x9abcdef0, 15_013)
	}
}

func BenchmarkOf(b *testing.B) {
	body := make([]byte, 15_013)
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		Of(body)
	}
}
