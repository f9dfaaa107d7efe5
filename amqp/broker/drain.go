// SPDX-License-Identifier: Apache-2.0

package broker

import "time"

// drainQuiet is how long no message must have come before a drain is answered with that there is none: the node has no
// way to say so by itself, and reads from the disk what it does not have in memory.
const drainQuiet = 15 * time.Millisecond

// drain is a client's wish to get what there is and to hear when there is nothing more.
type drain struct {
	number uint64 // of the confirmation after which the node has the credit
	asked  bool   // it was confirmed
	timer  *time.Timer
}

// beginDrain has the node asked, behind the credit. mu is held.
func (s *consumer) beginDrain() {
	s.cancelDrain()
	s.confirms++
	s.drain = &drain{number: s.confirms}
	s.signal()
}

// cancelDrain forgets the wish. mu is held.
func (s *consumer) cancelDrain() {
	if s.drain != nil && s.drain.timer != nil {
		s.drain.timer.Stop()
	}
	s.drain = nil
}

// confirmedDrain begins to wait for quiet when the node has seen the credit. mu is held.
func (s *consumer) confirmedDrain() {
	d := s.drain
	if d == nil || d.asked || s.confirmed < d.number {
		return
	}
	d.asked = true
	d.timer = time.AfterFunc(drainQuiet, func() { s.c.contain(func() { s.drained(d) }) })
}

// drained tells the client that there is nothing more.
func (s *consumer) drained(d *drain) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.drain != d {
		return
	}
	s.drain = nil
	s.link.Drained()
	s.c.handleEvents()
	s.c.signal()
}

// passedDrain puts the answer off: there may be more. mu is held.
func (s *consumer) passedDrain() {
	if s.drain != nil && s.drain.timer != nil {
		s.drain.timer.Reset(drainQuiet)
	}
}
