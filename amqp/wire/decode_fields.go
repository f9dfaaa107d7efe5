// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"fmt"
	"unicode/utf8"
)

// reader decodes the fields of a described list in order, and records the first error. Fields after the end of the
// list are absent (1.4).
type reader struct {
	decoder
	left int
	name string // name of the list, for errors
	err  error
}

func (d *decoder) openList(name string) reader {
	r := reader{name: name}
	switch c, err := d.ctor(); {
	case err != nil:
		r.err = err
	case c == ctorList8 || c == ctorList32:
		r.decoder, r.left, r.err = d.elements(c)
	case c != ctorList0:
		r.err = decodeError("%s is not a list", name)
	}
	return r
}

// close returns the first error. Additional fields are an error.
func (r *reader) close() error {
	if r.left > 0 {
		r.fail("has too many fields")
	}
	if len(r.b) > 0 {
		r.fail("has %d bytes after its fields", len(r.b))
	}
	return r.err
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = decodeError("%s %s", r.name, fmt.Sprintf(format, args...))
	}
}

func (r *reader) missing(field string) {
	if r.err == nil {
		r.err = &Error{Condition: ConditionInvalid, Description: "missing " + field + " in " + r.name}
	}
}

func (r *reader) invalid(problem string) {
	if r.err == nil {
		r.err = &Error{Condition: ConditionInvalid, Description: r.name + " has " + problem}
	}
}

// must returns the value of a mandatory field, and records an error if the field is absent.
func must[T any](r *reader, v Optional[T], field string) T {
	if !v.Set {
		r.missing(field)
	}
	return v.Value
}

func (r *reader) mustUint(field string) uint32 { return must(r, r.optionalUint(), field) }

// more reports whether the next field is present; it consumes a null.
func (r *reader) more() bool {
	if r.err != nil || r.left == 0 {
		return false
	}
	r.left--
	return !r.isNull()
}

func (r *reader) constructor() byte {
	c, err := r.ctor()
	r.keep(err)
	return c
}

func (r *reader) keep(err error) {
	if err != nil && r.err == nil {
		r.err = err
	}
}

// bytes consumes up to 8 bytes; after an error it returns zeros.
func (r *reader) bytes(n int) []byte {
	b, err := r.take(n)
	if err != nil {
		r.keep(err)
		return noBytes[:n]
	}
	return b
}

var noBytes [8]byte //nolint:gochecknoglobals // read only

func (r *reader) optionalBool() (v Optional[bool]) {
	if !r.more() {
		return v
	}
	switch c := r.constructor(); c {
	case ctorTrue:
		return Some(true)
	case ctorFalse:
		return Some(false)
	case ctorBool:
		b := r.bytes(1)[0]
		if b > 1 {
			r.fail("has %#02x instead of a boolean", b)
		}
		return Some(b == 1)
	default:
		r.fail("has %#02x instead of a boolean", c)
		return v
	}
}

func (r *reader) flag() bool { return r.optionalBool().Value }

func (r *reader) optionalUint() (v Optional[uint32]) {
	if !r.more() {
		return v
	}
	v.Set = true
	switch c := r.constructor(); c {
	case ctorUint0:
	case ctorUint8:
		v.Value = uint32(r.bytes(1)[0])
	case ctorUint:
		v.Value = big.Uint32(r.bytes(4))
	default:
		r.fail("has %#02x instead of a uint", c)
	}
	return v
}

func (r *reader) uint(absent uint32) uint32 { return r.optionalUint().Or(absent) }

func (r *reader) ulong() (v Optional[uint64]) {
	if !r.more() {
		return v
	}
	switch c := r.constructor(); c {
	case ctorUlong0:
		return Some(uint64(0))
	case ctorUlong8:
		return Some(uint64(r.bytes(1)[0]))
	case ctorUlong:
		return Some(big.Uint64(r.bytes(8)))
	default:
		r.fail("has %#02x instead of a ulong", c)
		return v
	}
}

func (r *reader) ubyte() (v Optional[uint8]) {
	if !r.more() {
		return v
	}
	if c := r.constructor(); c != ctorUbyte {
		r.fail("has %#02x instead of a ubyte", c)
		return v
	}
	return Some(r.bytes(1)[0])
}

func (r *reader) ushort() (v Optional[uint16]) {
	if !r.more() {
		return v
	}
	if c := r.constructor(); c != ctorUshort {
		r.fail("has %#02x instead of a ushort", c)
		return v
	}
	return Some(big.Uint16(r.bytes(2)))
}

// alias decodes a binary without copying it.
func (r *reader) alias() []byte {
	if !r.more() {
		return nil
	}
	c := r.constructor()
	if c != ctorBinary8 && c != ctorBinary32 {
		r.fail("has %#02x instead of a binary", c)
		return nil
	}
	b, err := r.sized(c)
	r.keep(err)
	return b
}

func (r *reader) binary() []byte { return bytes.Clone(r.alias()) }

func (r *reader) mustBinary(field string) []byte {
	b := r.binary()
	if b == nil {
		r.missing(field)
	}
	return b
}

func (r *reader) optionalString() (v Optional[string]) {
	if !r.more() {
		return v
	}
	c := r.constructor()
	if c != ctorString8 && c != ctorString32 {
		r.fail("has %#02x instead of a string", c)
		return v
	}
	b, err := r.sized(c)
	r.keep(err)
	if !utf8.Valid(b) {
		r.fail("has a string that is not UTF-8")
	}
	return Some(string(b))
}

func (r *reader) string() string { return r.optionalString().Value }

func (r *reader) optionalSymbol() (v Optional[Symbol]) {
	if !r.more() {
		return v
	}
	c := r.constructor()
	if c != ctorSymbol8 && c != ctorSymbol32 {
		r.fail("has %#02x instead of a symbol", c)
		return v
	}
	b, err := r.sized(c)
	r.keep(err)
	s, err := symbolOf(b)
	r.keep(err)
	return Some(s)
}

func (r *reader) symbol(absent Symbol) Symbol { return r.optionalSymbol().Or(absent) }

// symbols decodes an array of symbols or a single symbol (1.4).
func (r *reader) symbols() []Symbol {
	switch v := r.value().(type) {
	case nil:
		return nil
	case Symbol:
		return []Symbol{v}
	case Array:
		out := make([]Symbol, len(v))
		for i := range v {
			s, ok := v[i].(Symbol)
			if !ok {
				r.fail("has %T instead of a symbol", v[i])
				return nil
			}
			out[i] = s
		}
		return out
	default:
		r.fail("has %T instead of symbols", v)
		return nil
	}
}

func (r *reader) value() any {
	if !r.more() {
		return nil
	}
	v, err := r.decoder.value()
	r.keep(err)
	return v
}

func (r *reader) dict() Map {
	switch v := r.value().(type) {
	case nil:
		return nil
	case Map:
		return v
	default:
		r.fail("has %T instead of a map", v)
		return nil
	}
}

// described reports whether the next field is present, and decodes its descriptor. The caller decodes the value: a
// function argument would move each reader to the heap.
func (r *reader) described() (code uint64, ok bool) {
	if !r.more() {
		return 0, false
	}
	code, known, err := r.descriptor()
	if err == nil && !known {
		err = decodeError("%s has a value with an unknown descriptor", r.name)
	}
	r.keep(err)
	return code, err == nil
}

func (r *reader) error() *Error {
	code, ok := r.described()
	if !ok {
		return nil
	}
	e, err := r.decoder.error(code)
	r.keep(err)
	return e
}

func (r *reader) state() DeliveryState {
	if !r.more() {
		return nil
	}
	s, err := r.deliveryState()
	r.keep(err)
	return s
}
