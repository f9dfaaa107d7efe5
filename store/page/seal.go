// SPDX-License-Identifier: Apache-2.0

package page

import (
	"encoding/binary"

	"github.com/lockstep-mq/lockstep/store/crc"
)

// SealRun turns buf into the bytes of an extent: whole pages with a payload at buf[RunHeaderBytes:] and zeros after
// it. It is for writers that build extents in place instead of copying the payload with Encode.
func SealRun(buf []byte, run Run, kind Kind, payloadBytes int) { sealRun(buf, run, kind, payloadBytes) }

// SealRunWith is SealRun for a payload whose last bytes have a known CRC32C, computed before they were copied to buf.
// If they have changed since, the extent is corrupt and its first read detects it.
func SealRunWith(buf []byte, run Run, kind Kind, payloadBytes, lastBytes int, last uint32) {
	runHeader(buf, run, kind, payloadBytes)
	first := crc.Of(buf[4 : RunHeaderBytes+payloadBytes-lastBytes])
	binary.LittleEndian.PutUint32(buf, crc.Join(first, last, lastBytes))
}
