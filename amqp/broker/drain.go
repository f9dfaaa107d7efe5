// SPDX-License-Identifier: Apache-2.0

package broker

// drain is a client's request to get the messages that are available and to be notified when no more follow.
type drain struct {
	confirm uint64 // the confirmation after which the node is asked: what the client has given back is available then
	number  uint64 // of the request to the node; 0 before
	sent    bool
}

// beginDrain has the node asked, behind the credit and the answers. mu is held.
func (s *consumer) beginDrain() {
	s.confirms++
	s.drain = &drain{confirm: s.confirms}
	if s.drainBlocked() {
		return
	}
	s.signal()
	s.c.room.Broadcast()
}

// drainBlocked answers a drain if nothing can be sent because too many messages are unsettled. mu is held.
func (s *consumer) drainBlocked() bool {
	if s.drain == nil || !s.link.Blocked() {
		return false
	}
	s.endDrain()
	return true
}

// endDrain notifies the client that no more messages follow. mu is held.
func (s *consumer) endDrain() {
	s.drain = nil
	s.asked = 0
	s.link.Drained()
}

// confirmedDrain has the node asked once the answers before the drain are confirmed. mu is held.
func (s *consumer) confirmedDrain() {
	if d := s.drain; d != nil && d.number == 0 && s.confirmed >= d.confirm {
		s.requestDrain()
	}
}

func (s *consumer) requestDrain() {
	s.drains++
	s.drain.number, s.drain.sent = s.drains, false
	s.signal()
}

// drained takes the node's answer to a drain, with the credit that it has taken back. mu is held.
func (s *consumer) drained(number uint64, credit uint32) {
	s.granted -= min(s.granted, credit)
	switch d := s.drain; {
	case d == nil || d.number != number:
	case credit == 0 && s.asked > 0: // only the part of the credit that the node had was used up
		s.grant()
		s.requestDrain()
	default:
		s.endDrain()
	}
	s.grant()
}
