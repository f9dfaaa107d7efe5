// SPDX-License-Identifier: Apache-2.0

package store

import "github.com/lockstep-mq/lockstep/store/txn"

// TTLs gives the queues that have a TTL by their numbers, and the TTL in milliseconds.
func (s *Store) TTLs() map[uint64]int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.state.TTLs()
}

// DeadLetters returns the subscriptions of a queue whose expired messages are moved to a dead-letter queue, their own
// or that of the queue; none if they are not, or there is no such queue.
func (s *Store) DeadLetters(id uint64) (subs []uint32) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	q := s.state.Queue(id)
	if q == nil {
		return nil
	}
	if q.Config().DeadLetterExpired == 0 {
		return nil
	}
	for sub := range q.Subs {
		if sub.Config().DeadLetter != txn.NoQueue {
			subs = append(subs, sub.ID())
		}
	}
	return subs
}

// Needs tells whether a subscription has still to acknowledge a message, and how many times it has released it.
func (s *Store) Needs(id uint64, sub uint32, sequence uint64) (deliveries uint32, needs bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	q := s.state.Queue(id)
	if q == nil || sequence >= q.NextSequence() {
		return 0, false
	}
	of := q.Sub(sub)
	if of == nil || of.Acked(sequence) {
		return 0, false
	}
	return of.DeliveryCount(sequence), true
}

// HeldPrepared returns those of the sequences that a prepared transaction will acknowledge for some subscription.
func (s *Store) HeldPrepared(id uint64, sequences []uint64) (reserved []uint64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	q := s.state.Queue(id)
	if q == nil {
		return nil
	}
	for _, sequence := range sequences {
		for sub := range q.Subs {
			if sub.Reserved(sequence) {
				reserved = append(reserved, sequence)
				break
			}
		}
	}
	return reserved
}
