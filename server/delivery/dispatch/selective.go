// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"slices"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/mutate"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	lanes           = len(store.Lanes{}.Next)
	maxDeferredRead = 256
)

// selective is the order of a subscription with any combination of priorities, message groups, a single active
// consumer, and consumers with filters.
//
//   - Priorities: each priority is a lane. Messages are delivered by lane, the highest first, and by sequence in
//     each lane. New messages are read only on demand, so that a message with a higher priority overtakes all
//     unassigned messages.
//   - Groups: see groups.
//   - Single active consumer: only the first consumer receives messages. It is the consumer that has been attached
//     longest. If that consumer misses an acknowledgement deadline, the next consumer becomes the first. The first
//     consumer of a partition is determined by elect.
//   - Deferred messages: if no eligible consumer with credit accepts a message, its sequence is deferred. A deferred
//     message does not block others. It is read again when an eligible consumer attaches or has credit.
//
// Deferred and parked messages of a subscription use at most about 10 MiB. Beyond that, no new messages are read.
type selective struct {
	d             *dispatcher
	exclusive     bool
	lanes         *store.Lanes // read positions; nil without priorities
	empty         uint16       // bitmap of lanes without messages to read
	atEnd         bool         // without priorities: the last message of the queue was read
	ready         []Message    // read and not yet assigned to a consumer
	redeliver     [lanes]sequences
	deferred      [lanes]deferredSet
	groups        groups
	requested     []uint64 // sequences returned by demand
	requestedLane int      // lane of these sequences
}

func orderOf(d *dispatcher) order {
	plain := &fifo{d: d, redeliver: newSequences()}
	prioritized, exclusive := d.registry.source.Order(d.key.Queue)
	if !prioritized && !exclusive {
		return plain
	}
	s := newSelective(plain)
	s.exclusive = exclusive
	if prioritized {
		s.lanes = new(store.Lanes)
	}
	return s
}

func newSelective(f *fifo) *selective {
	s := &selective{d: f.d, ready: f.ready, atEnd: f.atEnd}
	for lane := range s.redeliver {
		s.redeliver[lane] = newSequences()
	}
	s.redeliver[txn.DefaultPriority] = f.redeliver
	return s
}

func (d *dispatcher) selects() *selective {
	if f, plain := d.order.(*fifo); plain {
		d.order = newSelective(f)
	}
	s, _ := d.order.(*selective)
	return s
}

func (d *dispatcher) setExclusive(exclusive bool) {
	if _, plain := d.order.(*fifo); plain && !exclusive {
		return
	}
	if s := d.selects(); s.exclusive != exclusive {
		s.exclusive = exclusive
		d.passActive()
		s.consumersChanged()
	}
}

func (s *selective) candidates() []*Consumer {
	switch {
	case s.exclusive && s.d.division.successor != nil:
		return nil
	case s.exclusive && len(s.d.consumers) > 0:
		return s.d.consumers[:1]
	}
	return s.d.consumers
}

func (s *selective) demand(most int) (want int, again []uint64) {
	d := s.d
	d.polls = true
	s.requested = s.requested[:0]
	d.handOver()
	if !d.returning {
		s.deliverBuffered()
	}
	for _, c := range s.candidates() {
		want += c.capacity()
	}
	want = min(want, most)
	d.noReceiver = want == 0 && !s.exclusive // others may become eligible when the queue is altered
	if want == 0 {
		return 0, nil
	}
	for lane := lanes - 1; lane >= 0; lane-- {
		s.requestedLane = lane
		for len(s.requested) < want && s.redeliver[lane].len() > 0 {
			s.requested = append(s.requested, s.redeliver[lane].pop())
		}
		if len(s.requested) == 0 {
			s.readDeferred(lane, min(want, maxDeferredRead))
		}
		if len(s.requested) > 0 {
			return want, s.requested
		}
		if s.mayRead(lane) {
			s.skipBelow(lane)
			return want, nil
		}
	}
	return 0, nil
}

func (s *selective) mayRead(lane int) bool {
	if s.d.returning || s.full() {
		return false
	}
	if s.lanes == nil {
		return lane == txn.DefaultPriority && !s.atEnd && len(s.ready) == 0
	}
	return s.empty>>lane&1 == 0
}

// skipBelow limits a read that starts at the given lane. It excludes the next lower lane that has requeued or
// deferred messages, and all lanes below it.
func (s *selective) skipBelow(lane int) {
	if s.lanes == nil {
		return
	}
	s.lanes.Skip = s.empty
	for below := lane - 1; below >= 0; below-- {
		if s.redeliver[below].len() > 0 || s.deferred[below].len() > 0 {
			s.lanes.Skip |= 1<<(below+1) - 1
			return
		}
	}
}

func (s *selective) read(ctx context.Context, want, maxBytes int) ([]Message, uint64, error) {
	d := s.d
	if s.lanes == nil {
		return d.registry.source.Read(ctx, d.key, d.next, want, maxBytes, nil)
	}
	return d.registry.source.ReadPriorities(ctx, d.key, s.lanes, want, maxBytes, nil)
}

func (s *selective) deliverRead(messages []Message, next uint64) (progressed bool) {
	if s.lanes == nil {
		progressed = next != s.d.next
		s.atEnd = !progressed
	} else {
		s.empty |= s.lanes.Empty
		s.sawEmpty(s.lanes.Empty)
		progressed = true // each read returns messages or marks a lane as empty
	}
	s.d.next = max(s.d.next, next)
	s.ready = append(s.ready, messages...)
	if !s.d.returning {
		s.deliverReady()
	}
	return progressed
}

// deliverBuffered delivers buffered messages, unless other messages may precede them.
func (s *selective) deliverBuffered() {
	switch {
	case s.lanes != nil: // a message with a higher priority may have arrived
		for i := range s.ready {
			s.redeliver[s.laneOf(&s.ready[i])].push(s.ready[i].Sequence)
		}
		s.ready = nil
	case s.redeliver[txn.DefaultPriority].len() == 0:
		s.deliverReady()
	}
}

func (s *selective) deliverReady() {
	done := 0
	for done < len(s.ready) {
		if _, room := s.assign(&s.ready[done], len(s.ready)-done-1); !room {
			break
		}
		done++
	}
	s.ready = s.ready[done:]
	if len(s.ready) == 0 {
		s.ready = nil // release the records
	}
}

func (s *selective) redeliverRead(messages []Message) (redelivered uint64) {
	s.missing(messages)
	for i := range messages {
		m := &messages[i]
		given, room := s.assign(m, len(messages)-i-1)
		if !room {
			s.redeliver[s.laneOf(m)].push(m.Sequence)
		}
		if given && m.DeliveryCount > 0 {
			redelivered++
		}
	}
	return redelivered
}

// notRead requeues sequences and removes them from requested.
func (s *selective) notRead(sequences []uint64) {
	if len(sequences) == 0 {
		return
	}
	left := make(map[uint64]bool, len(sequences))
	for _, sequence := range sequences {
		left[sequence] = true
		s.redeliver[s.requestedLane].push(sequence)
	}
	s.requested = slices.DeleteFunc(s.requested, func(sequence uint64) bool { return left[sequence] })
}

// missing processes requested sequences that the read did not return. It requeues the next messages of their groups.
func (s *selective) missing(found []Message) {
	for _, sequence := range s.requested {
		for len(found) > 0 && found[0].Sequence < sequence {
			found = found[1:]
		}
		if len(found) == 0 || found[0].Sequence != sequence {
			s.groupDone(sequence)
		}
	}
	s.requested = s.requested[:0]
}

// assign assigns a message to a consumer, parks it, or defers it. given reports whether it was assigned. room is
// false if no consumer can accept any message. more is the number of messages that follow.
func (s *selective) assign(m *Message, more int) (given, room bool) {
	g := s.groups.of(m)
	if g != nil && g.out != 0 && g.out != m.Sequence &&
		!mutate.Off("INV-19-a-group-goes-on-while-a-message-is-out") { // INV-19
		s.groups.park(g, s.laneOf(m), m.Sequence)
		return false, true
	}
	c, room := s.choose(m, g)
	switch {
	case c != nil:
		if g != nil {
			s.groups.deliver(g, m.Sequence, c)
		}
		c.deliver(*m, min(more/len(s.d.consumers), c.capacity()))
		return true, true
	case !room:
		return false, false
	}
	s.deferMessage(m, g)
	return false, true
}

// choose returns the consumer that receives a message, or nil. room reports whether any consumer can accept a
// message.
func (s *selective) choose(m *Message, g *group) (chosen *Consumer, room bool) {
	d := s.d
	if !d.canDeliver() {
		return nil, false
	}
	list := s.candidates()
	if owner := s.ownerOf(g, m); owner != nil {
		if owner.capacity() > 0 {
			return owner, true
		}
		for _, c := range list {
			room = room || c.capacity() > 0
		}
		return nil, room
	}
	turn := 0
	for i := range list {
		at := (d.turn + i) % len(list)
		c := list[at]
		if c.capacity() == 0 {
			continue
		}
		room = true
		if !c.accepted(m) {
			continue
		}
		if g == nil {
			d.turn = at + 1
			return c, true
		}
		if chosen == nil || c.groups < chosen.groups {
			chosen, turn = c, at+1
		}
	}
	if chosen != nil {
		d.turn = turn
	}
	return chosen, room
}

// ownerOf returns the consumer that owns a group, or nil if the group has no owner or its owner cannot receive
// this message.
func (s *selective) ownerOf(g *group, m *Message) *Consumer {
	if g == nil || g.owner == nil || g.owner.left || g.owner.finishing || g.owner.idle() || g.owner.err != nil {
		return nil
	}
	if s.exclusive && g.owner != s.d.consumers[0] || !g.owner.accepted(m) {
		return nil
	}
	return g.owner
}

// deferMessage defers a message until an eligible consumer can accept it.
func (s *selective) deferMessage(m *Message, g *group) {
	lane := s.laneOf(m)
	owner := s.ownerOf(g, m)
	s.deferred[lane].add(m.Sequence)
	for _, c := range s.candidates() {
		if (owner == nil || c == owner) && c.accepted(m) {
			c.deferred[lane] = min(c.deferred[lane], m.Sequence)
		}
	}
	if g != nil {
		s.groups.hold(g, m.Sequence)
	}
}

// readDeferred moves deferred messages of a lane to the requested messages if a consumer with credit has not been
// offered them.
func (s *selective) readDeferred(lane, most int) {
	if s.deferred[lane].len() == 0 {
		return
	}
	from := ^uint64(0)
	for _, c := range s.candidates() {
		if c.capacity() > 0 {
			from = min(from, c.deferred[lane])
		}
	}
	if from == ^uint64(0) {
		return
	}
	s.requested = s.deferred[lane].take(from, most, s.requested)
	to := ^uint64(0)
	if n := len(s.requested); n > 0 {
		to = s.requested[n-1] + 1
	}
	for _, c := range s.candidates() {
		if c.capacity() > 0 {
			c.deferred[lane] = max(c.deferred[lane], to)
		}
	}
}

// consumersChanged makes the deliver goroutine offer all deferred messages to the consumers again.
func (s *selective) consumersChanged() {
	for _, c := range s.d.consumers {
		c.deferred = [lanes]uint64{}
	}
	signal(s.d.wake)
}

func (s *selective) full() bool {
	chunks := 0
	for lane := range s.deferred {
		chunks += len(s.deferred[lane].chunks)
	}
	return s.groups.parked >= maxParked || chunks >= maxDeferredChunks
}

func (s *selective) laneOf(m *Message) uint8 {
	if s.lanes == nil {
		return txn.DefaultPriority
	}
	return txn.RecordPriority(m.Record)
}

func (s *selective) unread(ranges []Range) {
	s.ready = withoutRanges(s.ready, ranges)
	for _, r := range ranges {
		for lane := range s.deferred {
			s.deferred[lane].removeRange(r)
		}
	}
}

func (s *selective) passed(sequence uint64) bool {
	if s.lanes == nil {
		return sequence < s.d.next
	}
	lane := s.d.registry.source.Priorities(s.d.key.Queue, []uint64{sequence})[0]
	return sequence < s.lanes.Next[lane]
}

func (s *selective) requeue(list []uint64) {
	if s.lanes == nil {
		for _, sequence := range list {
			s.redeliver[txn.DefaultPriority].push(sequence)
		}
		return
	}
	for i, lane := range s.d.registry.source.Priorities(s.d.key.Queue, list) {
		s.redeliver[lane].push(list[i])
	}
}

func (s *selective) remove(acks []Range) {
	s.ready = withoutRanges(s.ready, acks)
	for _, r := range acks {
		for lane := range s.redeliver {
			s.redeliver[lane].removeRange(r)
			s.deferred[lane].removeRange(r)
		}
		s.groups.each(r, s.groupDone)
	}
}

func (s *selective) tracks() bool { return s.groups.any() }

func (s *selective) settled(list []uint64) {
	for _, sequence := range list {
		s.groupDone(sequence)
	}
}

// groupDone records that a message is acknowledged, rejected or dead-lettered. If it blocked its group, the next
// message of the group is requeued.
func (s *selective) groupDone(sequence uint64) {
	if next, lane, more := s.groups.done(sequence); more {
		s.redeliver[lane].push(next)
		signal(s.d.wake)
	}
}

func (s *selective) left(*Consumer) { s.consumersChanged() }

func (s *selective) queueChanged() { s.atEnd, s.empty = false, 0 }

func (s *selective) stop() { s.ready = nil }
