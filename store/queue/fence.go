// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"hash/crc32"
	"maps"
	"slices"

	"github.com/lockstep-mq/lockstep/store/mutate"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// A move transfers queues from one pair of a fleet to another, under an ownership epoch (INV-28). At the source, the
// queues are fenced: they do not change, and the active proposes nothing for them. At the target they are incoming
// until they are taken (see incoming.go).
//
// Except for dead-letter queues that a policy sets, no reference connects a fenced queue with a queue that is not part
// of the move: OpFence verifies this, and later operations cannot create such references. Policies are not moved, so
// the dead-letter queue of a policy cannot be fenced, and a policy that applies to a fenced queue cannot be changed.

// MoveState is the state of a move at one of its pairs.
type MoveState uint8

// States of a move, as stored.
const (
	// MoveFenced is the state of the source from the fence on. It ends with OpUnfence or OpDropMoved.
	MoveFenced MoveState = 1
	// MoveImporting is the state of the target until it takes the queues or cancels the import.
	MoveImporting MoveState = 2
	// MoveTaken is the state of the target after it has become the owner.
	MoveTaken MoveState = 3
	// MoveCanceled is the state of the target after OpCancelImport.
	MoveCanceled MoveState = 4
)

var moveStates = [...]string{ //nolint:gochecknoglobals // a table
	MoveFenced: "fenced", MoveImporting: "importing", MoveTaken: "taken", MoveCanceled: "canceled",
}

// String returns the name of the state.
func (m MoveState) String() string {
	if int(m) < len(moveStates) && moveStates[m] != "" {
		return moveStates[m]
	}
	return "unknown"
}

// MaxMoves is the maximum number of moves in a state. A taken or canceled move counts until OpForgetMove.
const MaxMoves = 10_000

// Move describes a move of queues to or from another pair.
type Move struct {
	// Epoch is the ownership epoch of the queues at the target.
	Epoch uint64
	State MoveState
	// Pair is the name of the other pair; "" if the import was canceled before it began.
	Pair string
	// Queues are the fenced or incoming queues; empty if the move was taken or canceled.
	Queues []MovedQueue
}

// MovedQueue is a fenced or incoming queue.
type MovedQueue struct {
	ID   uint64
	Name string
	// Source is the number of an incoming queue in the other pair; 0 for a fenced queue.
	Source uint64
	// Next is the lowest sequence of an incoming queue that is not imported yet.
	Next uint64
	// After is the key of the last imported pair of the state of an incoming queue; nil before the first pair.
	After []byte
	// Complete reports whether the whole state of an incoming queue is imported.
	Complete bool
}

type moveSet struct {
	byEpoch map[uint64]*move
	dirty   map[uint64]bool // changed or removed since the last Collect

	incoming map[uint64]*Queue // by number
	names    map[string]*Queue // incoming queues by name
}

type move struct {
	epoch  uint64
	state  MoveState
	pair   string
	queues []movedQueue // fenced or incoming queues, ordered by number
}

type movedQueue struct {
	id uint64
	// The rest is set only for incoming queues.
	source   uint64
	live     uint64 // number of live messages according to the imported state
	after    []byte // key of the last imported pair of the state; nil for none
	complete bool
}

func newMoveSet() moveSet {
	return moveSet{
		byEpoch: make(map[uint64]*move), dirty: make(map[uint64]bool), incoming: make(map[uint64]*Queue),
		names: make(map[string]*Queue),
	}
}

// Moves returns all moves, ordered by epoch.
func (s *State) Moves() []Move {
	moves := make([]Move, 0, len(s.moves.byEpoch))
	for _, epoch := range slices.Sorted(maps.Keys(s.moves.byEpoch)) {
		m, _ := s.Move(epoch)
		moves = append(moves, m)
	}
	return moves
}

// Move returns the move with the given epoch. ok is false if the pair has no record of it: it has not begun, or the
// record was removed.
func (s *State) Move(epoch uint64) (m Move, ok bool) {
	from := s.moves.byEpoch[epoch]
	if from == nil {
		return m, false
	}
	m = Move{Epoch: epoch, State: from.state, Pair: from.pair}
	for i := range from.queues {
		mq := &from.queues[i]
		q := s.Queue(mq.id)
		one := MovedQueue{ID: mq.id, Name: q.name, Source: mq.source, After: mq.after, Complete: mq.complete}
		if from.state == MoveImporting {
			one.Next = q.nextSeq
		}
		m.Queues = append(m.Queues, one)
	}
	return m, true
}

// Fence returns the epoch of the fence of a queue, and the name of the pair to which the queue moves. ok is false if
// the queue is not fenced.
func (q *Queue) Fence() (epoch uint64, pair string, ok bool) {
	if !q.fenced() {
		return 0, "", false
	}
	return q.move.epoch, q.move.pair, true
}

func (q *Queue) fenced() bool { return q.move != nil && q.move.state == MoveFenced }

func (q *Queue) incoming() bool { return q.move != nil && q.move.state == MoveImporting }

// checkServed verifies that the queue is not fenced (INV-28). q may be nil.
func (q *Queue) checkServed() txn.Code {
	if q != nil && q.fenced() && !mutate.Off("INV-28-fenced-queue-changes") {
		return txn.ErrMoved
	}
	return txn.OK
}

func (s *State) checkMoveOp(o *txn.Op) txn.Code {
	m, t := s.moves.byEpoch[o.Number], &s.fleet
	switch o.Code { //nolint:exhaustive // the others are handled below
	case txn.OpFence:
		return s.checkFence(o)
	case txn.OpImportBegin:
		return s.checkImportBegin(o)
	case txn.OpImport:
		return s.checkImport(o)
	case txn.OpImportState:
		return s.checkImportState(o)
	case txn.OpTakeMoved:
		return s.checkTakeMoved(o)
	case txn.OpCancelImport:
		return s.checkCancelImport(o)
	}
	ok := false
	switch {
	case m == nil:
		ok = o.Code == txn.OpUnfence && t.Member()
	case o.Code == txn.OpForgetMove:
		ok = m.state == MoveTaken || m.state == MoveCanceled
	default: // OpUnfence, OpDropMoved
		ok = m.state == MoveFenced && t.Member()
	}
	if !ok {
		return txn.ErrMoveChanged
	}
	return txn.OK
}

func (s *State) changeMove(o *txn.Op, r *txn.OpResult) {
	s.digest = mix(mix(s.digest, uint64(o.Code)), o.Number)
	switch o.Code { //nolint:exhaustive // the others are handled below
	case txn.OpImport:
		s.importMessages(o, r)
		return
	case txn.OpImportState:
		s.importState(o, r)
		return
	}
	s.digest = mix(s.digest, uint64(crc32.Checksum(o.Raw, s.crc)))
	s.fleet.touched = true
	s.fleet.MaxEpoch = max(s.fleet.MaxEpoch, o.Number)
	s.moves.dirty[o.Number] = true
	switch o.Code { //nolint:exhaustive // handled above
	case txn.OpFence:
		s.fence(o, r)
	case txn.OpUnfence:
		s.unfence(o, r)
	case txn.OpDropMoved:
		for _, mq := range s.moves.byEpoch[o.Number].queues {
			q := s.queues.get(mq.id)
			r.Changed += q.messages
			s.deleteQueue(q)
		}
		delete(s.moves.byEpoch, o.Number)
	case txn.OpImportBegin:
		s.importBegin(o, r)
	case txn.OpTakeMoved:
		s.takeMoved(s.moves.byEpoch[o.Number], r)
	case txn.OpCancelImport:
		s.cancelImport(o.Number, r)
	case txn.OpForgetMove:
		delete(s.moves.byEpoch, o.Number)
	}
}

// checkNewMove verifies that a move may begin at this pair.
func (s *State) checkNewMove(o *txn.Op) txn.Code {
	t := &s.fleet
	switch {
	case !t.Member(), string(o.Name) == t.Pair:
		return txn.ErrFleetChanged
	case s.moves.byEpoch[o.Number] != nil:
		return txn.ErrMoveChanged
	case len(s.moves.byEpoch) >= s.limits.moves:
		return txn.ErrTooManyMoves
	}
	return txn.OK
}

func (s *State) checkFence(o *txn.Op) txn.Code {
	if code := s.checkNewMove(o); code != txn.OK {
		return code
	}
	// After the target has removed the record of the cancellation, another fence with the epoch could not be removed.
	if o.Number <= s.fleet.UnfencedEpoch && !mutate.Off("INV-28-removed-fence-is-repeated") {
		return txn.ErrMoveChanged
	}
	set := make(map[uint64]bool, o.Count)
	for moved := range o.Moved {
		q := s.queues.get(moved.Source)
		switch {
		case q == nil:
			return txn.ErrQueueNotFound
		case q.fenced():
			return txn.ErrMoved
		case o.Number <= s.OwnershipEpoch(q):
			return txn.ErrFleetChanged
		case s.held(q).ops > 0:
			return txn.ErrPreparedInUse
		}
		set[q.id] = true
	}
	return s.checkFencedSet(set)
}

// checkFencedSet verifies that the queues refer only to each other, except for dead-letter queues that a policy sets.
// No other queue, no policy and no forward of a prepared transaction may refer to the queues.
func (s *State) checkFencedSet(set map[uint64]bool) txn.Code {
	deadLetters, forwards := make(map[uint64]int), make(map[uint64]int)
	for id := range set {
		q := s.queues.get(id)
		for to := range q.ownDeadLetters {
			if !set[to] {
				return txn.ErrQueueInUse
			}
		}
		for to := range q.deadLetters {
			deadLetters[to]++
		}
		for _, r := range q.Forwards() {
			if !set[r.Target] {
				return txn.ErrQueueInUse
			}
			forwards[r.Target]++
		}
	}
	for id := range set { // additional references are those of other queues and of policies
		if s.deadLettersTo[id] != deadLetters[id] || s.forwardsTo[id] != forwards[id] {
			return txn.ErrQueueInUse
		}
	}
	for _, p := range s.prepared.byXID {
		if p.forwardsTo(set) {
			return txn.ErrPreparedInUse
		}
	}
	return txn.OK
}

// forwardsTo reports whether the commit of the transaction would forward messages to one of the queues.
func (p *Prepared) forwardsTo(set map[uint64]bool) bool {
	var r txn.Reader
	if txn.Inner(&r, p.payload) != nil {
		return false
	}
	for range r.Ops() {
		o, err := r.Next()
		if err != nil {
			return false
		}
		if o.Code == txn.OpForward && set[o.Target] {
			return true
		}
	}
	return false
}

func (s *State) fence(o *txn.Op, r *txn.OpResult) {
	m := &move{epoch: o.Number, state: MoveFenced, pair: string(o.Name)}
	for moved := range o.Moved {
		q := s.queues.get(moved.Source)
		m.queues = append(m.queues, movedQueue{id: q.id})
		q.own().move = m
		s.index(q)
		s.touch(q) // dispatchers must re-evaluate the queue
	}
	s.moves.byEpoch[m.epoch] = m
	r.Changed = uint64(len(m.queues))
}

func (s *State) unfence(o *txn.Op, r *txn.OpResult) {
	s.fleet.UnfencedEpoch = max(s.fleet.UnfencedEpoch, o.Number)
	m := s.moves.byEpoch[o.Number]
	if m == nil {
		return
	}
	for _, mq := range m.queues {
		q := s.queues.get(mq.id)
		q.own().move = nil
		s.index(q)
		s.touch(q)
	}
	delete(s.moves.byEpoch, m.epoch)
	s.schedule.soonest = 0 // entries of the queues may be due
	r.Changed = uint64(len(m.queues))
}

// checkFencedPolicy verifies that the policy with this pattern applies to no fenced queue.
func (s *State) checkFencedPolicy(pattern string) txn.Code {
	for _, m := range s.moves.byEpoch {
		if m.state != MoveFenced {
			continue
		}
		for _, mq := range m.queues {
			if txn.MatchGlob(pattern, s.queues.get(mq.id).name) {
				return txn.ErrMoved
			}
		}
	}
	return txn.OK
}
