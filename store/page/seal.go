// SPDX-License-Identifier: Apache-2.0

package page

// SealRun makes buf, whole pages with a payload at buf[RunHeaderBytes:] and zeros after it, the bytes of a run: for
// writers that build runs in place rather than have Encode copy the payload.
func SealRun(buf []byte, run Run, kind Kind, payloadBytes int) { sealRun(buf, run, kind, payloadBytes) }
