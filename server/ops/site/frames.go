// SPDX-License-Identifier: Apache-2.0

package site

import (
	"fmt"

	"github.com/klauspost/compress/zstd"

	"github.com/lockstep-mq/lockstep/server/peerclient"
	"github.com/lockstep-mq/lockstep/store/wal"
)

const (
	// batchBytes is the maximum size of the frames in one response, unless a single frame is larger.
	batchBytes = 512 << 10
	// maxResponseBytes is the maximum size of a response. A response can contain one frame with the largest
	// permitted transaction.
	maxResponseBytes = peerclient.MaxRemoteResponseBytes
	// minCompress is the minimum size, in bytes, of frames that are compressed.
	minCompress = 512
	// minSaving defines the minimum saving of a compression: 1/minSaving of the size. If a response saves less, the
	// next skipFactor times as many bytes of the log are not compressed.
	minSaving  = 8
	skipFactor = 16
)

// compressor compresses the frames of one stream.
type compressor struct {
	encoder *zstd.Encoder
	buffer  []byte
	skip    int // number of the next bytes of the log that are not compressed
}

func newCompressor() (*compressor, error) {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithLowerEncoderMem(true), zstd.WithEncoderCRC(false)) // frames and pages have checksums
	if err != nil {
		return nil, fmt.Errorf("zstd: %w", err)
	}
	return &compressor{encoder: e}, nil
}

// compress returns the bytes to send, and the original size of the frames. The size is 0 if the frames are not
// compressed. The bytes are valid until the next call.
func (c *compressor) compress(frames []byte) (sent []byte, original uint32) {
	if len(frames) < minCompress {
		return frames, 0
	}
	c.buffer = c.encoder.EncodeAll(frames, c.buffer[:0])
	if len(c.buffer) >= len(frames) {
		return frames, 0
	}
	return c.buffer, uint32(len(frames))
}

// compressLog is like compress, for consecutive frames of a log. It omits the compression after frames that were
// hardly compressible.
func (c *compressor) compressLog(frames []byte) (sent []byte, original uint32) {
	if c.skip > 0 {
		c.skip -= min(c.skip, len(frames))
		return frames, 0
	}
	sent, original = c.compress(frames)
	if len(frames) >= minCompress && len(frames)-len(sent) < len(frames)/minSaving {
		c.skip = skipFactor * len(frames)
	}
	return sent, original
}

func newDecompressor() (*zstd.Decoder, error) {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxResponseBytes),
		zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, fmt.Errorf("zstd: %w", err)
	}
	return d, nil
}

// decompress returns the frames of a response. Decompressed frames are in a new slice.
func decompress(d *zstd.Decoder, sent []byte, original uint32) ([]byte, error) {
	if original == 0 {
		return sent, nil
	}
	if original > maxResponseBytes {
		return nil, fmt.Errorf("%w: response of %d bytes, limit %d", wal.ErrTooLarge, original, maxResponseBytes)
	}
	frames, err := d.DecodeAll(sent, make([]byte, 0, original))
	if err != nil {
		return nil, fmt.Errorf("decompress log frames: %w", err)
	}
	return frames, nil
}
