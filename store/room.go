// SPDX-License-Identifier: Apache-2.0

package store

import "github.com/lockstep-mq/lockstep/store/queue"

// RoomIn returns what one transaction may publish to a queue at present, by the queue's limits. A queue that is not
// there has no room.
func (s *Store) RoomIn(id uint64) queue.Room {
	s.mu.RLock()
	defer s.mu.RUnlock()
	q := s.state.Queue(id)
	if q == nil {
		return queue.Room{}
	}
	return s.state.Room(q)
}
