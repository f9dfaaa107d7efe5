// SPDX-License-Identifier: Apache-2.0

package page

import (
	"encoding/binary"

	"github.com/lockstep-mq/lockstep/store/crc"
)

// SealRun makes buf, whole pages with a payload at buf[RunHeaderBytes:] and zeros after it, the bytes of a run: for
// writers that build runs in place rather than have Encode copy the payload.
func SealRun(buf []byte, run Run, kind Kind, payloadBytes int) { sealRun(buf, run, kind, payloadBytes) }

// SealRunWith is SealRun for a payload whose last bytes have a known CRC32C: what it was before they were copied here.
// If one of them has changed since, the run is damaged, and its first reader finds out.
func SealRunWith(buf []byte, run Run, kind Kind, payloadBytes, lastBytes int, last uint32) {
	runHeader(buf, run, kind, payloadBytes)
	first := crc.Of(buf[4 : RunHeaderBytes+payloadBytes-lastBytes])
	binary.LittleEndian.PutUint32(buf, crc.Join(first, last, lastBytes))
}
