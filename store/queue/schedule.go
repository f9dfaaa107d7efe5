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

// The schedule index has an entry for each delayed message and for each message with an expiry time: keys 't' time(8)
// queue(8) sequence(8) kind(1), without a value. The tree contains the index as of the last checkpoint. Later changes
// are in memory, and Scheduled merges the tree entries with them.
//
// Entries of the kind DueIDs remove message IDs of a queue (see dedup.go).
//
// An OpDue removes its due entries, whether or not their messages still exist. It skips the entries of queues that
// move, and the expiry of messages that a prepared transaction reserves. To remove an entry with its message, the
// state would have to read the message. Until the OpDue, an entry without a message has no effect.

type schedule struct {
	now, written generation // written was collected, but may not be in the published tree yet
	// version changes when collected changes are in the tree. A caller that reads both the tree and memory compares
	// versions.
	version uint64
	soonest int64 // see TakeSoonest
	due     []DueMessage
}

type generation struct{ added, removed dueSet }

// NeverMS is later than any time.
const NeverMS = math.MaxInt64

// DueMessage is a message that became deliverable.
type DueMessage struct{ Queue, Sequence uint64 }

// ScheduleKeys returns the key range of the schedule index.
func ScheduleKeys() KeyRange {
	return KeyRange{From: []byte{keySchedule}, To: []byte{keySchedule + 1}}
}

// ScheduleKey appends the key of an entry of the schedule index.
func ScheduleKey(dst []byte, e txn.Due) []byte {
	dst = binary.BigEndian.AppendUint64(append(dst, keySchedule), uint64(e.TimeMS))
	dst = binary.BigEndian.AppendUint64(dst, e.Queue)
	return append(binary.BigEndian.AppendUint64(dst, e.Sequence), byte(e.Kind))
}

// ParseScheduleKey decodes a key created by ScheduleKey. The error wraps ErrCorrupt.
func ParseScheduleKey(key []byte) (e txn.Due, err error) {
	c := cursor{b: key}
	if c.u8() != keySchedule {
		c.fail("wrong kind of key")
	}
	e.TimeMS, e.Queue, e.Sequence = int64(c.be64()), c.be64(), c.be64()
	e.Kind = txn.DueKind(c.u8())
	if c.end(); c.err == nil && (e.TimeMS < 0 || !e.Kind.Indexed()) {
		c.fail("invalid schedule entry")
	}
	return e, c.err
}

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

// remove removes an entry from memory, or records that the next checkpoint must remove it from the tree.
func (x *schedule) remove(e txn.Due) {
	if !x.now.added.remove(e) {
		x.now.removed.add(e)
	}
}

func (s *State) due(o *txn.Op) (changed uint64) {
	for e := range o.Dues {
		q := s.Queue(e.Queue)
		if q != nil && q.move != nil && !mutate.Off("INV-28-due-changes-a-queue-that-moves") {
			continue // INV-28
		}
		if !s.isDue(q, e) && !mutate.Off("INV-17-expires-before-its-time") {
			continue // INV-17
		}
		if e.Kind == txn.DueIDs {
			s.schedule.remove(e)
			s.dueIDs(q, e.Sequence)
			continue
		}
		if e.Kind != txn.DueDeliver && q.reserved(e.Sequence) {
			continue // the prepared transaction must be decided first
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

// isDue reports whether an entry is due at the transaction's time. For a DueTTL, it uses the current TTL of the queue.
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

// reserved reports whether a prepared transaction reserves the message for a subscription. q may be nil.
func (q *Queue) reserved(seq uint64) bool {
	return q != nil && slices.ContainsFunc(q.subs, func(sub *Sub) bool { return sub.reserved.has(seq) })
}

func (s *State) deliverable(q *Queue, seq uint64) bool {
	if q.delayed == nil || s.undelay(q, seq>>chunkBits, int(seq&chunkMask)>>6, 1<<(seq&63)) == 0 {
		return false
	}
	s.schedule.due = append(s.schedule.due, DueMessage{Queue: q.id, Sequence: seq})
	s.touch(q)
	return true
}

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

// TakeSoonest returns the earliest time added to the schedule since the last call, or NeverMS. It returns 0 if queues
// were unfenced or taken, since any of their entries may be due.
func (s *State) TakeSoonest() int64 {
	soonest := s.schedule.soonest
	s.schedule.soonest = NeverMS
	return soonest
}

// ScheduleChanges returns the number of schedule entries added or removed since the last checkpoint batch, plus the
// number of message IDs added since then (see dedup.go).
func (s *State) ScheduleChanges() int {
	return s.schedule.now.added.n + s.schedule.now.removed.n + s.ids.unwritten
}

// ScheduleVersion returns a number that changes when a checkpoint has moved entries from memory to the tree. A caller
// must read the tree again if the version has changed.
func (s *State) ScheduleVersion() uint64 { return s.schedule.version }

// ScheduleWritten discards the schedule changes and message IDs of the last checkpoint batch. They must be readable
// from the tree.
func (s *State) ScheduleWritten() {
	s.schedule.written = generation{}
	s.schedule.version++
	s.idsWritten()
}

// Scheduled appends at most limit schedule entries between after, exclusive, and upTo, inclusive, to dst, in order.
// stored must contain all entries of that range in the tree, read at the current ScheduleVersion. Scheduled omits the
// entries of fenced and incoming queues.
func (s *State) Scheduled(after, upTo txn.Due, stored []txn.Due, limit int, dst []txn.Due) []txn.Due {
	skip := func(txn.Due) bool { return false }
	if len(s.moves.byEpoch) > 0 {
		skip = func(e txn.Due) bool {
			q := s.Queue(e.Queue)
			return q != nil && q.move != nil
		}
	}
	return s.scheduled(after, upTo, stored, limit, dst, skip)
}

func (s *State) scheduled(
	after, upTo txn.Due, stored []txn.Due, limit int, dst []txn.Due, skip func(txn.Due) bool,
) []txn.Due {
	x, begin := &s.schedule, len(dst)
	for _, e := range stored {
		if !x.now.removed.has(e) && !x.written.removed.has(e) && !skip(e) {
			dst = append(dst, e)
		}
	}
	for _, g := range [...]*generation{&x.written, &x.now} {
		n := 0
		g.added.after(after, func(e txn.Due) bool {
			if n == limit || e.Compare(upTo) > 0 {
				return false
			}
			if (g == &x.now || !x.now.removed.has(e)) && !skip(e) {
				dst = append(dst, e)
				n++
			}
			return true
		})
	}
	found := dst[begin:]
	slices.SortFunc(found, txn.Due.Compare)
	found = slices.Compact(found) // written entries may already be in the tree
	return dst[:begin+min(len(found), limit)]
}

// NextScheduled returns the time of the first added entry in memory after the given entry, or NeverMS. The entry may
// already have been removed.
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

// ScheduleBatch is a set of changes to the schedule index. It shares its entries with the state. The entries do not
// change.
type ScheduleBatch struct{ of generation }

// Puts iterates over the keys to set, with empty values, in order. A key is valid until the next iteration.
func (b *ScheduleBatch) Puts(yield func(key []byte) bool) { b.of.added.keys(yield) }

// Deletes iterates over the keys to remove, in order. The tree may not contain all of them. A key is valid until
// the next iteration.
func (b *ScheduleBatch) Deletes(yield func(key []byte) bool) { b.of.removed.keys(yield) }

func (s *dueSet) keys(yield func(key []byte) bool) {
	var key []byte
	for e := range s.all {
		if key = ScheduleKey(key[:0], e); !yield(key) {
			return
		}
	}
}

func (c *collector) schedule(x *schedule) {
	c.batch.Schedule.of = x.now
	x.written, x.now = x.now, generation{}
}

// TTLs returns the TTL, in milliseconds, of each queue that has one and is not fenced.
func (s *State) TTLs() map[uint64]int64 { return maps.Clone(s.ttls) }
