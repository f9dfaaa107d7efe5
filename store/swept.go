// SPDX-License-Identifier: Apache-2.0

package store

import (
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// OverflowQueue is the queue number with which Watch signals queues that exceed their limits: see Swept.Overflow.
const OverflowQueue = queue.OverflowQueue

// Swept describes a queue that retains messages, or whose overflow is moved, for the expiry on the active.
type Swept struct {
	// ID is the queue's number, Config its configuration.
	ID     uint64
	Config txn.Config
	// Retained is the first sequence that is kept because of the retention; the queue's next sequence if none is.
	// RetainFrom is the first sequence that is within the retention's number and bytes.
	Retained, RetainFrom uint64
	// Overflow is the sequence below which all messages must be moved to the dead-letter queue to bring the queue
	// within its limits; 0 if none.
	Overflow uint64
	// Subs are the numbers of the subscriptions that have not acknowledged all messages below Overflow.
	Subs []uint32
}

// SweptQueues returns the numbers of the queues that retain messages or have txn.OverflowDeadLetterHead, ascending.
// Its cost does not depend on other queues.
func (s *Store) SweptQueues() []uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.state.Expiring()
}

// Swept describes one of them; ok is false if the queue does not exist.
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
