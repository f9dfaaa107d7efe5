// SPDX-License-Identifier: Apache-2.0

package site

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// After frames that are hardly compressible, the compressor skips skipFactor times as many bytes. It compresses all
// frames again when a frame is compressible.
func TestCompressLog(t *testing.T) {
	const size = 4096
	c, err := newCompressor()
	require.NoError(t, err)
	d, err := newDecompressor()
	require.NoError(t, err)
	defer d.Close()
	hardly, well := make([]byte, size), bytes.Repeat([]byte("message "), size/8)
	random := rand.NewChaCha8([32]byte{1})
	_, err = random.Read(hardly[size/16:])
	require.NoError(t, err)
	compressed := func(frames []byte) bool {
		sent, original := c.compressLog(frames)
		got, err := decompress(d, sent, original)
		require.NoError(t, err)
		require.Equal(t, frames, got)
		return original > 0
	}
	for range 2 {
		require.True(t, compressed(well))
		require.False(t, compressed(hardly[:minCompress-1]), "too small")
		require.True(t, compressed(well), "small frames have no effect")
		for range 3 {
			require.True(t, compressed(hardly), "the saving is known only after the compression")
			for range skipFactor {
				require.False(t, compressed(hardly))
			}
		}
		require.True(t, compressed(hardly))
		for range skipFactor {
			require.False(t, compressed(well))
		}
	}
}
