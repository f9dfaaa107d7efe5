// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math"
	"unicode/utf8"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// Format codes (1.6).
const (
	codeDescribed = 0x00
	codeNull      = 0x40
	codeTrue      = 0x41
	codeFalse     = 0x42
	codeUint0     = 0x43
	codeUlong0    = 0x44
	codeList0     = 0x45
	codeUbyte     = 0x50
	codeByte      = 0x51
	codeUint8     = 0x52
	codeUlong8    = 0x53
	codeInt8      = 0x54
	codeLong8     = 0x55
	codeBool      = 0x56
	codeUshort    = 0x60
	codeShort     = 0x61
	codeUint      = 0x70
	codeInt       = 0x71
	codeFloat     = 0x72
	codeChar      = 0x73
	codeDecimal32 = 0x74
	codeUlong     = 0x80
	codeLong      = 0x81
	codeDouble    = 0x82
	codeTimestamp = 0x83
	codeDecimal64 = 0x84
	codeDecimal   = 0x94
	codeUUID      = 0x98
	codeBinary8   = 0xa0
	codeString8   = 0xa1
	codeSymbol8   = 0xa3
	codeBinary    = 0xb0
	codeString    = 0xb1
	codeSymbol    = 0xb3
	codeList8     = 0xc0
	codeMap8      = 0xc1
	codeList      = 0xd0
	codeMap       = 0xd1
	codeArray8    = 0xe0
	codeArray     = 0xf0
)

const maxDepth = 32

// value locates an encoded value in the input. Unlike in package wire, a message is converted without a Go value for
// each AMQP value.
type value struct {
	code  byte   // codeDescribed for any described value
	count int    // number of elements of a list, a map (keys and values) or an array
	data  []byte // data after length and count; for an array, including the constructor
}

func malformed(format string, args ...any) error {
	return &wire.Error{Condition: "amqp:decode-error", Description: fmt.Sprintf(format, args...)}
}

// layout describes the encoding that follows a format code.
type layout struct {
	known          bool
	fixed          uint8 // length of the value, if fixed
	sized, counted uint8 // otherwise the sizes of length and count
}

// layouts contains the layout of each format code, which depends on the upper half of the code (1.6).
var layouts = func() (all [256]layout) { //nolint:gochecknoglobals // a table
	for _, code := range []byte{
		codeNull, codeTrue, codeFalse, codeUint0, codeUlong0, codeList0, codeUbyte, codeByte, codeUint8, codeUlong8,
		codeInt8, codeLong8, codeBool, codeUshort, codeShort, codeUint, codeInt, codeFloat, codeChar, codeDecimal32,
		codeUlong, codeLong, codeDouble, codeTimestamp, codeDecimal64, codeDecimal, codeUUID, codeBinary8, codeString8,
		codeSymbol8, codeBinary, codeString, codeSymbol, codeList8, codeMap8, codeList, codeMap, codeArray8, codeArray,
	} {
		all[code] = [...]layout{
			4: {fixed: 0}, 5: {fixed: 1}, 6: {fixed: 2}, 7: {fixed: 4}, 8: {fixed: 8}, 9: {fixed: 16},
			0xa: {sized: 1}, 0xb: {sized: 4}, 0xc: {sized: 1, counted: 1}, 0xd: {sized: 4, counted: 4},
			0xe: {sized: 1, counted: 1}, 0xf: {sized: 4, counted: 4},
		}[code>>4]
		all[code].known = true
	}
	return all
}()

func width(code byte) (fixed, sized, counted int) {
	l := &layouts[code]
	return int(l.fixed), int(l.sized), int(l.counted)
}

func isKnown(code byte) bool { return layouts[code].known }

// skipShort skips a value of fixed length, a short binary, or a short string or symbol in ASCII; most values have one
// of these forms. It returns false for all other values, for malformed ones, and for booleans of one byte.
func skipShort(b []byte) (rest []byte, ok bool) {
	if len(b) == 0 {
		return nil, false
	}
	l := &layouts[b[0]]
	if l.sized == 0 {
		n := 1 + int(l.fixed)
		return b[min(n, len(b)):], l.known && len(b) >= n && b[0] != codeBool
	}
	if l.sized != 1 || l.counted != 0 || len(b) < 2 || len(b) < 2+int(b[1]) {
		return nil, false
	}
	text, rest := b[2:2+int(b[1])], b[2+int(b[1]):]
	if b[0] != codeBinary8 {
		for _, c := range text {
			if c >= utf8.RuneSelf {
				return nil, false
			}
		}
	}
	return rest, true
}

// read reads the value at the beginning of b without decoding it.
func read(b []byte) (v value, rest []byte, err error) {
	for range maxDepth {
		if len(b) == 0 {
			return value{}, nil, malformed("missing value at the end")
		}
		if b[0] != codeDescribed {
			return readPlain(b)
		}
		if _, b, err = readPlain(b[1:]); err != nil {
			return value{}, nil, err
		}
		if len(b) > 0 && b[0] != codeDescribed {
			v, rest, err = readPlain(b)
			v.code = codeDescribed
			return v, rest, err
		}
	}
	return value{}, nil, malformed("descriptors nested deeper than %d", maxDepth)
}

func readPlain(b []byte) (v value, rest []byte, err error) {
	if len(b) == 0 {
		return value{}, nil, malformed("missing value at the end")
	}
	if !isKnown(b[0]) {
		return value{}, nil, malformed("unknown format code 0x%02x", b[0])
	}
	return readContent(b[0], b[1:])
}

func readContent(code byte, b []byte) (v value, rest []byte, err error) {
	n, sized, counted := width(code)
	switch {
	case sized == 1 && len(b) >= 1:
		n = int(b[0])
	case sized == 4 && len(b) >= 4:
		n = int(binary.BigEndian.Uint32(b))
	case sized > 0:
		return value{}, nil, malformed("missing length at the end")
	}
	b = b[sized:]
	if n > len(b) || n < counted {
		return value{}, nil, malformed("value of type 0x%02x has %d bytes, only %d available", code, n, len(b))
	}
	v = value{code: code, data: b[:n]}
	switch counted {
	case 1:
		v.count = int(b[0])
	case 4:
		v.count = int(min(binary.BigEndian.Uint32(b), math.MaxInt32))
	}
	v.data = v.data[counted:]
	return v, b[n:], nil
}

// check validates the value at the beginning of b, which is passed on without conversion.
func check(b []byte, depth int) (rest []byte, err error) {
	if depth > maxDepth {
		return nil, malformed("values nested deeper than %d", maxDepth)
	}
	if len(b) > 0 && b[0] == codeDescribed {
		if b, err = check(b[1:], depth+1); err != nil {
			return nil, err
		}
		return check(b, depth+1)
	}
	v, rest, err := readPlain(b)
	if err != nil {
		return nil, err
	}
	return rest, v.check(depth)
}

func (v value) check(depth int) error {
	switch v.code {
	case codeString8, codeString:
		if !utf8.Valid(v.data) {
			return malformed("string is not UTF-8")
		}
	case codeSymbol8, codeSymbol:
		for _, c := range v.data {
			if c >= utf8.RuneSelf {
				return malformed("symbol is not ASCII")
			}
		}
	case codeBool:
		if v.data[0] > 1 {
			return malformed("boolean is %d", v.data[0])
		}
	case codeList8, codeList, codeMap8, codeMap:
		if v.isMap() && v.count%2 != 0 {
			return malformed("map has %d keys and values", v.count)
		}
		b := v.data
		var err error
		for range v.count {
			if rest, ok := skipShort(b); ok && depth < maxDepth {
				b = rest
				continue
			}
			if b, err = check(b, depth+1); err != nil {
				return err
			}
		}
		if len(b) > 0 {
			return malformed("%d bytes after the last value of a list or map", len(b))
		}
	case codeArray8, codeArray:
		return v.checkArray(depth)
	}
	return nil
}

// checkArray validates the constructor and the elements.
func (v value) checkArray(depth int) error {
	b := v.data
	var err error
	for len(b) > 0 && b[0] == codeDescribed {
		if depth++; depth > maxDepth {
			return malformed("values nested deeper than %d", maxDepth)
		}
		if b, err = check(b[1:], depth); err != nil {
			return err
		}
	}
	if len(b) == 0 || !isKnown(b[0]) {
		return malformed("array has an unknown type")
	}
	code := b[0]
	b = b[1:]
	if depth+1 > maxDepth {
		return malformed("values nested deeper than %d", maxDepth)
	}
	if fixed, sized, _ := width(code); fixed == 0 && sized == 0 {
		v.count = 0 // its elements have no data
	}
	for range v.count {
		var element value
		if element, b, err = readContent(code, b); err != nil {
			return err
		}
		if err := element.check(depth + 1); err != nil {
			return err
		}
	}
	if len(b) > 0 {
		return malformed("%d bytes after the last value of an array", len(b))
	}
	return nil
}

// elements returns an iterator over the elements of a validated list.
func (v value) elements() iter.Seq2[int, value] {
	return func(yield func(int, value) bool) {
		rest := v.data
		for i := range v.count {
			var e value
			if e, rest, _ = read(rest); !yield(i, e) {
				return
			}
		}
	}
}

// pairs returns an iterator over the keys and values of a validated map.
func (v value) pairs() iter.Seq2[value, value] {
	return func(yield func(value, value) bool) {
		rest := v.data
		for range v.count / 2 {
			var key, e value
			key, rest, _ = read(rest)
			if e, rest, _ = read(rest); !yield(key, e) {
				return
			}
		}
	}
}

func (v value) isNull() bool   { return v.code == codeNull }
func (v value) isString() bool { return v.code == codeString8 || v.code == codeString }
func (v value) isSymbol() bool { return v.code == codeSymbol8 || v.code == codeSymbol }
func (v value) isBinary() bool { return v.code == codeBinary8 || v.code == codeBinary }
func (v value) isList() bool   { return v.code == codeList0 || v.code == codeList8 || v.code == codeList }
func (v value) isMap() bool    { return v.code == codeMap8 || v.code == codeMap }

func (v value) bits() uint64 {
	var n uint64
	for _, c := range v.data {
		n = n<<8 | uint64(c)
	}
	return n
}

// integer returns the value of an integer or a timestamp. It returns false for other types, and for a value above
// the int64 range.
func (v value) integer() (int64, bool) {
	switch v.code {
	case codeUint0, codeUlong0, codeUbyte, codeUint8, codeUlong8, codeUshort, codeUint:
		return int64(v.bits()), true
	case codeByte, codeInt8, codeLong8:
		return int64(int8(v.data[0])), true
	case codeShort:
		return int64(int16(v.bits())), true
	case codeInt:
		return int64(int32(v.bits())), true
	case codeLong, codeTimestamp:
		return int64(v.bits()), true
	case codeUlong:
		return int64(v.bits()), v.bits() <= math.MaxInt64
	}
	return 0, false
}

func (v value) boolean() (is, ok bool) {
	switch v.code {
	case codeTrue:
		return true, true
	case codeFalse:
		return false, true
	case codeBool:
		return v.data[0] == 1, true
	}
	return false, false
}
