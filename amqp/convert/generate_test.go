// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/binary"
	"math/rand/v2"
	"strings"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// generator generates AMQP messages with all combinations of sections, types and encodings. It has a separate
// encoder, because other clients use encodings that this package does not use.
type generator struct{ *rand.Rand }

func (g generator) one(of ...byte) byte { return of[g.IntN(len(of))] }

// text returns a string, mostly a short one.
func (g generator) text() string {
	n := g.IntN(12)
	if g.IntN(20) == 0 {
		n = 200 + g.IntN(200)
	}
	return strings.Repeat("ab", n)[:n]
}

// sized appends a value of variable length, in either of its encodings.
func (g generator) sized(b []byte, short byte, data string) []byte {
	if len(data) > 255 || g.IntN(4) == 0 {
		b = binary.BigEndian.AppendUint32(append(b, short+0x10), uint32(len(data)))
	} else {
		b = append(b, short, byte(len(data)))
	}
	return append(b, data...)
}

// compound appends a list or map of count encoded values.
func (g generator) compound(b []byte, short byte, count int, data []byte) []byte {
	if short == codeList8 && count == 0 && g.IntN(2) == 0 {
		return append(b, codeList0)
	}
	if len(data) > 254 || g.IntN(4) == 0 {
		b = binary.BigEndian.AppendUint32(append(b, short+0x10), uint32(len(data)+4))
		b = binary.BigEndian.AppendUint32(b, uint32(count))
	} else {
		b = append(b, short, byte(len(data)+1), byte(count))
	}
	return append(b, data...)
}

// descriptor appends the descriptor of a section, in any of its encodings.
func (g generator) descriptor(b []byte, code byte) []byte {
	b = append(b, codeDescribed)
	switch g.IntN(8) {
	case 0:
		return append(append(b, codeUlong), 0, 0, 0, 0, 0, 0, 0, code)
	case 1:
		return g.sized(b, codeSymbol8, sectionNames[code-wire.SectionHeader])
	}
	return append(b, codeUlong8, code)
}

// simple appends a value of any primitive type.
func (g generator) simple(b []byte) []byte {
	fixed := func(code byte, n int) []byte {
		b = append(b, code)
		for range n {
			b = append(b, byte(g.IntN(256)))
		}
		return b
	}
	switch g.IntN(24) {
	case 0:
		return append(b, g.one(codeNull, codeTrue, codeFalse, codeUint0, codeUlong0))
	case 1:
		return append(b, codeBool, byte(g.IntN(2)))
	case 2, 3:
		return fixed(g.one(codeUbyte, codeByte, codeUint8, codeUlong8, codeInt8, codeLong8), 1)
	case 4, 5:
		return fixed(g.one(codeUshort, codeShort), 2)
	case 6, 7:
		return fixed(g.one(codeUint, codeInt, codeFloat, codeDecimal32), 4)
	case 8:
		return binary.BigEndian.AppendUint32(append(b, codeChar), uint32(g.IntN(0xd000)))
	case 9, 10, 11:
		return fixed(g.one(codeUlong, codeLong, codeDouble, codeTimestamp, codeDecimal64), 8)
	case 12, 13:
		return fixed(g.one(codeDecimal, codeUUID), 16)
	case 14, 15:
		return g.sized(b, codeSymbol8, g.text())
	case 16, 17:
		return g.sized(b, codeBinary8, "\xff\x00"+g.text())
	}
	return g.sized(b, codeString8, g.text())
}

// any appends a value of any type.
func (g generator) any(b []byte, depth int) []byte {
	if depth > 3 {
		return g.simple(b)
	}
	var data []byte
	count := g.IntN(4)
	switch g.IntN(12) {
	case 0, 1:
		for range count {
			data = g.any(data, depth+1)
		}
		return g.compound(b, codeList8, count, data)
	case 2, 3:
		for range count {
			data = g.any(g.simple(data), depth+1)
		}
		return g.compound(b, codeMap8, 2*count, data)
	case 4:
		data = []byte{codeInt}
		for range count {
			data = binary.BigEndian.AppendUint32(data, g.Uint32())
		}
		return g.compound(b, codeArray8, count, data)
	case 5:
		data = []byte{codeString8}
		for range count {
			data = append(append(data, 3), "abc"...)
		}
		return g.compound(b, codeArray8, count, data)
	case 6:
		return g.any(g.sized(append(b, codeDescribed), codeSymbol8, "some:type"), depth+1)
	}
	return g.simple(b)
}

// id appends a message ID of any type.
func (g generator) id(b []byte) []byte {
	switch g.IntN(6) {
	case 0:
		return binary.BigEndian.AppendUint64(append(b, codeUlong), g.Uint64())
	case 1:
		return append(b, codeUlong8, byte(g.IntN(256)))
	case 2:
		return append(append(b, codeUUID), "0123456789abcdef"...)
	case 3:
		return g.sized(b, codeBinary8, "\x01\xfe"+g.text())
	case 4:
		like := []string{"ID:", idUlong + "7", idUUID, idBinary + "zz", idString, idNoPrefix}
		return g.sized(b, codeString8, like[g.IntN(len(like))]+g.text())
	}
	return g.sized(b, codeString8, g.text())
}

// annotations appends a map with symbols as keys.
func (g generator) annotations(b []byte, code byte) []byte {
	var data []byte
	count := g.IntN(4)
	for i := range count {
		data = g.any(g.sized(data, codeSymbol8, "x-opt-"+string(rune('a'+i))), 0)
	}
	if code == wire.SectionMessageAnnotations {
		for _, key := range [...]string{annotationDeliveryTime, annotationEnqueueTime} {
			if g.IntN(6) == 0 {
				data = binary.BigEndian.AppendUint64(
					append(g.sized(data, codeSymbol8, key), g.one(codeLong, codeTimestamp)), 1_900_000_000_000+uint64(g.IntN(1e6)))
				count++
			}
		}
		if g.IntN(6) == 0 {
			data = append(g.sized(data, codeSymbol8, annotationDeliveryDelay), codeUint8, 50)
			count++
		}
		if g.IntN(3) == 0 {
			data = append(g.sized(data, codeSymbol8, "x-opt-jms-msg-type"), codeByte, byte(g.IntN(6)))
			count++
		}
	}
	return g.compound(g.descriptor(b, code), codeMap8, 2*count, data)
}

func (g generator) header(b []byte) []byte {
	var data []byte
	count := g.IntN(6)
	for i := range count {
		switch {
		case g.IntN(3) == 0:
			data = append(data, codeNull)
		case i == 0 || i == 3:
			data = append(data, g.one(codeTrue, codeFalse))
		case i == 1:
			data = append(data, codeUbyte, byte(g.IntN(12)))
		default:
			data = append(data, codeUint, 0, 1, byte(g.IntN(256)), 0)
		}
	}
	return g.compound(g.descriptor(b, wire.SectionHeader), codeList8, count, data)
}

func (g generator) properties(b []byte) []byte {
	var data []byte
	count := g.IntN(len(propertyNames) + 1)
	for i := range count {
		switch {
		case g.IntN(3) == 0:
			data = append(data, codeNull)
		case i == fieldMessageID || i == fieldCorrelationID:
			data = g.id(data)
		case i == fieldUserID:
			data = g.sized(data, codeBinary8, []string{"guest", "\xff"}[g.IntN(2)])
		case i == fieldContentType || i == fieldContentEncoding:
			data = g.sized(data, codeSymbol8, "text/plain")
		case i == fieldAbsoluteExpiryTime || i == fieldCreationTime:
			data = binary.BigEndian.AppendUint64(append(data, codeTimestamp), 1_900_000_000_000+uint64(g.IntN(1e6)))
		case i == fieldGroupSequence:
			data = binary.BigEndian.AppendUint32(append(data, codeUint), g.Uint32())
		default:
			data = g.sized(data, codeString8, g.text())
		}
	}
	return g.compound(g.descriptor(b, wire.SectionProperties), codeList8, count, data)
}

func (g generator) applicationProperties(b []byte) []byte {
	var data []byte
	count := g.IntN(8)
	for i := range count {
		key := string(rune('a'+i)) + g.text()
		switch g.IntN(30) {
		case 0:
			key = keyGroupSequence + strings.Repeat("x", i)
		case 1:
			key = strings.Repeat("k", 256+i)
		}
		data = g.simple(g.sized(data, codeString8, key))
	}
	return g.compound(g.descriptor(b, wire.SectionApplicationProperties), codeMap8, 2*count, data)
}

func (g generator) body(b []byte) []byte {
	switch g.IntN(9) {
	case 0:
		return b // no body
	case 1:
		for range 2 + g.IntN(3) {
			b = g.sized(g.descriptor(b, wire.SectionData), codeBinary8, g.text())
		}
		return b
	case 2, 3:
		for range 1 + g.IntN(3) {
			var data []byte
			count := g.IntN(4)
			for range count {
				data = g.any(data, 1)
			}
			b = g.compound(g.descriptor(b, wire.SectionSequence), codeList8, count, data)
		}
		return b
	case 4, 5:
		return g.any(g.descriptor(b, wire.SectionValue), 0)
	case 6:
		return g.sized(g.descriptor(b, wire.SectionValue), codeString8, g.text())
	}
	return g.sized(g.descriptor(b, wire.SectionData), codeBinary8, g.text())
}

// message returns a message, and its part that must be delivered unchanged.
func (g generator) message() (all, preserved []byte) {
	var b []byte
	if g.IntN(2) == 0 {
		b = g.header(b)
	}
	if g.IntN(3) == 0 {
		b = g.annotations(b, wire.SectionDeliveryAnnotations)
	}
	start := len(b)
	if g.IntN(2) == 0 {
		b = g.annotations(b, wire.SectionMessageAnnotations)
	}
	if g.IntN(4) != 0 {
		b = g.properties(b)
	}
	if g.IntN(2) == 0 {
		b = g.applicationProperties(b)
	}
	b = g.body(b)
	if g.IntN(4) == 0 {
		b = g.annotations(b, wire.SectionFooter)
	}
	return b, b[start:]
}
