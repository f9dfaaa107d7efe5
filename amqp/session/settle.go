// SPDX-License-Identifier: Apache-2.0

package session

import "github.com/lockstep-mq/lockstep/amqp/wire"

// settling is a batch of dispositions.
type settling struct {
	active bool
	wire.Disposition
}

// Settle settles a delivery with a state: a received delivery with its outcome, and a sent delivery after the peer has
// reported an outcome without settling it. Consecutive deliveries with the same state share a frame. States
// that are pointers are the same only if the pointers are equal, and their values must not change before the next
// Output. Deliveries that arrived before
// the detach of the peer can be settled until Detach responds to it.
func (l *Link) Settle(id uint32, state wire.DeliveryState) {
	if l.session.over() || l.gone && (l.Sender() || !l.awaitsDetach()) {
		return
	}
	if l.Sender() {
		l.settleSent(id, state)
	} else {
		l.settleReceived(id, state)
	}
}

func (s *Session) dispose(role wire.Role, id uint32, settled bool, state wire.DeliveryState) {
	p := &s.settle
	if p.active && p.Role == role && p.Settled == settled && p.State == state {
		switch id {
		case p.Last + 1:
			p.Last = id
			return
		case p.First - 1:
			p.First = id
			return
		}
	}
	s.flushSettling()
	p.active = true
	p.Disposition = wire.Disposition{Role: role, First: id, Last: id, Settled: settled, State: state}
	s.due()
}

func (s *Session) flushSettling() {
	p := &s.settle
	if !p.active {
		return
	}
	c := s.conn
	before := len(c.out)
	c.write(s.channel, &p.Disposition)
	if r, ok := p.State.(*wire.Rejected); ok && len(c.out)-before > c.maxFrame() {
		c.out = c.out[:before]
		p.State = &wire.Rejected{Error: c.fitting(r.Error)}
		c.write(s.channel, &p.Disposition)
	}
	p.active, p.State = false, nil
}

// hasFields reports whether a state has fields. Such states are pointers, which do not compare as equal.
func hasFields(state wire.DeliveryState) bool {
	switch state.(type) {
	case nil, wire.Accepted, wire.Released:
		return false
	default:
		return true
	}
}

func (s *Session) receiveDisposition(d *wire.Disposition) {
	if d.Role == wire.RoleSender {
		s.in.each(d.First, d.Last, func(id uint32, e *delivery) {
			if !d.Settled {
				return
			}
			e.settled = true
			if e.answered {
				e.link.done(id)
			}
		})
		return
	}
	q := &s.conn.events
	var last uint32
	s.out.each(d.First, d.Last, func(id uint32, e *delivery) {
		if !d.Settled && e.known && !hasFields(d.State) && e.state == d.State {
			return // a duplicate
		}
		n := len(q.disposed)
		if n == 0 || q.disposed[n-1].Link != e.link || id != last+1 {
			q.disposed = append(q.disposed, Disposed{Link: e.link, First: id, State: d.State, Settled: d.Settled})
			q.runs = append(q.runs, len(q.refs))
		}
		q.refs = append(q.refs, e.ref)
		last = id
		if d.Settled {
			s.out.remove(id)
		} else if e.known = !hasFields(d.State); e.known {
			e.state = d.State
		}
	})
	for i := range q.disposed {
		end := len(q.refs)
		if i+1 < len(q.runs) {
			end = q.runs[i+1]
		}
		q.disposed[i].Refs = q.refs[q.runs[i]:end:end]
		q.push(&q.disposed[i])
	}
	s.pump()
}
