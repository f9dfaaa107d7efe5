// SPDX-License-Identifier: Apache-2.0

package protoconv

import (
	"encoding/binary"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/lockstep-mq/lockstep/proto/codec"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// Deliveries is a reusable representation of a pb.ConsumeResponse. It is encoded directly from the stored records.
type Deliveries struct {
	confirmed uint64
	parts     []deliveryPart
	bytes     int // encoded size without large bodies
	total     int // encoded size with large bodies
}

type deliveryPart struct {
	sequence uint64
	count    uint32
	message  txn.Message
	seconds  uint64
	nanos    uint64
	// Encoded sizes of StoredMessage, its Timestamp and its Message.
	storedBytes, timeBytes, messageBytes int
	dead                                 []byte // encoded DeadLetter; nil for other messages
	referred                             int    // size of the data that is referenced, not copied
}

// Field numbers of lockstep.v1 and of google.protobuf.Timestamp, verified by TestDeliveriesMatchGeneratedEncoding.
const (
	fieldMessages, fieldConfirmed                       = 1, 2
	fieldSequence, fieldPublishedAt, fieldDeliveryCount = 1, 2, 3
	fieldMessage, fieldDeadLetter                       = 4, 5
	fieldBody, fieldProperties                          = 1, 2
	fieldPriority, fieldExpiresAt, fieldDeliverAt       = 9, 10, 12
	fieldTypedProperties                                = 14
	fieldKey, fieldValue                                = 1, 2
	fieldBool, fieldInt, fieldDouble, fieldBytes        = 1, 2, 3, 4
	fieldSeconds, fieldNanos                            = 1, 2
	// tagBytes is the size of a tag. All field numbers are below 16.
	tagBytes = 1
)

// Set sets the confirmation and the messages of the response. It includes as many messages as fit into limit bytes,
// but at least one. It returns the remaining messages. The records must not change until the response is encoded.
func (d *Deliveries) Set(event dispatch.Event, limit int) (left []dispatch.Message, err error) {
	d.confirmed, d.parts, d.bytes = event.Confirmed, d.parts[:0], 0
	if d.confirmed != 0 {
		d.bytes += tagBytes + protowire.SizeVarint(d.confirmed)
	}
	d.total = d.bytes
	for i := range event.Messages {
		m := &event.Messages[i]
		p := d.next()
		p.sequence, p.count, p.dead = m.Sequence, m.DeliveryCount, nil
		if err := p.message.Decode(m.Record); err != nil {
			return nil, fmt.Errorf("%w: sequence %d: %w", index.ErrDataLoss, m.Sequence, err)
		}
		if err := p.encodeDeadLetter(); err != nil {
			return nil, fmt.Errorf("sequence %d: %w", m.Sequence, err)
		}
		p.measure()
		size := lengthBytes(p.storedBytes)
		if i > 0 && d.total+size > limit {
			d.parts = d.parts[:i]
			return event.Messages[i:], nil
		}
		d.total += size
		d.bytes += size - p.referred
	}
	return nil, nil
}

// next appends a part with undefined content and returns it.
func (d *Deliveries) next() *deliveryPart {
	n := len(d.parts)
	d.parts = slices.Grow(d.parts, 1)[:n+1]
	return &d.parts[n]
}

// Release removes the references to the records.
func (d *Deliveries) Release() { clear(d.parts) }

func (p *deliveryPart) measure() {
	p.seconds, p.nanos = secondsAndNanos(p.message.TimestampMS)
	p.timeBytes = numberBytes(p.seconds) + numberBytes(p.nanos)
	p.messageBytes = 0
	p.referred = 0
	if n := len(p.message.Body); n > 0 {
		p.messageBytes = lengthBytes(n)
		if n >= codec.ReferBytes {
			p.referred = n
		}
	}
	if p.message.PropertyCount() > 0 {
		for k, v := range p.message.Properties {
			p.messageBytes += lengthBytes(lengthBytes(len(k)) + lengthBytes(len(v)))
		}
	}
	if p.message.HasAttributes() {
		for _, text := range p.message.Texts {
			p.messageBytes += lengthBytes(len(text))
		}
		for tag, v := range p.message.Numbers {
			p.messageBytes += attributeBytes(tag, v)
		}
		for k, v := range p.message.Values {
			p.messageBytes += lengthBytes(lengthBytes(len(k)) + lengthBytes(valueBytes(v)))
		}
	}
	p.storedBytes = numberBytes(p.sequence) + lengthBytes(p.timeBytes) + numberBytes(uint64(p.count)) +
		lengthBytes(p.messageBytes)
	if p.dead != nil {
		p.storedBytes += lengthBytes(len(p.dead))
	}
}

func secondsAndNanos(ms int64) (seconds, nanos uint64) {
	s, millis := ms/1000, ms%1000
	if millis < 0 { // the time is before 1970
		s, millis = s-1, millis+1000
	}
	return uint64(s), uint64(millis) * 1_000_000
}

func attributeBytes(tag txn.Attribute, v int64) int {
	if tag == txn.AttributePriority {
		return tagBytes + protowire.SizeVarint(uint64(v)) // encoded even if it is 0
	}
	seconds, nanos := secondsAndNanos(v)
	return lengthBytes(numberBytes(seconds) + numberBytes(nanos))
}

// appendAttribute appends a priority or a time. The attribute tag is also the field number.
func appendAttribute(b []byte, tag txn.Attribute, v int64) []byte {
	if tag == txn.AttributePriority {
		return binary.AppendUvarint(append(b, fieldPriority<<3|byte(protowire.VarintType)), uint64(v))
	}
	seconds, nanos := secondsAndNanos(v)
	b = appendLength(b, byte(tag), numberBytes(seconds)+numberBytes(nanos))
	return appendNumber(appendNumber(b, fieldSeconds, seconds), fieldNanos, nanos)
}

// encodeDeadLetter encodes the origin of a dead letter.
func (p *deliveryPart) encodeDeadLetter() (err error) {
	l := p.message.DeadLetter()
	if l == nil {
		return nil
	}
	if p.dead, err = proto.Marshal(deadLetterToProto(l)); err != nil {
		return fmt.Errorf("encode the origin of a dead letter: %w", err)
	}
	return nil
}

// numberBytes returns the encoded size of a number field. It returns 0 for the value 0.
func numberBytes(v uint64) int {
	if v == 0 {
		return 0
	}
	return tagBytes + protowire.SizeVarint(v)
}

func lengthBytes(n int) int { return tagBytes + protowire.SizeBytes(n) }

// MakeMessage creates the response for a receiver in this process. The messages in it refer to the immutable
// records.
func (d *Deliveries) MakeMessage() proto.Message {
	parts, list := make([]storedParts, len(d.parts)), make([]*pb.StoredMessage, len(d.parts))
	for i := range d.parts {
		p := &d.parts[i]
		parts[i].set(p.sequence, p.count, &p.message)
		parts[i].message.Body = p.message.Body
		list[i] = &parts[i].stored
	}
	return &pb.ConsumeResponse{Messages: list, Confirmed: d.confirmed}
}

// TotalBytes returns the encoded size of the response.
func (d *Deliveries) TotalBytes() int { return d.total }

// EncodedBytes returns the encoded size of the response without large bodies.
func (d *Deliveries) EncodedBytes() int { return d.bytes }

// AppendTo appends the encoded response to o.
func (d *Deliveries) AppendTo(o *codec.Output) {
	b := o.B
	for i := range d.parts {
		p := &d.parts[i]
		b = appendLength(b, fieldMessages, p.storedBytes)
		b = appendNumber(b, fieldSequence, p.sequence)
		b = appendLength(b, fieldPublishedAt, p.timeBytes)
		b = appendNumber(b, fieldSeconds, p.seconds)
		b = appendNumber(b, fieldNanos, p.nanos)
		b = appendNumber(b, fieldDeliveryCount, uint64(p.count))
		b = appendLength(b, fieldMessage, p.messageBytes)
		if n := len(p.message.Body); n > 0 {
			b = appendLength(b, fieldBody, n)
			if p.referred == 0 {
				b = append(b, p.message.Body...)
			} else {
				o.B = b
				o.Refer(p.message.Body)
			}
		}
		b = p.appendProperties(b)
		if p.message.HasAttributes() {
			b = p.appendAttributes(b)
		}
		if p.dead != nil {
			b = append(appendLength(b, fieldDeadLetter, len(p.dead)), p.dead...)
		}
	}
	o.B = appendNumber(b, fieldConfirmed, d.confirmed)
}

func (p *deliveryPart) appendProperties(b []byte) []byte {
	if p.message.PropertyCount() > 0 {
		for k, v := range p.message.Properties {
			b = appendLength(b, fieldProperties, lengthBytes(len(k))+lengthBytes(len(v)))
			b = append(appendLength(b, fieldKey, len(k)), k...)
			b = append(appendLength(b, fieldValue, len(v)), v...)
		}
	}
	return b
}

func (p *deliveryPart) appendAttributes(b []byte) []byte {
	for tag, text := range p.message.Texts {
		b = append(appendLength(b, byte(tag), len(text)), text...)
	}
	for tag, v := range p.message.Numbers {
		b = appendAttribute(b, tag, v)
	}
	for k, v := range p.message.Values {
		n := valueBytes(v)
		b = appendLength(b, fieldTypedProperties, lengthBytes(len(k))+lengthBytes(n))
		b = append(appendLength(b, fieldKey, len(k)), k...)
		b = appendValue(appendLength(b, fieldValue, n), v)
	}
	return b
}

// valueBytes returns the encoded size of a PropertyValue. A zero value is also encoded.
func valueBytes(v txn.Value) int {
	switch v.Kind {
	case txn.ValueBool, txn.ValueInt64:
		return tagBytes + protowire.SizeVarint(v.Bits)
	case txn.ValueDouble:
		return tagBytes + protowire.SizeFixed64()
	default:
		return lengthBytes(len(v.Bytes))
	}
}

func appendValue(b []byte, v txn.Value) []byte {
	switch v.Kind {
	case txn.ValueBool:
		return binary.AppendUvarint(append(b, fieldBool<<3|byte(protowire.VarintType)), v.Bits)
	case txn.ValueInt64:
		return binary.AppendUvarint(append(b, fieldInt<<3|byte(protowire.VarintType)), v.Bits)
	case txn.ValueDouble:
		return protowire.AppendFixed64(append(b, fieldDouble<<3|byte(protowire.Fixed64Type)), v.Bits)
	default:
		return append(appendLength(b, fieldBytes, len(v.Bytes)), v.Bytes...)
	}
}

func appendNumber(b []byte, field byte, v uint64) []byte {
	if v == 0 {
		return b
	}
	return binary.AppendUvarint(append(b, field<<3|byte(protowire.VarintType)), v)
}

func appendLength(b []byte, field byte, n int) []byte {
	return binary.AppendUvarint(append(b, field<<3|byte(protowire.BytesType)), uint64(n))
}
