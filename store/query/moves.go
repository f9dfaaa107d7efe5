// SPDX-License-Identifier: Apache-2.0

package query

import (
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/queue"
)

// Moves returns the moves of queues to and from other pairs, ordered by epoch. WatchFleet reports changes, except for
// the progress of an import.
func Moves(s *store.Store) (moves []queue.Move) {
	s.View(func(state *queue.State) { moves = state.Moves() })
	return moves
}

// Move returns the move with the given epoch. ok is false if the pair has no record of it.
func Move(s *store.Store, epoch uint64) (move queue.Move, ok bool) {
	s.View(func(state *queue.State) { move, ok = state.Move(epoch) })
	return move, ok
}

// Fence returns the epoch of the fence of the queue with the given name, and the name of the pair to which the queue
// moves. ok is false if the queue does not exist or is not fenced.
func Fence(s *store.Store, name string) (epoch uint64, pair string, ok bool) {
	s.View(func(state *queue.State) {
		if q := state.QueueByName(name); q != nil {
			epoch, pair, ok = q.Fence()
		}
	})
	return epoch, pair, ok
}
