// SPDX-License-Identifier: Apache-2.0

package session

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// Errors of Link.Send.
var (
	// ErrGone is returned if the link has ended, was not accepted, or is not a sender.
	ErrGone = errors.New("link is closed")
	// ErrFull is returned if the waiting messages would exceed Options.MaxUnsent.
	ErrFull = errors.New("too many bytes queued for the peer's credit and window")
)

// Message is a message to be sent on a link.
type Message struct {
	Ref     uint64 // identifies the message to the caller, in Disposed events
	Settled bool   // no outcome is reported; only used if the link's settle mode is mixed
	Payload []byte // sections of the message (3.2)
}

type sender struct {
	waiting []waiting // waiting messages in order; the first one may be partly sent
	head    int       // index of the first waiting message
	tags    uint64
	ready   bool // in session.ready
	drain   bool // the peer requested a drain
	asked   bool // the response to the drain is pending
	drained bool // the caller has no further messages for now
}

// waiting is a message that cannot be sent yet. It owns the memory of its payload.
type waiting struct {
	Message
	id   uint32
	sent int  // number of payload bytes that were sent
	part bool // the message is partly sent and has a delivery number
}

func (s *sender) count() int { return len(s.waiting) - s.head }

// Send sends a message when the credit of the peer and the window of the session allow it. It does not retain m.
// Errors: ErrGone, ErrFull.
func (l *Link) Send(m *Message) error {
	s := l.session
	if l.gone || !l.accepted || !l.Sender() {
		return ErrGone
	}
	if l.sender.count() == 0 && s.current == nil && len(s.ready) == 0 && s.mayBegin(l, m) &&
		uint64(len(m.Payload)) <= uint64(s.remoteWindow)*uint64(s.frameRoom()) {
		w := waiting{Message: *m}
		s.begin(l, &w)
		s.sendFrames(l, &w)
		return nil
	}
	return l.wait(m)
}

func (l *Link) wait(m *Message) error {
	c := l.session.conn
	size := len(m.Payload)
	if c.unsent > 0 && c.unsent+size > c.o.MaxUnsent {
		return ErrFull
	}
	c.unsent += size
	w := waiting{Message: *m}
	w.Payload = bytes.Clone(m.Payload)
	q := &l.sender
	if q.head > 0 && len(q.waiting) == cap(q.waiting) {
		n := copy(q.waiting, q.waiting[q.head:])
		clear(q.waiting[n:])
		q.waiting, q.head = q.waiting[:n], 0
	}
	q.waiting = append(q.waiting, w)
	l.enqueue()
	l.session.pump()
	return nil
}

// Recall removes the waiting messages that are not partly sent, and returns their Refs.
func (l *Link) Recall() []uint64 {
	q := &l.sender
	var refs []uint64
	keep := q.head
	if q.count() > 0 && q.waiting[q.head].part {
		keep++
	}
	for i := keep; i < len(q.waiting); i++ {
		refs = append(refs, q.waiting[i].Ref)
		l.session.conn.unsent -= len(q.waiting[i].Payload)
	}
	clear(q.waiting[keep:])
	q.waiting = q.waiting[:keep]
	l.finishDrain()
	return refs
}

// Withdraw withdraws the messages with the given Refs, without an outcome of the peer. It settles sent messages with
// state, removes waiting messages, and returns the number of removed messages. It does not withdraw a partly sent
// message.
func (l *Link) Withdraw(refs map[uint64]bool, state wire.DeliveryState) (unsent int) {
	s, q := l.session, &l.sender
	if s.over() || l.gone {
		return 0
	}
	part := false
	keep := q.head
	for i := q.head; i < len(q.waiting); i++ {
		if w := &q.waiting[i]; w.part || !refs[w.Ref] {
			part = part || w.part && refs[w.Ref]
			q.waiting[keep] = *w
			keep++
			continue
		}
		s.conn.unsent -= len(q.waiting[i].Payload)
		unsent++
	}
	clear(q.waiting[keep:])
	q.waiting = q.waiting[:keep]
	var sent []uint32
	s.out.all(func(id uint32, e *delivery) {
		if e.link == l && refs[e.ref] && !(part && id == q.waiting[q.head].id) {
			sent = append(sent, id)
		}
	})
	slices.SortFunc(sent, func(a, b uint32) int { return int(distance(b, a)) })
	for _, id := range sent {
		l.settleSent(id, state)
	}
	l.finishDrain()
	return unsent
}

func (l *Link) releaseUnsent() {
	for _, w := range l.sender.waiting[l.sender.head:] {
		l.session.conn.unsent -= len(w.Payload)
	}
	l.sender.waiting, l.sender.head = nil, 0
	if l.session.current == l {
		l.session.current = nil
	}
}

// enqueue adds the link to the round-robin list of sending links.
func (l *Link) enqueue() {
	if l.accepted && !l.gone && !l.sender.ready && l.sender.count() > 0 && l.credit > 0 {
		l.sender.ready = true
		l.session.ready = append(l.session.ready, l)
	}
}

// mayBegin reports whether the first frame of a message may be sent.
func (s *Session) mayBegin(l *Link, m *Message) bool {
	return l.credit > 0 && s.remoteWindow > 0 && (l.settles(m) || s.out.live < s.conn.o.MaxUnsettled)
}

func (l *Link) settles(m *Message) bool {
	return l.peer.SenderSettleMode == wire.SenderSettled || l.peer.SenderSettleMode == wire.SenderMixed && m.Settled
}

// pump sends waiting messages while the window permits, round-robin over the links.
func (s *Session) pump() {
	for s.remoteWindow > 0 && !s.over() && !s.reported {
		l := s.current
		if l == nil {
			if len(s.ready) == 0 {
				return
			}
			l = s.ready[0]
			if !l.gone && l.credit > 0 && l.sender.count() > 0 {
				if !s.mayBegin(l, &l.sender.waiting[l.sender.head].Message) {
					return
				}
				s.current = l
				s.begin(l, &l.sender.waiting[l.sender.head])
			}
			s.ready = append(s.ready[:0], s.ready[1:]...)
			l.sender.ready = false
			if s.current == nil {
				continue
			}
		}
		w := &l.sender.waiting[l.sender.head]
		if !s.sendFrames(l, w) {
			return
		}
		s.conn.unsent -= len(w.Payload)
		*w = waiting{}
		if l.sender.head++; l.sender.count() == 0 {
			l.sender.waiting, l.sender.head = l.sender.waiting[:0], 0
		}
		s.current = nil
		l.enqueue()
		l.finishDrain()
	}
}

func (s *Session) begin(l *Link, w *waiting) {
	w.part = true
	w.id = s.nextOut
	w.Settled = l.settles(&w.Message)
	s.nextOut++
	l.credit--
	l.deliveryCount++
	if !w.Settled {
		*s.out.add(w.id) = delivery{link: l, ref: w.Ref}
	}
}

const frameOverhead = 72 // maximum size of a transfer frame without payload

// frameRoom returns the payload bytes that fit into a frame.
func (s *Session) frameRoom() int { return s.conn.maxFrame() - frameOverhead }

// sendFrames sends frames while the window permits, and reports whether the message is complete.
func (s *Session) sendFrames(l *Link, w *waiting) bool {
	c := s.conn
	room := s.frameRoom()
	for s.remoteWindow > 0 {
		t := &c.transfer
		*t = wire.Transfer{Handle: l.handle}
		if w.sent == 0 {
			t.DeliveryID = wire.Some(w.id)
			t.MessageFormat = wire.Some(uint32(0))
			l.sender.tags++
			c.tag = binary.AppendUvarint(c.tag[:0], l.sender.tags)
			t.DeliveryTag = c.tag
		}
		t.Settled = wire.Some(w.Settled)
		part := w.Payload[w.sent:]
		if len(part) > room {
			part, t.More = part[:room], true
		}
		c.out = wire.AppendFrame(c.out, s.channel, t, part)
		s.nextOutgoing++
		s.remoteWindow--
		w.sent += len(part)
		if !t.More {
			return true
		}
	}
	return false
}

// Drained responds to Credit with Drain: no further messages are available. After the waiting messages are sent, the
// remaining credit is consumed. Messages that are Blocked wait for new credit.
func (l *Link) Drained() {
	if l.gone || !l.sender.asked {
		return
	}
	l.sender.drained = true
	l.finishDrain()
}

// Blocked reports whether messages with credit wait until the peer settles earlier messages (Options.MaxUnsettled).
func (l *Link) Blocked() bool {
	s := l.session
	return !l.gone && l.credit > 0 && l.sender.count() > 0 && s.current != l && s.out.live >= s.conn.o.MaxUnsettled &&
		!l.settles(&l.sender.waiting[l.sender.head].Message)
}

func (l *Link) finishDrain() {
	if !l.sender.drained || l.gone || l.credit > 0 && l.sender.count() > 0 && !l.Blocked() {
		return
	}
	l.sender.asked, l.sender.drained = false, false
	l.deliveryCount += l.credit
	l.credit = 0
	l.scheduleFlow()
}

func (l *Link) settleSent(id uint32, state wire.DeliveryState) {
	s := l.session
	if e := s.out.get(id); e == nil || e.link != l {
		return
	}
	s.dispose(wire.RoleSender, id, true, state)
	s.out.remove(id)
	s.pump()
}
