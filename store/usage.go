// SPDX-License-Identifier: Apache-2.0

package store

import "github.com/lockstep-mq/lockstep/store/queue"

// usageQueues is how many queues are looked at before others may have the lock.
const usageQueues = 1000

// Usage is how many queues there are whose names begin with prefix and that match takes, and how many bytes of messages
// they hold, as stored. It is no snapshot: queues may come and go meanwhile. It takes time in proportion to the queues
// with the prefix.
func (s *Store) Usage(prefix string, match func(name string) bool) (queues, bytes uint64) {
	var list []*queue.Queue
	for after, more := "", true; more; {
		s.mu.RLock()
		list = s.state.List(list[:0], prefix, after, usageQueues)
		for _, q := range list {
			if match(q.Name()) {
				queues++
				bytes += q.Bytes()
			}
		}
		if more = len(list) == usageQueues; more {
			after = list[len(list)-1].Name()
		}
		s.mu.RUnlock()
	}
	return queues, bytes
}
