// SPDX-License-Identifier: Apache-2.0

package historycheck

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ID identifies a message of a workload by its producer and by its number among the producer's messages, from 1.
type ID struct {
	Producer uint32 `json:"producer"`
	N        uint64 `json:"n"`
}

// String returns "producer/n".
func (id ID) String() string { return fmt.Sprintf("%d/%d", id.Producer, id.N) }

// bodyHeaderBytes is the size of a body's header: magic, producer, number, size. The filler follows.
const bodyHeaderBytes = 4 + 4 + 8 + 4

const bodyMagic = 0x6c6b7374

// ErrBody is returned if a message's body differs from the result of Body.
var ErrBody = errors.New("message body differs from the published one")

// Body returns the body of the message with the given ID, with a length of sizeBytes (at least 20). Every byte is
// derived from id and sizeBytes, so that a reader can verify the body without the published one.
func Body(id ID, sizeBytes int) []byte {
	sizeBytes = max(sizeBytes, bodyHeaderBytes)
	b := make([]byte, 0, sizeBytes+8)
	b = binary.LittleEndian.AppendUint32(b, bodyMagic)
	b = binary.LittleEndian.AppendUint32(b, id.Producer)
	b = binary.LittleEndian.AppendUint64(b, id.N)
	b = binary.LittleEndian.AppendUint32(b, uint32(sizeBytes))
	state := uint64(id.Producer)*0xd1342543de82ef95 ^ id.N*0xff51afd7ed558ccd
	for len(b) < sizeBytes {
		state += 0x9e3779b97f4a7c15
		z := state
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		b = binary.LittleEndian.AppendUint64(b, z^z>>31)
	}
	return b[:sizeBytes]
}

// ParseBody returns the ID of the message with body b, or ErrBody if a byte differs from the result of Body.
func ParseBody(b []byte) (ID, error) {
	if len(b) < bodyHeaderBytes || binary.LittleEndian.Uint32(b) != bodyMagic {
		return ID{}, fmt.Errorf("%w: %d bytes without a workload header", ErrBody, len(b))
	}
	id := ID{Producer: binary.LittleEndian.Uint32(b[4:]), N: binary.LittleEndian.Uint64(b[8:])}
	if size := int(binary.LittleEndian.Uint32(b[16:])); size != len(b) {
		return id, fmt.Errorf("%w: message %v has %d bytes of %d", ErrBody, id, len(b), size)
	}
	want := Body(id, len(b))
	for i := range b {
		if b[i] != want[i] {
			return id, fmt.Errorf("%w: message %v at byte %d of %d", ErrBody, id, i, len(b))
		}
	}
	return id, nil
}
