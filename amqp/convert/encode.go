// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/binary"
	"math"
)

func appendLong(b []byte, v int64) []byte {
	if v >= math.MinInt8 && v <= math.MaxInt8 {
		return append(b, codeLong8, byte(v))
	}
	return binary.BigEndian.AppendUint64(append(b, codeLong), uint64(v))
}

func appendTimestamp(b []byte, ms int64) []byte {
	return binary.BigEndian.AppendUint64(append(b, codeTimestamp), uint64(ms))
}

func appendDouble(b []byte, v float64) []byte {
	return binary.BigEndian.AppendUint64(append(b, codeDouble), math.Float64bits(v))
}

func section(b []byte, code byte) []byte { return append(b, codeDescribed, codeUlong8, code) }

// compound is a list or map under construction. end sets its length and count.
type compound struct {
	at    int // offset of the constructor
	count int
}

func begin(b []byte, code byte) ([]byte, compound) {
	return append(b, code, 0, 0, 0, 0, 0, 0, 0, 0), compound{at: len(b)}
}

func (c compound) end(b []byte) []byte {
	binary.BigEndian.PutUint32(b[c.at+1:], uint32(len(b)-c.at-5))
	binary.BigEndian.PutUint32(b[c.at+5:], uint32(c.count))
	return b
}

// fields is a list under construction. Trailing nulls are omitted.
type fields struct{ compound }

func beginFields(b []byte) ([]byte, fields) {
	b, c := begin(b, codeList)
	return b, fields{c}
}

// set starts the field at a position, which must be above those of earlier fields. It appends a null for each
// skipped field.
func (f *fields) set(b []byte, position int) []byte {
	for ; f.count < position; f.count++ {
		b = append(b, codeNull)
	}
	f.count++
	return b
}
