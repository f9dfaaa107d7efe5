// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"maps"
	"slices"

	"github.com/lockstep-mq/lockstep/store/mutate"
	"github.com/lockstep-mq/lockstep/store/txn"
)

func (s *State) noteTemporary(q *Queue) {
	if q.config.TemporaryGrace == 0 {
		delete(s.temporary, q.id)
		return
	}
	if s.temporary == nil {
		s.temporary = make(map[uint64]*Queue)
	}
	s.temporary[q.id] = q
}

// Temporary returns the temporary queues, ordered by number. They are deleted when they have no consumer.
func (s *State) Temporary() []*Queue {
	queues := make([]*Queue, 0, len(s.temporary))
	for _, id := range slices.Sorted(maps.Keys(s.temporary)) {
		queues = append(queues, s.temporary[id])
	}
	return queues
}

// staysTemporary reports whether a deletion proposed because the queue is temporary may be applied: not if the queue
// was altered in the meantime (INV-18).
func (q *Queue) staysTemporary(o *txn.Op) bool {
	return o.Temporary == 0 || o.Temporary == q.config.TemporaryGrace ||
		mutate.Off("INV-18-altered-queue-is-deleted-as-temporary")
}
