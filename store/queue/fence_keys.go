// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/lockstep-mq/lockstep/store/txn"
)

func moveKey(dst []byte, epoch uint64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, keyMove), epoch)
}

const movedComplete = 1

func (m *move) appendValue(dst []byte) []byte {
	dst = appendString(append(dst, valueVersion, byte(m.state)), m.pair)
	dst = binary.AppendUvarint(dst, uint64(len(m.queues)))
	last := uint64(0)
	for i := range m.queues {
		q := &m.queues[i]
		dst = binary.AppendUvarint(dst, q.id-last)
		last = q.id
		if m.state != MoveImporting {
			continue
		}
		dst = binary.AppendUvarint(binary.AppendUvarint(dst, q.source), q.live)
		flags := byte(0)
		if q.complete {
			flags = movedComplete
		}
		dst = appendString(append(dst, flags), string(q.after))
	}
	return dst
}

func (c *collector) moves(t *moveSet) {
	for _, epoch := range slices.Sorted(maps.Keys(t.dirty)) {
		if m := t.byEpoch[epoch]; m != nil {
			c.put(moveKey(c.key(), epoch), m.appendValue)
		} else {
			c.batch.Deletes = append(c.batch.Deletes, moveKey(nil, epoch))
		}
	}
	clear(t.dirty)
}

func (l *Loader) move(k, v *cursor) {
	m := &move{epoch: k.be64()}
	v.version()
	m.state = MoveState(v.u8())
	m.pair = string(v.take(v.uvarint(txn.MaxNameBytes)))
	n := v.uvarint(txn.MaxMoveQueues)
	last := uint64(0)
	for range n {
		q := movedQueue{id: last + v.uvarint(math.MaxUint64)}
		if m.state == MoveImporting {
			q.source, q.live = v.uvarint(math.MaxUint64), v.uvarint(math.MaxUint64)
			flags := v.u8()
			q.complete = flags == movedComplete
			if after := v.take(v.uvarint(txn.MaxStateKeyBytes)); len(after) > 0 {
				q.after = slices.Clone(after)
			}
			if flags > movedComplete || q.source == 0 || len(q.after) > 0 && rankOf(q.after) < 0 {
				v.fail("invalid queue of a move")
			}
		}
		if v.err == nil && q.id <= last {
			v.fail("queues of a move are not in order")
		}
		if v.err != nil {
			return
		}
		last = q.id
		m.queues = append(m.queues, q)
	}
	has := m.state == MoveFenced || m.state == MoveImporting
	bad := m.state == 0 || m.state > MoveCanceled || m.epoch == 0 || has != (n > 0) ||
		txn.CheckName(m.pair) != nil && (m.pair != "" || m.state != MoveCanceled) || l.s.moves.byEpoch[m.epoch] != nil
	if v.err == nil && bad {
		v.fail("invalid or duplicate move")
		return
	}
	l.s.moves.byEpoch[m.epoch] = m
}

// linkMoves connects the loaded queues with their moves.
func (l *Loader) linkMoves() error {
	for _, m := range l.s.moves.byEpoch {
		for _, mq := range m.queues {
			q := l.byQueue[mq.id]
			if q == nil || q.move != nil {
				return fmt.Errorf("%w: move %d: queue %d is missing or part of another move", ErrCorrupt, m.epoch, mq.id)
			}
			q.own().move = m
		}
	}
	return nil
}

// endMoves removes fenced, taken and canceled moves from a state that is not a member of a fleet, such as a detached
// copy (DetachedFleet). Imports remain until they are canceled.
func (s *State) endMoves() {
	if s.fleet.Member() {
		return
	}
	for epoch, m := range s.moves.byEpoch {
		if m.state == MoveImporting {
			continue
		}
		for _, mq := range m.queues {
			q := s.queues.get(mq.id)
			q.own().move = nil
			s.index(q)
		}
		delete(s.moves.byEpoch, epoch)
		s.moves.dirty[epoch] = true
	}
}

// storedSubs returns all subscriptions, including the staged ones, ordered by id.
func (q *Queue) storedSubs() []*Sub {
	if len(q.staged) == 0 {
		return q.subs
	}
	return sortSubs(slices.Concat(q.staged, q.subs))
}

func sortSubs(subs []*Sub) []*Sub {
	slices.SortFunc(subs, func(a, b *Sub) int { return cmp.Compare(a.id, b.id) })
	return subs
}

// stored iterates over all queues, including incoming queues.
func (s *State) stored(yield func(*Queue) bool) {
	for q := range s.Queues {
		if !yield(q) {
			return
		}
	}
	for q := range s.Incoming {
		if !yield(q) {
			return
		}
	}
}

func (s *State) checkMoves(bad func(string, ...any)) {
	incoming, fenced := 0, 0
	for epoch, m := range s.moves.byEpoch {
		if epoch > s.fleet.MaxEpoch || m.state == MoveFenced && !s.fleet.Member() {
			bad("move %d is %s; the maximum epoch is %d, member: %v", epoch, m.state, s.fleet.MaxEpoch, s.fleet.Member())
		}
		for i := range m.queues {
			mq := &m.queues[i]
			q := s.Queue(mq.id)
			if q == nil || q.move != m || (s.moves.incoming[mq.id] == q) != (m.state == MoveImporting) {
				bad("move %d does not match its queue %d", epoch, mq.id)
				continue
			}
			if m.state == MoveImporting {
				incoming++
				s.checkIncoming(q, mq, bad)
			} else {
				fenced++
			}
		}
	}
	for q := range s.Queues {
		if q.move != nil {
			fenced--
		}
	}
	if incoming != len(s.moves.incoming) || incoming != len(s.moves.names) || fenced != 0 {
		bad("moves have %d incoming queues, counted %d with %d names; %d fenced queues are missing", incoming,
			len(s.moves.incoming), len(s.moves.names), fenced)
	}
}

func (s *State) checkIncoming(q *Queue, mq *movedQueue, bad func(string, ...any)) {
	if s.byName[q.name] != nil || s.moves.names[q.name] != q || s.queues.get(q.id) != nil {
		bad("incoming queue %d %.40q is not separate from the other queues", q.id, q.name)
	}
	if importing := q.importSub() != nil; importing == mq.complete || mq.complete && len(q.staged) > 0 {
		bad("incoming queue %d %.40q: hidden subscription %v, complete %v, %d subscriptions to add", q.id, q.name,
			importing, mq.complete, len(q.staged))
	}
	for _, sub := range q.staged {
		sub.check(func(format string, args ...any) {
			bad("incoming queue %d %.40q: "+format, append([]any{q.id, q.name}, args...)...)
		})
	}
}
