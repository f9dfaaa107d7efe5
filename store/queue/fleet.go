// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"encoding/binary"
	"hash/crc32"
	"math"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store/mutate"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// FleetQueue represents the membership in a fleet and the moves of queues in the result of TakeTouched. No queue has
// this number.
const FleetQueue = math.MaxUint64 - 2

// FleetState is the membership of the pair in a fleet. It is zero if the pair was never a member.
type FleetState struct {
	// ID identifies the fleet. It is zero if the pair is not a member.
	ID uuid.UUID
	// Pair is the name of the pair in the fleet; "" if the pair is not a member.
	Pair string
	// JoinEpoch is the ownership epoch of the queues that the pair had when it joined; 0 if the pair is not a member.
	JoinEpoch uint64
	// MaxEpoch is the highest epoch in the log of the pair, including earlier memberships.
	MaxEpoch uint64
	// ImportEpoch is the highest epoch of an import that has begun or was canceled in this membership; 0 for none. An
	// import with this epoch or a lower one cannot begin (INV-28).
	ImportEpoch uint64
	// UnfencedEpoch is the highest epoch of an OpUnfence in this membership; 0 for none. Queues cannot be fenced with
	// this epoch or a lower one (INV-28).
	UnfencedEpoch uint64
}

// Member reports whether the pair is a member of a fleet.
func (f FleetState) Member() bool { return f.ID != uuid.Nil }

type fleet struct {
	FleetState

	touched bool // see TakeTouched

	// Of the current transaction:
	owned []byte // name in an OpOwn before the OpCreateQueue; nil for none
	epoch uint64 // epoch of the queue to create; 0 for none
}

// Fleet returns the membership of the pair in a fleet.
func (s *State) Fleet() FleetState { return s.fleet.FleetState }

// OwnershipEpoch returns the ownership epoch of a queue, or 0 if the pair is not a member of a fleet. The epoch of
// queues that the pair had when it joined is FleetState.JoinEpoch until an OpOwn raises it.
func (s *State) OwnershipEpoch(q *Queue) uint64 {
	if !s.fleet.Member() {
		return 0
	}
	return max(q.epoch, s.fleet.JoinEpoch) // the join has a higher epoch than earlier memberships
}

// allowsTwo reports whether operation i of a transaction with several operations is part of the creation of a queue in
// a fleet: an OpOwn, and the OpCreateQueue of the same name. check verifies that the OpCreateQueue exists.
func (s *State) allowsTwo(i int, o *txn.Op) bool {
	t := &s.fleet
	switch {
	case s.reader.Ops() != 2:
		return false
	case i == 0:
		return o.Code == txn.OpOwn
	}
	return o.Code == txn.OpCreateQueue && t.owned != nil &&
		(string(o.Name) == string(t.owned) || mutate.Off("INV-27-epoch-of-another-name-is-used"))
}

// checkOwn verifies the epoch of a queue to create, or the higher epoch of an existing queue (INV-27).
func (s *State) checkOwn(o *txn.Op) txn.Code {
	t := &s.fleet
	current := t.JoinEpoch
	if s.reader.Ops() == 1 {
		q := s.byName[string(o.Name)]
		if q == nil {
			return txn.ErrQueueNotFound
		}
		if code := q.checkServed(); code != txn.OK {
			return code
		}
		current = s.OwnershipEpoch(q)
	}
	if !t.Member() || o.Number <= current && !mutate.Off("INV-27-epoch-decreases") {
		return txn.ErrFleetChanged
	}
	if s.reader.Ops() > 1 {
		t.owned = o.Name
		s.added++
	}
	return txn.OK
}

// mayCreate reports whether the pair may create a queue: in a fleet, only under the epoch of an OpOwn (INV-27). It
// clears fleet.owned.
func (s *State) mayCreate() bool {
	owned := s.fleet.owned != nil
	s.fleet.owned = nil
	return owned || !s.fleet.Member() || mutate.Off("INV-27-queue-is-created-without-an-epoch")
}

func (s *State) checkFleet(o *txn.Op) txn.Code {
	t := &s.fleet
	c := o.FleetChange()
	ok := t.Member()
	if c.Action == txn.FleetJoin {
		ok = !ok && (c.Epoch > t.MaxEpoch || mutate.Off("INV-27-join-under-an-older-epoch"))
	}
	switch {
	case !ok:
		return txn.ErrFleetChanged
	case c.Action == txn.FleetLeave && len(s.moves.byEpoch) > 0:
		return txn.ErrMoved
	}
	return txn.OK
}

func (s *State) changeFleet(o *txn.Op) {
	t := &s.fleet
	s.digest = mix(mix(s.digest, uint64(o.Code)), uint64(crc32.Checksum(o.Raw, s.crc)))
	c := o.FleetChange()
	t.FleetState = FleetState{ID: c.ID, Pair: c.Pair, JoinEpoch: c.Epoch, MaxEpoch: max(t.MaxEpoch, c.Epoch)}
	t.touched = true
}

// own applies an OpOwn. It returns the queue, or nil if the next operation creates the queue under the epoch.
func (s *State) own(o *txn.Op) (q *Queue) {
	s.fleet.epoch = o.Number
	if s.reader.Ops() == 1 {
		q = s.byName[string(o.Name)]
		s.mark(q)
		s.takeEpoch(q)
	}
	return q
}

// takeEpoch sets the epoch of a queue to the epoch in the current transaction, if it contains one.
func (s *State) takeEpoch(q *Queue) {
	t := &s.fleet
	if t.epoch == 0 {
		return
	}
	q.own().epoch = t.epoch
	q.digest = mix(mix(q.digest, uint64(txn.OpOwn)), t.epoch)
	t.MaxEpoch = max(t.MaxEpoch, t.epoch)
	t.epoch = 0
}

// DetachedFleet returns the key and the value that end the membership of a copy of the state. ok is false if the
// state is not a member.
func (s *State) DetachedFleet() (key, value []byte, ok bool) {
	t := fleet{FleetState: FleetState{MaxEpoch: s.fleet.MaxEpoch}}
	return []byte{keyFleet}, t.appendValue(nil), s.fleet.Member()
}

func (t *fleet) appendValue(dst []byte) []byte {
	version, moves := byte(valueVersion), t.ImportEpoch|t.UnfencedEpoch != 0
	if moves {
		version = importVersion
	}
	dst = append(append(dst, version), t.ID[:]...)
	dst = appendString(dst, t.Pair)
	dst = binary.AppendUvarint(binary.AppendUvarint(dst, t.JoinEpoch), t.MaxEpoch)
	if moves {
		dst = binary.AppendUvarint(binary.AppendUvarint(dst, t.ImportEpoch), t.UnfencedEpoch)
	}
	return dst
}

func (c *collector) fleet(t *fleet) {
	if t.MaxEpoch != 0 {
		c.put(append(c.key(), keyFleet), t.appendValue)
	}
}

func (l *Loader) fleet(v *cursor) {
	t := &l.s.fleet
	moves := len(v.b) > 0 && v.b[0] == importVersion
	if moves {
		v.u8()
	} else {
		v.version()
	}
	copy(t.ID[:], v.take(uint64(len(t.ID))))
	t.Pair = string(v.take(v.uvarint(txn.MaxNameBytes)))
	t.JoinEpoch, t.MaxEpoch = v.uvarint(math.MaxUint64), v.uvarint(math.MaxUint64)
	if moves {
		t.ImportEpoch, t.UnfencedEpoch = v.uvarint(math.MaxUint64), v.uvarint(math.MaxUint64)
	}
	if v.err == nil && moves && t.ImportEpoch|t.UnfencedEpoch == 0 {
		v.fail("epochs of moves are 0")
	}
	if v.err == nil && t.MaxEpoch == 0 {
		v.fail("fleet without an epoch")
	}
}

func (t *fleet) check(bad func(string, ...any)) {
	member := t.Member()
	if member != (t.JoinEpoch > 0) || member != (t.Pair != "") || member && txn.CheckName(t.Pair) != nil ||
		max(t.JoinEpoch, t.ImportEpoch, t.UnfencedEpoch) > t.MaxEpoch ||
		!member && t.ImportEpoch|t.UnfencedEpoch != 0 {
		bad("fleet %v has pair %.40q, join epoch %d, import epoch %d, unfenced epoch %d and maximum epoch %d", t.ID, t.Pair,
			t.JoinEpoch, t.ImportEpoch, t.UnfencedEpoch, t.MaxEpoch)
	}
}

func (s *State) checkEpoch(q *Queue, bad func(string, ...any)) {
	if q.epoch > s.fleet.MaxEpoch {
		bad("queue %d %.40q: ownership epoch %d exceeds the maximum %d", q.id, q.name, q.epoch, s.fleet.MaxEpoch)
	}
}
