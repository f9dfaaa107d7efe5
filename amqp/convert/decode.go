// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lockstep-mq/lockstep/amqp/wire"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Limits of lockstep.v1.Message.
const (
	maxFieldBytes     = 1024
	maxKeyBytes       = 255
	maxPreservedBytes = 64 << 10
	maxPriority       = 9
	maxTimeMS         = 253_402_300_799_999 // the end of the year 9999
)

// decoded contains the result of Decode in one allocation.
type decoded struct {
	message   pb.Message
	to        string // the target address; "" if absent
	preserved preserved
	property  slot
	priority  uint32
	ttl       durationpb.Duration
	at        [2]timestamppb.Timestamp
	slots     []slot // slots of typed properties
	text      string // copy of preserved.before, shared by the strings of the fields
	from      []byte // the payload from the first preserved section on
}

type slot struct {
	value  pb.PropertyValue
	is     pb.PropertyValue_BoolValue
	number pb.PropertyValue_IntValue
	double pb.PropertyValue_DoubleValue
	bytes  pb.PropertyValue_BytesValue
}

// Decode converts an encoded AMQP message, and returns its target address, if any. The body and the binary
// properties of the result reference the payload. Errors have the type *wire.Error. Their conditions are
// amqp:decode-error (invalid message), amqp:invalid-field (invalid field value), amqp:not-allowed (application
// property SectionsKey or ContainerKey) and amqp:resource-limit-exceeded (above the limits of lockstep.v1.Message).
func Decode(payload []byte) (m *pb.Message, to string, err error) {
	d := new(decoded)
	if err := d.sections(payload); err != nil {
		return nil, "", err
	}
	m = &d.message
	size := 12 + len(d.preserved.before) + len(d.preserved.after)
	if n := size + d.attributesBytes(); n > maxPreservedBytes {
		return nil, "", limited("sections before and after the body have %d bytes, with IDs and non-string properties "+
			"counted twice, maximum is %d", n, maxPreservedBytes)
	}
	d.property.bytes.BytesValue = d.preserved.appendTo(make([]byte, 0, size))
	d.property.value.Kind = &d.property.bytes
	d.setTyped(SectionsKey, &d.property.value)
	return m, d.to, nil
}

// attributesBytes returns an upper bound of the size of the fields and typed properties in a stored message, without
// SectionsKey.
func (d *decoded) attributesBytes() int {
	m := &d.message
	n := len(m.GetMessageId()) + len(m.GetCorrelationId()) + len(m.GetReplyTo()) + len(m.GetContentType()) +
		len(m.GetSubject()) + len(m.GetGroup()) + attributesOverheadBytes
	for key, v := range m.GetTypedProperties() {
		n += len(key) + len(v.GetBytesValue()) + valueOverheadBytes
	}
	return n
}

// Maximum overhead of lengths, tags, times and numbers of all fields, and of one typed property.
const (
	attributesOverheadBytes = 80
	valueOverheadBytes      = 12
)

func limited(format string, args ...any) error {
	return &wire.Error{Condition: "amqp:resource-limit-exceeded", Description: fmt.Sprintf(format, args...)}
}

func invalid(format string, args ...any) error {
	return &wire.Error{Condition: "amqp:invalid-field", Description: fmt.Sprintf(format, args...)}
}

func (d *decoded) sections(payload []byte) error {
	rest, last := payload, byte(0)
	before := -1 // start of the preserved sections, as the remaining length
	body, end := payload[len(payload):], payload[len(payload):]
	bodies := 0
	for len(rest) > 0 {
		here := rest
		code, content, err := descriptor(rest)
		if err != nil {
			return err
		}
		if code <= last && (code != last || code != wire.SectionData && code != wire.SectionSequence) ||
			bodies > 0 && code != last && code != wire.SectionFooter {
			return malformed("unexpected section %s after %s", sectionNames[code-wire.SectionHeader],
				sectionNames[last-wire.SectionHeader])
		}
		last = code
		if rest, err = check(content, 0); err != nil {
			return err
		}
		v, _, err := read(content)
		if err != nil {
			return err
		}
		if err := expect(code, v); err != nil {
			return err
		}
		if before < 0 && code > wire.SectionDeliveryAnnotations {
			before = len(here)
			d.from = here
		}
		switch code {
		case wire.SectionHeader:
			err = d.header(v)
		case wire.SectionData, wire.SectionSequence, wire.SectionValue:
			if bodies++; bodies == 1 {
				body = here
				d.bodyKind(code, v)
			} else {
				d.preserved.flags &^= bodyKind | isWide
			}
			end = rest
		case wire.SectionFooter:
			if bodies == 0 {
				body, end = here, here
			}
			d.preserved.after = here
		}
		if err != nil {
			return err
		}
	}
	if before < 0 {
		d.from = payload[len(payload):]
	}
	if bodies == 0 && d.preserved.after == nil {
		body, end = rest, rest
	}
	return d.take(body, end)
}

// expect returns an error if the type of a value is wrong for its section.
func expect(code byte, v value) error {
	ok := true
	switch code {
	case wire.SectionHeader, wire.SectionProperties, wire.SectionSequence:
		ok = v.isList()
	case wire.SectionDeliveryAnnotations, wire.SectionMessageAnnotations, wire.SectionApplicationProperties,
		wire.SectionFooter:
		ok = v.isMap()
	case wire.SectionData:
		ok = v.isBinary()
	}
	if !ok {
		return malformed("section %s has a value of type 0x%02x", sectionNames[code-wire.SectionHeader], v.code)
	}
	return nil
}

// bodyKind sets the representation of a body that consists of a single section.
func (d *decoded) bodyKind(code byte, v value) {
	switch {
	case code == wire.SectionData:
		d.preserved.flags |= bodyData
	case code == wire.SectionValue && v.isString():
		d.preserved.flags |= bodyText
	default:
		return
	}
	if _, sized, _ := width(v.code); sized == 4 {
		d.preserved.flags |= isWide
	}
}

// take splits the message into the preserved parts and the body, which ends before end, and converts the sections
// before the body.
func (d *decoded) take(body, end []byte) error {
	before := len(d.from) - len(body)
	switch d.preserved.flags & bodyKind {
	case bodySections:
		d.message.Body = body[: len(body)-len(end) : len(body)-len(end)]
	default:
		_, content, err := descriptor(body)
		if err != nil {
			return err
		}
		v, _, err := read(content)
		if err != nil {
			return err
		}
		before = len(d.from) - len(end) - len(v.data)
		d.message.Body = v.data[:len(v.data):len(v.data)]
	}
	d.preserved.before = d.from[:before]
	d.text = string(d.preserved.before)
	for rest := d.preserved.before; len(rest) > 0; {
		code, content, err := descriptor(rest)
		if err != nil || code > wire.SectionApplicationProperties {
			return err
		}
		v, behind, err := read(content)
		if err != nil {
			return err
		}
		switch code {
		case wire.SectionMessageAnnotations:
			err = d.annotations(v)
		case wire.SectionProperties:
			err = d.properties(v)
		case wire.SectionApplicationProperties:
			err = d.applicationProperties(v)
		}
		if err != nil {
			return err
		}
		rest = behind
	}
	return nil
}

// string returns a string of bytes within the preserved sections; all strings share one copy.
func (d *decoded) string(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	at := cap(d.from) - cap(b)
	return d.text[at : at+len(b)]
}

func (d *decoded) header(v value) error {
	for i, field := range v.elements() {
		if field.isNull() {
			continue
		}
		n, whole := field.integer()
		is, boolean := field.boolean()
		switch i {
		case 0, 3:
			if !boolean {
				return malformed("header: durable or first-acquirer is not a boolean")
			}
			if i == 0 && is {
				d.preserved.flags |= isDurable
			}
		case 1:
			if field.code != codeUbyte {
				return malformed("header: priority is not a ubyte")
			}
			d.preserved.flags |= hasPriority
			d.preserved.priority = byte(n)
			d.priority = uint32(min(n, maxPriority))
			d.message.Priority = &d.priority
		case 2, 4:
			if !whole || !field.isUint() {
				return malformed("header: ttl or delivery-count is not a uint")
			}
			if i == 2 && n > 0 {
				d.preserved.flags |= hasTTL
				setDuration(&d.ttl, n)
				d.message.Ttl = &d.ttl
			}
		default:
			return malformed("header has %d fields", v.count)
		}
	}
	return nil
}

func (v value) isUint() bool { return v.code == codeUint0 || v.code == codeUint8 || v.code == codeUint }

func setDuration(d *durationpb.Duration, ms int64) {
	d.Seconds, d.Nanos = ms/1000, int32(ms%1000)*int32(time.Millisecond)
}

func setTime(t *timestamppb.Timestamp, ms int64) *timestamppb.Timestamp {
	t.Seconds, t.Nanos = ms/1000, int32(ms%1000)*int32(time.Millisecond)
	return t
}
