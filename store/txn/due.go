// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"cmp"
	"encoding/binary"
	"fmt"
)

// DueKind is the kind of a scheduled action. The numbers are stored.
type DueKind uint8

// Kinds of scheduled actions.
const (
	DueDeliver DueKind = 1
	DueExpire  DueKind = 2
	// DueTTL expires a message according to the TTL of its queue. It is not in the schedule index.
	DueTTL DueKind = 3
	// DueIDs removes expired message IDs of a queue. Due.Sequence identifies the generation of these IDs.
	DueIDs DueKind = 4
)

// Indexed reports whether the kind is valid in the schedule index.
func (k DueKind) Indexed() bool { return k == DueDeliver || k == DueExpire || k == DueIDs }

// Due is a scheduled action on a message, or on message IDs of a queue.
type Due struct {
	// TimeMS is the due time, in milliseconds since 1970. For a DueTTL, it is the RecordSinceMS of the message, at least
	// 0.
	TimeMS          int64
	Queue, Sequence uint64
	Kind            DueKind
}

// Compare defines the order of the schedule: by time, queue, sequence and kind.
func (e Due) Compare(o Due) int {
	if c := cmp.Compare(e.TimeMS, o.TimeMS); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(e.Queue, o.Queue), cmp.Compare(e.Sequence, o.Sequence), cmp.Compare(e.Kind, o.Kind))
}

// MaxDue is the maximum number of entries in one OpDue.
const MaxDue = 10_000

// Due adds an operation that executes due entries. A DueDeliver makes a delayed message deliverable. DueExpire and
// DueTTL acknowledge a message for all subscriptions. DueIDs removes generations of message IDs that are no longer in
// the deduplication window. The state skips entries that are completed, not due at the transaction's time, or of
// fenced and incoming queues. It also skips the expiry of messages that a prepared transaction reserves.
func (b *Builder) Due(entries ...Due) {
	if len(entries) == 0 || len(entries) > MaxDue {
		b.fail(fmt.Errorf("%w: %d due entries, must have 1 to %d", ErrTooLarge, len(entries), MaxDue))
	}
	b.begin(OpDue, uint64(len(entries)))
	var last Due
	for _, e := range entries {
		if !e.valid() {
			b.fail(fmt.Errorf("%w: invalid due entry %+v", ErrMalformed, e))
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
		e.Kind <= DueIDs
}

// Dues iterates over the entries of an OpDue, in the order in which they were added.
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

func (d *decoder) due(e *Due) {
	e.TimeMS += d.varint()
	e.Queue += uint64(d.varint())
	e.Sequence = d.uvarint()
	e.Kind = DueKind(d.u8())
}

func (o *Op) dues(d *decoder) {
	o.Count = d.count(MaxDue)
	if o.Count == 0 {
		d.fail("no due entries")
	}
	o.Raw = d.b
	var e Due
	for range o.Count {
		if d.due(&e); d.err == nil && !e.valid() {
			d.fail("invalid due entry")
		}
	}
	o.Raw = o.Raw[:len(o.Raw)-len(d.b)]
}

// RecordSinceMS returns the time from which the TTL of a queue counts for a message, in milliseconds since 1970. This
// is the publish time or, for a dead letter, the time of the move. rec must be a verified record.
func RecordSinceMS(rec []byte) int64 {
	if dead := RecordAttribute(rec, AttributeDeadLetter); len(dead) >= 9 {
		return int64(binary.LittleEndian.Uint64(dead[1:]))
	}
	return RecordPublishedMS(rec)
}
