// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/lockstep-mq/lockstep/client/internal/link"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Partition returns the partition of a message group in a queue with count partitions, 0 to count-1. The hash of a
// group has 16 bits: the upper half of the CRC-32 (IEEE 802.3) of its bytes. Partition i contains a contiguous range of
// hashes: those with i = hash*count/65536, rounded down.
func Partition(group string, count int) int {
	return int(crc32.ChecksumIEEE([]byte(group))>>16) * count >> 16
}

// PartitionName returns the name of the queue that contains the messages of a partition, such as "orders#3/8".
func PartitionName(queue string, partition, count int) string {
	return link.PartitionName(queue, partition, count)
}

// stickyMessages is the number of messages without a group that a producer sends to one partition before it continues
// with the next one.
const stickyMessages = 16

// partitions caches the number of partitions of each partitioned queue, as reported by QUEUE_PARTITIONED.
type partitions struct {
	known atomic.Bool // a node has returned QUEUE_PARTITIONED; if not, the cache is empty

	mu     sync.RWMutex // guards counts
	counts map[string]int
}

// of returns the number of partitions of a queue, or 0 if the queue is not known to be partitioned.
func (p *partitions) of(queue string) int {
	if !p.known.Load() {
		return 0
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.counts[queue]
}

func (p *partitions) learn(reported *pb.QueuePartitioned) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.counts == nil {
		p.counts = make(map[string]int)
	}
	if len(p.counts) >= maxOwners {
		clear(p.counts)
	}
	p.counts[reported.GetQueue()] = int(reported.GetCount())
	p.known.Store(true)
}

// missing records that the queue of a partition does not exist. The partitioned queue was deleted, and may have been
// created again with another number of partitions.
func (p *partitions) missing(name string) {
	queue, count := splitPartition(name)
	if count == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.counts[queue] == count {
		delete(p.counts, queue)
	}
}

// splitPartition returns the partitioned queue and its number of partitions, for the name of a partition. For any other
// name, count is 0.
func splitPartition(name string) (queue string, count int) {
	queue, number, is := strings.Cut(name, link.PartitionSign)
	if !is {
		return name, 0
	}
	_, of, _ := strings.Cut(number, "/")
	count, _ = strconv.Atoi(of)
	return queue, count
}

// partitionName returns the name of a queue if it is that of a partition, otherwise "".
func partitionName(queue string) string {
	if strings.Contains(queue, link.PartitionSign) {
		return queue
	}
	return ""
}

// partitionsOf returns the detail of an error with the reason QUEUE_PARTITIONED, or nil.
func partitionsOf(err error) *pb.QueuePartitioned {
	if e := (*Error)(nil); errors.As(err, &e) && e.partitioned.GetCount() > 0 {
		return e.partitioned
	}
	return nil
}

// divided is a partitioned queue in a producer, after all publishes with its name were assigned to partitions.
type divided struct {
	count  int
	sticky int // partition of the next messages without a group
	left   int // number of these messages before the next partition
}

func newDivided(count int) *divided {
	return &divided{count: count, sticky: rand.IntN(count), left: stickyMessages} //nolint:gosec // distribution only
}

// next returns the partition for the given number of messages without a group.
func (d *divided) next(messages int) int {
	if d.left <= 0 {
		d.sticky, d.left = (d.sticky+1)%d.count, stickyMessages
	}
	d.left -= messages
	return d.sticky
}

// divide assigns a new entry to a partition if its queue is partitioned. Earlier publishes to the queue may still have
// to be assigned: the entry then follows them. mu is held.
func (p *Producer) divide(e *Pending) error {
	count := p.client.partitions.of(e.queue)
	if count == 0 {
		delete(p.divided, e.queue)
		return nil
	}
	d := p.divided[e.queue]
	if d == nil || d.count != count {
		if rt := p.routes[e.queue]; rt != nil && (rt.open > 0 || rt.moving) || p.home.holds(e.queue) {
			return nil
		}
		d = p.addDivided(e.queue, count)
	}
	return d.assign(e)
}

func (p *Producer) addDivided(queue string, count int) *divided {
	if p.divided == nil || len(p.divided) >= maxOwners {
		p.divided = make(map[string]*divided)
	}
	d := newDivided(count)
	p.divided[queue] = d
	return d
}

// assign changes the queue of an entry to that of the partition of its messages. It returns an error if they belong to
// several partitions.
func (d *divided) assign(e *Pending) error {
	at := -1
	if e.more != nil {
		var err error
		if at, err = partitionOf(e.more.messages, d.count); err != nil {
			return fmt.Errorf("publish to %s: %w", e.queue, err)
		}
	}
	if at < 0 {
		at = d.next(int(e.count))
	}
	e.queue = PartitionName(e.queue, at, d.count)
	return nil
}

// partitionOf returns the partition of the messages with a group, or -1 if none has a group.
func partitionOf(messages []*pb.Message, count int) (at int, err error) {
	at = -1
	for _, m := range messages {
		if m.GetGroup() == "" {
			continue
		}
		of := Partition(m.GetGroup(), count)
		if at >= 0 && at != of {
			return 0, fmt.Errorf("%w: a batch has messages of partitions %d and %d: publish one batch for each, or use a "+
				"transaction", ErrInvalid, at, of)
		}
		at = of
	}
	return at, nil
}

// divideAll sends the entries that wait in the route of a partitioned queue to its partitions. mu is held.
func (p *Producer) divideAll(rt *route, queue string) {
	d := p.addDivided(queue, rt.partitions)
	entries := rt.take()
	rt.moving, rt.partitions = false, 0
	var failed []*Pending
	for _, e := range entries {
		e.route = nil
		rt.open--
		if err := d.assign(e); err != nil {
			e.taken, e.invalid = true, err
			failed = append(failed, e)
			continue
		}
		if pl := p.routed(e); pl != nil {
			pl.add(e)
			pl.signal()
		}
	}
	if rt.open == 0 {
		delete(p.routes, queue)
	}
	if len(failed) > 0 {
		p.client.joined.Go(func() {
			for _, e := range failed {
				p.answer([]*Pending{e}, Receipt{}, e.invalid)
			}
		})
	}
}
