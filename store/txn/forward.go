// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"encoding/binary"
	"fmt"
)

// MaxForwards is the greatest number of forwards of a queue.
const MaxForwards = 16

// Forward is a rule of a queue: the messages that are published to it, or those of them that a filter matches, also go
// to another queue.
type Forward struct {
	// Target is the number of the other queue.
	Target uint64
	// Move: the messages go to the target only.
	Move bool
	// Filter is the expression that a message has to match, at most MaxFilterBytes bytes; "" for all messages. The log
	// and the state keep it as it is: the active evaluates it, and says in the record which messages it matched.
	Filter string
}

const flagMove = 1

// appendForwards encodes a list of forwards as a count, and each as target uvarint, flags u8 (1 = move), filter (length
// uvarint, bytes).
func appendForwards(dst []byte, forwards []Forward) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(forwards)))
	for i := range forwards {
		f := &forwards[i]
		dst = binary.AppendUvarint(dst, f.Target)
		dst = appendString(append(dst, f.flags()), f.Filter)
	}
	return dst
}

// AppendForwards appends the encoding of a queue's forwards, which DecodeForwards reads.
func AppendForwards(dst []byte, forwards []Forward) []byte { return appendForwards(dst, forwards) }

// DecodeForwards reads what AppendForwards has written, and nothing may follow. The errors wrap ErrMalformed or
// ErrNewerVersion.
func DecodeForwards(b []byte) ([]Forward, error) {
	d := decoder{b: b}
	forwards := d.forwards()
	if d.err == nil && len(d.b) > 0 {
		d.fail("bytes after the forwards")
	}
	return forwards, d.err
}

func (f *Forward) flags() byte {
	if f.Move {
		return flagMove
	}
	return 0
}

func (d *decoder) forwards() []Forward {
	forwards := make([]Forward, d.count(MaxForwards))
	for i := range forwards {
		f := &forwards[i]
		f.Target = d.uvarint()
		flags := d.u8()
		if flags&^flagMove != 0 && d.err == nil {
			d.err = fmt.Errorf("%w: forward flags %#x", ErrNewerVersion, flags)
		}
		f.Move = flags&flagMove != 0
		f.Filter = string(d.bytes(MaxFilterBytes))
		if d.err == nil && f.Target == NoQueue {
			d.fail("a forward to no queue")
		}
	}
	if d.err != nil {
		return nil
	}
	return forwards
}

// SetForwards replaces the forwards of a queue; none ends them.
func (b *Builder) SetForwards(queue uint64, forwards []Forward) {
	if len(forwards) > MaxForwards {
		b.fail(fmt.Errorf("%w: %d forwards, the limit is %d", ErrTooLarge, len(forwards), MaxForwards))
	}
	b.begin(OpSetForwards)
	b.buf = appendForwards(binary.AppendUvarint(b.buf, queue), forwards)
	b.end()
}

// Forward says that messages of the publish right before it, to queue, also go to target, or with move only there.
// indexes are their places in that publish, rising from 0; none means all of them. It is the active's own addition to
// what a client asked for: it has no result, and is no part of a fingerprint.
func (b *Builder) Forward(queue, target uint64, move bool, indexes []int) {
	b.begin(OpForward)
	f := Forward{Move: move}
	b.buf = binary.AppendUvarint(binary.AppendUvarint(b.buf, queue), target)
	b.buf = binary.AppendUvarint(append(b.buf, f.flags()), uint64(len(indexes)))
	next := 0
	for _, i := range indexes {
		if i < next {
			b.fail(fmt.Errorf("%w: the messages of a forward must rise", ErrMalformed))
		}
		b.buf = binary.AppendUvarint(b.buf, uint64(i-next))
		next = i + 1
	}
	b.end()
}

// decodeForward reads an OpForward.
func (o *Op) decodeForward(d *decoder) {
	o.Queue, o.Target = d.uvarint(), d.uvarint()
	flags := d.u8()
	if flags&^flagMove != 0 && d.err == nil {
		d.err = fmt.Errorf("%w: forward flags %#x", ErrNewerVersion, flags)
	}
	o.Move = flags&flagMove != 0
	o.Count = d.count(MaxPublishMessages)
	o.Raw = d.b
	next := uint64(0)
	for range o.Count {
		next += uint64(d.count(MaxPublishMessages)) + 1
	}
	if d.err == nil && next > MaxPublishMessages {
		d.fail("a forward of a message that cannot be there")
	}
}

// Forwarded iterates over the places of the messages of an OpForward in a publish of so many.
func (o *Op) Forwarded(messages int) func(yield func(index int) bool) {
	return func(yield func(index int) bool) {
		d, next := decoder{b: o.Raw}, 0
		if o.Count == 0 {
			for i := range messages {
				if !yield(i) {
					return
				}
			}
		}
		for range o.Count {
			next += int(d.uvarint()) + 1
			if !yield(next - 1) {
				return
			}
		}
	}
}
