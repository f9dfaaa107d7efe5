// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"encoding/binary"
	"fmt"
)

// MaxForwards is the maximum number of forwards of a queue.
const MaxForwards = 16

// Forward is a forwarding rule of a queue. Published messages that match the filter are copied or moved to the target
// queue.
type Forward struct {
	Target uint64
	// Move moves messages to the target instead of copying them.
	Move bool
	// Filter is the filter expression, at most MaxFilterBytes bytes; "" matches all messages. Log and state treat it as
	// opaque.
	Filter string
}

const flagMove = 1

// AppendForwards appends the encoding of a queue's forwards to dst. The encoding is the count (uvarint) and, for each
// forward, the target (uvarint), the flags (u8, 1 = move) and the filter (length uvarint, bytes).
func AppendForwards(dst []byte, forwards []Forward) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(forwards)))
	for i := range forwards {
		f := &forwards[i]
		dst = binary.AppendUvarint(dst, f.Target)
		dst = appendString(append(dst, f.flags()), f.Filter)
	}
	return dst
}

// DecodeForwards decodes the result of AppendForwards. The errors wrap ErrMalformed or ErrNewerVersion.
func DecodeForwards(b []byte) ([]Forward, error) {
	d := decoder{b: b}
	forwards := d.forwards()
	if d.err == nil && len(d.b) > 0 {
		d.fail("trailing bytes after the forwards")
	}
	return forwards, d.err
}

func (f *Forward) flags() byte {
	if f.Move {
		return flagMove
	}
	return 0
}

func (d *decoder) moveFlag() bool {
	flags := d.u8()
	if flags&^flagMove != 0 && d.err == nil {
		d.err = fmt.Errorf("%w: forward flags %#x", ErrNewerVersion, flags)
	}
	return flags&flagMove != 0
}

func (d *decoder) forwards() []Forward {
	forwards := make([]Forward, d.count(MaxForwards))
	for i := range forwards {
		f := &forwards[i]
		f.Target = d.uvarint()
		f.Move = d.moveFlag()
		f.Filter = string(d.bytes(MaxFilterBytes))
		if d.err == nil && f.Target == NoQueue {
			d.fail("forward without a queue")
		}
	}
	if d.err != nil {
		return nil
	}
	return forwards
}

// SetForwards adds an operation that replaces the forwards of a queue. An empty list removes them.
func (b *Builder) SetForwards(queue uint64, forwards []Forward) {
	if len(forwards) > MaxForwards {
		b.fail(fmt.Errorf("%w: %d forwards, limit %d", ErrTooLarge, len(forwards), MaxForwards))
	}
	b.begin(OpSetForwards, queue)
	b.buf = AppendForwards(b.buf, forwards)
	b.end()
}

// Forward adds an operation that also publishes messages of the preceding publish to target, or only to target if
// move is set. queue is the queue of the publish. indexes are the positions of the messages in the publish, starting
// at 0, in ascending order; an empty list means all messages. The operation has no result and is not part of the
// fingerprint.
func (b *Builder) Forward(queue, target uint64, move bool, indexes []int) {
	b.begin(OpForward, queue, target)
	f := Forward{Move: move}
	b.buf = binary.AppendUvarint(append(b.buf, f.flags()), uint64(len(indexes)))
	next := 0
	for _, i := range indexes {
		if i < next {
			b.fail(fmt.Errorf("%w: forward indexes not in ascending order", ErrMalformed))
		}
		b.buf = binary.AppendUvarint(b.buf, uint64(i-next))
		next = i + 1
	}
	b.end()
}

func (o *Op) decodeForward(d *decoder) {
	o.Queue, o.Target = d.uvarint(), d.uvarint()
	o.Move = d.moveFlag()
	o.Count = d.count(MaxPublishMessages)
	o.Raw = d.b
	next := uint64(0)
	for range o.Count {
		next += uint64(d.count(MaxPublishMessages)) + 1
	}
	if d.err == nil && next > MaxPublishMessages {
		d.fail("forward of an invalid message")
	}
	d.b = nil
}

// Forwarded iterates over the positions of the messages that an OpForward selects in the preceding publish, which
// has the given number of messages.
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
