// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/delivery/filter"
)

// subscribe creates a subscription with a filter.
func (n *testNode) subscribe(queue, name, filter string) error {
	n.t.Helper()
	_, err := n.queues.CreateSubscription(n.t.Context(), &pb.CreateSubscriptionRequest{
		Queue: queue, Name: name, Filter: filter, Start: pb.StartPosition_START_POSITION_EARLIEST,
	})
	return err
}

func (n *testNode) subscription(queue, name string) *pb.Subscription {
	n.t.Helper()
	q, err := n.queues.GetQueue(n.t.Context(), &pb.GetQueueRequest{Name: queue})
	require.NoError(n.t, err)
	for _, s := range q.GetQueue().GetSubscriptions() {
		if s.GetName() == name {
			return s
		}
	}
	require.Fail(n.t, "no subscription "+name)
	return nil
}

// attach starts a consumer with the given attach request and credit.
func (n *testNode) attach(a *pb.Attach, credit uint32) *consumer {
	n.t.Helper()
	ctx, cancel := context.WithCancel(n.t.Context())
	n.t.Cleanup(cancel)
	stream, err := n.queues.Consume(ctx)
	require.NoError(n.t, err)
	require.NoError(n.t, stream.Send(&pb.ConsumeRequest{Attach: a, Credit: credit}))
	resp, err := stream.Recv()
	require.NoError(n.t, err)
	require.True(n.t, resp.GetAttached())
	return &consumer{t: n.t, stream: stream}
}

// publishRegions publishes messages. Every tenth message has the region "eu".
func (n *testNode) publishRegions(queue string, count int) {
	n.t.Helper()
	var messages []*pb.Message
	for i := range count {
		region := "us"
		if i%10 == 3 {
			region = "eu"
		}
		messages = append(messages, &pb.Message{
			Body: fmt.Appendf(nil, "%s %d", region, i), Properties: map[string]string{"region": region},
			TypedProperties: map[string]*pb.PropertyValue{
				"number": {Kind: &pb.PropertyValue_IntValue{IntValue: int64(i)}},
			},
		})
	}
	_, err := n.queues.Publish(n.t.Context(), &pb.PublishRequest{Queue: queue, Messages: messages})
	require.NoError(n.t, err)
}

// A filtered subscription receives the matching messages. The other messages are acknowledged for this
// subscription only. The filter survives a failover and a restart.
func TestFilteredSubscription(t *testing.T) { simulated(t, testFilteredSubscription) }

func testFilteredSubscription(t *testing.T) {
	active, standby := startPair(t, startEtcd(t))
	active.createQueue("orders")
	const expr = `properties.region == "eu" && properties.number < 150`
	require.NoError(t, active.subscribe("orders", "eu", expr))
	require.Equal(t, expr, active.subscription("orders", "eu").GetFilter())
	require.Empty(t, active.subscription("orders", "default").GetFilter())

	active.publishRegions("orders", 100)
	require.Equal(t, uint64(100), active.subscription("orders", "eu").GetBacklog(), "an upper bound")
	c := active.attach(&pb.Attach{Queue: "orders", Subscription: "eu"}, 5)
	first := c.take(5)
	for i, m := range first {
		require.Equal(t, fmt.Sprintf("eu %d", i*10+3), string(m.GetMessage().GetBody()))
	}
	c.settle(&pb.ConsumeRequest{Ack: []*pb.SequenceRange{{First: first[0].GetSequence(), Last: first[3].GetSequence()}}})
	require.Eventually(t, func() bool { return active.subscription("orders", "eu").GetBacklog() <= 60 }, testTimeout,
		5*time.Millisecond)

	active.stop()
	standby.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	require.Equal(t, expr, standby.subscription("orders", "eu").GetFilter())
	standby.publishRegions("orders", 200)
	c = standby.attach(&pb.Attach{Queue: "orders", Subscription: "eu"}, 100)
	rest := c.take(6 + 15)
	require.Equal(t, first[4].GetSequence(), rest[0].GetSequence(), "the first unacknowledged message")
	for _, m := range rest {
		require.True(t, strings.HasPrefix(string(m.GetMessage().GetBody()), "eu "))
	}
	c.settle(&pb.ConsumeRequest{
		Ack: []*pb.SequenceRange{{First: 1, Last: rest[len(rest)-1].GetSequence()}},
	})
	require.Eventually(t, func() bool { return standby.subscription("orders", "eu").GetBacklog() == 0 }, testTimeout,
		5*time.Millisecond)
	require.Equal(t, uint64(300), standby.subscription("orders", "default").GetBacklog())
}

// An invalid filter is rejected with a reason and a position, and nothing is created.
func TestInvalidFilters(t *testing.T) { simulated(t, testInvalidFilters) }

func testInvalidFilters(t *testing.T) {
	n := startAlone(t, nil)
	n.createQueue("q")
	for name, c := range map[string]struct{ filter, text string }{
		"syntax":     {`properties.region =`, "1:19:"},
		"unknown":    {`properties.a == "b" && body == "x"`, "'body'"},
		"not a bool": {`size + 1`, "int, must"},
		"too long":   {`subject != "` + strings.Repeat("x", filter.MaxBytes) + `"`, "4096"},
		"too large":  {`properties.all(a, properties.all(b, a != b))`, "nesting limit"},
		"costly":     {`properties.all(k, properties[k].matches("a.*b") && properties[k].matches("c"))`, "estimated cost"},
		"blank":      {"  ", "omit"},
	} {
		err := n.subscribe("q", "s", c.filter)
		require.ErrorIs(t, kind(err), filter.ErrInvalid, name)
		require.Contains(t, err.Error(), c.text, name)
		require.Equal(t, codes.InvalidArgument, status.Code(err), name)
	}
	q, err := n.queues.GetQueue(t.Context(), &pb.GetQueueRequest{Name: "q"})
	require.NoError(t, err)
	require.Len(t, q.GetQueue().GetSubscriptions(), 1)
}

// A consumer with a filter receives the matching messages. Other messages remain for other consumers. Messages
// without a matching consumer remain in the queue, even after a failover.
func TestFilteredConsumers(t *testing.T) { simulated(t, testFilteredConsumers) }

func testFilteredConsumers(t *testing.T) {
	active, standby := startPair(t, startEtcd(t))
	active.createQueue("orders")
	active.publishRegions("orders", 100)
	eu := active.attach(&pb.Attach{Queue: "orders", Filter: `properties.region == "eu"`}, 100)
	first := eu.take(10)
	for i, m := range first {
		require.Equal(t, fmt.Sprintf("eu %d", i*10+3), string(m.GetMessage().GetBody()))
	}
	require.Equal(t, uint64(100), active.subscription("orders", "default").GetBacklog(), "the others stay")
	us := active.attach(&pb.Attach{Queue: "orders", Filter: `properties.region == "us" && properties.number < 50`}, 1000)
	for i, m := range us.take(45) {
		require.True(t, strings.HasPrefix(string(m.GetMessage().GetBody()), "us "))
		require.Zero(t, m.GetDeliveryCount(), i)
	}
	eu.settle(&pb.ConsumeRequest{Ack: []*pb.SequenceRange{{First: first[0].GetSequence(), Last: first[0].GetSequence()}}})
	all := active.attach(&pb.Attach{Queue: "orders"}, 1000)
	require.Len(t, all.take(45), 45, "messages that match neither filter")

	active.stop()
	standby.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	eu = standby.attach(&pb.Attach{Queue: "orders", Filter: `properties.region == "eu"`}, 100)
	require.Equal(t, first[1].GetSequence(), eu.take(9)[0].GetSequence())
	standby.publishRegions("orders", 10)
	require.Equal(t, "eu 3", string(eu.take(1)[0].GetMessage().GetBody()))

	stream, err := standby.queues.Consume(t.Context())
	require.NoError(t, err)
	require.NoError(t, stream.Send(&pb.ConsumeRequest{Attach: &pb.Attach{Queue: "orders", Filter: `nonsense`}}))
	_, err = stream.Recv()
	require.ErrorIs(t, kind(err), filter.ErrInvalid)
}
