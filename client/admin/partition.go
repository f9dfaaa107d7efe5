// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/internal/link"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// MinPartitions and MaxPartitions limit CreateQueueOptions.Partitions.
const (
	MinPartitions = 2
	MaxPartitions = 64
)

// Partition describes the queue of a partition.
type Partition struct {
	// Name is the name of the queue, such as "orders#3/8".
	Name string
	// Messages, Bytes, Subscriptions and Pause are those of the queue.
	Messages, Bytes uint64
	Subscriptions   []Subscription
	Pause           *Pause
}

// target is the queue of one request: a queue that is not partitioned, or a partition.
type target struct {
	name         string
	index, count int // of the partition; count is 0 for other queues
}

// partitionsIn returns the number of partitions of a queue if err reports that this queue is partitioned, otherwise
// 0.
func partitionsIn(err error, queue string) int {
	e := (*client.Error)(nil)
	if !errors.As(err, &e) {
		return 0
	}
	if reported, count := e.Partitioned(); reported == queue {
		return count
	}
	return 0
}

// forEach calls fn for a queue or, if the queue is partitioned, for its partitions in order, until fn returns an error.
// With a Request, it does not repeat the calls for partitions that have succeeded.
func (c *Client) forEach(ctx context.Context, queue string, fn func(c *Client, at target) error) error {
	err := fn(c, target{name: queue})
	e := (*client.Error)(nil)
	if !errors.As(err, &e) {
		return err
	}
	other, count := e.Partitioned()
	if count > 0 && other != queue { // the dead-letter queue is partitioned
		var failed error
		if count, failed = c.partitions(ctx, queue); failed != nil {
			return failed
		}
	}
	if count == 0 {
		return err
	}
	return c.forPartitions(queue, count, fn)
}

func (c *Client) forPartitions(queue string, count int, fn func(c *Client, at target) error) error {
	r := c.request
	if r != nil && len(r.parts) != count {
		r.parts = make([]Request, count)
	}
	for i := range count {
		part := c
		if r != nil {
			part = c.As(&r.parts[i])
		}
		if part.request != nil && part.request.done {
			continue
		}
		if err := fn(part, target{name: client.PartitionName(queue, i, count), index: i, count: count}); err != nil {
			return err
		}
	}
	if r != nil {
		r.done = true
	}
	return nil
}

// partitions returns the number of partitions of a queue; 0 if it is not partitioned or does not exist.
func (c *Client) partitions(ctx context.Context, queue string) (int, error) {
	_, err := c.getQueue(ctx, queue)
	if count := partitionsIn(err, queue); count > 0 {
		return count, nil
	}
	if errors.Is(err, client.ErrQueueNotFound) {
		err = nil
	}
	return 0, err
}

// partOf returns the partition of another queue with the same index, if that queue has the same number of partitions.
// Otherwise, it returns the name of the other queue.
func (c *Client) partOf(ctx context.Context, at target, other string) (string, error) {
	if at.count == 0 || other == "" {
		return other, nil
	}
	count, err := c.partitions(ctx, other)
	if err != nil || count != at.count {
		return other, err
	}
	return client.PartitionName(other, at.index, at.count), nil
}

// createPartitions creates the missing partitions of a queue.
func (c *Client) createPartitions(
	ctx context.Context, name string, o CreateQueueOptions,
) (q Queue, created bool, err error) {
	if o.Partitions < MinPartitions || o.Partitions > MaxPartitions {
		return Queue{}, false, fmt.Errorf("%w: %d partitions; must be %d to %d", client.ErrInvalid, o.Partitions,
			MinPartitions, MaxPartitions)
	}
	deadLetters, err := c.partitionsAlike(ctx, o.Config.DeadLetter, o.Partitions)
	if err != nil {
		return Queue{}, false, err
	}
	group := o.PlacementGroup
	if group == "" && deadLetters && !tagged(name) {
		group = o.Config.DeadLetter
	}
	groups, err := c.partitionsAlike(ctx, group, o.Partitions)
	if err != nil {
		return Queue{}, false, err
	}
	var list []Queue
	err = c.forPartitions(name, o.Partitions, func(c *Client, at target) error {
		part := o
		part.Partitions, part.IfNotExists, part.PlacementGroup = 0, true, group
		if deadLetters {
			part.Config.DeadLetter = client.PartitionName(o.Config.DeadLetter, at.index, at.count)
		}
		if groups {
			part.PlacementGroup = client.PartitionName(group, at.index, at.count)
		}
		q, isNew, err := c.createQueue(ctx, at.name, part)
		list, created = append(list, q), created || isNew
		return err
	})
	switch {
	case err != nil:
		return Queue{}, false, err
	case !o.IfNotExists && !created && len(list) == o.Partitions:
		return Queue{}, false, fmt.Errorf("create queue %q: %w", name, client.ErrAlreadyExists)
	}
	return sum(name, list), created, nil
}

// tagged reports whether a queue name contains a tag, which is the default of the placement group.
func tagged(queue string) bool {
	_, rest, _ := strings.Cut(queue, "{")
	tag, _, closed := strings.Cut(rest, "}")
	return closed && tag != ""
}

// partitionsAlike reports whether a queue has the given number of partitions.
func (c *Client) partitionsAlike(ctx context.Context, queue string, count int) (bool, error) {
	if queue == "" {
		return false, nil
	}
	n, err := c.partitions(ctx, queue)
	return n == count, err
}

// deletePartitions deletes the existing partitions of a queue.
func (c *Client) deletePartitions(
	ctx context.Context, name string, count int, ifEmpty bool,
) (messages uint64, err error) {
	if ifEmpty { // no partition is deleted if one of them has messages
		q, err := c.existingPartitions(ctx, name, count)
		if err != nil {
			return 0, err
		}
		if q.Messages > 0 {
			return 0, fmt.Errorf("delete queue %q: %w", name, ErrNotEmpty)
		}
	}
	err = c.forPartitions(name, count, func(c *Client, at target) error {
		n, err := c.deleteQueue(ctx, at.name, ifEmpty)
		messages += n
		if errors.Is(err, client.ErrQueueNotFound) && !errors.Is(err, client.ErrOutcomeUnknown) {
			return nil
		}
		return err
	})
	return messages, err
}

// existingPartitions returns the sum of the partitions that exist, and [client.ErrQueueNotFound] if all are missing.
func (c *Client) existingPartitions(ctx context.Context, name string, count int) (Queue, error) {
	var list []Queue
	var missing error
	err := c.As(nil).forPartitions(name, count, func(c *Client, at target) error {
		q, err := c.getQueue(ctx, at.name)
		if errors.Is(err, client.ErrQueueNotFound) {
			missing = err
			return nil
		}
		list = append(list, q)
		return err
	})
	switch {
	case err != nil:
		return Queue{}, err
	case len(list) == 0:
		return Queue{}, missing
	}
	return sum(name, list), nil
}

// changeEach calls fn for a queue or each of its partitions, and returns the queue or the sum of its partitions.
func (c *Client) changeEach(
	ctx context.Context, queue string, fn func(c *Client, at target) (*pb.Queue, error),
) (Queue, error) {
	var list []Queue
	partitioned := false
	err := c.forEach(ctx, queue, func(c *Client, at target) error {
		q, err := fn(c, at)
		if err == nil {
			list, partitioned = append(list, queueFromProto(q)), at.count > 0
		}
		return err
	})
	switch {
	case err != nil:
		return Queue{}, err
	case partitioned:
		return sum(queue, list), nil
	case len(list) == 1:
		return list[0], nil
	}
	return Queue{Name: queue}, nil // a retry of a Request: all calls had succeeded
}

// sum returns the description of a partitioned queue: the options of its first partition, and the sums of its
// partitions.
func sum(name string, partitions []Queue) Queue {
	out := Queue{Name: name}
	for i, p := range partitions {
		out.Partitions = append(out.Partitions, Partition{
			Name: p.Name, Messages: p.Messages, Bytes: p.Bytes, Subscriptions: p.Subscriptions, Pause: p.Pause,
		})
		if i == 0 {
			out.Config, out.Own, out.Forwards, out.Pause = p.Config, p.Own, p.Forwards, p.Pause
			out.Config.DeadLetter, _, _ = strings.Cut(out.Config.DeadLetter, link.PartitionSign)
		}
		out.Messages += p.Messages
		out.Bytes += p.Bytes
		out.Delayed += p.Delayed
		out.Dropped += p.Dropped
		out.Expired += p.Expired
		out.MessageIDs += p.MessageIDs
		out.Duplicates += p.Duplicates
		for _, s := range p.Subscriptions {
			addSubscription(&out, s)
		}
	}
	slices.SortFunc(out.Subscriptions, func(a, b Subscription) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

func addSubscription(q *Queue, s Subscription) {
	s.Floor, s.Active = 0, nil
	at := slices.IndexFunc(q.Subscriptions, func(other Subscription) bool { return other.Name == s.Name })
	if at < 0 {
		q.Subscriptions = append(q.Subscriptions, s)
		return
	}
	to := &q.Subscriptions[at]
	to.Backlog += s.Backlog
	to.InFlight += s.InFlight
	to.Consumers = max(to.Consumers, s.Consumers) // each consumer is attached to all partitions
	to.OldestInFlightAge = max(to.OldestInFlightAge, s.OldestInFlightAge)
}
