// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"fmt"
	"math"
	"unicode/utf8"
)

const (
	// maxDepth limits the nesting of values, to protect the stack.
	maxDepth = 32
	// maxEmpty limits the number of elements of zero bytes, such as true, in all arrays of a value. The size of the input
	// does not limit them.
	maxEmpty = 4096
	// maxAhead limits the allocation before elements are decoded: each nested list may claim as many elements as bytes.
	maxAhead = 64
)

func decodeError(format string, args ...any) *Error {
	return &Error{Condition: ConditionDecode, Description: fmt.Sprintf(format, args...)}
}

var errShort = decodeError("truncated value")

// DecodeValue decodes the value at the beginning of b, and returns the remaining bytes. v does not reference b.
func DecodeValue(b []byte) (v any, rest []byte, err error) {
	d := decoder{b: b}
	v, err = d.value()
	if err != nil {
		return nil, nil, err
	}
	return v, d.b, nil
}

type decoder struct {
	b     []byte
	depth int
	empty int // number of decoded elements of zero bytes
}

func (d *decoder) take(n int) ([]byte, error) {
	if n < 0 || n > len(d.b) {
		return nil, errShort
	}
	out := d.b[:n:n]
	d.b = d.b[n:]
	return out, nil
}

// ctor consumes a byte, such as a constructor.
func (d *decoder) ctor() (byte, error) {
	if len(d.b) == 0 {
		return 0, errShort
	}
	c := d.b[0]
	d.b = d.b[1:]
	return c, nil
}

// isNull reports whether the next value is null, and consumes it in that case.
func (d *decoder) isNull() bool {
	if len(d.b) == 0 || d.b[0] != ctorNull {
		return false
	}
	d.b = d.b[1:]
	return true
}

func (d *decoder) value() (any, error) {
	c, err := d.ctor()
	if err != nil {
		return nil, err
	}
	return d.valueOf(c)
}

func (d *decoder) valueOf(c byte) (any, error) {
	switch c >> 4 {
	case 0x0:
		return d.described(c)
	case 0x4, 0x5, 0x6, 0x7, 0x8, 0x9:
		return d.fixed(c)
	case 0xa, 0xb:
		return d.variable(c)
	case 0xc, 0xd, 0xe, 0xf:
		return d.compound(c)
	default:
		return nil, decodeError("invalid constructor %#02x", c)
	}
}

func (d *decoder) described(c byte) (any, error) {
	if c != ctorDescribed {
		return nil, decodeError("invalid constructor %#02x", c)
	}
	if err := d.deeper(); err != nil {
		return nil, err
	}
	defer func() { d.depth-- }()
	descriptor, err := d.value()
	if err != nil {
		return nil, err
	}
	v, err := d.value()
	if err != nil {
		return nil, err
	}
	return Described{Descriptor: descriptor, Value: v}, nil
}

func (d *decoder) deeper() error {
	if d.depth++; d.depth > maxDepth {
		return decodeError("values nested deeper than %d", maxDepth)
	}
	return nil
}

func (d *decoder) fixed(c byte) (any, error) { //nolint:cyclop // one line for each constructor
	b, err := d.take(fixedWidth(c))
	if err != nil {
		return nil, err
	}
	switch c {
	case ctorNull:
		return nil, nil //nolint:nilnil // null is a value
	case ctorTrue:
		return true, nil
	case ctorFalse:
		return false, nil
	case ctorUint0:
		return uint32(0), nil
	case ctorUlong0:
		return uint64(0), nil
	case ctorList0:
		return List{}, nil
	case ctorUbyte:
		return b[0], nil
	case ctorByte:
		return int8(b[0]), nil
	case ctorUint8:
		return uint32(b[0]), nil
	case ctorUlong8:
		return uint64(b[0]), nil
	case ctorInt8:
		return int32(int8(b[0])), nil
	case ctorLong8:
		return int64(int8(b[0])), nil
	case ctorBool:
		if b[0] > 1 {
			return nil, decodeError("invalid boolean %#02x", b[0])
		}
		return b[0] == 1, nil
	default:
		return wide(c, b)
	}
}

func wide(c byte, b []byte) (any, error) { //nolint:cyclop // one line for each constructor
	switch c {
	case ctorUshort:
		return big.Uint16(b), nil
	case ctorShort:
		return int16(big.Uint16(b)), nil
	case ctorUint:
		return big.Uint32(b), nil
	case ctorInt:
		return int32(big.Uint32(b)), nil
	case ctorFloat:
		return math.Float32frombits(big.Uint32(b)), nil
	case ctorChar:
		r := big.Uint32(b)
		if r > utf8.MaxRune || !utf8.ValidRune(rune(r)) {
			return nil, decodeError("invalid code point %#x", r)
		}
		return Char(r), nil
	case ctorUlong:
		return big.Uint64(b), nil
	case ctorLong:
		return int64(big.Uint64(b)), nil
	case ctorDouble:
		return math.Float64frombits(big.Uint64(b)), nil
	case ctorTimestamp:
		return Timestamp(big.Uint64(b)), nil
	case ctorUUID:
		return UUID(b), nil
	case ctorDecimal32, ctorDecimal64, ctorDecimal:
		return Decimal(b), nil
	default:
		return nil, decodeError("invalid constructor %#02x", c)
	}
}

func fixedWidth(c byte) int {
	if c>>4 == 0x4 {
		return 0
	}
	return 1 << (c>>4 - 5)
}

// sized consumes the size and the bytes of a value of variable width.
func (d *decoder) sized(c byte) ([]byte, error) {
	n, err := d.length(c)
	if err != nil {
		return nil, err
	}
	return d.take(n)
}

// length consumes a size or a count after constructor c.
func (d *decoder) length(c byte) (int, error) {
	if c>>4&1 == 0 {
		n, err := d.ctor()
		return int(n), err
	}
	b, err := d.take(4)
	if err != nil {
		return 0, err
	}
	return int(big.Uint32(b)), nil
}

func (d *decoder) variable(c byte) (any, error) {
	b, err := d.sized(c)
	if err != nil {
		return nil, err
	}
	switch c {
	case ctorBinary8, ctorBinary32:
		return bytes.Clone(b), nil
	case ctorString8, ctorString32:
		if !utf8.Valid(b) {
			return nil, decodeError("string is not UTF-8")
		}
		return string(b), nil
	case ctorSymbol8, ctorSymbol32:
		return symbolOf(b)
	default:
		return nil, decodeError("invalid constructor %#02x", c)
	}
}

func symbolOf(b []byte) (Symbol, error) {
	for _, c := range b {
		if c >= utf8.RuneSelf {
			return "", decodeError("symbol is not ASCII")
		}
	}
	return Symbol(b), nil
}

// elements opens a list, map or array and returns a decoder of its elements.
func (d *decoder) elements(c byte) (in decoder, count int, err error) {
	body, err := d.sized(c)
	if err != nil {
		return decoder{}, 0, err
	}
	in = decoder{b: body, depth: d.depth, empty: d.empty}
	count, err = in.length(c)
	if err != nil {
		return decoder{}, 0, err
	}
	if count > len(in.b) && (c>>4 < 0xe || count > maxEmpty) {
		return decoder{}, 0, decodeError("%d elements in %d bytes", count, len(in.b))
	}
	err = in.deeper()
	return in, count, err
}

func (d *decoder) compound(c byte) (any, error) {
	in, count, err := d.elements(c)
	if err != nil {
		return nil, err
	}
	var v any
	switch c {
	case ctorList8, ctorList32:
		v, err = in.list(count)
	case ctorMap8, ctorMap32:
		v, err = in.dict(count)
	case ctorArray8, ctorArray32:
		v, err = in.array(count)
	default:
		err = decodeError("invalid constructor %#02x", c)
	}
	d.empty = in.empty
	if err != nil {
		return nil, err
	}
	if len(in.b) > 0 {
		return nil, decodeError("%d bytes after the elements", len(in.b))
	}
	return v, nil
}

func (d *decoder) list(count int) (List, error) {
	l := make(List, 0, min(count, maxAhead))
	for range count {
		v, err := d.value()
		if err != nil {
			return nil, err
		}
		l = append(l, v)
	}
	return l, nil
}

func (d *decoder) dict(count int) (Map, error) {
	if count%2 != 0 {
		return nil, decodeError("map of %d values", count)
	}
	m := make(Map, 0, min(count/2, maxAhead))
	for range count / 2 {
		k, err := d.value()
		if err != nil {
			return nil, err
		}
		v, err := d.value()
		if err != nil {
			return nil, err
		}
		m = append(m, MapEntry{Key: k, Value: v})
	}
	return m, nil
}

func (d *decoder) array(count int) (Array, error) {
	c, err := d.ctor()
	if err != nil {
		return nil, err
	}
	var descriptors []any
	for c == ctorDescribed {
		if err := d.deeper(); err != nil {
			return nil, err
		}
		descriptor, err := d.value()
		if err != nil {
			return nil, err
		}
		descriptors = append(descriptors, descriptor)
		if c, err = d.ctor(); err != nil {
			return nil, err
		}
	}
	if !isConstructor(c) {
		return nil, decodeError("invalid constructor %#02x", c)
	}
	if c>>4 != 0x4 {
		if count > len(d.b) {
			return nil, decodeError("%d elements in %d bytes", count, len(d.b))
		}
	} else if d.empty += count; d.empty > maxEmpty {
		return nil, decodeError("arrays have more than %d elements of zero bytes", maxEmpty)
	}
	a := make(Array, 0, min(count, maxAhead))
	for range count {
		v, err := d.valueOf(c)
		if err != nil {
			return nil, err
		}
		for j := len(descriptors) - 1; j >= 0; j-- {
			v = Described{Descriptor: descriptors[j], Value: v}
		}
		a = append(a, v)
	}
	return a, nil
}

func isConstructor(c byte) bool {
	switch c {
	case ctorNull, ctorTrue, ctorFalse, ctorUint0, ctorUlong0, ctorList0, ctorUbyte, ctorByte, ctorUint8, ctorUlong8,
		ctorInt8, ctorLong8, ctorBool, ctorUshort, ctorShort, ctorUint, ctorInt, ctorFloat, ctorChar, ctorDecimal32,
		ctorUlong, ctorLong, ctorDouble, ctorTimestamp, ctorDecimal64, ctorDecimal, ctorUUID, ctorBinary8, ctorString8,
		ctorSymbol8, ctorBinary32, ctorString32, ctorSymbol32, ctorList8, ctorMap8, ctorList32, ctorMap32, ctorArray8,
		ctorArray32:
		return true
	}
	return false
}

func (d *decoder) skip() error {
	for {
		c, err := d.ctor()
		if err != nil {
			return err
		}
		switch c >> 4 {
		case 0x4, 0x5, 0x6, 0x7, 0x8, 0x9:
			_, err = d.take(fixedWidth(c))
			return err
		case 0xa, 0xb, 0xc, 0xd, 0xe, 0xf:
			_, err = d.sized(c)
			return err
		}
		if c != ctorDescribed {
			return decodeError("invalid constructor %#02x", c)
		}
		if err := d.deeper(); err != nil {
			return err
		}
		if err := d.skip(); err != nil { // the descriptor; the described value follows
			return err
		}
	}
}

// descriptor decodes a descriptor as a number. known is false for a symbol outside the specification, and for a
// descriptor that is neither a ulong nor a symbol. The value of a ulong is not checked.
func (d *decoder) descriptor() (code uint64, known bool, err error) {
	c, err := d.ctor()
	if err != nil {
		return 0, false, err
	}
	if c != ctorDescribed {
		return 0, false, decodeError("expected a described value, got %#02x", c)
	}
	if len(d.b) > 1 && d.b[0] == ctorUlong8 { // the form that most peers send
		code = uint64(d.b[1])
		d.b = d.b[2:]
		return code, true, nil
	}
	v, err := d.value()
	if err != nil {
		return 0, false, err
	}
	switch v := v.(type) {
	case uint64:
		return v, true, nil
	case Symbol:
		code, known = codes[v]
		return code, known, nil
	default:
		return 0, false, nil
	}
}
