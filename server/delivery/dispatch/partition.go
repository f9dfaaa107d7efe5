// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"hash/fnv"
	"slices"
	"time"
)

// maxDivided is the maximum number of consumer IDs among which partitions are divided. Consumers with further IDs are
// active only if consumers with these IDs are not available.
const maxDivided = 256

// division is the part of a dispatcher that concerns a partition of a partitioned queue. The zero value is that of
// other queues.
type division struct {
	is        bool
	index     int       // of the partition
	attached  uint64    // number of Divide calls
	successor *Consumer // becomes active as described by handOver; nil without one
}

// Divide declares that the queue is the partition with the given index. If the queue is exclusive, its active consumer
// is then determined by the IDs of the attached consumers (see activeID). An empty ID ranks behind all others. Divide
// must be called for each consumer of the partition, before AddCredit.
func (c *Consumer) Divide(index int, id string) {
	d := c.d
	d.mu.Lock()
	defer d.mu.Unlock()
	d.division.is, d.division.index = true, index
	d.division.attached++
	c.id, c.number = id, d.division.attached
	d.elect()
}

// elect determines the active consumer of an exclusive partition. If another consumer is active, it receives no further
// messages, and elect requeues those that were not sent to it. The caller must hold d.mu.
func (d *dispatcher) elect() {
	s, selects := d.order.(*selective)
	if !d.division.is || !selects || !s.exclusive || len(d.consumers) == 0 {
		d.division.successor = nil
		return
	}
	before := d.division.successor
	switch next := d.elected(); {
	case next != d.consumers[0]:
		d.division.successor = next
		d.consumers[0].requeueUnsent()
		d.handOver()
	case before != nil:
		d.division.successor = nil
		s.consumersChanged()
	}
}

// handOver activates the successor if the active consumer has no message in flight, and all nacked messages are
// requeued. Therefore the successor receives these messages before newer ones. The caller must hold d.mu.
func (d *dispatcher) handOver() {
	next := d.division.successor
	if next == nil || len(d.consumers[0].inFlight) > 0 || len(d.pending.releases)+len(d.committing.releases) > 0 {
		return
	}
	d.division.successor = nil
	at := slices.Index(d.consumers, next)
	d.consumers[0].firstSince, next.firstSince = time.Time{}, time.Now()
	d.consumers = slices.Insert(slices.Delete(d.consumers, at, at+1), 0, next)
	d.turn = 0
	d.selects().consumersChanged()
}

// elected returns the consumer that must be active: of the usable consumers, the one with the active ID. Of several
// consumers with this ID, it is the last one. If no usable consumer has an ID, it is the first usable consumer. If no
// consumer is usable, it is the first one.
func (d *dispatcher) elected() *Consumer {
	var ids []string
	for _, c := range d.consumers {
		if c.id != "" && c.usable() {
			ids = append(ids, c.id)
		}
	}
	active := activeID(ids, d.division.index)
	var chosen *Consumer
	for _, c := range d.consumers {
		if c.id == active && c.usable() && (chosen == nil || active != "" && c.number > chosen.number) {
			chosen = c
		}
	}
	if chosen == nil {
		return d.consumers[0]
	}
	return chosen
}

func (c *Consumer) usable() bool { return !c.idle() && !c.finishing && c.err == nil }

// activeID returns the ID of the active consumer of a partition, or "" without an ID. ids can contain duplicates. All
// partitions are divided evenly if they have the same IDs. Of m consecutive partitions, beginning with a multiple of
// m, each of m consumers has one. Within these limits, the hash of the ID and the partition decides.
func activeID(ids []string, index int) (active string) {
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	ids = ids[:min(len(ids), maxDivided)]
	if len(ids) == 0 {
		return ""
	}
	for i := index - index%len(ids); i <= index; i++ {
		at := highest(ids, i)
		active = ids[at]
		ids = slices.Delete(ids, at, at+1)
	}
	return active
}

// highest returns the index of the ID with the highest hash of the ID and a partition.
func highest(ids []string, partition int) (at int) {
	most := uint64(0)
	for i, id := range ids {
		h := fnv.New64a()
		_, _ = h.Write([]byte{byte(partition)})
		_, _ = h.Write([]byte(id))
		if sum := mix(h.Sum64()); sum > most {
			at, most = i, sum
		}
	}
	return at
}

// mix is the finalizer of SplitMix64.
func mix(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
