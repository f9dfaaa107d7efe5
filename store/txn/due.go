// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"cmp"
	"encoding/binary"
	"fmt"
)

// DueKind says what happens to a message when its time has come. The numbers are stored.
type DueKind uint8

// Kinds of Due.
const (
	// DueDeliver makes a delayed message deliverable.
	DueDeliver DueKind = 1
	// DueExpire expires a message whose own time is over.
	DueExpire DueKind = 2
	// DueTTL expires a message that its queue's TTL is over for. It is in no index.
	DueTTL DueKind = 3
)

// Due is something that happens to a message at a time.
type Due struct {
	// TimeMS is when it is due, in milliseconds since 1970; of a DueTTL when the message came to its queue.
	TimeMS int64
	// Queue and Sequence name the message.
	Queue, Sequence uint64
	// Kind says what happens.
	Kind DueKind
}

// Compare gives the order of the schedule: by time, queue, sequence and kind.
func (e Due) Compare(o Due) int {
	if c := cmp.Compare(e.TimeMS, o.TimeMS); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(e.Queue, o.Queue), cmp.Compare(e.Sequence, o.Sequence), cmp.Compare(e.Kind, o.Kind))
}

// MaxDue is the greatest number of entries in one OpDue.
const MaxDue = 10_000

// Due adds an operation that does what is due. When it is applied, an entry is left out whose time, or the TTL that its
// queue has by then, is not over by the transaction's own time. A DueDeliver makes a message deliverable that is
// delayed; the others acknowledge a message for all subscriptions that have not. What is done already is left out, so
// that a repetition changes nothing.
func (b *Builder) Due(entries ...Due) {
	if len(entries) == 0 || len(entries) > MaxDue {
		b.fail(fmt.Errorf("%w: %d entries that are due, 1 to %d are possible", ErrTooLarge, len(entries), MaxDue))
	}
	b.begin(OpDue)
	b.buf = binary.AppendUvarint(b.buf, uint64(len(entries)))
	var last Due
	for _, e := range entries {
		if !e.valid() {
			b.fail(fmt.Errorf("%w: an impossible entry that is due, %+v", ErrMalformed, e))
		}
		b.buf = binary.AppendVarint(b.buf, e.TimeMS-last.TimeMS)
		b.buf = binary.AppendVarint(b.buf, int64(e.Queue-last.Queue))
		b.buf = binary.AppendUvarint(b.buf, e.Sequence)
		b.buf = append(b.buf, byte(e.Kind))
		last = e
	}
	b.end()
}

func (e *Due) valid() bool {
	return e.TimeMS >= 0 && e.TimeMS <= MaxTimeMS && e.Queue != NoQueue && e.Sequence != 0 && e.Kind >= DueDeliver &&
		e.Kind <= DueTTL
}

// Dues iterates over the entries of an OpDue, in the order in which they were given.
func (o *Op) Dues(yield func(Due) bool) {
	if o.Code != OpDue {
		return
	}
	d, e := decoder{b: o.Raw}, Due{}
	for range o.Count {
		if d.due(&e); d.err != nil || !yield(e) {
			return
		}
	}
}

// due reads the entry that follows e into it.
func (d *decoder) due(e *Due) {
	e.TimeMS += d.varint()
	e.Queue += uint64(d.varint())
	e.Sequence = d.uvarint()
	e.Kind = DueKind(d.u8())
}

func (o *Op) dues(d *decoder) {
	o.Count = d.count(MaxDue)
	if o.Count == 0 {
		d.fail("nothing that is due")
	}
	o.Raw = d.b
	var e Due
	for range o.Count {
		if d.due(&e); d.err == nil && !e.valid() {
			d.fail("an impossible entry that is due")
		}
	}
	o.Raw = o.Raw[:len(o.Raw)-len(d.b)]
}

// RecordSinceMS is when a message came to its queue, in milliseconds since 1970: when it was published, or, of a dead
// letter, when it was moved.
func RecordSinceMS(rec []byte) int64 {
	if dead := RecordAttribute(rec, AttributeDeadLetter); len(dead) >= 9 {
		return int64(binary.LittleEndian.Uint64(dead[1:]))
	}
	return RecordPublishedMS(rec)
}
