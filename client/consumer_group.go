// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// groupMember describes the consumer of a partition that belongs to a consumer of the partitioned queue.
type groupMember struct {
	queue string // name of the partitioned queue
	index int
	id    string // equal for all partitions: an exclusive queue assigns its partitions by this ID
}

func (m *groupMember) consumerID() string {
	if m == nil {
		return ""
	}
	return m.id
}

// consumerGroup contains the consumers of the partitions of a queue. They share the channel avail.
type consumerGroup struct {
	members []*Consumer
	turn    atomic.Uint32 // rotates the order in which the members are polled
}

func (c *Client) consumePartitions(
	ctx context.Context, queue string, count int, o ConsumerOptions,
) (*Consumer, error) {
	whole := c.newConsumer(queue, o)
	whole.group = &consumerGroup{}
	o.Prefetch = (o.Prefetch + count - 1) / count
	id := uuid.NewString()
	for i := range count {
		co := c.newConsumer(PartitionName(queue, i, count), o)
		co.member, co.avail = &groupMember{queue: queue, index: i, id: id}, whole.avail
		whole.group.members = append(whole.group.members, co)
	}
	if err := c.register(whole); err != nil {
		return nil, err
	}
	for _, co := range whole.group.members {
		co.start(ctx)
	}
	for _, co := range whole.group.members {
		if err := co.awaitAttached(ctx); err != nil {
			_ = whole.Close()
			return nil, err
		}
	}
	return whole, nil
}

func (g *consumerGroup) poll() (d *Delivery, more bool, err error) {
	first := int(g.turn.Add(1) % uint32(len(g.members)))
	for i := range g.members {
		d, _, err = g.members[(first+i)%len(g.members)].poll()
		if d != nil || err != nil {
			return d, true, err
		}
	}
	return nil, false, nil
}

// each calls fn for all members concurrently, and waits for these calls.
func (g *consumerGroup) each(fn func(*Consumer)) {
	var running sync.WaitGroup
	for _, co := range g.members {
		running.Go(func() { fn(co) })
	}
	running.Wait()
}

func (g *consumerGroup) flush(ctx context.Context) error {
	errs := make([]error, len(g.members))
	var running sync.WaitGroup
	for i, co := range g.members {
		running.Go(func() { errs[i] = co.Flush(ctx) })
	}
	running.Wait()
	var err error
	for _, one := range errs {
		if one != nil {
			err = withError(one, err)
		}
	}
	return err
}

func (g *consumerGroup) close() { g.each(func(co *Consumer) { _ = co.Close() }) }

// ackTimeout returns the shortest acknowledgement deadline of the members; 0 if no member has one.
func (g *consumerGroup) ackTimeout() (shortest time.Duration) {
	for _, co := range g.members {
		if d := co.AckTimeout(); d > 0 && (shortest == 0 || d < shortest) {
			shortest = d
		}
	}
	return shortest
}
