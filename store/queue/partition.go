// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"strings"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// Partitions returns the number of partitions of the partitioned queue with the given name, or 0 if this pair has no
// partition of it. The names of the partitions contain this number.
func (s *State) Partitions(name string) (count int) {
	prefix := name + txn.PartitionSign
	s.names.from(prefix, func(q *Queue) bool {
		if strings.HasPrefix(q.name, prefix) {
			p, _ := txn.ParsePartition(q.name)
			count = p.Count
		}
		return false
	})
	return count
}

// partitionsDiffer reports whether the name of a new queue conflicts with existing queues (txn.ErrPartitionsDiffer). It
// ignores queues of other pairs and incoming queues: the directory of the fleet verifies these names.
func (s *State) partitionsDiffer(name string) bool {
	p, is := txn.ParsePartition(name)
	if !is {
		return s.Partitions(name) != 0
	}
	count := s.Partitions(p.Queue)
	return s.byName[p.Queue] != nil || count != 0 && count != p.Count
}
