// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

func (n *testNode) client() *client.Client {
	n.t.Helper()
	c, err := client.OpenWith(n.t.Context(), client.Options{
		Addresses: []string{n.ready.Address}, DialOptions: clientOptions(n.t),
	})
	require.NoError(n.t, err)
	n.t.Cleanup(func() { require.NoError(n.t, c.Close()) })
	return c
}

// groupTraffic publishes numbered messages of several groups to a partitioned queue.
func groupTraffic(ctx context.Context, c *client.Client, queue, producer string, groups, messages int) error {
	p, err := c.NewProducer(ctx, client.ProducerOptions{})
	if err != nil {
		return err
	}
	for i := range messages {
		for g := range groups {
			group := producer + "-" + strconv.Itoa(g)
			p.PublishAsync(ctx, queue, client.Message{Body: []byte(strconv.Itoa(i)), Group: group})
		}
	}
	return errors.Join(p.Flush(ctx), p.Close())
}

// inOrder receives n messages, and requires that the messages of each group are in order, and in the partition of the
// group. Redeliveries are ignored.
func inOrder(t *testing.T, co *client.Consumer, count, n int) {
	t.Helper()
	next := map[string]int{}
	for received := 0; received < n; {
		d, err := co.Receive(t.Context())
		require.NoError(t, err)
		i, err := strconv.Atoi(string(d.Body))
		require.NoError(t, err)
		require.LessOrEqual(t, i, next[d.Group], "message of group %s is too early", d.Group)
		require.Equal(t, client.PartitionName("orders", client.Partition(d.Group, count), count), d.Partition())
		if i == next[d.Group] {
			next[d.Group]++
			received++
		}
		_ = d.AckSync(t.Context()) // otherwise the message is delivered again
	}
}

// Producers that do not know that a queue is partitioned publish to its partitions. The order of each group is kept.
func TestPartitionedQueue(t *testing.T) { simulated(t, testPartitionedQueue) }

func testPartitionedQueue(t *testing.T) {
	const count, producers, groups, messages = 4, 3, 10, 20
	n := startAlone(t, nil)
	ctx := t.Context()
	adm := admin.New(n.client())
	q, created, err := adm.CreateQueue(ctx, "orders", admin.CreateQueueOptions{Partitions: count})
	require.NoError(t, err)
	require.True(t, created)
	require.Len(t, q.Partitions, count)
	_, _, err = adm.CreateQueue(ctx, "orders", admin.CreateQueueOptions{Partitions: count})
	require.ErrorIs(t, err, client.ErrAlreadyExists)

	var publishing sync.WaitGroup
	errs := make([]error, producers)
	c := n.client()
	for i := range producers {
		publishing.Go(func() { errs[i] = groupTraffic(ctx, c, "orders", strconv.Itoa(i), groups, messages) })
	}
	co, err := n.client().Consume(ctx, "orders", client.ConsumerOptions{Prefetch: 10})
	require.NoError(t, err)
	inOrder(t, co, count, producers*groups*messages)
	publishing.Wait()
	require.NoError(t, errors.Join(errs...))
	require.NoError(t, co.Flush(ctx))

	r, err := c.Publish(ctx, "orders", message("without group"))
	require.NoError(t, err)
	d, err := co.Receive(ctx)
	require.NoError(t, err)
	require.Equal(t, "orders", d.Queue())
	require.Equal(t, d.Partition(), r.Partition)
	result, err := c.Begin().Take(d).Publish("orders", client.Message{Group: "a"}, client.Message{Group: "b"}).Commit(ctx)
	require.NoError(t, err)
	require.Len(t, result.Results, 2)
	for range 2 {
		d, err := co.Receive(ctx)
		require.NoError(t, err)
		require.Equal(t, client.PartitionName("orders", client.Partition(d.Group, count), count), d.Partition())
		require.NoError(t, d.AckSync(ctx))
	}
	require.NoError(t, co.Close())
	_, err = c.PublishBatch(ctx, "orders", []client.Message{{Group: "a"}, {Group: "b"}})
	require.ErrorIs(t, err, client.ErrInvalid, "groups of different partitions")
}

// Administrative calls act on all partitions.
func TestPartitionedQueueAdministration(t *testing.T) {
	simulated(t, testPartitionedQueueAdministration)
}

func testPartitionedQueueAdministration(t *testing.T) {
	n := startAlone(t, nil)
	ctx, c := t.Context(), n.client()
	adm := admin.New(c)
	create := func(name string, o admin.CreateQueueOptions) error {
		_, _, err := adm.CreateQueue(ctx, name, o)
		return err
	}
	require.NoError(t, create("dead", admin.CreateQueueOptions{Partitions: 2}))
	require.NoError(t, create("orders", admin.CreateQueueOptions{
		Partitions: 2, Config: admin.QueueConfig{DeadLetter: "dead", MaxDeliveries: 1},
	}))
	dead := func(i int) string {
		q, err := adm.GetQueue(ctx, client.PartitionName("orders", i, 2))
		require.NoError(t, err)
		return q.Config.DeadLetter
	}
	require.Equal(t, "dead#0/2", dead(0))
	require.Equal(t, "dead#1/2", dead(1))
	q, err := adm.ChangeQueue(ctx, "orders", admin.QueueChange{
		Config: admin.QueueConfig{MaxMessages: 1000}, Set: []string{"max_messages", "dead_letter"},
	})
	require.NoError(t, err)
	require.EqualValues(t, 1000, q.Config.MaxMessages)
	require.Empty(t, dead(1))
	_, err = adm.ChangeQueue(ctx, "orders", admin.QueueChange{
		Config: admin.QueueConfig{DeadLetter: "dead"}, Set: []string{"dead_letter"},
	})
	require.NoError(t, err)
	require.Equal(t, "dead#1/2", dead(1))
	for i := range 10 {
		_, err := c.Publish(ctx, "orders", client.Message{Group: strconv.Itoa(i)})
		require.NoError(t, err)
	}
	_, _, err = adm.CreateSubscription(ctx, "orders", "audit", admin.SubscriptionOptions{Start: admin.StartEarliest})
	require.NoError(t, err)
	q, err = adm.GetQueue(ctx, "orders")
	require.NoError(t, err)
	require.EqualValues(t, 10, q.Messages)
	require.Len(t, q.Subscriptions, 2)
	require.EqualValues(t, 10, q.Subscriptions[0].Backlog)
	q, err = adm.PauseQueue(ctx, "orders", admin.PauseOptions{})
	require.NoError(t, err)
	require.NotNil(t, q.Partitions[1].Pause)
	_, err = adm.ResumeQueue(ctx, "orders", admin.PauseOptions{})
	require.NoError(t, err)
	require.NoError(t, adm.DeleteSubscription(ctx, "orders", "audit"))
	_, err = adm.DeleteQueue(ctx, "orders", true)
	require.ErrorIs(t, err, admin.ErrNotEmpty)
	var purge admin.Request
	purged, err := adm.As(&purge).PurgeQueue(ctx, "orders", "")
	require.NoError(t, err)
	require.EqualValues(t, 10, purged)
	_, err = adm.DeleteQueue(ctx, "orders", true)
	require.NoError(t, err)
	_, err = adm.GetQueue(ctx, "orders")
	require.ErrorIs(t, err, client.ErrQueueNotFound)
	require.NoError(t, create("orders", admin.CreateQueueOptions{}))
	_, err = c.Publish(ctx, "orders", message("x"))
	require.ErrorIs(t, err, client.ErrQueueNotFound, "the client has the former number of partitions")
	_, err = c.Publish(ctx, "orders", message("x"))
	require.NoError(t, err)
}

// A creation that was interrupted is completed by another one. A name has one number of partitions.
func TestInterruptedPartitions(t *testing.T) { simulated(t, testInterruptedPartitions) }

func testInterruptedPartitions(t *testing.T) {
	n := startAlone(t, nil)
	ctx, c := t.Context(), n.client()
	adm := admin.New(c)
	create := func(name string, o admin.CreateQueueOptions) error {
		_, _, err := adm.CreateQueue(ctx, name, o)
		return err
	}
	require.NoError(t, create("orders#0/4", admin.CreateQueueOptions{}))
	require.NoError(t, create("orders#2/4", admin.CreateQueueOptions{}))
	_, err := c.Consume(ctx, "orders", client.ConsumerOptions{})
	require.ErrorIs(t, err, client.ErrQueueNotFound)
	require.Equal(t, "PARTITIONS_DIFFER", reasonIn(t, create("orders", admin.CreateQueueOptions{})))
	require.Equal(t, "PARTITIONS_DIFFER", reasonIn(t, create("orders", admin.CreateQueueOptions{Partitions: 8})))
	require.NoError(t, create("orders", admin.CreateQueueOptions{Partitions: 4}))
	q, err := adm.GetQueue(ctx, "orders")
	require.NoError(t, err)
	require.Len(t, q.Partitions, 4)
	require.NoError(t, create("orders.eu", admin.CreateQueueOptions{}), "not the same name")
	require.NoError(t, create("plain", admin.CreateQueueOptions{}))
	require.Equal(t, "PARTITIONS_DIFFER", reasonIn(t, create("plain", admin.CreateQueueOptions{Partitions: 2})))
	for _, name := range []string{"orders#4/4", "orders#01/4", "orders#0/1", "orders#", "#0/4", "a#0/2#0/2"} {
		require.Equal(t, "INVALID_NAME", reasonIn(t, create(name, admin.CreateQueueOptions{})), name)
	}
}

// The partitions of an exclusive queue are divided evenly among the consumers.
func TestPartitionsOfConsumers(t *testing.T) { simulated(t, testPartitionsOfConsumers) }

func testPartitionsOfConsumers(t *testing.T) {
	const count = 8
	n := startAlone(t, nil)
	ctx := t.Context()
	adm := admin.New(n.client())
	_, _, err := adm.CreateQueue(ctx, "orders", admin.CreateQueueOptions{
		Partitions: count, Config: admin.QueueConfig{Exclusive: true},
	})
	require.NoError(t, err)
	var consumers []*client.Consumer
	attach := func() {
		co, err := n.client().Consume(ctx, "orders", client.ConsumerOptions{})
		require.NoError(t, err)
		consumers = append(consumers, co)
	}
	// share returns the number of messages that each consumer receives if each partition has one message.
	share := func() (counts []int) {
		publisher := n.client()
		for i := range count {
			_, err := publisher.Publish(ctx, client.PartitionName("orders", i, count), message("x"))
			require.NoError(t, err)
		}
		counts = make([]int, len(consumers))
		for i, co := range consumers {
			for {
				receiving, cancel := context.WithTimeout(ctx, time.Second)
				d, err := co.Receive(receiving)
				cancel()
				if errors.Is(err, context.DeadlineExceeded) {
					break
				}
				require.NoError(t, err)
				counts[i]++
				require.NoError(t, d.AckSync(ctx))
			}
		}
		return counts
	}
	attach()
	require.Equal(t, []int{8}, share())
	attach()
	require.Equal(t, []int{4, 4}, share())
	attach()
	require.ElementsMatch(t, []int{3, 3, 2}, share())
	require.NoError(t, consumers[0].Close())
	consumers = consumers[1:]
	require.Equal(t, []int{4, 4}, share())
}

// In a fleet, the partitions of a queue are at different pairs. A partition moves while messages are published.
func TestPartitionsInFleet(t *testing.T) {
	const count, groups, messages = 6, 12, 200
	f := startMoveFleet(t)
	third := f.start("c")
	ctx := t.Context()
	f.a.waitLive("a", "b", "c")
	pairs := map[string]int{}
	require.NoError(t, f.create("orders", admin.CreateQueueOptions{Partitions: count}))
	ofPair := map[string]*testNode{"a": f.a, "b": f.b, "c": third}
	moved := ""
	for i := range count {
		name := client.PartitionName("orders", i, count)
		for pair, n := range ofPair {
			if get(n, name) == nil {
				if pairs[pair]++; pair == "a" {
					moved = name
				}
			}
		}
	}
	require.Equal(t, map[string]int{"a": 2, "b": 2, "c": 2}, pairs)
	require.Equal(t, "PARTITIONS_DIFFER", reasonIn(t, f.create("orders", admin.CreateQueueOptions{})))
	require.Equal(t, "PARTITIONS_DIFFER", reasonIn(t, f.create("orders", admin.CreateQueueOptions{Partitions: 2})))
	for pair, n := range ofPair { // each pair knows the number of partitions
		require.Eventually(t, func() bool {
			return reasonOf(get(n, "orders")) == pb.ErrorReason_ERROR_REASON_QUEUE_PARTITIONED
		}, testTimeout, 5*time.Millisecond, pair)
	}

	published := make(chan error, 1)
	go func() { published <- groupTraffic(ctx, f.client, "orders", "p", groups, messages) }()
	co, err := f.client.Consume(ctx, "orders", client.ConsumerOptions{})
	require.NoError(t, err)
	epoch := f.move(moved)
	inOrder(t, co, count, groups*messages)
	require.NoError(t, <-published)
	f.ended(epoch)
	require.NoError(t, get(f.b, moved))
	require.NoError(t, co.Close())
	for i := range count {
		_, err := f.admin.PurgeQueue(ctx, client.PartitionName("orders", i, count), "")
		require.NoError(t, err)
	}
	_, err = f.admin.DeleteQueue(ctx, "orders", false)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return f.create("orders", admin.CreateQueueOptions{}) == nil
	}, testTimeout, 5*time.Millisecond, "the names are released")
}

// The placement group of a partition is the tag of its name. Without a tag, it is the partition of the dead-letter
// queue.
func TestPlacementGroupOfPartitions(t *testing.T) {
	f := startFleet(t)
	for name, group := range map[string]string{"orders{eu}": "eu", "orders": "orders.dead#1/2"} {
		dead := name + ".dead"
		require.NoError(t, f.create(dead, admin.CreateQueueOptions{Partitions: 2}))
		require.NoError(t, f.create(name, admin.CreateQueueOptions{
			Partitions: 2, Config: admin.QueueConfig{DeadLetter: dead},
		}))
		partition := client.PartitionName(name, 1, 2)
		var placed []*pb.Placement
		require.Eventually(t, func() bool {
			resp, err := pb.NewFleetServiceClient(f.a.conn).ListPlacements(t.Context(), &pb.ListPlacementsRequest{
				Pattern: partition,
			})
			placed = resp.GetPlacements()
			return err == nil && len(placed) == 1
		}, testTimeout, 5*time.Millisecond)
		require.Equal(t, group, placed[0].GetGroup(), name)
	}
}
