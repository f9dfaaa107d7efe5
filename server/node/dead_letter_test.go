// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/store/txn"
)

func (n *testNode) createWith(name string, c *pb.QueueConfig) error {
	n.t.Helper()
	_, err := n.queues.CreateQueue(n.t.Context(), &pb.CreateQueueRequest{Name: name, Config: c})
	return err
}

// alter changes the named fields of a queue's configuration.
func (n *testNode) alter(name string, c *pb.QueueConfig, fields ...string) error {
	n.t.Helper()
	_, err := n.queues.AlterQueue(n.t.Context(), &pb.AlterQueueRequest{
		Name: name, Config: c, UpdateMask: &fieldmaskpb.FieldMask{Paths: fields},
	})
	return err
}

func (n *testNode) configOf(name string) *pb.QueueConfig {
	n.t.Helper()
	q, err := n.queues.GetQueue(n.t.Context(), &pb.GetQueueRequest{Name: name})
	require.NoError(n.t, err)
	return q.GetQueue().GetConfig()
}

func (n *testNode) browse(name string) []*pb.StoredMessage {
	n.t.Helper()
	stream, err := n.queues.Browse(n.t.Context(), &pb.BrowseRequest{Queue: name})
	require.NoError(n.t, err)
	var all []*pb.StoredMessage
	for {
		resp, err := stream.Recv()
		if err != nil {
			return all
		}
		all = append(all, resp.GetMessages()...)
	}
}

// settle sends a request and waits for its confirmation. It discards messages received in the meantime.
func (c *consumer) settle(req *pb.ConsumeRequest) {
	c.t.Helper()
	req.Confirm = 1
	require.NoError(c.t, c.stream.Send(req))
	for {
		resp, err := c.stream.Recv()
		require.NoError(c.t, err)
		if resp.GetConfirmed() == 1 {
			return
		}
	}
}

// A message that reaches the delivery limit is dead-lettered once, with its origin. The same applies to a rejected
// message. A replay returns both messages to their queue.
func TestDeadLetters(t *testing.T) { simulated(t, testDeadLetters) }

func testDeadLetters(t *testing.T) {
	n := startAlone(t, nil)
	n.createQueue("dead")
	require.NoError(t, n.createWith("orders", &pb.QueueConfig{MaxDeliveries: 2, DeadLetter: "dead"}))
	require.True(t, proto.Equal(&pb.QueueConfig{MaxDeliveries: 2, DeadLetter: "dead"}, n.configOf("orders")))
	_, err := n.queues.Publish(t.Context(), &pb.PublishRequest{Queue: "orders", Messages: []*pb.Message{
		{Body: []byte("poison"), Subject: "s", Properties: map[string]string{"k": "v"}},
		{Body: []byte("bad")},
		{Body: []byte("good")},
	}})
	require.NoError(t, err)
	for range 2 {
		c := n.consume("orders", 1)
		resp, err := c.stream.Recv()
		require.NoError(t, err)
		require.Equal(t, "poison", string(resp.GetMessages()[0].GetMessage().GetBody()))
		c.settle(&pb.ConsumeRequest{Nack: []*pb.SequenceRange{{First: 1, Last: 1}}})
		require.NoError(t, c.stream.CloseSend())
	}
	c := n.consume("orders", 1)
	resp, err := c.stream.Recv()
	require.NoError(t, err)
	require.Equal(t, "bad", string(resp.GetMessages()[0].GetMessage().GetBody()))
	c.settle(&pb.ConsumeRequest{Reject: []*pb.SequenceRange{{First: 2, Last: 2}}})
	require.Eventually(t, func() bool { return len(n.browse("dead")) == 2 }, testTimeout, 5*time.Millisecond)

	from := map[string]*pb.DeadLetter{}
	for _, m := range n.browse("dead") {
		from[string(m.GetMessage().GetBody())] = m.GetDeadLetter()
		require.NotNil(t, m.GetDeadLetter().GetMovedAt())
		m.GetDeadLetter().MovedAt = nil
	}
	require.True(t, proto.Equal(&pb.DeadLetter{
		Queue: "orders", Subscription: "default", Sequence: 1, Deliveries: 2,
		Reason: pb.DeadLetterReason_DEAD_LETTER_REASON_MAX_DELIVERIES,
	}, from["poison"]), "%v", from["poison"])
	require.True(t, proto.Equal(&pb.DeadLetter{
		Queue: "orders", Subscription: "default", Sequence: 2, Deliveries: 1,
		Reason: pb.DeadLetterReason_DEAD_LETTER_REASON_REJECTED,
	}, from["bad"]), "%v", from["bad"])

	require.NoError(t, c.stream.CloseSend())
	replayed, err := n.queues.ReplayDeadLetters(t.Context(), &pb.ReplayDeadLettersRequest{Queue: "dead", Limit: 1})
	require.NoError(t, err)
	require.Equal(t, uint64(1), replayed.GetMoved())
	n.publish("dead", "no dead letter")
	replayed, err = n.queues.ReplayDeadLetters(t.Context(), &pb.ReplayDeadLettersRequest{Queue: "dead"})
	require.NoError(t, err)
	require.Equal(t, []uint64{1, 1}, []uint64{replayed.GetMoved(), replayed.GetSkipped()})
	back := map[string]*pb.StoredMessage{}
	for _, m := range n.browse("orders") {
		require.Nil(t, m.GetDeadLetter())
		require.Zero(t, m.GetDeliveryCount())
		back[string(m.GetMessage().GetBody())] = m
	}
	require.Len(t, back, 3)
	require.Equal(t, "s", back["poison"].GetMessage().GetSubject())
	require.Equal(t, "v", back["poison"].GetMessage().GetProperties()["k"])
	require.Len(t, n.browse("dead"), 1)
	replayed, err = n.queues.ReplayDeadLetters(t.Context(), &pb.ReplayDeadLettersRequest{Queue: "dead", To: "orders"})
	require.NoError(t, err)
	require.Equal(t, uint64(1), replayed.GetMoved(), "with a target queue, other messages are moved, too")
}

// Without a dead-letter queue, rejected messages and messages at the delivery limit are discarded.
func TestDiscardWithoutDeadLetterQueue(t *testing.T) { simulated(t, testDiscardWithoutDeadLetterQueue) }

func testDiscardWithoutDeadLetterQueue(t *testing.T) {
	n := startAlone(t, nil)
	require.NoError(t, n.createWith("orders", &pb.QueueConfig{MaxDeliveries: 1}))
	n.publish("orders", "poison", "bad", "good")
	c := n.consume("orders", 2)
	c.take(2)
	c.settle(&pb.ConsumeRequest{
		Nack: []*pb.SequenceRange{{First: 1, Last: 1}}, Reject: []*pb.SequenceRange{{First: 2, Last: 2}}, Credit: 1,
	})
	require.Eventually(t, func() bool { return len(n.browse("orders")) == 1 }, testTimeout, 5*time.Millisecond)
	require.Equal(t, "good", string(n.browse("orders")[0].GetMessage().GetBody()))
}

// Invalid settings are rejected with a reason, and nothing changes. An update changes only the named fields.
func TestDeadLetterConfig(t *testing.T) { simulated(t, testDeadLetterConfig) }

func testDeadLetterConfig(t *testing.T) {
	n := startAlone(t, nil)
	for _, name := range []string{"a", "b", "c"} {
		require.NoError(t, n.createWith(name, &pb.QueueConfig{MaxMessages: 100}))
	}
	require.NoError(t, n.alter("a", &pb.QueueConfig{DeadLetter: "b", MaxDeliveries: 5}, "dead_letter", "max_deliveries"))
	require.NoError(t, n.alter("b", &pb.QueueConfig{DeadLetter: "c"}, "dead_letter"))
	want := &pb.QueueConfig{MaxMessages: 100, MaxDeliveries: 5, DeadLetter: "b"}
	require.True(t, proto.Equal(want, n.configOf("a")), "%v", n.configOf("a"))
	for name, tc := range map[string]struct {
		err  error
		want error
		text string
	}{
		"cycle":   {n.alter("c", &pb.QueueConfig{DeadLetter: "a"}, "dead_letter"), txn.ErrDeadLetterCycle, "cycle"},
		"itself":  {n.alter("c", &pb.QueueConfig{DeadLetter: "c"}, "dead_letter"), txn.ErrDeadLetterCycle, "cycle"},
		"missing": {n.alter("c", &pb.QueueConfig{DeadLetter: "x"}, "dead_letter"), txn.ErrQueueNotFound, `"x"`},
		"create":  {n.createWith("d", &pb.QueueConfig{DeadLetter: "d"}), txn.ErrQueueNotFound, `"d"`},
		"name":    {n.createWith("d", &pb.QueueConfig{DeadLetter: "x y"}), txn.ErrInvalidName, "only A-Z"},
		"limit":   {n.createWith("d", &pb.QueueConfig{MaxDeliveries: 1_000_001}), apierror.ErrInvalid, "1000000"},
		"field":   {n.alter("c", nil, "max_delivery"), apierror.ErrInvalid, `"max_delivery"`},
	} {
		require.ErrorIs(t, kind(tc.err), tc.want, "%s: %v", name, tc.err)
		require.Contains(t, tc.err.Error(), tc.text, name)
	}
	_, err := n.queues.DeleteQueue(t.Context(), &pb.DeleteQueueRequest{Name: "b"})
	require.ErrorIs(t, kind(err), txn.ErrQueueInUse)
	_, err = n.queues.ReplayDeadLetters(t.Context(), &pb.ReplayDeadLettersRequest{Queue: "b", To: "b"})
	require.ErrorIs(t, kind(err), apierror.ErrInvalid)

	// A client of release 0.1.0 sends no update mask. Its request replaces only the fields that it supports.
	_, err = n.queues.AlterQueue(t.Context(), &pb.AlterQueueRequest{Name: "a", Config: &pb.QueueConfig{MaxBytes: 7}})
	require.NoError(t, err)
	want = &pb.QueueConfig{MaxBytes: 7, MaxDeliveries: 5, DeadLetter: "b"}
	require.True(t, proto.Equal(want, n.configOf("a")), "%v", n.configOf("a"))
	require.NoError(t, n.alter("a", &pb.QueueConfig{}, "*"))
	require.True(t, proto.Equal(&pb.QueueConfig{}, n.configOf("a")))
	_, err = n.queues.DeleteQueue(t.Context(), &pb.DeleteQueueRequest{Name: "b"})
	require.NoError(t, err, "no queue refers to it")
}

// Dead letters that do not fit into the dead-letter queue remain in their queue, and are moved when there is space.
func TestFullDeadLetterQueue(t *testing.T) { simulated(t, testFullDeadLetterQueue) }

func testFullDeadLetterQueue(t *testing.T) {
	n := startAlone(t, nil)
	require.NoError(t, n.createWith("dead", &pb.QueueConfig{MaxMessages: 1}))
	require.NoError(t, n.createWith("orders", &pb.QueueConfig{DeadLetter: "dead"}))
	n.publish("dead", "in the way")
	var bodies []string
	for i := range 3 {
		bodies = append(bodies, fmt.Sprint(i))
	}
	n.publish("orders", bodies...)
	c := n.consume("orders", 3)
	c.take(3)
	require.NoError(t, c.stream.Send(&pb.ConsumeRequest{
		Reject: []*pb.SequenceRange{{First: 2, Last: 2}}, Ack: []*pb.SequenceRange{{First: 1, Last: 1}}, Confirm: 1,
	}))
	require.Eventually(t, func() bool { return len(n.browse("orders")) == 2 }, testTimeout, 5*time.Millisecond,
		"the ack is processed")
	require.Len(t, n.browse("dead"), 1)
	_, err := n.queues.PurgeQueue(t.Context(), &pb.PurgeQueueRequest{Name: "dead"})
	require.NoError(t, err)
	resp, err := c.stream.Recv()
	require.NoError(t, err)
	require.Equal(t, uint64(1), resp.GetConfirmed())
	require.Equal(t, "1", string(n.browse("dead")[0].GetMessage().GetBody()))
}
