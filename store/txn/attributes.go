// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Attribute is the tag of a standard field of a message, of its typed properties, or of its DeadLetter. Tags up to
// AttributeValues are the field numbers in lockstep.v1.Message. Tags never change their meaning.
type Attribute uint8

// Tags of the attributes.
const (
	AttributeMessageID     Attribute = 3
	AttributeCorrelationID Attribute = 4
	AttributeReplyTo       Attribute = 5
	AttributeContentType   Attribute = 6
	// AttributeSubject is the subject of the message.
	AttributeSubject Attribute = 7
	AttributeGroup   Attribute = 8
	// AttributePriority is the priority, one byte.
	AttributePriority Attribute = 9
	// AttributeExpiresAt is the expiry time, in milliseconds since 1970.
	AttributeExpiresAt Attribute = 10
	// AttributeDeliverAt is the earliest delivery time, in milliseconds since 1970.
	AttributeDeliverAt  Attribute = 12
	AttributeValues     Attribute = 14
	AttributeDeadLetter Attribute = 15
)

// lastText is the highest tag of a text attribute.
const lastText = AttributeGroup

// Attributes contains the standard fields and the typed properties of a message. An empty string means not set.
type Attributes struct {
	// MessageID, CorrelationID, ReplyTo, ContentType and Subject have at most MaxAttributeBytes bytes each.
	MessageID, CorrelationID, ReplyTo, ContentType, Subject string
	// Group has at most MaxAttributeBytes bytes.
	Group string
	// Priority is 0 to MaxPriority; nil means DefaultPriority.
	Priority *uint8
	// ExpiresAtMS is the expiry time, and DeliverAtMS the earliest delivery time, in milliseconds since 1970 and at
	// most MaxTimeMS; 0 if not set.
	ExpiresAtMS, DeliverAtMS int64
	// Values are ordered by key. A key must not also be the key of a text property.
	Values     []TypedProperty
	DeadLetter *DeadLetter
}

// TypedProperty is a property with a value other than text.
type TypedProperty struct {
	// Key has 1 to MaxPropertyKeyBytes bytes.
	Key   string
	Value Value
}

// ValueKind is the type of a typed property.
type ValueKind uint8

// Kinds of values, as stored.
const (
	ValueBool   ValueKind = 1
	ValueInt64  ValueKind = 2
	ValueDouble ValueKind = 3
	ValueBytes  ValueKind = 4
)

// Value is the value of a typed property.
type Value struct {
	Kind ValueKind
	// Bits is the value of a bool (0 or 1), an int64, or a double as returned by math.Float64bits.
	Bits uint64
	// Bytes is the value of a ValueBytes. If returned by a Message, it aliases the record.
	Bytes []byte
}

// Any returns the value as a bool, int64, float64 or []byte. A []byte aliases Bytes.
func (v *Value) Any() any {
	switch v.Kind {
	case ValueBool:
		return v.Bits == 1
	case ValueInt64:
		return int64(v.Bits)
	case ValueDouble:
		return math.Float64frombits(v.Bits)
	default:
		return v.Bytes
	}
}

func (a *Attributes) texts() [6]string {
	return [...]string{a.MessageID, a.CorrelationID, a.ReplyTo, a.ContentType, a.Subject, a.Group}
}

// Empty reports whether no attribute is set.
func (a *Attributes) Empty() bool {
	return a == nil || a.MessageID == "" && a.CorrelationID == "" && a.ReplyTo == "" && a.ContentType == "" &&
		a.Subject == "" && a.Group == "" && a.Priority == nil && a.ExpiresAtMS == 0 && a.DeliverAtMS == 0 &&
		len(a.Values) == 0 && a.DeadLetter == nil
}

// SortValues sorts typed properties by key. In this order, equal sets of properties have equal encodings.
func SortValues(values []TypedProperty) {
	slices.SortFunc(values, func(a, b TypedProperty) int { return strings.Compare(a.Key, b.Key) })
}

// check verifies the limits, and that no key of Values is also in props. It returns the errors of CheckMessage.
func (a *Attributes) check(props []Property) error {
	for i, text := range a.texts() {
		if len(text) > MaxAttributeBytes {
			return fmt.Errorf("%w: %s has %d bytes, limit %d", ErrTooLarge, AttributeMessageID+Attribute(i),
				len(text), MaxAttributeBytes)
		}
	}
	if err := a.checkNumbers(); err != nil {
		return err
	}
	for i := range a.Values {
		p := &a.Values[i]
		if len(p.Key) == 0 || len(p.Key) > MaxPropertyKeyBytes {
			return fmt.Errorf("%w: property key of %d bytes, must have 1 to %d", ErrInvalidName, len(p.Key),
				MaxPropertyKeyBytes)
		}
		if p.Value.Kind < ValueBool || p.Value.Kind > ValueBytes || p.Value.Kind == ValueBool && p.Value.Bits > 1 {
			return fmt.Errorf("%w: property %.40q has no value of a known type", ErrInvalidMessage, p.Key)
		}
		if i > 0 && a.Values[i-1].Key >= p.Key {
			return fmt.Errorf("%w: property %.40q is a duplicate, or out of order", ErrInvalidMessage, p.Key)
		}
		if slices.ContainsFunc(props, func(text Property) bool { return text.Key == p.Key }) {
			return fmt.Errorf("%w: property %.40q is set both as text and as a typed value", ErrInvalidMessage, p.Key)
		}
	}
	if a.DeadLetter != nil {
		if err := a.DeadLetter.check(); err != nil {
			return err
		}
	}
	if n := a.bytes() - a.DeadLetter.bytes(); n > MaxAttributesBytes {
		return fmt.Errorf("%w: attributes and typed properties have %d bytes, limit %d", ErrTooLarge, n,
			MaxAttributesBytes)
	}
	return nil
}

func (a *Attributes) checkNumbers() error {
	if a.Priority != nil && *a.Priority > MaxPriority {
		return fmt.Errorf("%w: priority %d, must be 0 to %d", ErrInvalidMessage, *a.Priority, MaxPriority)
	}
	for tag, ms := range a.times {
		if ms < 0 || ms > MaxTimeMS {
			return fmt.Errorf("%w: %s is %d, must be 1 to %d ms since 1970", ErrInvalidMessage, tag, ms, int64(MaxTimeMS))
		}
	}
	return nil
}

func (a *Attributes) times(yield func(tag Attribute, ms int64) bool) {
	_ = yield(AttributeExpiresAt, a.ExpiresAtMS) && yield(AttributeDeliverAt, a.DeliverAtMS)
}

var attributeNames = [...]string{
	AttributeMessageID:     "message_id",
	AttributeCorrelationID: "correlation_id",
	AttributeReplyTo:       "reply_to",
	AttributeContentType:   "content_type",
	AttributeSubject:       "subject",
	AttributeGroup:         "group",
	AttributePriority:      "priority",
	AttributeExpiresAt:     "expires_at",
	AttributeDeliverAt:     "deliver_at",
	AttributeValues:        "typed_properties",
	AttributeDeadLetter:    "dead_letter",
}

// String returns the attribute's name. Up to AttributeValues, it is the field name in lockstep.v1.Message.
func (a Attribute) String() string {
	if int(a) < len(attributeNames) && attributeNames[a] != "" {
		return attributeNames[a]
	}
	return fmt.Sprintf("attribute %d", uint8(a))
}

// blockBytes returns the length of a record's attribute block, including its length prefix.
func (a *Attributes) blockBytes() int {
	if a.Empty() {
		return 0
	}
	n := a.bytes()
	return UvarintBytes(uint64(n)) + n
}

// bytes returns the length of the block's content.
func (a *Attributes) bytes() int {
	n := 0
	for _, text := range a.texts() {
		if text != "" {
			n += 1 + UvarintBytes(uint64(len(text))) + len(text)
		}
	}
	if a.Priority != nil {
		n += 3
	}
	for _, ms := range a.times {
		if ms != 0 {
			n += 2 + UvarintBytes(uint64(ms))
		}
	}
	if len(a.Values) > 0 {
		values := a.valuesBytes()
		n += 1 + UvarintBytes(uint64(values)) + values
	}
	return n + a.DeadLetter.bytes()
}

func (a *Attributes) valuesBytes() int {
	n := UvarintBytes(uint64(len(a.Values)))
	for i := range a.Values {
		p := &a.Values[i]
		n += UvarintBytes(uint64(len(p.Key))) + len(p.Key) + 1 + p.Value.bytes()
	}
	return n
}

func (v *Value) bytes() int {
	switch v.Kind {
	case ValueBool:
		return 1
	case ValueBytes:
		return UvarintBytes(uint64(len(v.Bytes))) + len(v.Bytes)
	default:
		return 8
	}
}

// append appends the block to dst. check must have succeeded.
func (a *Attributes) append(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(a.bytes()))
	for i, text := range a.texts() {
		if text != "" {
			dst = appendString(append(dst, byte(AttributeMessageID)+byte(i)), text)
		}
	}
	if a.Priority != nil {
		dst = append(dst, byte(AttributePriority), 1, *a.Priority)
	}
	for tag, ms := range a.times {
		if ms != 0 {
			dst = append(dst, byte(tag), byte(UvarintBytes(uint64(ms))))
			dst = binary.AppendUvarint(dst, uint64(ms))
		}
	}
	if len(a.Values) > 0 {
		dst = a.appendValues(dst)
	}
	if a.DeadLetter != nil {
		dst = a.DeadLetter.append(dst)
	}
	return dst
}

func (a *Attributes) appendValues(dst []byte) []byte {
	dst = binary.AppendUvarint(append(dst, byte(AttributeValues)), uint64(a.valuesBytes()))
	dst = binary.AppendUvarint(dst, uint64(len(a.Values)))
	for i := range a.Values {
		v := &a.Values[i].Value
		dst = append(appendString(dst, a.Values[i].Key), byte(v.Kind))
		switch v.Kind {
		case ValueBool:
			dst = append(dst, byte(v.Bits))
		case ValueBytes:
			dst = append(binary.AppendUvarint(dst, uint64(len(v.Bytes))), v.Bytes...)
		case ValueInt64, ValueDouble:
			dst = binary.LittleEndian.AppendUint64(dst, v.Bits)
		}
	}
	return dst
}

// attributes decodes and verifies a block. It returns the contents of the block, of its AttributeValues and of its
// AttributeDeadLetter.
func (d *decoder) attributes() (block, values, dead []byte) {
	block = d.bytes(MaxAttributesBytes + maxDeadLetterBytes)
	if d.err == nil && len(block) == 0 {
		d.fail("empty attribute block")
	}
	in := decoder{b: block}
	for last := Attribute(0); in.err == nil && len(in.b) > 0; {
		tag := Attribute(in.u8())
		switch {
		case tag <= last:
			in.fail("attributes out of order")
		case tag >= AttributeMessageID && tag <= lastText:
			if len(in.bytes(MaxAttributeBytes)) == 0 {
				in.fail("attribute without a text")
			}
		case tag == AttributePriority:
			if v := in.bytes(1); len(v) != 1 || v[0] > MaxPriority {
				in.fail("invalid priority")
			}
		case tag == AttributeExpiresAt, tag == AttributeDeliverAt:
			if timeOf(in.bytes(binary.MaxVarintLen64)) == 0 {
				in.fail("invalid time")
			}
		case tag == AttributeValues:
			values = in.bytes(MaxAttributesBytes)
			in.checkValues(values)
		case tag == AttributeDeadLetter:
			dead = in.bytes(maxDeadLetterBytes)
			in.checkDeadLetter(dead)
		default:
			in.err = fmt.Errorf("%w: message attribute %d", ErrNewerVersion, uint8(tag))
		}
		last = tag
	}
	if d.err == nil {
		d.err = in.err
	}
	return block, values, dead
}

func (d *decoder) checkValues(b []byte) {
	in := decoder{b: b}
	n := in.count(MaxAttributesBytes)
	if n == 0 {
		in.fail("no values")
	}
	var last []byte
	for range n {
		key, _ := in.value()
		if in.err != nil {
			break
		}
		if bytes.Compare(key, last) <= 0 {
			in.fail("values out of order")
		}
		last = key
	}
	if in.err == nil && len(in.b) > 0 {
		in.fail("trailing bytes after the values")
	}
	if d.err == nil {
		d.err = in.err
	}
}

func (d *decoder) value() (key []byte, v Value) {
	key = d.bytes(MaxPropertyKeyBytes)
	v.Kind = ValueKind(d.u8())
	switch v.Kind {
	case ValueBool:
		v.Bits = uint64(d.u8())
		if v.Bits > 1 {
			d.fail("invalid bool")
		}
	case ValueBytes:
		v.Bytes = d.bytes(MaxAttributesBytes)
	case ValueInt64, ValueDouble:
		v.Bits = d.u64()
	default:
		if d.err == nil {
			d.err = fmt.Errorf("%w: property of type %d", ErrNewerVersion, uint8(v.Kind))
		}
	}
	return key, v
}

// timeOf decodes a time attribute. It returns 0 if b is invalid or contains 0.
func timeOf(b []byte) int64 {
	ms, n := binary.Uvarint(b)
	if n <= 0 || n != len(b) || ms > MaxTimeMS {
		return 0
	}
	return int64(ms)
}

// RecordAttribute returns the value of an attribute, or nil if it is missing. rec must be a verified record. For
// records without attributes, it runs in constant time.
func RecordAttribute(rec []byte, tag Attribute) []byte {
	if len(rec) <= recordHeaderBytes || rec[sizeFieldBytes]&flagAttributes == 0 {
		return nil
	}
	block, _ := cutBytes(rec[recordHeaderBytes:])
	for len(block) > 0 {
		t := Attribute(block[0])
		if t > tag {
			return nil
		}
		var value []byte
		if value, block = cutBytes(block[1:]); t == tag {
			return value
		}
	}
	return nil
}

// cutBytes decodes a length and that number of bytes at the front of b. It returns nil if b is too short. It is a
// fast variant of decoder.bytes for verified data.
func cutBytes(b []byte) (value, rest []byte) {
	if len(b) == 0 {
		return nil, nil
	}
	n, size := uint64(b[0]), 1
	if n >= 0x80 {
		if n, size = binary.Uvarint(b); size <= 0 {
			return nil, nil
		}
	}
	if b = b[size:]; n > uint64(len(b)) {
		return nil, nil
	}
	return b[:n:n], b[n:]
}

// RecordTime returns the time attribute tag (AttributeExpiresAt or AttributeDeliverAt) of a record, in milliseconds
// since 1970, or 0 if it is missing. rec must be a verified record.
func RecordTime(rec []byte, tag Attribute) int64 { return timeOf(RecordAttribute(rec, tag)) }

// RecordPriority returns the AttributePriority of a record, or DefaultPriority if it is missing. rec must be a verified
// record.
func RecordPriority(rec []byte) uint8 {
	if v := RecordAttribute(rec, AttributePriority); len(v) == 1 {
		return v[0]
	}
	return DefaultPriority
}

// RecordPublishedMS returns the publish time of a message (Message.TimestampMS). rec must be a verified record.
func RecordPublishedMS(rec []byte) int64 {
	return int64(binary.LittleEndian.Uint64(rec[sizeFieldBytes+1:]))
}

// HasAttributes reports whether the message has a standard field, a typed property or a DeadLetter.
func (m *Message) HasAttributes() bool { return len(m.attributes) > 0 }

// Texts iterates over the text attributes, in tag order. Each text aliases the record.
func (m *Message) Texts(yield func(tag Attribute, text []byte) bool) {
	d := decoder{b: m.attributes}
	for len(d.b) > 0 {
		tag, text := Attribute(d.u8()), d.bytes(MaxAttributesBytes)
		if tag > lastText || d.err != nil || !yield(tag, text) {
			return
		}
	}
}

// Values iterates over the typed properties, in key order. The key and Value.Bytes alias the record.
func (m *Message) Values(yield func(key []byte, v Value) bool) {
	if len(m.values) == 0 {
		return
	}
	d := decoder{b: m.values}
	for range d.count(math.MaxInt32) {
		if key, v := d.value(); d.err != nil || !yield(key, v) {
			return
		}
	}
}

// Attributes returns a copy of all attributes. Only Value.Bytes aliases the record.
func (m *Message) Attributes() Attributes {
	var a Attributes
	for tag, text := range m.Texts {
		switch s := string(text); tag {
		case AttributeMessageID:
			a.MessageID = s
		case AttributeCorrelationID:
			a.CorrelationID = s
		case AttributeReplyTo:
			a.ReplyTo = s
		case AttributeContentType:
			a.ContentType = s
		case AttributeSubject:
			a.Subject = s
		case AttributeGroup:
			a.Group = s
		case AttributePriority, AttributeExpiresAt, AttributeDeliverAt, AttributeValues, AttributeDeadLetter:
		}
	}
	m.numbers(&a)
	a.DeadLetter = m.DeadLetter()
	for key, v := range m.Values {
		a.Values = append(a.Values, TypedProperty{Key: string(key), Value: v})
	}
	return a
}

func (m *Message) numbers(a *Attributes) {
	for tag, v := range m.Numbers {
		switch tag {
		case AttributePriority:
			a.Priority = new(uint8(v))
		case AttributeExpiresAt:
			a.ExpiresAtMS = v
		default:
			a.DeliverAtMS = v
		}
	}
}

// Numbers iterates over the priority and the times (in milliseconds since 1970) that are set, in tag order.
func (m *Message) Numbers(yield func(tag Attribute, v int64) bool) {
	d := decoder{b: m.attributes}
	for len(d.b) > 0 {
		tag, b := Attribute(d.u8()), d.bytes(MaxAttributesBytes)
		v := int64(0)
		switch tag {
		case AttributePriority:
			v = int64(b[0])
		case AttributeExpiresAt, AttributeDeliverAt:
			v = timeOf(b)
		case AttributeValues, AttributeDeadLetter:
			return
		default:
			continue
		}
		if !yield(tag, v) {
			return
		}
	}
}
