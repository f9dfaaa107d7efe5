// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"encoding/binary"
	"fmt"
)

// DeadReason is why a message was moved to a dead-letter queue.
type DeadReason uint8

// Reasons, as stored.
const (
	// DeadMaxDeliveries: it was given back as often as Config.MaxDeliveries allows for.
	DeadMaxDeliveries DeadReason = 1
	// DeadRejected: a consumer rejected it.
	DeadRejected DeadReason = 2
	// DeadExpired: it was not acknowledged in time.
	DeadExpired DeadReason = 3
	// DeadOverflow: its queue was full, and it was one of the oldest.
	DeadOverflow DeadReason = 4
)

// DeadLetter says where a message was moved from, and why.
type DeadLetter struct {
	// Queue and Subscription are their names as they were.
	Queue, Subscription string
	// Sequence in that queue.
	Sequence uint64
	// Reason why it was moved.
	Reason DeadReason
	// Deliveries is how many times the subscription had given it to a consumer.
	Deliveries uint32
	// MovedMS is when the active moved it, in milliseconds since 1970.
	MovedMS int64
}

// maxDeadLetterBytes is above the length of any DeadLetter, as encoded.
const maxDeadLetterBytes = 600

func (l *DeadLetter) check() error {
	if len(l.Queue) == 0 || len(l.Queue) > MaxNameBytes || len(l.Subscription) == 0 ||
		len(l.Subscription) > MaxNameBytes || l.Sequence == 0 || l.Reason == 0 {
		return fmt.Errorf("%w: a dead letter without an origin or a reason", ErrMalformed)
	}
	return nil
}

// bytes is the length of the attribute with its tag; 0 for nil.
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

// deadLetter reads what append has written, and checks it.
func (d *decoder) deadLetter() (queue, sub []byte, l DeadLetter) {
	l.Reason = DeadReason(d.u8())
	l.MovedMS = int64(d.u64())
	l.Sequence = d.uvarint()
	deliveries := d.uvarint()
	l.Deliveries = uint32(deliveries)
	queue, sub = d.bytes(MaxNameBytes), d.bytes(MaxNameBytes)
	if d.err == nil && (l.Reason == 0 || l.Sequence == 0 || deliveries>>32 != 0 || len(queue) == 0 || len(sub) == 0 ||
		len(d.b) > 0) {
		d.fail("an impossible dead letter")
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

// DeadLetter gives where the message was moved from; nil if it is no dead letter.
func (m *Message) DeadLetter() *DeadLetter {
	if len(m.dead) == 0 {
		return nil
	}
	d := decoder{b: m.dead}
	queue, sub, l := d.deadLetter()
	l.Queue, l.Subscription = string(queue), string(sub)
	return &l
}

// Relabel gives the record of the same message with another DeadLetter; nil for none. A dead letter has no time of its
// own any more: it neither expires by what its publisher said, nor is it delayed. The error is that of AppendMessage,
// or of DecodeMessage.
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

// BeginMove opens an operation that moves messages of a subscription to another queue, or, if target is NoQueue, drops
// them: Move adds to it, EndMove closes it. When it is applied, a message that is not acknowledged is acknowledged and
// published to the target; one that is acknowledged by then is left out.
func (b *Builder) BeginMove(queue uint64, sub uint32, target uint64) {
	b.begin(OpMove)
	b.buf = binary.AppendUvarint(b.buf, queue)
	b.buf = binary.AppendUvarint(b.buf, uint64(sub))
	b.buf = binary.AppendUvarint(b.buf, target)
	b.msgs, b.count, b.last, b.drop = 0, len(b.buf), 0, target == NoQueue
	b.buf = append(b.buf, 0, 0, 0, 0)
}

// Move adds a message to the open operation, in the order of the sequences. rec is what the target gets; nil if there
// is no target.
func (b *Builder) Move(sequence uint64, rec []byte) {
	b.needPublish()
	switch {
	case b.err != nil:
		return
	case sequence <= b.last:
		b.fail(fmt.Errorf("%w: sequences to be moved must rise", ErrMalformed))
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

// EndMove closes the open operation.
func (b *Builder) EndMove() { b.EndPublish() }

// Moves iterates over the messages of an OpMove. rec is nil if there is no target. It ends at the first one that is
// malformed.
func (o *Op) Moves(yield func(sequence uint64, rec []byte) bool) {
	if o.Code != OpMove {
		return
	}
	d, sequence := decoder{b: o.Raw}, uint64(0)
	for range o.Count {
		sequence += d.uvarint()
		var rec []byte
		if o.Target != NoQueue && d.err == nil {
			rec, d.b, d.err = NextRecord(d.b)
		}
		if d.err != nil || !yield(sequence, rec) {
			return
		}
	}
}

// CheckMoves checks that the messages of an OpMove are there, in the order of their sequences, that DecodeMessage will
// read each of them, and that nothing follows them. It gives the length of the records.
func (o *Op) CheckMoves() (bytes int, err error) {
	d, last := decoder{b: o.Raw}, uint64(0)
	for range o.Count {
		sequence := last + d.uvarint()
		if d.err == nil && sequence <= last {
			d.fail("sequences that do not rise")
		}
		last = sequence
		if o.Target == NoQueue || d.err != nil {
			continue
		}
		var rec []byte
		if rec, d.b, d.err = NextRecord(d.b); d.err == nil {
			_, d.err = DecodeMessage(rec)
			bytes += len(rec)
		}
	}
	if d.err == nil && len(d.b) > 0 {
		d.fail("bytes after the last message")
	}
	return bytes, d.err
}
