// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-mq/lockstep/amqp/wire"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// next returns the next response without messages. Messages received before it are returned by the next call of
// take.
func (c *consumer) next() *pb.ConsumeResponse {
	c.t.Helper()
	for {
		resp, err := c.stream.Recv()
		require.NoError(c.t, err)
		c.early = append(c.early, resp.GetMessages()...)
		if len(resp.GetMessages()) == 0 {
			return resp
		}
	}
}

// A message that is not acknowledged in time is redelivered to another consumer. The first consumer is notified. Its
// late ack is refused with a reason, but its other acks are applied (INV-22). A failover restarts the deadline. The
// ack_timeout of a subscription overrides that of its queue.
func TestAckDeadline(t *testing.T) { simulated(t, testAckDeadline) }

func testAckDeadline(t *testing.T) {
	active, standby := startPair(t, startEtcd(t))
	require.NoError(t, active.createWith("q", &pb.QueueConfig{AckTimeout: in(time.Hour)}))
	_, err := active.alterSubscription("q", "default", "", &pb.RedeliveryPolicy{AckTimeout: in(10 * time.Second)},
		"redelivery.ack_timeout")
	require.NoError(t, err)
	active.publish("q", "1", "2", "3")
	active.consume("q", 10).take(3)
	active.stop()
	standby.waitFor(pb.Role_ROLE_ACTIVE_ALONE)

	frozen := standby.attach(&pb.Attach{Queue: "q", Subscription: "default"}, 10)
	frozen.take(3)
	frozen.confirm(&pb.ConsumeRequest{Ack: span(2, 2), Confirm: 1})
	delivered := time.Now()
	other := standby.consume("q", 10)
	again := other.take(2)
	require.LessOrEqual(t, time.Since(delivered), 11*time.Second)
	require.Equal(t, []string{"1", "3"}, bodies(again))
	require.EqualValues(t, 1, again[0].GetDeliveryCount())
	require.Equal(t, uint64(2), standby.subscription("q", "default").GetInFlight())
	require.Less(t, standby.subscription("q", "default").GetOldestInFlightAge().AsDuration(), time.Second)

	expired := frozen.next().GetExpired()
	require.Len(t, expired, 2)
	standby.publish("q", "4")
	require.Equal(t, []string{"4"}, bodies(other.take(1)), "a consumer with an expired message received another one")
	other.confirm(&pb.ConsumeRequest{Ack: span(4, 4), Confirm: 1})
	require.NoError(t, frozen.stream.Send(&pb.ConsumeRequest{Ack: span(1, 2), Confirm: 2}))
	refused := frozen.next().GetRefused()
	require.Equal(t, pb.ErrorReason_ERROR_REASON_ACK_DEADLINE_EXPIRED, refused.GetReason())
	require.Len(t, refused.GetSequences(), 1)
	require.EqualValues(t, 1, refused.GetSequences()[0].GetFirst())
	require.EqualValues(t, 2, frozen.next().GetConfirmed())

	// The other consumer extends only its first message. Its second message expires and is redelivered.
	for range 3 {
		time.Sleep(6 * time.Second) //nolint:forbidigo // simulated time
		require.NoError(t, other.stream.Send(&pb.ConsumeRequest{Extend: &pb.Extend{Sequences: span(1, 1)}}))
	}
	require.EqualValues(t, 3, other.next().GetExpired()[0].GetFirst())
	require.Equal(t, []string{"3"}, bodies(frozen.take(1)))
	other.confirm(&pb.ConsumeRequest{Ack: span(1, 1), Confirm: 2})
	frozen.confirm(&pb.ConsumeRequest{Ack: span(3, 3), Confirm: 3})
	require.Zero(t, standby.subscription("q", "default").GetBacklog())
}

// The node reports the effective ack_timeout at the attach and after each change. The effective value is the shorter
// of those of the consumer and the queue. The node rejects invalid values.
func TestAckTimeoutOfConsumer(t *testing.T) { simulated(t, testAckTimeoutOfConsumer) }

func testAckTimeoutOfConsumer(t *testing.T) {
	n := startAlone(t, nil)
	n.createQueue("q")
	attach := func(own time.Duration) (*pb.ConsumeResponse, error) {
		stream, err := n.queues.Consume(t.Context())
		require.NoError(t, err)
		require.NoError(t, stream.Send(&pb.ConsumeRequest{Attach: &pb.Attach{Queue: "q", AckTimeout: durationpb.New(own)}}))
		return stream.Recv()
	}
	var err error
	for _, invalid := range []time.Duration{-time.Second, 999 * time.Millisecond, 25 * time.Hour} {
		_, err = attach(invalid)
		require.Equal(t, codes.InvalidArgument, status.Code(err), invalid)
		err = n.alter("q", &pb.QueueConfig{AckTimeout: durationpb.New(invalid)}, "ack_timeout")
		require.Equal(t, codes.InvalidArgument, status.Code(err), invalid)
	}
	first, err := attach(0)
	require.NoError(t, err)
	require.Nil(t, first.GetAckTimeout())
	c := n.attach(&pb.Attach{Queue: "q"}, 1)
	for _, want := range []time.Duration{time.Minute, 0} {
		require.NoError(t, n.alter("q", &pb.QueueConfig{AckTimeout: in(want)}, "ack_timeout"))
		require.Equal(t, want, c.next().GetAckTimeout().AsDuration())
	}
	require.NoError(t, n.alter("q", &pb.QueueConfig{AckTimeout: in(time.Minute)}, "ack_timeout"))
	for own, want := range map[time.Duration]time.Duration{
		0: time.Minute, time.Second: time.Second, time.Hour: time.Minute,
	} {
		first, err := attach(own)
		require.NoError(t, err)
		require.Equal(t, want, first.GetAckTimeout().AsDuration())
	}
}

// The node settles an expired delivery of an AMQP link with the outcome modified and delivery-failed set. It
// sends further messages after the next frame of the client.
func TestAMQPAckDeadline(t *testing.T) { simulated(t, testAMQPAckDeadline) }

func testAMQPAckDeadline(t *testing.T) {
	n := startAlone(t, withAMQP)
	require.NoError(t, n.createWith("q", &pb.QueueConfig{AckTimeout: in(10 * time.Second)}))
	n.publish("q", "1", "2")
	p := openAMQP(t, n)
	require.Nil(t, p.receiver(0, "r", &wire.Source{Address: "q"}))
	p.credit(0, 10)
	p.receive()
	p.receive()
	d := expect[*wire.Disposition](p)
	require.True(t, d.Settled)
	require.Equal(t, []uint32{0, 1}, []uint32{d.First, d.Last})
	require.Equal(t, &wire.Modified{DeliveryFailed: true}, d.State)
	require.Zero(t, n.subscription("q", "default").GetInFlight())

	p.dispose(0, wire.Accepted{}) // a late outcome has no effect
	require.Equal(t, "1", p.receive().body)
	require.Equal(t, "2", p.receive().body)
	for id := range uint32(2) {
		p.dispose(2+id, wire.Accepted{})
	}
	time.Sleep(time.Second) //nolint:forbidigo // simulated time
	require.Zero(t, n.subscription("q", "default").GetBacklog())
}
