// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"math"
)

var big = binary.BigEndian //nolint:gochecknoglobals // a short name

// AppendValue appends the shortest encoding of a value; elements of an Array have the longest one. It panics for a
// type that is not an AMQP value. The elements of an Array must have the same type and the same descriptors; this is
// only partly checked.
func AppendValue(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, ctorNull)
	case bool:
		return AppendBool(b, v)
	case uint8:
		return appendUbyte(b, v)
	case uint16:
		return appendUshort(b, v)
	case uint32:
		return AppendUint(b, v)
	case uint64:
		return AppendUlong(b, v)
	case int8:
		return append(b, ctorByte, byte(v))
	case int16:
		return big.AppendUint16(append(b, ctorShort), uint16(v))
	case int32:
		if v >= math.MinInt8 && v <= math.MaxInt8 {
			return append(b, ctorInt8, byte(v))
		}
		return big.AppendUint32(append(b, ctorInt), uint32(v))
	case int64:
		if v >= math.MinInt8 && v <= math.MaxInt8 {
			return append(b, ctorLong8, byte(v))
		}
		return big.AppendUint64(append(b, ctorLong), uint64(v))
	case float32, float64, Char, Timestamp, UUID, Decimal:
		return appendRaw(append(b, constructorOf(v)), constructorOf(v), v)
	case []byte:
		return AppendBinary(b, v)
	case string:
		return AppendString(b, v)
	case Symbol:
		return AppendSymbol(b, v)
	default:
		return appendCompound(b, v)
	}
}

func appendCompound(b []byte, v any) []byte {
	switch v := v.(type) {
	case List:
		if len(v) == 0 {
			return append(b, ctorList0)
		}
		c := beginCompound(b)
		for _, e := range v {
			c.b = AppendValue(c.b, e)
		}
		return c.end(ctorList8, ctorList32, len(v))
	case Map:
		return appendMap(b, v)
	case Array:
		return appendArray(b, v)
	case Described:
		return AppendValue(AppendValue(append(b, ctorDescribed), v.Descriptor), v.Value)
	case DeliveryState:
		return appendState(b, v)
	default:
		panic(fmt.Sprintf("wire: %T is not an AMQP value", v))
	}
}

// AppendBool appends a boolean.
func AppendBool(b []byte, v bool) []byte {
	if v {
		return append(b, ctorTrue)
	}
	return append(b, ctorFalse)
}

func appendUbyte(b []byte, v uint8) []byte { return append(b, ctorUbyte, v) }

func appendUshort(b []byte, v uint16) []byte { return big.AppendUint16(append(b, ctorUshort), v) }

// AppendUint appends the shortest encoding of a uint.
func AppendUint(b []byte, v uint32) []byte {
	switch {
	case v == 0:
		return append(b, ctorUint0)
	case v <= math.MaxUint8:
		return append(b, ctorUint8, byte(v))
	default:
		return big.AppendUint32(append(b, ctorUint), v)
	}
}

// AppendUlong appends the shortest encoding of a ulong.
func AppendUlong(b []byte, v uint64) []byte {
	switch {
	case v == 0:
		return append(b, ctorUlong0)
	case v <= math.MaxUint8:
		return append(b, ctorUlong8, byte(v))
	default:
		return big.AppendUint64(append(b, ctorUlong), v)
	}
}

func appendSized(b []byte, short, long byte, n int) []byte {
	if n <= math.MaxUint8 {
		return append(b, short, byte(n))
	}
	return big.AppendUint32(append(b, long), uint32(n))
}

// AppendBinary appends a binary.
func AppendBinary[T ~string | ~[]byte](b []byte, v T) []byte {
	return append(appendSized(b, ctorBinary8, ctorBinary32, len(v)), v...)
}

// AppendString appends a string.
func AppendString(b []byte, v string) []byte {
	return append(appendSized(b, ctorString8, ctorString32, len(v)), v...)
}

// AppendSymbol appends a symbol.
func AppendSymbol(b []byte, v Symbol) []byte {
	return append(appendSized(b, ctorSymbol8, ctorSymbol32, len(v)), v...)
}

func appendMap(b []byte, m Map) []byte {
	c := beginCompound(b)
	for i := range m {
		c.b = AppendValue(AppendValue(c.b, m[i].Key), m[i].Value)
	}
	return c.end(ctorMap8, ctorMap32, 2*len(m))
}

func appendSymbols(b []byte, symbols []Symbol) []byte {
	a := make(Array, len(symbols))
	for i, s := range symbols {
		a[i] = s
	}
	return appendArray(b, a)
}

func appendArray(b []byte, a Array) []byte {
	c := beginCompound(b)
	if len(a) == 0 {
		c.b = append(c.b, ctorNull)
		return c.end(ctorArray8, ctorArray32, 0)
	}
	first, descriptors := a[0], 0
	for ; ; descriptors++ {
		d, ok := first.(Described)
		if !ok {
			break
		}
		c.b = AppendValue(append(c.b, ctorDescribed), d.Descriptor)
		first = d.Value
	}
	ctor := constructorOf(first)
	c.b = append(c.b, ctor)
	for _, v := range a {
		for range descriptors {
			v = v.(Described).Value
		}
		c.b = appendRaw(c.b, ctor, v)
	}
	return c.end(ctorArray8, ctorArray32, len(a))
}

// constructorOf returns the constructor that can encode every value of v's type.
func constructorOf(v any) byte { //nolint:cyclop // one line for each type
	switch v := v.(type) {
	case nil:
		return ctorNull
	case bool:
		return ctorBool
	case uint8:
		return ctorUbyte
	case uint16:
		return ctorUshort
	case uint32:
		return ctorUint
	case uint64:
		return ctorUlong
	case int8:
		return ctorByte
	case int16:
		return ctorShort
	case int32:
		return ctorInt
	case int64:
		return ctorLong
	case float32:
		return ctorFloat
	case float64:
		return ctorDouble
	case Char:
		return ctorChar
	case Timestamp:
		return ctorTimestamp
	case UUID:
		return ctorUUID
	case Decimal:
		return decimalConstructor(v)
	case []byte:
		return ctorBinary32
	case string:
		return ctorString32
	case Symbol:
		return ctorSymbol32
	case List:
		return ctorList32
	case Map:
		return ctorMap32
	case Array:
		return ctorArray32
	default:
		panic(fmt.Sprintf("wire: %T is not an AMQP array type", v))
	}
}

func decimalConstructor(d Decimal) byte {
	switch len(d) {
	case 4:
		return ctorDecimal32
	case 8:
		return ctorDecimal64
	default:
		return ctorDecimal
	}
}

// appendRaw appends a value without its constructor. ctor is the result of constructorOf(v).
func appendRaw(b []byte, ctor byte, v any) []byte { //nolint:cyclop // one line for each type
	switch v := v.(type) {
	case nil:
		return b
	case bool:
		if v {
			return append(b, 1)
		}
		return append(b, 0)
	case uint8:
		return append(b, v)
	case uint16:
		return big.AppendUint16(b, v)
	case uint32:
		return big.AppendUint32(b, v)
	case uint64:
		return big.AppendUint64(b, v)
	case int8:
		return append(b, byte(v))
	case int16:
		return big.AppendUint16(b, uint16(v))
	case int32:
		return big.AppendUint32(b, uint32(v))
	case int64:
		return big.AppendUint64(b, uint64(v))
	case float32:
		return big.AppendUint32(b, math.Float32bits(v))
	case float64:
		return big.AppendUint64(b, math.Float64bits(v))
	case Char:
		return big.AppendUint32(b, uint32(v))
	case Timestamp:
		return big.AppendUint64(b, uint64(v))
	case UUID:
		return append(b, v[:]...)
	case Decimal:
		return append(b, v...)
	case []byte:
		return append(big.AppendUint32(b, uint32(len(v))), v...)
	case string:
		return append(big.AppendUint32(b, uint32(len(v))), v...)
	case Symbol:
		return append(big.AppendUint32(b, uint32(len(v))), v...)
	default:
		return appendRawCompound(b, ctor, v)
	}
}

// appendRawCompound appends a list, map or array as an array element, with sizes of 4 bytes.
func appendRawCompound(b []byte, ctor byte, v any) []byte {
	at := len(b)
	b = AppendValue(b, v)
	var body []byte
	count := uint32(0)
	switch form := b[at]; form {
	case ctorList0:
	case ctorList8, ctorMap8, ctorArray8:
		count, body = uint32(b[at+2]), b[at+3:]
	case ctorList32, ctorMap32, ctorArray32:
		count, body = big.Uint32(b[at+5:]), b[at+9:]
	default:
		panic(fmt.Sprintf("wire: %T in an array with constructor %#x", v, ctor))
	}
	out := big.AppendUint32(nil, uint32(len(body))+4)
	out = append(big.AppendUint32(out, count), body...)
	return append(b[:at], out...)
}

// compound is a list, map or array under construction.
type compound struct {
	b  []byte
	at int
}

const shortHead, longHead = 3, 9 // bytes of constructor, size and count

func beginCompound(b []byte) compound {
	return compound{b: append(b, 0, 0, 0), at: len(b)}
}

func (c compound) end(short, long byte, count int) []byte {
	size := len(c.b) - c.at - shortHead
	if size+1 <= math.MaxUint8 && count <= math.MaxUint8 {
		c.b[c.at], c.b[c.at+1], c.b[c.at+2] = short, byte(size+1), byte(count)
		return c.b
	}
	c.b = append(c.b, make([]byte, longHead-shortHead)...)
	copy(c.b[c.at+longHead:], c.b[c.at+shortHead:c.at+shortHead+size])
	c.b[c.at] = long
	big.PutUint32(c.b[c.at+1:], uint32(size)+4)
	big.PutUint32(c.b[c.at+5:], uint32(count))
	return c.b
}

// fields is a described list under construction. Trailing nulls are omitted.
type fields struct {
	compound
	count, nulls int
}

func beginFields(b []byte, code byte) fields {
	return fields{compound: beginCompound(append(b, ctorDescribed, ctorUlong8, code))}
}

func (f *fields) end() []byte {
	if f.count == 0 {
		f.b[f.at] = ctorList0
		return f.b[:f.at+1]
	}
	return f.compound.end(ctorList8, ctorList32, f.count)
}

// put appends a field, which add encodes.
func put[T any](f *fields, v T, add func([]byte, T) []byte) {
	f.count += f.nulls + 1
	for ; f.nulls > 0; f.nulls-- {
		f.b = append(f.b, ctorNull)
	}
	f.b = add(f.b, v)
}

func putIf[T any](f *fields, present bool, v T, add func([]byte, T) []byte) {
	if present {
		put(f, v, add)
	} else {
		f.nulls++
	}
}

func (f *fields) mustUint(v uint32)               { put(f, v, AppendUint) }
func (f *fields) uint(v, absent uint32)           { putIf(f, v != absent, v, AppendUint) }
func (f *fields) optionalUint(v Optional[uint32]) { putIf(f, v.Set, v.Value, AppendUint) }
func (f *fields) ulong(v uint64)                  { putIf(f, v != 0, v, AppendUlong) }
func (f *fields) ubyte(v, absent uint8)           { putIf(f, v != absent, v, appendUbyte) }
func (f *fields) flag(v bool)                     { putIf(f, v, v, AppendBool) }
func (f *fields) string(v string)                 { putIf(f, v != "", v, AppendString) }
func (f *fields) symbol(v, absent Symbol)         { putIf(f, v != absent && v != "", v, AppendSymbol) }
func (f *fields) binary(v []byte)                 { putIf(f, v != nil, v, AppendBinary) }
func (f *fields) symbols(v []Symbol)              { putIf(f, len(v) > 0, v, appendSymbols) }
func (f *fields) dict(m Map)                      { putIf(f, m != nil, m, appendMap) }
func (f *fields) value(v any)                     { putIf(f, v != nil, v, AppendValue) }
func (f *fields) state(s DeliveryState)           { putIf(f, s != nil, s, appendState) }
func (f *fields) error(e *Error)                  { putIf(f, e != nil, e, appendError) }
