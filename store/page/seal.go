// SPDX-License-Identifier: Apache-2.0

package page

import (
	"encoding/binary"

	"github.com/lockstep-mq/lockstep/store/crc"
)

// SealExtent turns buf into an extent: whole pages with a payload at buf[ExtentHeaderBytes:] and zeros after it. Unlike
// Encode, it does not copy the payload.
func SealExtent(buf []byte, ext Extent, kind Kind, payloadBytes int) {
	sealExtent(buf, ext, kind, payloadBytes)
}

// SealExtentWith is SealExtent for a payload whose last bytes have a known CRC32C. If they have changed since, the
// first read of the extent detects it.
func SealExtentWith(buf []byte, ext Extent, kind Kind, payloadBytes, lastBytes int, last uint32) {
	extentHeader(buf, ext, kind, payloadBytes)
	first := crc.Of(buf[4 : ExtentHeaderBytes+payloadBytes-lastBytes])
	binary.LittleEndian.PutUint32(buf, crc.Join(first, last, lastBytes))
}
