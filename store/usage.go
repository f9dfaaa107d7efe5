// SPDX-License-Identifier: Apache-2.0

package store

import "github.com/lockstep-mq/lockstep/store/queue"

// usageQueues is the number of queues that are visited under one hold of the lock.
const usageQueues = 1000

// Usage returns the number of queues whose names begin with prefix and satisfy match, and the stored bytes of their
// messages. The result is not a consistent snapshot: queues may be created and deleted concurrently. The time is
// proportional to the number of queues with the prefix.
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
