// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// hangTimeout is the timeout of polls in these tests. It is exceeded only if the node hangs.
const hangTimeout = time.Minute

// newQueues creates the queue orders and its dead-letter queue, dead.
func (n *testNode) newQueues(dead, source *pb.QueueConfig) {
	n.t.Helper()
	require.NoError(n.t, n.createWith("dead", dead))
	source.DeadLetter = "dead"
	require.NoError(n.t, n.createWith("orders", source))
}

func (n *testNode) publishMany(queue string, count int) {
	n.t.Helper()
	bodies := make([]string, count)
	for i := range bodies {
		bodies[i] = fmt.Sprint(i + 1)
	}
	n.publish(queue, bodies...)
}

func (n *testNode) bodiesIn(queue string) (list []string) {
	for _, m := range n.browse(queue) {
		list = append(list, string(m.GetMessage().GetBody()))
	}
	return list
}

// waitMessages waits until a queue has the given number of messages.
func (n *testNode) waitMessages(queue string, messages int) {
	n.t.Helper()
	require.Eventually(n.t, func() bool { return len(n.browse(queue)) == messages }, hangTimeout, 5*time.Millisecond,
		"%s does not reach %d messages", queue, messages)
}

// consumePending attaches a consumer that supports notifications about pending rejects.
func (n *testNode) consumePending(queue string, credit uint32) *consumer {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), hangTimeout)
	n.t.Cleanup(cancel)
	stream, err := n.queues.Consume(ctx)
	require.NoError(n.t, err)
	require.NoError(n.t, stream.Send(&pb.ConsumeRequest{
		Attach: &pb.Attach{Queue: queue, ReportWaiting: true}, Credit: credit,
	}))
	resp, err := stream.Recv()
	require.NoError(n.t, err)
	require.True(n.t, resp.GetAttached())
	return &consumer{t: n.t, stream: stream}
}

// A dead-letter queue with overflow drop-head accepts all dead letters of a batch and keeps the newest.
func TestRejectsIntoDropHeadQueue(t *testing.T) { simulated(t, testRejectsIntoDropHeadQueue) }

func testRejectsIntoDropHeadQueue(t *testing.T) {
	n := startAlone(t, nil)
	n.newQueues(&pb.QueueConfig{MaxMessages: 100, Overflow: pb.Overflow_OVERFLOW_DROP_HEAD}, &pb.QueueConfig{})
	n.publishMany("orders", 300)
	c := n.consume("orders", 300)
	c.take(300)
	c.settle(&pb.ConsumeRequest{Reject: []*pb.SequenceRange{{First: 1, Last: 300}}})
	require.Empty(t, n.browse("orders"))
	dead := n.bodiesIn("dead")
	require.Len(t, dead, 100)
	require.Equal(t, []string{"201", "300"}, []string{dead[0], dead[99]})
}

// Dead letters are moved oldest first. As many as fit are moved, and the others when there is space.
func TestDeadLettersInBatches(t *testing.T) { simulated(t, testDeadLettersInBatches) }

func testDeadLettersInBatches(t *testing.T) {
	n := startAlone(t, nil)
	n.newQueues(&pb.QueueConfig{MaxMessages: 100}, &pb.QueueConfig{MaxDeliveries: 1})
	n.publishMany("orders", 300)
	c := n.consume("orders", 300)
	c.take(300)
	require.NoError(t, c.stream.Send(&pb.ConsumeRequest{Nack: []*pb.SequenceRange{{First: 1, Last: 300}}}))
	for _, first := range []string{"1", "101", "201"} {
		n.waitMessages("dead", 100)
		require.Equal(t, first, n.bodiesIn("dead")[0])
		_, err := n.queues.PurgeQueue(t.Context(), &pb.PurgeQueueRequest{Name: "dead"})
		require.NoError(t, err)
	}
	n.waitMessages("orders", 0)
}

// A dead letter that is larger than the limit of its dead-letter queue remains pending, but does not block other
// dead letters.
func TestLargeDeadLetterStaysPending(t *testing.T) { simulated(t, testLargeDeadLetterStaysPending) }

func testLargeDeadLetterStaysPending(t *testing.T) {
	n := startAlone(t, nil)
	n.newQueues(&pb.QueueConfig{MaxBytes: 1000}, &pb.QueueConfig{})
	n.publish("orders", string(make([]byte, 2000)), "small")
	c := n.consumePending("orders", 2)
	c.take(2)
	require.NoError(t, c.stream.Send(&pb.ConsumeRequest{Reject: []*pb.SequenceRange{{First: 1, Last: 2}}, Confirm: 1}))
	resp, err := c.stream.Recv()
	require.NoError(t, err)
	require.Len(t, resp.GetWaiting(), 1)
	require.Equal(t, uint64(1), resp.GetWaiting()[0].GetLast())
	resp, err = c.stream.Recv()
	require.NoError(t, err)
	require.Equal(t, uint64(1), resp.GetConfirmed())
	require.Equal(t, []string{"small"}, n.bodiesIn("dead"))
	require.Len(t, n.browse("orders"), 1)
}

// A consumer is notified of its pending rejects, even if it requests no confirmation. It is notified again when they
// are moved.
func TestPendingRejects(t *testing.T) { simulated(t, testPendingRejects) }

func testPendingRejects(t *testing.T) {
	n := startAlone(t, nil)
	n.newQueues(&pb.QueueConfig{MaxMessages: 1}, &pb.QueueConfig{})
	n.publishMany("orders", 3)
	c := n.consumePending("orders", 3)
	c.take(3)
	require.NoError(t, c.stream.Send(&pb.ConsumeRequest{Reject: []*pb.SequenceRange{{First: 1, Last: 3}}}))
	sequences := func(ranges []*pb.SequenceRange) (list []uint64) {
		for _, r := range ranges {
			for s := r.GetFirst(); s <= r.GetLast(); s++ {
				list = append(list, s)
			}
		}
		return list
	}
	resp, err := c.stream.Recv()
	require.NoError(t, err)
	require.Equal(t, []uint64{2, 3}, sequences(resp.GetWaiting()))
	for sequence := uint64(2); sequence <= 3; sequence++ {
		_, err := n.queues.PurgeQueue(t.Context(), &pb.PurgeQueueRequest{Name: "dead"})
		require.NoError(t, err)
		resp, err := c.stream.Recv()
		require.NoError(t, err)
		require.Empty(t, resp.GetWaiting())
		require.Equal(t, []uint64{sequence}, sequences(resp.GetMoved()))
		require.Equal(t, []string{fmt.Sprint(sequence)}, n.bodiesIn("dead"))
	}
}

// All expired messages are moved to a dead-letter queue with overflow drop-head. If the queue rejects messages at
// its limit, as many as fit are moved.
func TestExpiryInBatches(t *testing.T) { simulated(t, testExpiryInBatches) }

func testExpiryInBatches(t *testing.T) {
	n := startAlone(t, nil)
	n.newQueues(&pb.QueueConfig{MaxMessages: 10}, &pb.QueueConfig{
		DeadLetterExpired: true, Ttl: durationpb.New(time.Millisecond),
	})
	n.publishMany("orders", 25)
	n.waitMessages("dead", 10)
	require.Equal(t, "1", n.bodiesIn("dead")[0])
	require.NoError(t, n.alter("dead", &pb.QueueConfig{
		MaxMessages: 10, Overflow: pb.Overflow_OVERFLOW_DROP_HEAD,
	}, "max_messages", "overflow"))
	n.waitMessages("orders", 0)
	require.Equal(t, "16", n.bodiesIn("dead")[0])
}

// The excess messages of a queue are moved to its dead-letter queue, even if they do not fit in one batch.
func TestOverflowInBatches(t *testing.T) { simulated(t, testOverflowInBatches) }

func testOverflowInBatches(t *testing.T) {
	n := startAlone(t, nil)
	n.newQueues(&pb.QueueConfig{MaxMessages: 10}, &pb.QueueConfig{})
	n.publishMany("orders", 25)
	require.NoError(t, n.alter("orders", &pb.QueueConfig{
		MaxMessages: 5, Overflow: pb.Overflow_OVERFLOW_DEAD_LETTER_HEAD,
	}, "max_messages", "overflow"))
	n.waitMessages("dead", 10)
	require.Len(t, n.browse("orders"), 15)
	require.NoError(t, n.alter("dead", &pb.QueueConfig{
		MaxMessages: 10, Overflow: pb.Overflow_OVERFLOW_DROP_HEAD,
	}, "max_messages", "overflow"))
	n.waitMessages("orders", 5)
	require.Len(t, n.browse("dead"), 10)
}

// Messages in flight do not overflow to the dead-letter queue. The oldest of the other messages are moved
// instead.
func TestOverflowKeepsInFlight(t *testing.T) { simulated(t, testOverflowKeepsInFlight) }

func testOverflowKeepsInFlight(t *testing.T) {
	n := startAlone(t, nil)
	n.newQueues(&pb.QueueConfig{}, &pb.QueueConfig{MaxMessages: 5, Overflow: pb.Overflow_OVERFLOW_DEAD_LETTER_HEAD})
	n.publishMany("orders", 3)
	c := n.consume("orders", 3)
	c.take(3)
	n.publish("orders", "4", "5", "6", "7")
	n.publish("orders", "8", "9")
	n.waitMessages("dead", 1)
	require.Equal(t, []string{"4"}, n.bodiesIn("dead"), "the oldest that is not in flight")
	require.Equal(t, []string{"1", "2", "3", "5", "6", "7", "8", "9"}, n.bodiesIn("orders"))
	c.settle(&pb.ConsumeRequest{Ack: []*pb.SequenceRange{{First: 1, Last: 3}}})
	require.Equal(t, []string{"5", "6", "7", "8", "9"}, n.bodiesIn("orders"))
	require.Equal(t, []string{"4"}, n.bodiesIn("dead"))
}

// A replay moves as many dead letters as fit.
func TestReplayInBatches(t *testing.T) { simulated(t, testReplayInBatches) }

func testReplayInBatches(t *testing.T) {
	n := startAlone(t, nil)
	n.newQueues(&pb.QueueConfig{}, &pb.QueueConfig{MaxMessages: 30})
	n.publishMany("orders", 30)
	c := n.consume("orders", 30)
	c.take(30)
	c.settle(&pb.ConsumeRequest{Reject: []*pb.SequenceRange{{First: 1, Last: 30}}})
	require.NoError(t, n.alter("orders", &pb.QueueConfig{MaxMessages: 7}, "max_messages"))
	_, err := n.queues.ReplayDeadLetters(t.Context(), &pb.ReplayDeadLettersRequest{Queue: "dead"})
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	require.Len(t, n.browse("orders"), 7)
	require.Len(t, n.browse("dead"), 23)
}

// A replay and a move skip messages that would expire immediately in their target queue.
func TestReplayKeepsOldMessages(t *testing.T) { simulated(t, testReplayKeepsOldMessages) }

func testReplayKeepsOldMessages(t *testing.T) {
	n := startAlone(t, nil)
	n.newQueues(&pb.QueueConfig{}, &pb.QueueConfig{Ttl: durationpb.New(time.Minute)})
	reject := func(body string) {
		n.publish("orders", body)
		c := n.consume("orders", 1)
		m := c.take(1)[0]
		c.settle(&pb.ConsumeRequest{Reject: []*pb.SequenceRange{{First: m.GetSequence(), Last: m.GetSequence()}}})
	}
	reject("old")
	time.Sleep(time.Minute) //nolint:forbidigo // simulated time
	reject("new")
	r, err := n.queues.ReplayDeadLetters(t.Context(), &pb.ReplayDeadLettersRequest{Queue: "dead"})
	require.NoError(t, err)
	require.Equal(t, []uint64{1, 1}, []uint64{r.GetMoved(), r.GetSkipped()})
	moved, err := n.queues.MoveMessages(t.Context(), &pb.MoveMessagesRequest{
		Queue: "dead", To: "orders", Sequences: []*pb.SequenceRange{{First: 1, Last: 1}},
	})
	require.NoError(t, err)
	require.Equal(t, []uint64{0, 1}, []uint64{moved.GetMoved(), moved.GetSkipped()})
	require.Equal(t, []string{"old"}, n.bodiesIn("dead"))
	require.Equal(t, []string{"new"}, n.bodiesIn("orders"))
}

// A replay moves delayed messages, as MoveMessages does. Messages that a prepared transaction holds are skipped.
func TestReplayDelayed(t *testing.T) { simulated(t, testReplayDelayed) }

func testReplayDelayed(t *testing.T) {
	n := startAlone(t, nil)
	n.newQueues(&pb.QueueConfig{}, &pb.QueueConfig{})
	n.publish("orders", "nacked", "held", "ready")
	c := n.consume("orders", 3)
	c.take(3)
	c.settle(&pb.ConsumeRequest{Reject: span(1, 3)})
	c = n.consume("dead", 3)
	c.take(3)
	c.settle(&pb.ConsumeRequest{Nack: span(1, 3), NackDelay: durationpb.New(time.Hour)})
	require.NoError(t, c.stream.CloseSend())
	require.NoError(t, n.prepare("x", acksOp("dead", 2, 2)))
	_, err := n.queues.Publish(t.Context(), &pb.PublishRequest{Queue: "dead", Messages: []*pb.Message{
		{Body: []byte("later"), Delay: durationpb.New(time.Hour)},
	}})
	require.NoError(t, err)
	r, err := n.queues.ReplayDeadLetters(t.Context(), &pb.ReplayDeadLettersRequest{Queue: "dead"})
	require.NoError(t, err)
	require.Equal(t, []uint64{2, 2}, []uint64{r.GetMoved(), r.GetSkipped()})
	require.Equal(t, []string{"nacked", "ready"}, n.bodiesIn("orders"))
	r, err = n.queues.ReplayDeadLetters(t.Context(), &pb.ReplayDeadLettersRequest{Queue: "dead", To: "orders"})
	require.NoError(t, err)
	require.Equal(t, []uint64{1, 1}, []uint64{r.GetMoved(), r.GetSkipped()})
	back := n.browse("orders")
	require.Equal(t, []string{"nacked", "ready", "later"}, bodies(back))
	require.NotNil(t, back[2].GetMessage().GetDeliverAt())
	require.NoError(t, n.rollbackPrepared("x"))
	require.Equal(t, []string{"held"}, n.bodiesIn("dead"))
}

// A consumer is notified of a pending reject even if it requests no confirmation.
func TestRejectWithoutConfirm(t *testing.T) { simulated(t, testRejectWithoutConfirm) }

func testRejectWithoutConfirm(t *testing.T) {
	n := startAlone(t, nil)
	n.newQueues(&pb.QueueConfig{MaxMessages: 1}, &pb.QueueConfig{})
	n.publish("dead", "full")
	n.publish("orders", "1")
	c := n.consumePending("orders", 1)
	c.take(1)
	require.NoError(t, c.stream.Send(&pb.ConsumeRequest{Reject: span(1, 1)}))
	resp, err := c.stream.Recv()
	require.NoError(t, err)
	require.Len(t, resp.GetWaiting(), 1)
	require.Equal(t, uint64(1), resp.GetWaiting()[0].GetFirst())
	require.Zero(t, resp.GetConfirmed())
}
