// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// countPartition adds n to the number of entries of a partitioned queue, if the name is that of a partition.
func (c *contents) countPartition(name string, n int) {
	p, is := txn.ParsePartition(name)
	if !is {
		return
	}
	counts := c.partitioned[p.Queue]
	if counts == nil {
		counts = map[int]int{}
		c.partitioned[p.Queue] = counts
	}
	if counts[p.Count] += n; counts[p.Count] == 0 {
		delete(counts, p.Count)
	}
	if len(counts) == 0 {
		delete(c.partitioned, p.Queue)
	}
}

// Partitions returns the number of partitions of a queue, as stated by the names of its partitions in the copy, or 0 if
// it has none. If pairs have joined with different numbers, it returns the lowest.
func (d *Directory) Partitions(queue string) (count int) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.copy == nil {
		return 0
	}
	for n := range d.copy.partitioned[queue] {
		if count == 0 || n < count {
			count = n
		}
	}
	return count
}

// related are the entries that a new name depends on: the partitions of the same partitioned queue, and the queue with
// the name of the partitioned queue.
type related struct {
	partition bool           // the new name is that of a partition
	count     int            // number of partitions, if partition is set
	prefix    string         // of the keys of partitions
	queueKey  string         // key of the queue with the name of the partitioned queue
	revision  int64          // of the read
	pairs     map[string]int // number of partitions by pair
}

// relatedTo returns the operations that read the related entries.
func (d *Directory) relatedTo(queue string) (r related, ops []clientv3.Op) {
	name := queue
	if p, is := txn.ParsePartition(queue); is {
		r.partition, r.count, name = true, p.Count, p.Queue
	}
	r.prefix, r.queueKey = d.key(dirQueues, name+txn.PartitionSign), d.key(dirQueues, name)
	return r, []clientv3.Op{
		clientv3.OpGet(r.prefix, clientv3.WithPrefix(), clientv3.WithLimit(maxRelated)), clientv3.OpGet(r.queueKey),
	}
}

// maxRelated limits the number of entries that are read. It exceeds the maximum number of partitions of a queue.
const maxRelated = 2 * txn.MaxPartitions

// read processes the responses to the operations of relatedTo. It returns an error that wraps ErrPartitions if the new
// name contradicts the entries.
func (d *Directory) read(r *related, revision int64, partitions, queue []*mvccpb.KeyValue) error {
	r.revision, r.pairs = revision, map[string]int{}
	for _, kv := range partitions {
		name := d.queueOf(kv)
		p, is := txn.ParsePartition(name)
		if is && (!r.partition || p.Count != r.count) {
			return fmt.Errorf("%w: %q is assigned", ErrPartitions, name)
		}
		e, err := decodeEntry(kv.Value)
		if err != nil {
			return &ValueError{string(kv.Key), err}
		}
		r.pairs[e.Pair]++
	}
	if r.partition && len(queue) > 0 {
		return fmt.Errorf("%w: %q is assigned", ErrPartitions, d.queueOf(queue[0]))
	}
	return nil
}

func (d *Directory) queueOf(kv *mvccpb.KeyValue) string {
	return string(kv.Key)[len(d.prefix)+len(dirQueues):]
}

// unchanged returns comparisons that fail if an entry of a partition was written since the read. For a new partition,
// they also fail if the queue with the name of the partitioned queue is assigned.
func (r *related) unchanged() []clientv3.Cmp {
	cmps := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(r.prefix).WithPrefix(), "<", r.revision+1)}
	if r.partition {
		cmps = append(cmps, same(r.queueKey, ""))
	}
	return cmps
}
