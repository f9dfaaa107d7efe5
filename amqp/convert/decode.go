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

// Meta contains the fields of a message without an equivalent in lockstep.v1.Message.
type Meta struct {
	// To is the target address; "" if absent.
	To string
	// UserID is the user-id field; nil if absent. It references the payload.
	UserID []byte
	// Durable is the durable field. All messages are stored durably.
	Durable bool
	// FirstAcquirer and DeliveryCount are those of the received header.
	FirstAcquirer bool
	DeliveryCount uint32
	// CreationTimeMS is the creation time in milliseconds since 1970; 0 if absent.
	CreationTimeMS int64
}

// decoded holds the result of Decode in one allocation.
type decoded struct {
	message   pb.Message
	meta      Meta
	preserved preserved
	property  slot
	priority  uint32
	ttl       durationpb.Duration
	at        [2]timestamppb.Timestamp
	slots     []slot // of typed properties
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

// Decode converts an encoded AMQP message. The body of the result, byte properties and Meta.UserID reference the
// payload. The error is a *wire.Error with the condition amqp:decode-error (invalid message), amqp:invalid-field
// (invalid field value), amqp:not-allowed (application property SectionsKey or ContainerKey) or
// amqp:resource-limit-exceeded (above the limits of lockstep.v1.Message).
func Decode(payload []byte) (*pb.Message, *Meta, error) {
	d := new(decoded)
	if err := d.sections(payload); err != nil {
		return nil, nil, err
	}
	m := &d.message
	size := 12 + len(d.preserved.before) + len(d.preserved.after)
	if n := size + d.attributesBytes(); n > maxPreservedBytes {
		return nil, nil, limited("sections before and after the body have %d bytes, with ids and non-string properties "+
			"counted twice, maximum is %d", n, maxPreservedBytes)
	}
	d.property.bytes.BytesValue = d.preserved.appendTo(make([]byte, 0, size))
	d.property.value.Kind = &d.property.bytes
	d.setTyped(SectionsKey, &d.property.value)
	return m, &d.meta, nil
}

// attributesBytes estimates the size of the fields and typed properties in a stored message, without SectionsKey.
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
		if code <= last && (code != last || code != codeData && code != codeSequence) ||
			bodies > 0 && code != last && code != codeFooter {
			return malformed("unexpected section %s after %s", sectionNames[code-codeHeader],
				sectionNames[last-codeHeader])
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
		if before < 0 && code > codeDeliveryAnnotations {
			before = len(here)
			d.from = here
		}
		switch code {
		case codeHeader:
			err = d.header(v)
		case codeData, codeSequence, codeValue:
			if bodies++; bodies == 1 {
				body = here
				d.bodyKind(code, v)
			} else {
				d.preserved.flags &^= bodyKind | isWide
			}
			end = rest
		case codeFooter:
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

// expect rejects a value of the wrong type for its section.
func expect(code byte, v value) error {
	ok := true
	switch code {
	case codeHeader, codeProperties, codeSequence:
		ok = v.isList()
	case codeDeliveryAnnotations, codeMessageAnnotations, codeApplicationProperties, codeFooter:
		ok = v.isMap()
	case codeData:
		ok = v.isBinary()
	}
	if !ok {
		return malformed("section %s has a value of type 0x%02x", sectionNames[code-codeHeader], v.code)
	}
	return nil
}

// bodyKind sets the representation of the first section of the body, if it is the only one.
func (d *decoded) bodyKind(code byte, v value) {
	switch {
	case code == codeData:
		d.preserved.flags |= bodyData
	case code == codeValue && v.isString():
		d.preserved.flags |= bodyText
	default:
		return
	}
	if _, sized, _ := width(v.code); sized == 4 {
		d.preserved.flags |= isWide
	}
}

// take splits the message into the preserved parts and the body, which ends before end, and decodes the translated
// sections.
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
		if err != nil || code > codeApplicationProperties {
			return err
		}
		v, behind, err := read(content)
		if err != nil {
			return err
		}
		switch code {
		case codeMessageAnnotations:
			err = d.annotations(v)
		case codeProperties:
			err = d.properties(v)
		case codeApplicationProperties:
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
	rest := v.data
	for i := range v.count {
		var field value
		var err error
		if field, rest, err = read(rest); err != nil {
			return err
		}
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
			if i == 3 {
				d.meta.FirstAcquirer = is
			} else if is {
				d.meta.Durable = true
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
			if i == 4 {
				d.meta.DeliveryCount = uint32(n)
			} else if n > 0 {
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
