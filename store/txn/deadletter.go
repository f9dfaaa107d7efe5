// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"encoding/binary"
	"fmt"
)

// DeadReason is the reason why a message was moved to a dead-letter queue.
type DeadReason uint8

// Reasons, as stored.
const (
	DeadMaxDeliveries DeadReason = 1
	DeadRejected      DeadReason = 2
	DeadExpired       DeadReason = 3
	DeadOverflow      DeadReason = 4
)

// DeadLetter describes the origin of a dead letter, and the reason for the move.
type DeadLetter struct {
	// Queue and Subscription are the names of the original queue and subscription at the time of the move.
	Queue, Subscription string
	// Sequence is the sequence of the message in the original queue.
	Sequence uint64
	Reason   DeadReason
	// Deliveries is the number of counted deliveries to the subscription: the releases of the message (OpRelease) and,
	// for DeadRejected, the rejected delivery.
	Deliveries uint32
	// MovedMS is the time of the move on the active, in milliseconds since 1970.
	MovedMS int64
}

// maxDeadLetterBytes is an upper bound for the length of an encoded DeadLetter.
const maxDeadLetterBytes = 600

func (l *DeadLetter) check() error {
	if len(l.Queue) == 0 || len(l.Queue) > MaxNameBytes || len(l.Subscription) == 0 ||
		len(l.Subscription) > MaxNameBytes || l.Sequence == 0 || l.Reason == 0 {
		return fmt.Errorf("%w: dead letter without an origin or a reason", ErrInvalidMessage)
	}
	return nil
}

// bytes returns the encoded length of the attribute with its tag, or 0 if l is nil.
func (l *DeadLetter) bytes() int {
	if l == nil {
		return 0
	}
	n := l.valueBytes()
	return 1 + UvarintBytes(uint64(n)) + n
}

func (l *DeadLetter) valueBytes() int {
	return 1 + 8 + UvarintBytes(l.Sequence) + UvarintBytes(uint64(l.Deliveries)) + UvarintBytes(uint64(len(l.Queue))) +
		len(l.Queue) + UvarintBytes(uint64(len(l.Subscription))) + len(l.Subscription)
}

func (l *DeadLetter) append(dst []byte) []byte {
	dst = binary.AppendUvarint(append(dst, byte(AttributeDeadLetter)), uint64(l.valueBytes()))
	dst = binary.LittleEndian.AppendUint64(append(dst, byte(l.Reason)), uint64(l.MovedMS))
	dst = binary.AppendUvarint(dst, l.Sequence)
	dst = binary.AppendUvarint(dst, uint64(l.Deliveries))
	return appendString(appendString(dst, l.Queue), l.Subscription)
}

func (d *decoder) deadLetter() (queue, sub []byte, l DeadLetter) {
	l.Reason = DeadReason(d.u8())
	l.MovedMS = int64(d.u64())
	l.Sequence = d.uvarint()
	deliveries := d.uvarint()
	l.Deliveries = uint32(deliveries)
	queue, sub = d.bytes(MaxNameBytes), d.bytes(MaxNameBytes)
	if d.err == nil && (l.Reason == 0 || l.Sequence == 0 || deliveries>>32 != 0 || len(queue) == 0 || len(sub) == 0 ||
		len(d.b) > 0) {
		d.fail("invalid dead letter")
	}
	return queue, sub, l
}

func (d *decoder) checkDeadLetter(b []byte) {
	in := decoder{b: b}
	in.deadLetter()
	if d.err == nil {
		d.err = in.err
	}
}

// DeadLetter returns the origin of a dead letter, or nil for other messages.
func (m *Message) DeadLetter() *DeadLetter {
	if len(m.dead) == 0 {
		return nil
	}
	d := decoder{b: m.dead}
	queue, sub, l := d.deadLetter()
	l.Queue, l.Subscription = string(queue), string(sub)
	return &l
}

// Relabel returns a copy of a record with its DeadLetter replaced by l, which may be nil. If l is not nil, the copy has
// no expiry and delivery times. The errors are those of DecodeMessage and AppendMessage.
func Relabel(rec []byte, l *DeadLetter) ([]byte, error) {
	m, err := DecodeMessage(rec)
	if err != nil {
		return nil, err
	}
	a := m.Attributes()
	a.DeadLetter = l
	if l != nil {
		a.ExpiresAtMS, a.DeliverAtMS = 0, 0
	}
	props := make([]Property, 0, m.PropertyCount())
	for k, v := range m.Properties {
		props = append(props, Property{Key: string(k), Value: string(v)})
	}
	return AppendMessage(nil, m.TimestampMS, &a, props, m.Body)
}

// BeginMove opens an operation that acknowledges unacknowledged messages of a subscription and publishes them to
// another queue. If target is NoQueue, the operation discards them instead. Move adds messages to the operation, and
// EndMove closes it.
func (b *Builder) BeginMove(queue uint64, sub uint32, target uint64) {
	b.begin(OpMove, queue, uint64(sub), target)
	b.msgs, b.count, b.last, b.drop = 0, len(b.buf), 0, target == NoQueue
	b.buf = append(b.buf, 0, 0, 0, 0)
}

// Move adds a message to the open move, in ascending sequence order. rec is the record for the target, if any.
func (b *Builder) Move(sequence uint64, rec []byte) {
	b.needPublish()
	switch {
	case b.err != nil:
		return
	case sequence <= b.last:
		b.fail(fmt.Errorf("%w: sequences to move must ascend", ErrMalformed))
		return
	case len(b.buf)-b.start+len(rec) > MaxTransactionBytes-16:
		b.fail(errTooLarge())
		return
	}
	b.buf = binary.AppendUvarint(b.buf, sequence-b.last)
	b.last = sequence
	if b.drop {
		b.msgs++
		return
	}
	b.Record(rec)
}

// EndMove closes the open move.
func (b *Builder) EndMove() { b.EndPublish() }

// discards reports whether the operation is an OpMove without a target, which contains no records.
func (o *Op) discards() bool { return o.Code == OpMove && o.Target == NoQueue }

// Moves iterates over the messages of an OpMove or OpImport, up to the first malformed one. rec is nil if the messages
// are discarded.
func (o *Op) Moves(yield func(sequence uint64, rec []byte) bool) {
	if o.Code != OpMove && o.Code != OpImport {
		return
	}
	d, sequence := decoder{b: o.Raw}, uint64(0)
	for range o.Count {
		sequence += d.uvarint()
		var rec []byte
		if !o.discards() && d.err == nil {
			rec, d.b, d.err = NextRecord(d.b)
		}
		if d.err != nil || !yield(sequence, rec) {
			return
		}
	}
}

// CheckMoves verifies that an OpMove or OpImport contains exactly Count messages with ascending sequences and valid
// records, and no trailing bytes. A record is valid if DecodeMessage accepts it. CheckMoves returns the total length of
// the records.
func (o *Op) CheckMoves() (bytes int, err error) {
	d, last := decoder{b: o.Raw}, uint64(0)
	for range o.Count {
		sequence := last + d.uvarint()
		if d.err == nil && sequence <= last {
			d.fail("sequences not in ascending order")
		}
		if d.err == nil && o.Code == OpImport && sequence > MaxSequence {
			d.fail("sequence exceeds its limit")
		}
		last = sequence
		if o.discards() || d.err != nil {
			continue
		}
		var rec []byte
		if rec, d.b, d.err = NextRecord(d.b); d.err == nil {
			_, d.err = DecodeMessage(rec)
			bytes += len(rec)
		}
	}
	if d.err == nil && len(d.b) > 0 {
		d.fail("trailing bytes after the last message")
	}
	return bytes, d.err
}
