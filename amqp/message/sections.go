// SPDX-License-Identifier: Apache-2.0

package message

import (
	"encoding/binary"
	"unicode/utf8"
)

// SectionsKey is the typed property that keeps what came by AMQP beside the fields that it was translated to. It is
// bytes:
//
//	flags     1  see below
//	priority  1  that of the header, only with hasPriority
//	before       the length of the next part, as uvarint
//	             the sections before the text or the bytes of the body, and what comes in front of them in the body's
//	after        what comes behind them: the footer
//
// The first bit is read by selectors (package selector): a message is durable if it is set.
const SectionsKey = "amqp.sections"

// ContainerKey is the property under which the door keeps which container a message came from, for clients that do not
// want what is their own.
const ContainerKey = "amqp.container"

// Flags of SectionsKey. A message with another one is of a later release, and goes by its fields.
const (
	isDurable   = 0x80
	hasPriority = 0x40
	hasTTL      = 0x20 // the header had a time to live
	isWide      = 0x10 // the length of what is in the body has four bytes, and otherwise one
	bodyKind    = 0x03
)

// What the field body is.
const (
	bodySections = 0 // all sections of the body, as they are encoded; there may be none
	bodyData     = 1 // the bytes of one data section
	bodyText     = 2 // the text of an amqp-value
)

// kept is SectionsKey, taken apart.
type kept struct {
	flags    byte
	priority byte
	before   []byte
	after    []byte
}

// appendTo appends the bytes.
func (k *kept) appendTo(b []byte) []byte {
	b = append(b, k.flags)
	if k.flags&hasPriority != 0 {
		b = append(b, k.priority)
	}
	b = binary.AppendUvarint(b, uint64(len(k.before)))
	return append(append(b, k.before...), k.after...)
}

// parseKept takes the bytes apart, and tells whether they make a message of AMQP with this body: a client of gRPC may
// have written anything.
func parseKept(b, body []byte) (k kept, ok bool) {
	if len(b) == 0 || b[0]&0x0c != 0 || b[0]&bodyKind == 3 {
		return kept{}, false
	}
	k.flags, b = b[0], b[1:]
	if k.flags&hasPriority != 0 {
		if len(b) == 0 {
			return kept{}, false
		}
		k.priority, b = b[0], b[1:]
	}
	n, size := binary.Uvarint(b)
	if size <= 0 || n > uint64(len(b)-size) {
		return kept{}, false
	}
	b = b[size:]
	k.before, k.after = b[:n], b[n:]
	return k, k.fits(body) && isFooter(k.after)
}

// isFooter tells whether b is a footer, or nothing.
func isFooter(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	code, _, rest, err := next(b)
	return err == nil && code == codeFooter && len(rest) == 0
}

// next reads the section at the beginning of b and all that is in it: what is passed on unread must not harm the one
// that it goes to.
func next(b []byte) (code byte, v value, rest []byte, err error) {
	code, content, err := descriptor(b)
	if err != nil {
		return 0, value{}, nil, err
	}
	if rest, err = check(content, 0); err != nil {
		return 0, value{}, nil, err
	}
	if v, _, err = read(content); err != nil {
		return 0, value{}, nil, err
	}
	return code, v, rest, expect(code, v)
}

// fits tells whether the sections before the body are such, and the body is what is said of it.
func (k *kept) fits(body []byte) bool {
	b, last := k.before, byte(0)
	for len(b) > 0 {
		code, content, err := descriptor(b)
		if err != nil || code <= last {
			return false
		}
		if code == codeData || code == codeValue {
			return k.begins(code, content, body)
		}
		if code < codeMessageAnnotations || code > codeApplicationProperties {
			return false
		}
		var v value
		if last, v, b, err = next(b); err != nil || !v.fieldsFit(code) {
			return false
		}
	}
	return k.flags&bodyKind == bodySections && areBody(body)
}

// begins tells whether what is in front of the text or the bytes of the body is right.
func (k *kept) begins(code byte, content, body []byte) bool {
	short, long := byte(codeBinary8), byte(codeBinary)
	switch {
	case code == codeValue && k.flags&bodyKind == bodyText:
		short, long = codeString8, codeString
		if !utf8.Valid(body) {
			return false
		}
	case code != codeData || k.flags&bodyKind != bodyData:
		return false
	}
	if k.flags&isWide != 0 {
		return len(content) == 5 && content[0] == long && uint64(binary.BigEndian.Uint32(content[1:])) == uint64(len(body))
	}
	return len(content) == 2 && content[0] == short && int(content[1]) == len(body)
}

// areBody tells whether b is the sections of a body, or nothing.
func areBody(b []byte) bool {
	var first byte
	for len(b) > 0 {
		code, _, rest, err := next(b)
		if err != nil || code < codeData || code > codeValue || first != 0 && (code != first || code == codeValue) {
			return false
		}
		first, b = code, rest
	}
	return true
}

// fieldsFit tells whether the fields and keys of a section before the body, which was checked, have the types that they
// must have.
func (v value) fieldsFit(code byte) bool {
	if code == codeMessageAnnotations {
		return true
	}
	if code == codeProperties && v.count > len(propertyNames) {
		return false
	}
	rest := v.data
	for i := range v.count {
		field := value{code: rest[0]}
		switch {
		case code == codeApplicationProperties && i%2 == 0 && !field.isString(),
			code == codeProperties && !field.isNull() && !propertyHasType(i, field):
			return false
		}
		if behind, ok := skipShort(rest); ok {
			rest = behind
			continue
		}
		var err error
		if _, rest, err = read(rest); err != nil {
			return false
		}
	}
	return true
}

// Codes of sections (3.2).
const (
	codeHeader                = 0x70
	codeDeliveryAnnotations   = 0x71
	codeMessageAnnotations    = 0x72
	codeProperties            = 0x73
	codeApplicationProperties = 0x74
	codeData                  = 0x75
	codeSequence              = 0x76
	codeValue                 = 0x77
	codeFooter                = 0x78
)

// sectionNames are the descriptors as symbols, from codeHeader on.
var sectionNames = [...]string{
	"amqp:header:list", "amqp:delivery-annotations:map", "amqp:message-annotations:map", "amqp:properties:list",
	"amqp:application-properties:map", "amqp:data:binary", "amqp:amqp-sequence:list", "amqp:amqp-value:*",
	"amqp:footer:map",
}

// descriptor reads the descriptor of a section; content begins with the constructor of its value.
func descriptor(b []byte) (code byte, content []byte, err error) {
	if b[0] != codeDescribed {
		return 0, nil, malformed("section starts with 0x%02x instead of a descriptor", b[0])
	}
	v, content, err := readPlain(b[1:])
	if err != nil {
		return 0, nil, err
	}
	if len(content) == 0 {
		return 0, nil, malformed("section ends after its descriptor")
	}
	switch {
	case v.isSymbol():
		for i, name := range sectionNames {
			if string(v.data) == name {
				return codeHeader + byte(i), content, nil
			}
		}
	case v.code == codeUlong || v.code == codeUlong8:
		if n := v.bits(); n >= codeHeader && n <= codeFooter {
			return byte(n), content, nil
		}
	}
	return 0, nil, malformed("section has an unknown descriptor")
}
