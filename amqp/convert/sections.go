// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/binary"
	"unicode/utf8"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// SectionsKey is the typed property that stores the parts of an AMQP message in addition to the converted fields. Its
// value is binary:
//
//	flags     1  see below
//	priority  1  priority in the header, only with hasPriority
//	before       the length of the next part, as uvarint
//	             the sections before the text or the bytes of the body, and the head of the body section
//	after        the sections after the body: the footer
//
// Selectors read the first bit (package selector): the message is durable if it is set.
const SectionsKey = "amqp.sections"

// ContainerKey is the property with the container from which a message originates. Clients use it to exclude their own
// messages.
const ContainerKey = "amqp.container"

// Flags of SectionsKey. A message with an unknown flag is from a later release: its converted fields are used.
const (
	isDurable   = 0x80
	hasPriority = 0x40
	hasTTL      = 0x20 // the header had a time to live
	isWide      = 0x10 // the length in the body section has four bytes instead of one
	bodyKind    = 0x03
)

// Values of bodyKind: representations of Message.body.
const (
	bodySections = 0 // all encoded sections of the body; may be empty
	bodyData     = 1 // the bytes of one data section
	bodyText     = 2 // the text of an amqp-value
)

// preserved is the decoded value of SectionsKey.
type preserved struct {
	flags    byte
	priority byte
	before   []byte
	after    []byte
}

func (k *preserved) appendTo(b []byte) []byte {
	b = append(b, k.flags)
	if k.flags&hasPriority != 0 {
		b = append(b, k.priority)
	}
	b = binary.AppendUvarint(b, uint64(len(k.before)))
	return append(append(b, k.before...), k.after...)
}

// parsePreserved decodes the value, and reports whether it forms an AMQP message with this body: a gRPC client may
// write any value.
func parsePreserved(b, body []byte) (k preserved, ok bool) {
	if len(b) == 0 || b[0]&0x0c != 0 || b[0]&bodyKind == 3 {
		return preserved{}, false
	}
	k.flags, b = b[0], b[1:]
	if k.flags&hasPriority != 0 {
		if len(b) == 0 {
			return preserved{}, false
		}
		k.priority, b = b[0], b[1:]
	}
	n, size := binary.Uvarint(b)
	if size <= 0 || n > uint64(len(b)-size) {
		return preserved{}, false
	}
	b = b[size:]
	k.before, k.after = b[:n], b[n:]
	return k, k.fits(body) && isFooter(k.after)
}

func isFooter(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	code, _, rest, err := next(b)
	return err == nil && code == wire.SectionFooter && len(rest) == 0
}

// next reads and validates the section at the beginning of b, because sections in SectionsKey are sent without
// conversion.
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

// fits reports whether the sections before the body are valid and match the body.
func (k *preserved) fits(body []byte) bool {
	b, last := k.before, byte(0)
	for len(b) > 0 {
		code, content, err := descriptor(b)
		if err != nil || code <= last {
			return false
		}
		if code == wire.SectionData || code == wire.SectionValue {
			return k.begins(code, content, body)
		}
		if code < wire.SectionMessageAnnotations || code > wire.SectionApplicationProperties {
			return false
		}
		var v value
		if last, v, b, err = next(b); err != nil || !v.fieldsFit(code) {
			return false
		}
	}
	return k.flags&bodyKind == bodySections && areBody(body)
}

// begins reports whether the head of the body section matches the body.
func (k *preserved) begins(code byte, content, body []byte) bool {
	short, long := byte(codeBinary8), byte(codeBinary)
	switch {
	case code == wire.SectionValue && k.flags&bodyKind == bodyText:
		short, long = codeString8, codeString
		if !utf8.Valid(body) {
			return false
		}
	case code != wire.SectionData || k.flags&bodyKind != bodyData:
		return false
	}
	if k.flags&isWide != 0 {
		return len(content) == 5 && content[0] == long && uint64(binary.BigEndian.Uint32(content[1:])) == uint64(len(body))
	}
	return len(content) == 2 && content[0] == short && int(content[1]) == len(body)
}

func areBody(b []byte) bool {
	var first byte
	for len(b) > 0 {
		code, _, rest, err := next(b)
		if err != nil || code < wire.SectionData || code > wire.SectionValue ||
			first != 0 && (code != first || code == wire.SectionValue) {
			return false
		}
		first, b = code, rest
	}
	return true
}

// fieldsFit reports whether the fields and keys of a validated section have valid types.
func (v value) fieldsFit(code byte) bool {
	if code == wire.SectionMessageAnnotations {
		return true
	}
	if code == wire.SectionProperties && v.count > len(propertyNames) {
		return false
	}
	rest := v.data
	for i := range v.count {
		field := value{code: rest[0]}
		switch {
		case code == wire.SectionApplicationProperties && i%2 == 0 && !field.isString(),
			code == wire.SectionProperties && !field.isNull() && !propertyHasType(i, field):
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
				return wire.SectionHeader + byte(i), content, nil
			}
		}
	case v.code == codeUlong || v.code == codeUlong8:
		if n := v.bits(); n >= wire.SectionHeader && n <= wire.SectionFooter {
			return byte(n), content, nil
		}
	}
	return 0, nil, malformed("section has an unknown descriptor")
}
