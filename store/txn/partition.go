// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"fmt"
	"strconv"
	"strings"
)

// MinPartitions and MaxPartitions limit the number of partitions of a queue.
const (
	MinPartitions = 2
	MaxPartitions = 64
)

// PartitionSign separates the name of a partitioned queue from the number of a partition. Names of other queues do not
// contain it.
const PartitionSign = "#"

// Partition is a partition of a partitioned queue. Its queue contains the messages of the groups with the hashes from
// Index*65536/Count to (Index+1)*65536/Count, exclusive, and some of the messages without a group.
type Partition struct {
	Queue string // name of the partitioned queue
	Index int
	Count int // number of partitions
}

// Name returns the name of the queue that contains the messages of the partition, such as "orders#3/8".
func (p Partition) Name() string {
	return p.Queue + PartitionSign + strconv.Itoa(p.Index) + "/" + strconv.Itoa(p.Count)
}

// ParsePartition parses the name of a partition. ok is false for other names. It does not verify the name of the
// partitioned queue.
func ParsePartition(name string) (p Partition, ok bool) {
	at := strings.Index(name, PartitionSign)
	if at < 0 {
		return p, false
	}
	index, count, found := strings.Cut(name[at+1:], "/")
	p.Queue = name[:at]
	p.Index, ok = decimal(index)
	if !ok || !found {
		return p, false
	}
	p.Count, ok = decimal(count)
	return p, ok && p.Count >= MinPartitions && p.Count <= MaxPartitions && p.Index < p.Count
}

// decimal parses a number of one or two digits, without leading zeros.
func decimal(s string) (n int, ok bool) {
	if len(s) == 0 || len(s) > 2 || len(s) == 2 && s[0] == '0' {
		return 0, false
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = n*10 + int(s[i]-'0')
	}
	return n, true
}

// checkPartition verifies the name of a partition.
func checkPartition(name string) error {
	p, ok := ParsePartition(name)
	if !ok {
		return fmt.Errorf("%w: %.40q contains %s, but is not QUEUE%sINDEX/COUNT with a COUNT of %d to %d", ErrInvalidName,
			name, PartitionSign, PartitionSign, MinPartitions, MaxPartitions)
	}
	if len(name) > MaxNameBytes {
		return fmt.Errorf("%w: %d bytes, limit %d", ErrInvalidName, len(name), MaxNameBytes)
	}
	return CheckQueueName(p.Queue)
}

// MatchQueue reports whether a glob matches the name of a queue. A glob that matches the name of a partitioned queue
// also matches its partitions.
func MatchQueue(glob, name string) bool {
	if MatchGlob(glob, name) {
		return true
	}
	queue, _, partition := strings.Cut(name, PartitionSign)
	return partition && MatchGlob(glob, queue)
}
