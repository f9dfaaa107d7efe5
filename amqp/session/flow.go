// SPDX-License-Identifier: Apache-2.0

package session

import "github.com/lockstep-mq/lockstep/amqp/wire"

func (s *Session) due() {
	if !s.isDue && !s.over() {
		s.isDue = true
		s.conn.due = append(s.conn.due, s)
	}
}

func (s *Session) scheduleFlow() {
	s.flowDue = true
	s.due()
}

func (s *Session) flush() {
	s.isDue = false
	if s.over() {
		return
	}
	s.flushSettling()
	for _, l := range s.byFlow {
		l.flowDue = false
		if !l.gone && l.accepted {
			s.writeFlow(l)
		}
	}
	clear(s.byFlow)
	s.byFlow = s.byFlow[:0]
	if s.flowDue {
		s.writeFlow(nil)
	}
}

// writeFlow writes a Flow with the session windows and, if l is not nil, the state of l.
func (s *Session) writeFlow(l *Link) {
	s.flowDue = false
	s.incomingWindow = s.conn.o.IncomingWindow
	f := &s.conn.flow
	*f = wire.Flow{
		NextIncomingID: wire.Some(s.nextIncoming), IncomingWindow: s.incomingWindow,
		NextOutgoingID: s.nextOutgoing, OutgoingWindow: outgoingWindow,
	}
	if l != nil {
		f.Handle = wire.Some(l.handle)
		f.DeliveryCount, f.LinkCredit = wire.Some(l.deliveryCount), wire.Some(l.credit)
		if l.Sender() {
			f.Available = wire.Some(uint32(l.sender.count()))
			f.Drain = l.sender.drain
		}
	}
	s.conn.write(s.channel, f)
}

// rest returns the part of a window or credit that remains at number now, if the window was granted at number seen
// (2.5.6, 2.6.7).
func rest(window, seen, now uint32) uint32 {
	if used := distance(seen, now); used > 0 {
		return window - min(window, uint32(used))
	}
	return window
}

func (s *Session) receiveFlow(f *wire.Flow) {
	s.remoteWindow = rest(f.IncomingWindow, f.NextIncomingID.Or(s.conn.o.firstID), s.nextOutgoing)
	if !f.Handle.Set {
		if f.Echo {
			s.scheduleFlow()
		}
		s.pump()
		return
	}
	l := s.handles[f.Handle.Value]
	if l == nil {
		s.fail(SessionUnattachedHandle, "flow for handle %d, which has no link", f.Handle.Value)
		return
	}
	if !l.gone {
		if l.Sender() {
			l.receiveCredit(f)
		} else {
			l.receiveCount(f)
		}
		if f.Echo {
			l.scheduleFlow()
		}
	}
	s.pump()
}

// receiveCredit applies the credit and the drain flag that the receiver set for a sender link (2.6.7).
func (l *Link) receiveCredit(f *wire.Flow) {
	q := &l.sender
	before, drain := l.credit, f.Drain != q.drain
	if f.LinkCredit.Set {
		l.credit = rest(f.LinkCredit.Value, f.DeliveryCount.Or(l.session.conn.o.firstID), l.deliveryCount)
	}
	q.drain, q.asked = f.Drain, f.Drain && l.credit > 0
	q.drained = q.drained && q.asked
	if !l.accepted { // Accept reports it to the caller
		return
	}
	l.enqueue()
	if f.Drain && l.credit == 0 { // no credit to use up, and the peer waits for the response
		l.scheduleFlow()
	}
	if l.credit == before && !drain {
		return
	}
	l.session.pump() // waiting messages use the credit first
	more := l.credit - min(l.credit, uint32(q.count()))
	e := &l.session.conn.events
	e.credit = Credit{Link: l, Credit: more, Drain: f.Drain}
	e.push(&e.credit)
}

// reportEarlyCredit reports credit that arrived before the link was accepted.
func (l *Link) reportEarlyCredit() {
	if l.credit > 0 {
		l.session.conn.events.push(&Credit{Link: l, Credit: l.credit, Drain: l.sender.drain})
	} else if l.sender.drain {
		l.scheduleFlow()
	}
}

// receiveCount applies the sender's state of a receiver link: the sender may have used up credit without sending.
func (l *Link) receiveCount(f *wire.Flow) {
	if !f.DeliveryCount.Set {
		return
	}
	if used := distance(l.deliveryCount, f.DeliveryCount.Value); used > 0 {
		l.deliveryCount = f.DeliveryCount.Value
		l.credit -= min(l.credit, uint32(used))
		l.refill()
	}
}
