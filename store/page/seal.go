// SPDX-License-Identifier: Apache-2.0

package page

import (
	"encoding/binary"

	"github.com/lockstep-mq/lockstep/store/crc"
)

// SealExtent turns buf into the bytes of an extent: whole pages with a payload at buf[ExtentHeaderBytes:] and zeros
// after it. It is for writers that build extents in place instead of copying the payload with Encode.
func SealExtent(buf []byte, ext Extent, kind Kind, payloadBytes int) {
	sealExtent(buf, ext, kind, payloadBytes)
}

// SealExtentWith is SealExtent for a payload whose last bytes have a known CRC32C, computed before they were copied to
// buf. If they have changed since, the extent is corrupt and its first read detects it.
func SealExtentWith(buf []byte, ext Extent, kind Kind, payloadBytes, lastBytes int, last uint32) {
	extentHeader(buf, ext, kind, payloadBytes)
	first := crc.Of(buf[4 : ExtentHeaderBytes+payloadBytes-lastBytes])
	binary.LittleEndian.PutUint32(buf, crc.Join(first, last, lastBytes))
}
