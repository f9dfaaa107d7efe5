// SPDX-License-Identifier: Apache-2.0

package store

import "github.com/lockstep-mq/lockstep/store/queue"

// RoomIn returns how much one transaction may currently publish to a queue, according to the queue's limits. A
// missing queue has no room.
func (s *Store) RoomIn(id uint64) queue.Room {
	s.mu.RLock()
	defer s.mu.RUnlock()
	q := s.state.Queue(id)
	if q == nil {
		return queue.Room{}
	}
	return s.state.Room(q)
}
