// SPDX-License-Identifier: Apache-2.0

package query

import (
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/queue"
)

// Fleet returns the membership of the pair in a fleet, as of the last applied record.
func Fleet(s *store.Store) (fleet queue.FleetState) {
	s.View(func(state *queue.State) { fleet = state.Fleet() })
	return fleet
}

// WatchFleet returns a channel that receives a value after the pair has joined or left a fleet, or after a move of
// queues has changed (Moves), except for the progress of an import. The installation of a snapshot counts as a
// change. Signals are coalesced. The caller must call cancel.
func WatchFleet(s *store.Store) (changed <-chan struct{}, cancel func()) {
	return s.Watch(queue.FleetQueue)
}

// OwnershipEpoch returns the ownership epoch of the queue with the given name, or 0 if the pair is not a member of a
// fleet. ok is false if the queue does not exist.
func OwnershipEpoch(s *store.Store, name string) (epoch uint64, ok bool) {
	s.View(func(state *queue.State) {
		if q := state.QueueByName(name); q != nil {
			epoch, ok = state.OwnershipEpoch(q), true
		}
	})
	return epoch, ok
}

// OwnershipEpochOf is OwnershipEpoch for the queue with the given number.
func OwnershipEpochOf(s *store.Store, id uint64) (epoch uint64, ok bool) {
	viewQueue(s, id, func(state *queue.State, q *queue.Queue) { epoch, ok = state.OwnershipEpoch(q), true })
	return epoch, ok
}

// OwnedQueue is a queue that the pair owns in a fleet.
type OwnedQueue struct {
	Name  string
	Epoch uint64
}

// OwnedQueues calls yield with each queue, including fenced queues, in name order, if the pair is a member of a
// fleet. It releases the lock at intervals. The result is not a consistent snapshot: queues may be created and
// deleted concurrently. yield is called under the lock on the state and must not block.
func OwnedQueues(s *store.Store, yield func(OwnedQueue)) {
	var list []*queue.Queue
	for after, more := "", true; more; {
		s.View(func(state *queue.State) {
			if more = state.Fleet().Member(); !more {
				return
			}
			list = state.List(list[:0], "", after, usageQueues)
			for _, q := range list {
				yield(OwnedQueue{Name: q.Name(), Epoch: state.OwnershipEpoch(q)})
			}
			if more = len(list) == usageQueues; more {
				after = list[len(list)-1].Name()
			}
		})
	}
}

// Partitions returns the number of partitions of a queue, if this pair has one of them; otherwise 0.
func Partitions(s *store.Store, name string) (count int) {
	s.View(func(state *queue.State) { count = state.Partitions(name) })
	return count
}
