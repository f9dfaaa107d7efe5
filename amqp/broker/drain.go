// SPDX-License-Identifier: Apache-2.0

package broker

// drain is a client's request to receive the available messages and to be notified when no further ones follow.
type drain struct {
	confirm uint64 // confirmation to wait for before the node is asked: by then, requeued messages are available
	number  uint64 // of the request to the node; 0 before it is sent
	sent    bool
}

// beginDrain requests a drain from the node, after the pending credit and answers. The caller holds mu.
func (s *consumer) beginDrain() {
	s.confirms++
	s.drain = &drain{confirm: s.confirms}
	if s.drainBlocked() {
		return
	}
	s.signal()
	s.c.room.Broadcast()
}

// drainBlocked ends a drain if nothing can be sent because too many messages are unsettled. The caller holds mu.
func (s *consumer) drainBlocked() bool {
	if s.drain == nil || !s.link.Blocked() {
		return false
	}
	s.endDrain()
	return true
}

// endDrain notifies the client that no further messages follow. The caller holds mu.
func (s *consumer) endDrain() {
	s.drain = nil
	s.asked = 0
	s.link.Drained()
}

// confirmedDrain requests the drain from the node when the earlier answers are confirmed. The caller holds mu.
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

// drained handles the node's response to a drain, with the amount of credit that the node revoked. The caller holds mu.
func (s *consumer) drained(number uint64, credit uint32) {
	s.granted -= min(s.granted, credit)
	switch d := s.drain; {
	case d == nil || d.number != number:
	case credit == 0 && s.asked > 0: // the node had used up only a part of the credit
		s.grant()
		s.requestDrain()
	default:
		s.endDrain()
	}
	s.grant()
}
