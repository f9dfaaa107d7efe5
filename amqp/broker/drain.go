// SPDX-License-Identifier: Apache-2.0

package broker

// drain is a client's request to send the available messages and then to report that the drain is complete.
type drain struct {
	confirm uint64 // confirmation after which requeued messages are available
	number  uint64 // number of the request to the node; 0 before the request
	sent    bool
}

// beginDrain starts a drain, which the node executes after it has processed the pending credit and answers. mu is
// held.
func (s *consumer) beginDrain() {
	s.confirms++
	s.drain = &drain{confirm: s.confirms}
	if s.drainBlocked() {
		return
	}
	s.signal()
	s.c.room.Broadcast()
}

// drainBlocked ends a drain if no message can be sent because too many messages are unsettled. It reports whether it
// ended a drain. mu is held.
func (s *consumer) drainBlocked() bool {
	if s.drain == nil || !s.link.Blocked() {
		return false
	}
	s.endDrain()
	return true
}

func (s *consumer) endDrain() {
	s.drain = nil
	s.asked = 0
	s.link.Drained()
}

// confirmedDrain requests the drain when the earlier answers are confirmed. mu is held.
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

// drained handles the response of the node, which contains the credit that the node revoked. mu is held.
func (s *consumer) drained(number uint64, credit uint32) {
	s.granted -= min(s.granted, credit)
	switch d := s.drain; {
	case d == nil || d.number != number:
	case credit == 0 && s.asked > 0: // the node had only a part of the client's credit
		s.grant()
		s.requestDrain()
	default:
		s.endDrain()
	}
	s.grant()
}
