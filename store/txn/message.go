// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
)

// A message record has the following layout. The attributes are present with flagAttributes, the properties with
// flagProperties.
//
// 0      4       5           13
// +------+-------+-----------+------------------------+------------------------+------+
// | size | flags | time (ms) | attributes (optional)  | properties (optional)  | body |
// +------+-------+-----------+------------------------+------------------------+------+
const (
	sizeFieldBytes    = 4
	recordHeaderBytes = sizeFieldBytes + 1 + 8
)

const (
	flagProperties = 1
	flagAttributes = 2
)

// Property is a text property of a message.
type Property struct {
	// Key has 1 to MaxPropertyKeyBytes bytes. It must be unique among the text properties of its message, which
	// CheckMessage does not verify.
	Key   string
	Value string
}

// Properties converts m to properties in key order, so that equal maps have equal encodings.
func Properties(m map[string]string) []Property {
	if len(m) == 0 {
		return nil
	}
	props := make([]Property, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		props = append(props, Property{Key: k, Value: m[k]})
	}
	return props
}

// ErrInvalidMessage is returned for an invalid message or batch of messages.
var ErrInvalidMessage = errors.New("invalid message")

// CheckMessage verifies a message. a may be nil. The error wraps ErrTooLarge, ErrInvalidName (for a key) or
// ErrInvalidMessage.
func CheckMessage(a *Attributes, props []Property, body []byte) error {
	if len(body) > MaxBodyBytes {
		return fmt.Errorf("%w: body has %d bytes, limit %d", ErrTooLarge, len(body), MaxBodyBytes)
	}
	if !a.Empty() {
		if err := a.check(props); err != nil {
			return err
		}
	}
	if len(props) == 0 {
		return nil
	}
	for i := range props {
		if n := len(props[i].Key); n == 0 || n > MaxPropertyKeyBytes {
			return fmt.Errorf("%w: property key of %d bytes, must have 1 to %d", ErrInvalidName, n,
				MaxPropertyKeyBytes)
		}
	}
	if n := propertiesBytes(props); n > MaxPropertiesBytes {
		return fmt.Errorf("%w: properties have %d bytes, limit %d", ErrTooLarge, n, MaxPropertiesBytes)
	}
	return nil
}

// CheckBatch verifies the number of messages of one publish. The error wraps ErrInvalidMessage.
func CheckBatch(messages int) error {
	if messages == 0 || messages > MaxPublishMessages {
		return fmt.Errorf("%w batch: %d messages, must have 1 to %d", ErrInvalidMessage, messages, MaxPublishMessages)
	}
	return nil
}

// MessageBytes returns the length of the record that AppendMessage appends.
func MessageBytes(a *Attributes, props []Property, body []byte) int {
	return recordHeaderBytes + a.blockBytes() + propertiesBytes(props) + len(body)
}

func propertiesBytes(props []Property) int {
	if len(props) == 0 {
		return 0
	}
	n := UvarintBytes(uint64(len(props)))
	for i := range props {
		k, v := len(props[i].Key), len(props[i].Value)
		n += UvarintBytes(uint64(k)) + k + UvarintBytes(uint64(v)) + v
	}
	return n
}

// AppendMessage appends the record of a message to dst. a may be nil. If CheckMessage rejects the message,
// AppendMessage returns dst and that error.
func AppendMessage(dst []byte, timestampMS int64, a *Attributes, props []Property, body []byte) ([]byte, error) {
	if err := CheckMessage(a, props, body); err != nil {
		return dst, err
	}
	dst = slices.Grow(dst, MessageBytes(a, props, body))
	return append(appendHead(dst, timestampMS, a, props, body), body...), nil
}

// appendHead appends the record of a message without its body. CheckMessage must have accepted the message.
func appendHead(dst []byte, timestampMS int64, a *Attributes, props []Property, body []byte) []byte {
	size := MessageBytes(a, props, body) - sizeFieldBytes
	dst = binary.LittleEndian.AppendUint32(dst, uint32(size))
	flags := byte(0)
	if len(props) > 0 {
		flags = flagProperties
	}
	if !a.Empty() {
		flags |= flagAttributes
	}
	dst = append(dst, flags)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(timestampMS))
	if flags&flagAttributes != 0 {
		dst = a.append(dst)
	}
	if len(props) > 0 {
		dst = binary.AppendUvarint(dst, uint64(len(props)))
		for i := range props {
			dst = appendString(dst, props[i].Key)
			dst = appendString(dst, props[i].Value)
		}
	}
	return dst
}

// NextRecord returns the first record in b, and the rest of b. It verifies only the size and flags of the record, in
// constant time. The errors wrap ErrMalformed or ErrNewerVersion.
func NextRecord(b []byte) (rec, rest []byte, err error) {
	if len(b) < recordHeaderBytes {
		return nil, nil, fmt.Errorf("%w: %d bytes are too few for a message", ErrMalformed, len(b))
	}
	size := uint64(binary.LittleEndian.Uint32(b))
	if size < recordHeaderBytes-sizeFieldBytes || size > MaxRecordBytes-sizeFieldBytes {
		return nil, nil, fmt.Errorf("%w: invalid message size %d", ErrMalformed, size)
	}
	end := sizeFieldBytes + size
	if end > uint64(len(b)) {
		return nil, nil, fmt.Errorf("%w: message of %d bytes, %d remain", ErrMalformed, end, len(b))
	}
	switch flags := b[sizeFieldBytes]; {
	case flags&^(flagProperties|flagAttributes) != 0:
		return nil, nil, fmt.Errorf("%w: message flags %#x", ErrNewerVersion, flags)
	case flags == 0 && size > recordHeaderBytes-sizeFieldBytes+MaxBodyBytes:
		return nil, nil, fmt.Errorf("%w: body of %d bytes", ErrMalformed, size)
	}
	return b[:end:end], b[end:], nil
}

// Message is a decoded record. It aliases the record.
type Message struct {
	// TimestampMS is the publish time, in milliseconds since 1970: the time at which the active accepted the message or,
	// for a message of a prepared transaction, the time of the commit.
	TimestampMS int64
	Body        []byte

	props []byte // encoded pairs
	count int
	// attributes is the stored block without its length. values and dead are the contents of its AttributeValues and
	// AttributeDeadLetter.
	attributes, values, dead []byte
}

// DecodeMessage decodes and verifies one whole record. The errors wrap ErrMalformed or ErrNewerVersion.
func DecodeMessage(rec []byte) (m Message, err error) {
	err = m.Decode(rec)
	return m, err
}

// Decode decodes and verifies one whole record into m, like DecodeMessage. After an error, m is the zero Message.
func (m *Message) Decode(rec []byte) error {
	*m = Message{}
	rec, rest, err := NextRecord(rec)
	if err != nil {
		return err
	}
	if len(rest) != 0 {
		return fmt.Errorf("%w: %d trailing bytes after the message", ErrMalformed, len(rest))
	}
	m.TimestampMS = int64(binary.LittleEndian.Uint64(rec[sizeFieldBytes+1:]))
	m.Body = rec[recordHeaderBytes:]
	flags := rec[sizeFieldBytes]
	if flags == 0 {
		return nil
	}
	d := decoder{b: m.Body}
	if flags&flagAttributes != 0 {
		m.attributes, m.values, m.dead = d.attributes()
	}
	if flags&flagProperties != 0 {
		m.properties(&d)
	}
	if d.err != nil {
		*m = Message{}
		return d.err
	}
	m.Body = d.b
	return nil
}

func (m *Message) properties(d *decoder) {
	before := len(d.b)
	m.count = d.count(MaxPropertiesBytes / 3)
	pairs := d.b
	for range m.count {
		if n := len(d.bytes(MaxPropertyKeyBytes)); n == 0 {
			d.fail("property without a key")
		}
		d.bytes(MaxPropertiesBytes)
	}
	if d.err == nil && before-len(d.b) > MaxPropertiesBytes {
		d.fail("properties exceed the limit")
	}
	if d.err == nil {
		m.props = pairs[:len(pairs)-len(d.b)]
	}
}

// PropertyCount returns the number of text properties.
func (m *Message) PropertyCount() int { return m.count }

// Properties iterates over the text properties in their stored order. The key and the value alias the record.
func (m *Message) Properties(yield func(key, value []byte) bool) {
	d := decoder{b: m.props}
	for range m.count {
		k, v := d.bytes(MaxPropertyKeyBytes), d.bytes(MaxPropertiesBytes)
		if d.err != nil || !yield(k, v) {
			return
		}
	}
}

// PropertyMap returns a copy of the text properties as a map, or nil if the message has none.
func (m *Message) PropertyMap() map[string]string {
	if m.count == 0 {
		return nil
	}
	props := make(map[string]string, m.count)
	for k, v := range m.Properties {
		props[string(k)] = string(v)
	}
	return props
}

func appendString(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// UvarintBytes returns the number of bytes that binary.AppendUvarint appends.
func UvarintBytes(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }

// decoder decodes b. After fail, b is empty and all methods return zero values.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail(what string) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s", ErrMalformed, what)
	}
	d.b = nil
}

func (d *decoder) u8() byte {
	if len(d.b) < 1 {
		d.fail("truncated")
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

func (d *decoder) u32() uint32 {
	if len(d.b) < 4 {
		d.fail("truncated")
		return 0
	}
	v := binary.LittleEndian.Uint32(d.b)
	d.b = d.b[4:]
	return v
}

func (d *decoder) u64() uint64 {
	if len(d.b) < 8 {
		d.fail("truncated")
		return 0
	}
	v := binary.LittleEndian.Uint64(d.b)
	d.b = d.b[8:]
	return v
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail("truncated or oversized number")
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail("truncated or oversized number")
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) count(limit int) int {
	v := d.uvarint()
	if v > uint64(limit) {
		d.fail("count exceeds its limit")
		return 0
	}
	return int(v)
}

func (d *decoder) bytes(limit int) []byte {
	n := d.uvarint()
	if n > uint64(limit) || n > uint64(len(d.b)) || n > math.MaxInt32 {
		d.fail("length exceeds its limit or the input")
		return nil
	}
	v := d.b[:n:n]
	d.b = d.b[n:]
	return v
}

// RecordHasAttributes reports whether a record has an attribute block. It reads one byte.
func RecordHasAttributes(rec []byte) bool {
	return len(rec) > sizeFieldBytes && rec[sizeFieldBytes]&flagAttributes != 0
}
