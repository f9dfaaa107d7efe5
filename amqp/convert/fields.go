// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Annotations for scheduled delivery and JMS clients.
const (
	annotationDeliveryTime  = "x-opt-delivery-time"
	annotationDeliveryDelay = "x-opt-delivery-delay"
	annotationEnqueueTime   = "x-opt-scheduled-enqueue-time"
	annotationReplyTo       = "x-opt-jms-reply-to"
)

// Properties for AMQP fields without an equivalent in lockstep.v1.Message.
const (
	keyGroupSequence = "JMSXGroupSeq"
	keyUserID        = "JMSXUserID"
)

// Positions of the fields of the properties section (3.2.4).
const (
	fieldMessageID = iota
	fieldUserID
	fieldTo
	fieldSubject
	fieldReplyTo
	fieldCorrelationID
	fieldContentType
	fieldContentEncoding
	fieldAbsoluteExpiryTime
	fieldCreationTime
	fieldGroupID
	fieldGroupSequence
	fieldReplyToGroupID
)

var propertyNames = [...]string{
	"message-id", "user-id", "to", "subject", "reply-to", "correlation-id", "content-type", "content-encoding",
	"absolute-expiry-time", "creation-time", "group-id", "group-sequence", "reply-to-group-id",
}

func (d *decoded) annotations(v value) error {
	for key, content := range v.pairs() {
		if !key.isSymbol() {
			continue
		}
		var err error
		switch string(key.data) {
		case annotationDeliveryTime, annotationEnqueueTime:
			err = d.deliverAt(content)
		case annotationDeliveryDelay:
			err = d.delay(content)
		}
		if err != nil {
			return err
		}
	}
	if d.message.DeliverAt != nil {
		d.message.Delay = nil
	}
	return nil
}

func (d *decoded) deliverAt(v value) error {
	ms, ok := v.integer()
	if v.isNull() || ok && ms <= 0 {
		return nil
	}
	if !ok || ms > maxTimeMS {
		return invalid("delivery time must be milliseconds since 1970, up to the year 9999")
	}
	d.message.DeliverAt = setTime(&d.at[1], ms)
	return nil
}

func (d *decoded) delay(v value) error {
	ms, ok := v.integer()
	if v.isNull() {
		return nil
	}
	if !ok || ms < 0 || ms > maxTimeMS {
		return invalid("delivery delay must be a non-negative number of milliseconds")
	}
	d.message.Delay = new(durationpb.Duration)
	setDuration(d.message.Delay, ms)
	return nil
}

func (d *decoded) properties(v value) error {
	if v.count > len(propertyNames) {
		return malformed("section properties has %d fields", v.count)
	}
	for i, field := range v.elements() {
		if field.isNull() {
			continue
		}
		if !propertyHasType(i, field) {
			return malformed("%s has a value of type 0x%02x", propertyNames[i], field.code)
		}
		if err := d.setField(i, field); err != nil {
			return err
		}
	}
	return nil
}

// propertyHasType reports whether a field of the properties section has a valid type.
func propertyHasType(i int, v value) bool {
	switch i {
	case fieldMessageID, fieldCorrelationID:
		return v.isString() || v.isBinary() || v.code == codeUUID || v.isUlong()
	case fieldUserID:
		return v.isBinary()
	case fieldContentType, fieldContentEncoding:
		return v.isSymbol()
	case fieldAbsoluteExpiryTime, fieldCreationTime:
		return v.code == codeTimestamp
	case fieldGroupSequence:
		return v.isUint()
	}
	return v.isString()
}

func (v value) isUlong() bool {
	return v.code == codeUlong0 || v.code == codeUlong8 || v.code == codeUlong
}

func (d *decoded) setField(i int, v value) error {
	m := &d.message
	text := func(to *string, s string) error {
		if len(s) > maxFieldBytes {
			return limited("%s has %d bytes, maximum is %d", propertyNames[i], len(s), maxFieldBytes)
		}
		*to = s
		return nil
	}
	switch i {
	case fieldMessageID:
		return text(&m.MessageId, d.id(v))
	case fieldCorrelationID:
		return text(&m.CorrelationId, d.id(v))
	case fieldTo:
		d.to = d.string(v.data)
	case fieldSubject:
		return text(&m.Subject, d.string(v.data))
	case fieldReplyTo:
		return text(&m.ReplyTo, d.string(v.data))
	case fieldContentType:
		return text(&m.ContentType, d.string(v.data))
	case fieldGroupID:
		return text(&m.Group, d.string(v.data))
	case fieldUserID:
		if utf8.Valid(v.data) {
			d.setText(keyUserID, d.string(v.data))
		}
	case fieldGroupSequence:
		d.setInteger(keyGroupSequence, int64(v.bits()))
	case fieldAbsoluteExpiryTime:
		if ms := int64(v.bits()); m.Ttl == nil && ms > 0 && ms <= maxTimeMS {
			m.ExpiresAt = setTime(&d.at[0], ms)
		}
	}
	return nil
}

func (d *decoded) setText(key, text string) {
	if d.message.Properties == nil {
		d.message.Properties = make(map[string]string)
	}
	d.message.Properties[key] = text
}

func (d *decoded) setTyped(key string, v *pb.PropertyValue) {
	if d.message.TypedProperties == nil {
		d.message.TypedProperties = make(map[string]*pb.PropertyValue, len(d.slots)+2)
	}
	d.message.TypedProperties[key] = v
}

func (d *decoded) applicationProperties(v value) error {
	// Application properties take precedence over properties converted from fields.
	sequence, user := d.message.TypedProperties[keyGroupSequence], d.message.Properties[keyUserID]
	delete(d.message.TypedProperties, keyGroupSequence)
	delete(d.message.Properties, keyUserID)
	d.slots = make([]slot, typedProperties(v))
	for key, content := range v.pairs() {
		if !key.isString() {
			return malformed("key of application properties has type 0x%02x, must be a string", key.code)
		}
		if err := d.applicationProperty(d.string(key.data), content); err != nil {
			return err
		}
	}
	if sequence != nil && !d.has(keyGroupSequence) {
		d.setTyped(keyGroupSequence, sequence)
	}
	if user != "" && !d.has(keyUserID) {
		d.setText(keyUserID, user)
	}
	return nil
}

// typedProperties returns the maximum number of application properties that become typed properties.
func typedProperties(v value) (count int) {
	for _, content := range v.pairs() {
		_, is := content.boolean()
		_, number := content.integer()
		if is || number || content.code == codeFloat || content.code == codeDouble || content.isBinary() {
			count++
		}
	}
	return count
}

func (d *decoded) has(key string) bool {
	_, text := d.message.Properties[key]
	_, typed := d.message.TypedProperties[key]
	return text || typed
}

// applicationProperty converts a property. A value without an equivalent type, or with a key that is empty or too long,
// is stored in SectionsKey only.
func (d *decoded) applicationProperty(key string, v value) error {
	switch {
	case key == SectionsKey || key == ContainerKey:
		return notAllowed("name " + key + " of an application property is reserved for a field of the message: " +
			"use another name")
	case key == "" || len(key) > maxKeyBytes:
		return nil
	case d.has(key):
		return malformed("duplicate application property %.40q", key)
	}
	if is, ok := v.boolean(); ok {
		s := d.slot()
		s.is.BoolValue = is
		s.value.Kind = &s.is
		d.setTyped(key, &s.value)
		return nil
	}
	if n, ok := v.integer(); ok {
		d.setInteger(key, n)
		return nil
	}
	switch v.code {
	case codeString8, codeString, codeSymbol8, codeSymbol:
		d.setText(key, d.string(v.data))
	case codeUUID:
		d.setText(key, formatUUID("", v.data))
	case codeChar:
		if n := v.bits(); n <= utf8.MaxRune && utf8.ValidRune(rune(n)) {
			d.setText(key, string(rune(n)))
		}
	case codeFloat:
		d.setDouble(key, float64(math.Float32frombits(uint32(v.bits()))))
	case codeDouble:
		d.setDouble(key, math.Float64frombits(v.bits()))
	case codeBinary8, codeBinary:
		s := d.slot()
		s.bytes.BytesValue = v.data[:len(v.data):len(v.data)]
		s.value.Kind = &s.bytes
		d.setTyped(key, &s.value)
	}
	return nil
}

func (d *decoded) setDouble(key string, v float64) {
	s := d.slot()
	s.double.DoubleValue = v
	s.value.Kind = &s.double
	d.setTyped(key, &s.value)
}

func (d *decoded) setInteger(key string, v int64) {
	s := d.slot()
	s.number.IntValue = v
	s.value.Kind = &s.number
	d.setTyped(key, &s.value)
}

// slot returns a slot, if possible from the single allocation for all properties.
func (d *decoded) slot() *slot {
	if len(d.slots) == 0 {
		return new(slot)
	}
	s := &d.slots[0]
	d.slots = d.slots[1:]
	return s
}
