// SPDX-License-Identifier: Apache-2.0

package store

import "github.com/lockstep-mq/lockstep/store/txn"

// TTLs returns the TTL in milliseconds of each queue that has one, by queue number.
func (s *Store) TTLs() map[uint64]int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.state.TTLs()
}

// DeadLetters returns the subscriptions of a queue whose expired messages are moved to a dead-letter queue,
// configured for the subscription or for the queue. The result is empty if expired messages are not moved, or if the
// queue does not exist.
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

// Needs reports whether a subscription has not yet acknowledged a message, and how often it has released the message.
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

// HeldPrepared returns the sequences that a prepared transaction will acknowledge for some subscription.
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
