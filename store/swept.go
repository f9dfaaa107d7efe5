// SPDX-License-Identifier: Apache-2.0

package store

import (
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// OverflowQueue is what Watch takes to tell of queues that hold more than they are to hold: see Swept.Overflow.
const OverflowQueue = queue.OverflowQueue

// Swept is what an active has to look at of a queue that retains messages, or whose excess is moved.
type Swept struct {
	// ID is the queue's number, Config its configuration.
	ID     uint64
	Config txn.Config
	// Retained is where the messages begin that are kept because of the retention; the queue's next sequence if it has
	// none. RetainFrom is where they have to begin so that they are within the retention's number and bytes.
	Retained, RetainFrom uint64
	// Overflow is the sequence below which all messages have to be moved to the dead-letter queue so that the queue is
	// within its limits; 0 if none has to.
	Overflow uint64
	// Subs are the numbers of the subscriptions that have not acknowledged all that is below Overflow.
	Subs []uint32
}

// SweptQueues returns the numbers of the queues that retain messages or have txn.OverflowDeadLetterHead, rising. It
// costs nothing that other queues add to.
func (s *Store) SweptQueues() []uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.state.Swept()
}

// Swept describes one of them; ok is false if there is no such queue any more.
func (s *Store) Swept(id uint64) (w Swept, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	q := s.state.Queue(id)
	if q == nil {
		return Swept{}, false
	}
	w = Swept{ID: id, Config: q.Config(), Overflow: q.Overflowing()}
	w.Retained, _ = q.Retained()
	w.RetainFrom = w.Retained
	if w.Config.RetentionMessages|w.Config.RetentionBytes != 0 {
		w.RetainFrom = q.RetainFrom(w.Config.RetentionMessages, w.Config.RetentionBytes)
	}
	for sub := range q.Subs {
		if w.Overflow > 0 && sub.NextUnacked(1) < w.Overflow {
			w.Subs = append(w.Subs, sub.ID())
		}
	}
	return w, true
}
