// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// Queues can be created, altered, purged and deleted. The number of queues is limited.
func TestQueueAdministration(t *testing.T) { simulated(t, testQueueAdministration) }

func testQueueAdministration(t *testing.T) {
	n := startAlone(t, func(c *config.Config) { c.Limits.Queues = 5 })
	ctx := t.Context()
	created, err := n.queues.CreateQueue(ctx, &pb.CreateQueueRequest{
		Name: "orders", Config: &pb.QueueConfig{MaxMessages: 10}, Subscriptions: []string{"b", "a"},
	})
	require.NoError(t, err)
	require.True(t, created.GetCreated())
	require.Equal(t, uint64(10), created.GetQueue().GetConfig().GetMaxMessages())
	require.Equal(t, "a", created.GetQueue().GetSubscriptions()[0].GetName(), "subscriptions are sorted by name")

	_, err = n.queues.CreateQueue(ctx, &pb.CreateQueueRequest{Name: "orders"})
	require.ErrorIs(t, kind(err), txn.ErrQueueExists)
	again, err := n.queues.CreateQueue(ctx, &pb.CreateQueueRequest{Name: "orders", IfNotExists: true})
	require.NoError(t, err)
	require.False(t, again.GetCreated())
	require.Equal(t, created.GetQueue().GetId(), again.GetQueue().GetId())

	altered, err := n.queues.AlterQueue(ctx,
		&pb.AlterQueueRequest{Name: "orders", Config: &pb.QueueConfig{MaxBytes: 100}})
	require.NoError(t, err)
	require.Equal(t, uint64(100), altered.GetQueue().GetConfig().GetMaxBytes())
	require.Zero(t, altered.GetQueue().GetConfig().GetMaxMessages())

	n.publish("orders", "x")
	_, err = n.queues.DeleteQueue(ctx, &pb.DeleteQueueRequest{Name: "orders", IfEmpty: true})
	require.ErrorIs(t, kind(err), txn.ErrQueueNotEmpty)
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	purged, err := n.queues.PurgeQueue(ctx, &pb.PurgeQueueRequest{Name: "orders", Subscription: "a"})
	require.NoError(t, err)
	require.Equal(t, uint64(1), purged.GetMessages())
	deleted, err := n.queues.DeleteQueue(ctx, &pb.DeleteQueueRequest{Name: "orders"})
	require.NoError(t, err)
	require.Equal(t, uint64(1), deleted.GetMessages())
	_, err = n.queues.GetQueue(ctx, &pb.GetQueueRequest{Name: "orders"})
	require.ErrorIs(t, kind(err), txn.ErrQueueNotFound)

	for i := range 5 {
		n.createQueue(fmt.Sprintf("q/%d", i))
	}
	_, err = n.queues.CreateQueue(ctx, &pb.CreateQueueRequest{Name: "one-too-many"})
	require.ErrorIs(t, kind(err), txn.ErrTooManyQueues)
}

// ListQueues returns the queues with a given prefix, in pages.
func TestListQueues(t *testing.T) { simulated(t, testListQueues) }

func testListQueues(t *testing.T) {
	n := startAlone(t, nil)
	for i := range 7 {
		n.createQueue(fmt.Sprintf("a/%d", i))
	}
	n.createQueue("b")
	var names []string
	token := ""
	for {
		page, err := n.queues.ListQueues(t.Context(),
			&pb.ListQueuesRequest{Prefix: "a/", PageSize: 3, PageToken: token})
		require.NoError(t, err)
		require.LessOrEqual(t, len(page.GetQueues()), 3)
		for _, q := range page.GetQueues() {
			names = append(names, q.GetName())
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	require.Equal(t, []string{"a/0", "a/1", "a/2", "a/3", "a/4", "a/5", "a/6"}, names)
	_, err := n.queues.ListQueues(t.Context(), &pb.ListQueuesRequest{PageToken: "!"})
	require.ErrorIs(t, kind(err), apierror.ErrInvalid)
}

// A subscription starts at the earliest or at the next message. Subscriptions can be created and deleted. A queue
// can be created without a subscription.
func TestSubscriptions(t *testing.T) { simulated(t, testSubscriptions) }

func testSubscriptions(t *testing.T) {
	n := startAlone(t, nil)
	ctx := t.Context()
	n.createQueue("events")
	n.publish("events", "old")
	for name, start := range map[string]pb.StartPosition{
		"late": pb.StartPosition_START_POSITION_UNSPECIFIED, "early": pb.StartPosition_START_POSITION_EARLIEST,
	} {
		resp, err := n.queues.CreateSubscription(ctx,
			&pb.CreateSubscriptionRequest{Queue: "events", Name: name, Start: start})
		require.NoError(t, err)
		require.True(t, resp.GetCreated())
	}
	_, err := n.queues.CreateSubscription(ctx, &pb.CreateSubscriptionRequest{Queue: "events", Name: "late"})
	require.ErrorIs(t, kind(err), txn.ErrSubscriptionExists)
	resp, err := n.queues.CreateSubscription(ctx,
		&pb.CreateSubscriptionRequest{Queue: "events", Name: "late", IfNotExists: true})
	require.NoError(t, err)
	require.False(t, resp.GetCreated())
	_, err = n.queues.CreateSubscription(ctx, &pb.CreateSubscriptionRequest{Queue: "events", Name: "x", Start: 9})
	require.ErrorIs(t, kind(err), apierror.ErrInvalid)

	n.publish("events", "new")
	q, err := n.queues.GetQueue(ctx, &pb.GetQueueRequest{Name: "events"})
	require.NoError(t, err)
	backlog := map[string]uint64{}
	for _, s := range q.GetQueue().GetSubscriptions() {
		backlog[s.GetName()] = s.GetBacklog()
	}
	require.Equal(t, map[string]uint64{"default": 2, "early": 2, "late": 1}, backlog)
	_, err = n.queues.DeleteSubscription(ctx, &pb.DeleteSubscriptionRequest{Queue: "events", Name: "late"})
	require.NoError(t, err)
	_, err = n.queues.DeleteSubscription(ctx, &pb.DeleteSubscriptionRequest{Queue: "events", Name: "late"})
	require.ErrorIs(t, kind(err), txn.ErrSubscriptionNotFound)

	topic, err := n.queues.CreateQueue(ctx, &pb.CreateQueueRequest{Name: "topic", Topic: true})
	require.NoError(t, err)
	require.Empty(t, topic.GetQueue().GetSubscriptions())
	_, err = n.queues.CreateQueue(ctx, &pb.CreateQueueRequest{Name: "t2", Topic: true, Subscriptions: []string{"a"}})
	require.ErrorIs(t, kind(err), apierror.ErrInvalid)
	_, err = n.queues.CreateQueue(ctx, &pb.CreateQueueRequest{Name: "t3", Subscriptions: []string{"a", "a"}})
	require.ErrorIs(t, kind(err), apierror.ErrInvalid)
}

// A queue at its limit of messages or bytes rejects publishes until messages are acknowledged.
func TestQueueLimits(t *testing.T) { simulated(t, testQueueLimits) }

func testQueueLimits(t *testing.T) {
	n := startAlone(t, nil)
	ctx := t.Context()
	_, err := n.queues.CreateQueue(ctx, &pb.CreateQueueRequest{Name: "few", Config: &pb.QueueConfig{MaxMessages: 2}})
	require.NoError(t, err)
	n.publish("few", "1", "2")
	_, err = n.queues.Publish(ctx, &pb.PublishRequest{Queue: "few", Messages: batch("3")})
	require.ErrorIs(t, kind(err), txn.ErrQueueFull)
	c := n.consume("few", 10)
	c.take(2)
	c.confirm(&pb.ConsumeRequest{Ack: span(1, 1), Confirm: 1})
	n.publish("few", "3")

	_, err = n.queues.CreateQueue(ctx, &pb.CreateQueueRequest{Name: "small", Config: &pb.QueueConfig{MaxBytes: 1000}})
	require.NoError(t, err)
	n.publish("small", strings.Repeat("x", 900))
	_, err = n.queues.Publish(ctx, &pb.PublishRequest{Queue: "small", Messages: batch(strings.Repeat("x", 100))})
	require.ErrorIs(t, kind(err), txn.ErrQueueFull)
}

// While the disk is low on space, publishes are rejected. Acknowledgements, and retries of committed requests,
// are accepted.
func TestDiskLow(t *testing.T) { simulated(t, testDiskLow) }

func testDiskLow(t *testing.T) {
	c := settings(t, "alone")
	n := start(t, c)
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	n.createQueue("q")
	retry := &pb.PublishRequest{Queue: "q", Messages: batch("1"), Producer: &pb.Producer{Id: "p", Sequence: 1}}
	_, err := n.queues.Publish(t.Context(), retry)
	require.NoError(t, err)
	n.stop()

	c.Disk.LowWatermark = 1 << 60
	n = start(t, c)
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	_, err = n.queues.Publish(t.Context(), &pb.PublishRequest{Queue: "q", Messages: batch("2")})
	require.ErrorIs(t, kind(err), apierror.ErrDiskLow)
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	_, err = n.queues.Commit(t.Context(), &pb.CommitRequest{Operations: []*pb.Operation{publishOp("q", "2")}})
	require.ErrorIs(t, kind(err), apierror.ErrDiskLow)
	resp, err := n.queues.Publish(t.Context(), retry)
	require.NoError(t, err)
	require.True(t, resp.GetDuplicate())
	consumer := n.consume("q", 1)
	consumer.take(1)
	consumer.confirm(&pb.ConsumeRequest{Ack: span(1, 1), Confirm: 1})
}
