// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"encoding/binary"
	"maps"
	"math"
	"slices"

	"github.com/lockstep-mq/lockstep/store/mutate"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// The schedule index has an entry for each message that is delayed, and one for each that says when it expires: keys
// 't' time(8) queue(8) sequence(8) kind(1), without a value. It is in the tree only, however long it is. The state has
// in memory what was added and removed since the last checkpoint; Scheduled puts the two together.
//
// An entry is removed when an OpDue names it, be its message there or not: to remove it with its message the message
// would have to be read. Until then it is stale, and harmless.

// schedule is what has changed of the index.
type schedule struct {
	now, written generation // written was handed out by Collect, and may not be in the published tree yet
	// version grows when the tree or what is in memory is replaced: who looks at one after the other compares it.
	version uint64
	soonest int64 // the earliest time that was added since TakeSoonest; NeverMS for none
	due     []DueMessage
}

type generation struct{ added, removed dueSet }

// NeverMS is a time that does not come.
const NeverMS = math.MaxInt64

// DueMessage is a message that has become deliverable.
type DueMessage struct{ Queue, Sequence uint64 }

// ScheduleKeys is the range of the keys of the schedule index.
func ScheduleKeys() KeyRange {
	return KeyRange{From: []byte{keySchedule}, To: []byte{keySchedule + 1}}
}

// ScheduleKey appends the key of an entry of the schedule index.
func ScheduleKey(dst []byte, e txn.Due) []byte {
	dst = binary.BigEndian.AppendUint64(append(dst, keySchedule), uint64(e.TimeMS))
	dst = binary.BigEndian.AppendUint64(dst, e.Queue)
	return append(binary.BigEndian.AppendUint64(dst, e.Sequence), byte(e.Kind))
}

// ParseScheduleKey reads what ScheduleKey has written. The error wraps ErrCorrupt.
func ParseScheduleKey(key []byte) (e txn.Due, err error) {
	c := cursor{b: key}
	if c.u8() != keySchedule {
		c.fail("a key of another kind")
	}
	e.TimeMS, e.Queue, e.Sequence = int64(c.be64()), c.be64(), c.be64()
	e.Kind = txn.DueKind(c.u8())
	if c.end(); c.err == nil && (e.TimeMS < 0 || e.Kind != txn.DueDeliver && e.Kind != txn.DueExpire) {
		c.fail("an entry of the schedule that cannot be")
	}
	return e, c.err
}

// schedule looks for times in a message that was just published as seq.
func (s *State) scheduleMessage(q *Queue, seq uint64, rec []byte) {
	if at := txn.RecordTime(rec, txn.AttributeDeliverAt); at > txn.RecordPublishedMS(rec) {
		s.delay(q, seq)
		s.schedule.add(txn.Due{TimeMS: at, Queue: q.id, Sequence: seq, Kind: txn.DueDeliver})
	}
	if at := txn.RecordTime(rec, txn.AttributeExpiresAt); at != 0 {
		s.schedule.add(txn.Due{TimeMS: at, Queue: q.id, Sequence: seq, Kind: txn.DueExpire})
	}
}

func (x *schedule) add(e txn.Due) {
	x.now.added.add(e)
	x.soonest = min(x.soonest, e.TimeMS)
}

// remove takes an entry out that may be in the tree, or nowhere.
func (x *schedule) remove(e txn.Due) {
	if !x.now.added.remove(e) {
		x.now.removed.add(e)
	}
}

// due carries out an OpDue. It counts in s.expired what it has expired.
func (s *State) due(o *txn.Op) (changed uint64) {
	for e := range o.Dues {
		q := s.queues.get(e.Queue)
		if !s.isDue(q, e) && !mutate.Off("INV-17-expires-before-its-time") {
			continue // INV-17
		}
		if e.Kind != txn.DueDeliver && q.reserved(e.Sequence) {
			continue // its prepared transaction is decided first
		}
		if e.Kind != txn.DueTTL {
			s.schedule.remove(e)
		}
		if q == nil || e.Sequence >= q.nextSeq {
			continue
		}
		did := false
		if e.Kind == txn.DueDeliver {
			did = s.deliverable(q, e.Sequence)
		} else if did = s.expire(q, e.Sequence); did {
			q.own().expired++
			s.expired++
		}
		if did {
			changed++
			s.mark(q)
			q.digest = mix(mix(q.digest, uint64(txn.OpDue)<<8|uint64(e.Kind)), e.Sequence)
		}
	}
	return changed
}

// isDue tells whether the time of an entry is over by the time of the transaction. A queue that has lost its TTL
// meanwhile, or has a longer one, keeps its messages.
func (s *State) isDue(q *Queue, e txn.Due) bool {
	at := e.TimeMS
	if e.Kind == txn.DueTTL {
		if q == nil || q.config.TTL == 0 {
			return false
		}
		at += int64(q.config.TTL)
	}
	return at <= s.reader.TimeMS()
}

// reserved tells whether a prepared transaction will acknowledge a message. nil reserves none.
func (q *Queue) reserved(seq uint64) bool {
	return q != nil && slices.ContainsFunc(q.subs, func(sub *Sub) bool { return sub.reserved.has(seq) })
}

// deliverable lets a message go that is delayed.
func (s *State) deliverable(q *Queue, seq uint64) bool {
	if q.delayed == nil || s.undelay(q, seq>>chunkBits, int(seq&chunkMask)>>6, 1<<(seq&63)) == 0 {
		return false
	}
	s.schedule.due = append(s.schedule.due, DueMessage{Queue: q.id, Sequence: seq})
	s.touch(q)
	return true
}

// expire acknowledges a message for all subscriptions.
func (s *State) expire(q *Queue, seq uint64) (did bool) {
	for _, sub := range q.subs {
		did = s.ack(sub, seq, seq) > 0 || did
	}
	return did
}

// TakeDue appends to dst the messages that became deliverable since the last call.
func (s *State) TakeDue(dst []DueMessage) []DueMessage {
	dst = append(dst, s.schedule.due...)
	s.schedule.due = s.schedule.due[:0]
	return dst
}

// TakeSoonest gives the earliest time that was added to the schedule since the last call; NeverMS for none.
func (s *State) TakeSoonest() int64 {
	soonest := s.schedule.soonest
	s.schedule.soonest = NeverMS
	return soonest
}

// ScheduleChanges is the number of entries that were added to the schedule, or removed, since the last checkpoint. They
// are in memory.
func (s *State) ScheduleChanges() int { return s.schedule.now.added.n + s.schedule.now.removed.n }

// ScheduleVersion changes when a checkpoint has brought entries from memory into the tree: who has read the tree under
// another version has to read it again.
func (s *State) ScheduleVersion() uint64 { return s.schedule.version }

// ScheduleWritten tells that what the last Collect of everything handed out can be read from the tree.
func (s *State) ScheduleWritten() {
	s.schedule.written = generation{}
	s.schedule.version++
}

// Scheduled appends to dst, in order, at most limit entries of the schedule that come after one and not after another.
// stored are those that the tree has there; all of them, under the present ScheduleVersion.
func (s *State) Scheduled(after, upTo txn.Due, stored []txn.Due, limit int, dst []txn.Due) []txn.Due {
	x, begin := &s.schedule, len(dst)
	for _, e := range stored {
		if !x.now.removed.has(e) && !x.written.removed.has(e) {
			dst = append(dst, e)
		}
	}
	for _, g := range [...]*generation{&x.written, &x.now} {
		n := 0
		g.added.after(after, func(e txn.Due) bool {
			if n == limit || e.Compare(upTo) > 0 {
				return false
			}
			if g == &x.now || !x.now.removed.has(e) {
				dst = append(dst, e)
				n++
			}
			return true
		})
	}
	found := dst[begin:]
	slices.SortFunc(found, txn.Due.Compare)
	found = slices.Compact(found) // what was written may be in the tree already
	return dst[:begin+min(len(found), limit)]
}

// NextScheduled gives the time of the first entry in memory after one; NeverMS if there is none.
func (s *State) NextScheduled(after txn.Due) int64 {
	next := int64(NeverMS)
	for _, g := range [...]*generation{&s.schedule.written, &s.schedule.now} {
		g.added.after(after, func(e txn.Due) bool {
			next = min(next, e.TimeMS)
			return false
		})
	}
	return next
}

// ScheduleBatch is what has changed of the schedule index. It may be hundreds of thousands of entries, so that a Batch
// gets them as they are, which takes no time: who writes them makes their keys.
type ScheduleBatch struct{ of generation }

// Puts iterates over the keys to be set, with empty values, in order. A key is valid until the next one.
func (b *ScheduleBatch) Puts(yield func(key []byte) bool) { b.of.added.keys(yield) }

// Deletes iterates over the keys to be removed, in order; the tree may have none of them. A key is valid until the next
// one.
func (b *ScheduleBatch) Deletes(yield func(key []byte) bool) { b.of.removed.keys(yield) }

func (s *dueSet) keys(yield func(key []byte) bool) {
	var key []byte
	for e := range s.all {
		if key = ScheduleKey(key[:0], e); !yield(key) {
			return
		}
	}
}

// schedule hands out what has changed. It is not changed any more.
func (c *collector) schedule(x *schedule) {
	c.batch.Schedule.of = x.now
	x.written, x.now = x.now, generation{}
}

// listTTL notes whether a queue has a TTL.
func (s *State) listTTL(q *Queue, ttl uint64) {
	if ttl == 0 {
		delete(s.ttls, q.id)
		return
	}
	if s.ttls == nil {
		s.ttls = make(map[uint64]int64)
	}
	s.ttls[q.id] = int64(ttl)
}

// TTLs gives the queues that have a TTL, and the TTL in milliseconds.
func (s *State) TTLs() map[uint64]int64 { return maps.Clone(s.ttls) }
