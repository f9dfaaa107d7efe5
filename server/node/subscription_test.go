// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/delivery/filter"
	"github.com/lockstep-mq/lockstep/store/txn"
)

func (n *testNode) subscribeWith(queue, name string, p *pb.RedeliveryPolicy) error {
	n.t.Helper()
	_, err := n.queues.CreateSubscription(n.t.Context(), &pb.CreateSubscriptionRequest{
		Queue: queue, Name: name, Redelivery: p,
	})
	return err
}

func (n *testNode) alterSubscription(
	queue, name, filter string, p *pb.RedeliveryPolicy, mask ...string,
) (*pb.Subscription, error) {
	n.t.Helper()
	resp, err := n.queues.AlterSubscription(n.t.Context(), &pb.AlterSubscriptionRequest{
		Queue: queue, Name: name, Filter: filter, Redelivery: p, UpdateMask: &fieldmaskpb.FieldMask{Paths: mask},
	})
	return resp.GetSubscription(), err
}

// The policy of a subscription overrides the delivery limit, the dead-letter queue (also for expired messages) and
// the redelivery delay of its queue. Fields that the policy does not set have the values of the queue. The policy
// survives a failover.
func TestSubscriptionPolicy(t *testing.T) { simulated(t, testSubscriptionPolicy) }

func testSubscriptionPolicy(t *testing.T) {
	active, standby := startPair(t, startEtcd(t))
	for _, name := range []string{"dead", "own.dead"} {
		active.createQueue(name)
	}
	require.NoError(t, active.createWith("q", &pb.QueueConfig{
		MaxDeliveries: 9, DeadLetter: "dead", DeadLetterExpired: true, RedeliveryDelay: in(time.Hour),
	}))
	own := &pb.RedeliveryPolicy{
		MaxDeliveries: proto.Uint32(2), DeadLetter: proto.String("own.dead"), RedeliveryDelay: durationpb.New(0),
	}
	require.NoError(t, active.subscribeWith("q", "strict", own))
	require.True(t, proto.Equal(own, active.subscription("q", "strict").GetRedelivery()))
	require.Nil(t, active.subscription("q", "default").GetRedelivery())
	active.publish("q", "poison")

	nack := func(n *testNode, deliveries uint32) {
		t.Helper()
		c := n.attach(&pb.Attach{Queue: "q", Subscription: "strict"}, 1)
		m := c.take(1)[0]
		require.Equal(t, "poison", string(m.GetMessage().GetBody()))
		require.Equal(t, deliveries, m.GetDeliveryCount())
		c.settle(&pb.ConsumeRequest{Nack: span(1, 1)})
		require.NoError(t, c.stream.CloseSend())
	}
	nack(active, 0)
	active.stop()
	standby.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	require.True(t, proto.Equal(own, standby.subscription("q", "strict").GetRedelivery()))
	nack(standby, 1)
	require.Eventually(t, func() bool { return len(standby.browse("own.dead")) == 1 }, testTimeout, 5*time.Millisecond)
	letter := standby.browse("own.dead")[0].GetDeadLetter()
	require.Equal(t, "strict", letter.GetSubscription())
	require.Equal(t, pb.DeadLetterReason_DEAD_LETTER_REASON_MAX_DELIVERIES, letter.GetReason())
	require.Equal(t, uint64(1), standby.subscription("q", "default").GetBacklog(), "the other one is not affected")

	// An expired message is moved to the dead-letter queue of each subscription.
	standby.publishAll("q", &pb.Message{Body: []byte("late"), Ttl: in(time.Millisecond)})
	require.Eventually(t, func() bool { return len(standby.browse("own.dead")) == 2 && len(standby.browse("dead")) == 1 },
		testTimeout, 5*time.Millisecond)

	// A queue cannot be deleted while it is the dead-letter queue of a subscription.
	_, err := standby.queues.DeleteQueue(t.Context(), &pb.DeleteQueueRequest{Name: "own.dead"})
	require.ErrorIs(t, kind(err), txn.ErrQueueInUse)
	s, err := standby.alterSubscription("q", "strict", "", &pb.RedeliveryPolicy{MaxDeliveries: proto.Uint32(0)},
		"redelivery.dead_letter", "redelivery.max_deliveries")
	require.NoError(t, err)
	require.True(t, proto.Equal(&pb.RedeliveryPolicy{
		MaxDeliveries: proto.Uint32(0), RedeliveryDelay: durationpb.New(0),
	}, s.GetRedelivery()), "%v", s.GetRedelivery())
	_, err = standby.queues.DeleteQueue(t.Context(), &pb.DeleteQueueRequest{Name: "own.dead"})
	require.NoError(t, err)
}

// An altered filter applies to later publishes, including those to attached consumers. Messages that did not match
// the previous filter are not delivered later.
func TestAlterFilter(t *testing.T) { simulated(t, testAlterFilter) }

func testAlterFilter(t *testing.T) {
	n := startAlone(t, nil)
	n.createQueue("orders")
	require.NoError(t, n.subscribe("orders", "s", `properties.region == "eu"`))
	n.publishRegions("orders", 10)
	c := n.attach(&pb.Attach{Queue: "orders", Subscription: "s"}, 100)
	require.Equal(t, []string{"eu 3"}, bodies(c.take(1)))
	c.settle(&pb.ConsumeRequest{Ack: span(4, 4)})
	require.Eventually(t, func() bool { return n.subscription("orders", "s").GetBacklog() == 0 }, testTimeout,
		5*time.Millisecond)

	s, err := n.alterSubscription("orders", "s", `properties.number == 5`, nil, "filter")
	require.NoError(t, err)
	require.Equal(t, `properties.number == 5`, s.GetFilter())
	n.publishRegions("orders", 10)
	require.Equal(t, []string{"us 5"}, bodies(c.take(1)))

	_, err = n.alterSubscription("orders", "s", "", nil, "filter")
	require.NoError(t, err)
	n.publish("orders", "anything")
	require.Equal(t, []string{"anything"}, bodies(c.take(1)))
	require.Empty(t, n.subscription("orders", "s").GetFilter())
}

// An invalid policy is rejected with a reason, and nothing is changed.
func TestInvalidSubscriptionPolicies(t *testing.T) { simulated(t, testInvalidSubscriptionPolicies) }

func testInvalidSubscriptionPolicies(t *testing.T) {
	n := startAlone(t, nil)
	n.createQueue("end")
	require.NoError(t, n.createWith("middle", &pb.QueueConfig{}))
	require.NoError(t, n.createWith("q", &pb.QueueConfig{DeadLetter: "middle"}))
	require.NoError(t, n.subscribeWith("middle", "on", &pb.RedeliveryPolicy{DeadLetter: proto.String("end")}))
	for name, c := range map[string]struct {
		policy *pb.RedeliveryPolicy
		filter string
		mask   []string
		is     error
		text   string
	}{
		"empty mask":         {is: apierror.ErrInvalid, text: "empty update_mask"},
		"unknown field":      {mask: []string{"name"}, is: apierror.ErrInvalid, text: `"name"`},
		"field of the queue": {mask: []string{"redelivery.ttl"}, is: apierror.ErrInvalid, text: "redelivery.ttl"},
		"unknown queue": {
			&pb.RedeliveryPolicy{DeadLetter: proto.String("none")}, "",
			[]string{"redelivery"},
			txn.ErrQueueNotFound,
			`"none"`,
		},
		"itself": {
			&pb.RedeliveryPolicy{DeadLetter: proto.String("end")}, "", []string{"*"}, txn.ErrDeadLetterCycle, "",
		},
		"cycle through a subscription": {
			&pb.RedeliveryPolicy{DeadLetter: proto.String("q")}, "",
			[]string{"redelivery.dead_letter"},
			txn.ErrDeadLetterCycle, "",
		},
		"delivery limit": {
			&pb.RedeliveryPolicy{MaxDeliveries: proto.Uint32(1_000_001)}, "",
			[]string{"redelivery"},
			apierror.ErrInvalid,
			"1000000",
		},
		"negative delay": {
			&pb.RedeliveryPolicy{RedeliveryDelay: durationpb.New(-time.Second)}, "",
			[]string{"redelivery"},
			apierror.ErrInvalid,
			"redelivery_delay",
		},
		"multiplier below 1": {
			&pb.RedeliveryPolicy{RedeliveryMultiplier: proto.Float64(0.5)}, "",
			[]string{"redelivery"},
			apierror.ErrInvalid,
			"redelivery_multiplier",
		},
		"filter": {nil, "size +", []string{"filter"}, filter.ErrInvalid, "1:7"},
	} {
		_, err := n.alterSubscription("end", "default", c.filter, c.policy, c.mask...)
		require.ErrorIs(t, kind(err), c.is, name)
		require.Contains(t, err.Error(), c.text, name)
		if c.policy != nil {
			require.ErrorIs(t, kind(n.subscribeWith("end", "new", c.policy)), c.is, name)
		}
	}
	_, err := n.alterSubscription("end", "none", "", nil, "filter")
	require.ErrorIs(t, kind(err), txn.ErrSubscriptionNotFound)
	require.Len(t, n.queue("end").GetSubscriptions(), 1)
	require.Nil(t, n.subscription("end", "default").GetRedelivery())
	require.ErrorIs(t, kind(n.alter("end", &pb.QueueConfig{DeadLetter: "q"}, "dead_letter")), txn.ErrDeadLetterCycle)
}

// The status of an exclusive queue contains its active consumer and the time at which that consumer became
// active.
func TestActiveConsumer(t *testing.T) { simulated(t, testActiveConsumer) }

func testActiveConsumer(t *testing.T) {
	n := startAlone(t, nil)
	require.NoError(t, n.createWith("q", &pb.QueueConfig{Exclusive: true}))
	require.Nil(t, n.subscription("q", "default").GetActiveConsumer())
	begin := time.Now()
	first := n.attach(&pb.Attach{Queue: "q"}, 1)
	n.attach(&pb.Attach{Queue: "q"}, 1)
	active := n.subscription("q", "default").GetActiveConsumer()
	require.Contains(t, active.GetAddress(), "127.0.0.1:")
	require.WithinRange(t, active.GetSince().AsTime(), begin.Add(-time.Second), time.Now())
	require.EqualValues(t, 2, n.subscription("q", "default").GetConsumers())
	require.NoError(t, first.stream.CloseSend())
	require.Eventually(t, func() bool {
		next := n.subscription("q", "default").GetActiveConsumer()
		return next != nil && next.GetSince().AsTime().After(active.GetSince().AsTime())
	}, testTimeout, 5*time.Millisecond)

	require.NoError(t, n.alter("q", &pb.QueueConfig{}, "exclusive"))
	require.Nil(t, n.subscription("q", "default").GetActiveConsumer())
}
