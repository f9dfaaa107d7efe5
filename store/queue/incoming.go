// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"hash/crc32"
	"maps"
	"slices"

	"github.com/lockstep-mq/lockstep/store/mutate"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// An incoming queue is a copy of a queue of another pair, until the pair takes it. It has its final number, but is
// not in the table of queues. Therefore, only the operations of its move can use it, and no other queue can refer to
// it. Its name is reserved.
//
// First, the messages are imported with their original sequences. A hidden subscription, importSub, needs exactly these
// messages; the sequences between them count as acknowledged. Then the state of the queue is imported
// (see incoming_state.go). Its subscriptions are in extras.staged until the state is complete and verified. Then they
// replace the hidden subscription, and messages that they do not need become dead.

const (
	// importSub is the number of the hidden subscription of an incoming queue.
	importSub = txn.RetentionSub - 1
	// maxImportChunks is the maximum distance, in chunks, between the first and the last live message of an incoming
	// queue. Each chunk in between requires some memory.
	maxImportChunks = defaultMaxChunks
)

// Incoming iterates over the incoming queues, ordered by number.
func (s *State) Incoming(yield func(*Queue) bool) {
	for _, id := range slices.Sorted(maps.Keys(s.moves.incoming)) {
		if !yield(s.moves.incoming[id]) {
			return
		}
	}
}

// importSub returns the hidden subscription of an incoming queue, or nil if its state is complete.
func (q *Queue) importSub() *Sub {
	for _, sub := range q.subs {
		if sub.id == importSub {
			return sub
		}
	}
	return nil
}

// moved returns the queue's entry in its move, or nil if it has none.
func (q *Queue) moved() *movedQueue {
	if q.move == nil {
		return nil
	}
	for i := range q.move.queues {
		if mq := &q.move.queues[i]; mq.id == q.id {
			return mq
		}
	}
	return nil
}

func (s *State) checkImportBegin(o *txn.Op) txn.Code {
	if code := s.checkNewMove(o); code != txn.OK {
		return code
	}
	t := &s.fleet
	if o.Number <= t.JoinEpoch {
		return txn.ErrFleetChanged
	}
	// Each epoch is used once: a late transaction must not begin an import that was canceled.
	if o.Number <= t.ImportEpoch && !mutate.Off("INV-28-canceled-import-begins-again") {
		return txn.ErrMoveChanged
	}
	if s.queues.n+len(s.moves.incoming)+o.Count > s.limits.queues {
		return txn.ErrTooManyQueues
	}
	seen := make(map[string]bool, o.Count)
	for moved := range o.Moved {
		switch q := s.byName[moved.Name]; {
		case q != nil && q.fenced(), s.moves.names[moved.Name] != nil:
			return txn.ErrMoved
		case q != nil:
			return txn.ErrQueueExists
		case seen[moved.Name]:
			return txn.ErrMalformed
		}
		seen[moved.Name] = true
	}
	return txn.OK
}

func (s *State) importBegin(o *txn.Op, r *txn.OpResult) {
	m := &move{epoch: o.Number, state: MoveImporting, pair: string(o.Name)}
	s.moves.byEpoch[m.epoch] = m
	s.fleet.ImportEpoch = max(s.fleet.ImportEpoch, m.epoch)
	r.ID = s.nextQueue
	for moved := range o.Moved {
		q := &Queue{id: s.nextQueue, name: moved.Name, nextSeq: 1, nextSub: 1, collected: 1, extras: &noExtras}
		s.nextQueue++
		q.config = importSettings(moved.Prioritized)
		if q.own().move = m; moved.Prioritized {
			q.extras.lanes = newPriorityIndex()
		}
		sub := &Sub{q: q, id: importSub, start: 1, dirty: true}
		sub.acks.floor = 1
		q.subs, q.tail.first = []*Sub{sub}, 1
		q.digest = mix(mix(q.id, uint64(crc32.Checksum([]byte(q.name), s.crc))), m.epoch)
		s.moves.incoming[q.id], s.moves.names[q.name] = q, q
		s.mark(q)
		m.queues = append(m.queues, movedQueue{id: q.id, source: moved.Source})
	}
	r.Changed = uint64(len(m.queues))
}

// importSettings returns the configuration of a queue while messages are imported. The queue keeps the sizes of the
// messages.
func importSettings(prioritized bool) *settings {
	c := txn.Config{ExactBytes: 1, MaxBytes: 1 << 62, Priorities: b2u(prioritized)}
	return &settings{Config: c, fields: c.Fields()}
}

// importing returns the incoming queue of an OpImport or OpImportState, and its entry in the move. It returns nil if
// the queue does not exist, is complete or is part of another move, or if the pair is not a member of a fleet.
func (s *State) importing(o *txn.Op) (*Queue, *movedQueue) {
	q := s.moves.incoming[o.Queue]
	if q == nil || q.move.epoch != o.Number || !s.fleet.Member() {
		return nil, nil
	}
	mq := q.moved()
	if mq.complete {
		return nil, nil
	}
	return q, mq
}

// checkImport verifies an OpImport, which must cover the next sequence of the queue. After the first part of the
// state, it rejects further messages.
func (s *State) checkImport(o *txn.Op) txn.Code {
	q, mq := s.importing(o)
	if q == nil || mq.after != nil || o.Sequence > q.nextSeq {
		return txn.ErrMoveChanged
	}
	if _, err := o.CheckMoves(); err != nil {
		return codeOf(err)
	}
	first, last := uint64(0), uint64(0)
	for sequence := range o.Moves {
		if sequence < q.nextSeq {
			continue
		}
		if first == 0 {
			first = sequence
		}
		last = sequence
	}
	if !q.spans(first, last, s.limits.importChunks) {
		return txn.ErrTooLarge
	}
	return txn.OK
}

// spans reports whether the distance from the first live message of an incoming queue to sequence last is at most limit
// chunks. first is used as the first live message if the queue has none yet.
func (q *Queue) spans(first, last, limit uint64) bool {
	if floor := q.importSub().acks.floor; floor < q.nextSeq {
		first = floor
	}
	return last < first || last>>chunkBits-first>>chunkBits <= limit
}

// importMessages appends the messages that are not imported yet.
func (s *State) importMessages(o *txn.Op, r *txn.OpResult) {
	q := s.moves.incoming[o.Queue]
	s.mark(q)
	q.digest = mix(mix(mix(q.digest, uint64(o.Code)), q.nextSeq), uint64(crc32.Checksum(o.Raw, s.crc)))
	for sequence, rec := range o.Moves {
		if sequence < q.nextSeq {
			continue
		}
		s.skipTo(q, sequence)
		if q.tail.n == 0 {
			q.tail.first = sequence
			q.tail.reserve(o.Count)
			s.linkTail(q)
		}
		s.push(q, rec, 0)
		r.Changed++
	}
	r.FirstSequence = q.nextSeq
}

// skipTo marks the sequences of an incoming queue from nextSeq up to the given one, exclusive, as published and dead.
func (s *State) skipTo(q *Queue, sequence uint64) {
	if sequence <= q.nextSeq {
		return
	}
	sub := q.importSub()
	a := &sub.acks
	sub.dirty = true
	if q.tail.n > 0 {
		q.tail.skip(sequence - q.nextSeq)
	}
	if a.floor == q.nextSeq { // all messages are dead: do not visit each chunk of a large range
		a.floor = sequence
		a.trim(&s.ackPool)
		q.nextSeq = sequence
		return
	}
	for first := q.nextSeq; first < sequence; {
		chunk := first >> chunkBits
		last := min(sequence-1, chunk<<chunkBits|chunkMask)
		a.add(&s.ackPool, chunk, first&chunkMask, last&chunkMask, &s.newly)
		first = last + 1
	}
	q.nextSeq = sequence
}

func (s *State) checkCancelImport(o *txn.Op) txn.Code {
	switch m := s.moves.byEpoch[o.Number]; {
	case m != nil && (m.state == MoveImporting || m.state == MoveCanceled):
		return txn.OK
	case m != nil, o.Number <= s.fleet.ImportEpoch: // taken, or the record was removed
		return txn.ErrMoveChanged
	case !s.fleet.Member():
		return txn.ErrFleetChanged
	case len(s.moves.byEpoch) >= s.limits.moves:
		return txn.ErrTooManyMoves
	}
	return txn.OK
}

// cancelImport deletes the incoming queues of the epoch. It also records the cancellation of an import that has not
// begun.
func (s *State) cancelImport(epoch uint64, r *txn.OpResult) {
	m := s.moves.byEpoch[epoch]
	if m == nil {
		m = &move{epoch: epoch}
		s.moves.byEpoch[epoch] = m
	}
	s.fleet.ImportEpoch = max(s.fleet.ImportEpoch, epoch)
	for _, mq := range m.queues {
		r.Changed += s.moves.incoming[mq.id].messages
	}
	if mutate.Off("INV-28-canceled-import-is-taken") && m.state == MoveImporting {
		return
	}
	for _, mq := range m.queues {
		q := s.moves.incoming[mq.id]
		delete(s.moves.incoming, q.id)
		delete(s.moves.names, q.name)
		s.removeContent(q)
	}
	m.state, m.queues = MoveCanceled, nil
}

// checkTakeMoved verifies that all queues are complete, and that their references are valid.
func (s *State) checkTakeMoved(o *txn.Op) txn.Code {
	m := s.moves.byEpoch[o.Number]
	switch {
	case m == nil || m.state != MoveImporting:
		return txn.ErrMoveChanged
	case !s.fleet.Member() || m.epoch <= s.fleet.JoinEpoch:
		return txn.ErrFleetChanged
	}
	numbers := m.numbers()
	for i := range m.queues {
		if !m.queues[i].complete && !mutate.Off("INV-28-incomplete-import-is-taken") {
			return txn.ErrMoveIncomplete
		}
		q := s.moves.incoming[m.queues[i].id]
		for source := range q.deadLetters {
			if numbers[source] == 0 {
				return txn.ErrMoveIncomplete
			}
		}
		if code := s.checkMovedForwards(q, numbers); code != txn.OK {
			return code
		}
	}
	if s.hasMovedCycle(m, numbers) {
		return txn.ErrDeadLetterCycle
	}
	return txn.OK
}

// numbers returns the numbers of incoming queues in this pair, by their numbers in the other pair.
func (m *move) numbers() map[uint64]uint64 {
	numbers := make(map[uint64]uint64, len(m.queues))
	for i := range m.queues {
		numbers[m.queues[i].source] = m.queues[i].id
	}
	return numbers
}

func (s *State) checkMovedForwards(q *Queue, numbers map[uint64]uint64) txn.Code {
	rules := q.Forwards()
	for i, r := range rules {
		target := s.moves.incoming[numbers[r.Target]]
		switch {
		case target == nil:
			return txn.ErrMoveIncomplete
		case target == q, len(target.Forwards()) > 0:
			return txn.ErrForwardChain
		case slices.ContainsFunc(rules[:i], func(other txn.Forward) bool { return other.Target == r.Target }):
			return txn.ErrForwardTwice
		}
	}
	return txn.OK
}

// hasMovedCycle reports whether the dead-letter queues in the move form a cycle.
func (s *State) hasMovedCycle(m *move, numbers map[uint64]uint64) bool {
	const open, done = 1, 2
	state := make(map[uint64]int, len(m.queues))
	type step struct {
		id    uint64
		leave bool
	}
	for i := range m.queues {
		for list := []step{{id: m.queues[i].id}}; len(list) > 0; {
			at := list[len(list)-1]
			list = list[:len(list)-1]
			if at.leave {
				state[at.id] = done
				continue
			}
			if state[at.id] != 0 {
				continue
			}
			state[at.id] = open
			list = append(list, step{at.id, true})
			for source := range s.moves.incoming[at.id].deadLetters {
				switch next := numbers[source]; state[next] {
				case open:
					return true
				case 0:
					list = append(list, step{id: next})
				}
			}
		}
	}
	return false
}

// takeMoved adds the incoming queues to the queues of the pair. From here on, the pair owns them.
func (s *State) takeMoved(m *move, r *txn.OpResult) {
	numbers := m.numbers()
	for _, mq := range m.queues {
		q := s.moves.incoming[mq.id]
		delete(s.moves.incoming, q.id)
		delete(s.moves.names, q.name)
		q.own().move, q.extras.epoch = nil, m.epoch
		q.digest = mix(mix(q.digest, uint64(txn.OpTakeMoved)), m.epoch)
		s.take(q, numbers)
		r.Changed += q.messages
	}
	m.state, m.queues = MoveTaken, nil
	s.schedule.soonest = 0 // entries of the queues may be due
}

// take replaces the numbers of other queues in the configuration of an incoming queue, and adds the queue.
func (s *State) take(q *Queue, numbers map[uint64]uint64) {
	own, fields := *q.config.ownConfig(), q.config.fields
	own.DeadLetter = numbers[own.DeadLetter]
	c := s.settingsOf(q, q.name, &own, fields)
	q.config = nil // its dead-letter queue was not counted as a reference
	s.setConfig(q, c)
	for sub := range q.Subs {
		o := sub.Options()
		if o.Policy.DeadLetter != txn.NoQueue {
			o.Policy.DeadLetter = numbers[o.Policy.DeadLetter]
			sub.setOptions(sub.Name(), o)
			sub.dirty = true
		}
		addReferences(s.deadLettersTo, sub.deadLetter(), 1)
	}
	if rules := slices.Clone(q.Forwards()); len(rules) > 0 {
		for i := range rules {
			rules[i].Target = numbers[rules[i].Target]
		}
		q.own().forwards = &forwards{rules: rules, dirty: true, stored: q.forwards.stored}
	}
	s.countForwards(q, 1)
	s.addQueue(q)
	s.countPaused(q)
	s.setRetention(q)
	if s.removeIDs(q); q.ids != nil {
		window := int64(q.config.DedupWindow)
		for _, g := range q.ids.generations {
			s.scheduleIDs(q, g.first, g.lastMS+window+1)
		}
	}
	if !q.keepsSizes() {
		q.sizes.dropSizes(&s.sizePool)
	}
	q.mixConfig()
	s.mark(q)
	s.touch(q)
}
