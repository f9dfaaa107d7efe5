// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/store/txn"
)

func (n *testNode) seek(req *pb.SeekSubscriptionRequest) (*pb.SeekSubscriptionResponse, error) {
	n.t.Helper()
	return n.queues.SeekSubscription(n.t.Context(), req)
}

// seekTo seeks a subscription and returns its new position and backlog.
func (n *testNode) seekTo(req *pb.SeekSubscriptionRequest) (sequence, backlog uint64) {
	n.t.Helper()
	resp, err := n.seek(req)
	require.NoError(n.t, err)
	return resp.GetSequence(), resp.GetBacklog()
}

func toSequence(queue string, sequence uint64) *pb.SeekSubscriptionRequest {
	return &pb.SeekSubscriptionRequest{Queue: queue, To: &pb.SeekSubscriptionRequest_Sequence{Sequence: sequence}}
}

func toPosition(queue string, p pb.StartPosition) *pb.SeekSubscriptionRequest {
	return &pb.SeekSubscriptionRequest{Queue: queue, To: &pb.SeekSubscriptionRequest_Position{Position: p}}
}

func toTime(queue string, t time.Time) *pb.SeekSubscriptionRequest {
	return &pb.SeekSubscriptionRequest{
		Queue: queue, To: &pb.SeekSubscriptionRequest_Time{Time: timestamppb.New(t)},
	}
}

// A queue with retention can be read again from each kind of position, even by new subscriptions.
func TestSeek(t *testing.T) { simulated(t, testSeek) }

func testSeek(t *testing.T) {
	n := startAlone(t, nil)
	require.NoError(t, n.createWith("log", &pb.QueueConfig{RetentionMessages: 1000}))
	n.publish("log", "1", "2", "3")
	before := time.Now().UnixMilli()
	require.Eventually(t, func() bool { return time.Now().UnixMilli() > before }, testTimeout, time.Millisecond)
	middle := time.Now()
	n.publish("log", "4", "5")
	c := n.consume("log", 100)
	c.take(5)
	c.confirm(&pb.ConsumeRequest{Ack: span(1, 5), Confirm: 1})
	require.Len(t, n.browse("log"), 5, "retained messages can be browsed")

	sequence, backlog := n.seekTo(toPosition("log", pb.StartPosition_START_POSITION_EARLIEST))
	require.Equal(t, []uint64{1, 5}, []uint64{sequence, backlog})
	_, err := c.stream.Recv()
	require.ErrorIs(t, kind(err), dispatch.ErrMoved)
	require.Equal(t, codes.Unavailable, status.Code(err))
	c = n.consume("log", 100)
	messages := c.take(5)
	require.Equal(t, []string{"1", "2", "3", "4", "5"}, bodies(messages))
	require.Zero(t, messages[0].GetDeliveryCount())
	c.confirm(&pb.ConsumeRequest{Ack: span(1, 5), Confirm: 1})

	sequence, backlog = n.seekTo(toTime("log", middle))
	require.Equal(t, []uint64{4, 2}, []uint64{sequence, backlog})
	require.Equal(t, []string{"4", "5"}, bodies(n.consume("log", 100).take(2)))
	sequence, backlog = n.seekTo(toSequence("log", 3))
	require.Equal(t, []uint64{3, 3}, []uint64{sequence, backlog})
	sequence, backlog = n.seekTo(toTime("log", time.Now()))
	require.Equal(t, []uint64{6, 0}, []uint64{sequence, backlog}, "all messages are older")
	n.seekTo(toPosition("log", pb.StartPosition_START_POSITION_LATEST))
	n.publish("log", "6")
	require.Equal(t, []string{"6"}, bodies(n.consume("log", 100).take(1)))

	for name, tc := range map[string]struct {
		req  *pb.CreateSubscriptionRequest
		want uint64
	}{
		"sequence": {&pb.CreateSubscriptionRequest{StartSequence: 2}, 5},
		"end":      {&pb.CreateSubscriptionRequest{StartSequence: 7}, 0},
		"time":     {&pb.CreateSubscriptionRequest{StartTime: timestamppb.New(middle)}, 3},
		"earliest": {&pb.CreateSubscriptionRequest{Start: pb.StartPosition_START_POSITION_EARLIEST}, 6},
	} {
		tc.req.Queue, tc.req.Name = "log", name
		resp, err := n.queues.CreateSubscription(t.Context(), tc.req)
		require.NoError(t, err, name)
		require.Equal(t, tc.want, resp.GetSubscription().GetBacklog(), name)
	}
}

// A retried seek returns the original result and does not move the subscription.
func TestSeekIsIdempotent(t *testing.T) { simulated(t, testSeekIsIdempotent) }

func testSeekIsIdempotent(t *testing.T) {
	n := startAlone(t, nil)
	require.NoError(t, n.createWith("log", &pb.QueueConfig{RetentionAge: durationpb.New(time.Hour)}))
	n.publish("log", "1", "2", "3")
	req := toPosition("log", pb.StartPosition_START_POSITION_LATEST)
	req.Producer = &pb.Producer{Id: "admin", Sequence: 1}
	first, err := n.seek(req)
	require.NoError(t, err)
	require.Equal(t, uint64(4), first.GetSequence())
	n.publish("log", "4")
	req.Producer.Retry = true
	again, err := n.seek(req)
	require.NoError(t, err)
	require.Equal(t, first.GetSequence(), again.GetSequence())
	require.Equal(t, []string{"4"}, bodies(n.consume("log", 100).take(1)), "later messages are included")
	create := &pb.CreateSubscriptionRequest{
		Queue: "log", Name: "s", StartTime: timestamppb.New(time.Now()),
		Producer: &pb.Producer{Id: "admin", Sequence: 2},
	}
	for range 2 {
		_, err = n.queues.CreateSubscription(t.Context(), create)
		require.NoError(t, err)
		n.publish("log", "5")
		create.Producer.Retry = true
	}
}

// An invalid position is rejected with a reason, and nothing is changed.
func TestInvalidPositions(t *testing.T) { simulated(t, testInvalidPositions) }

func testInvalidPositions(t *testing.T) {
	n := startAlone(t, nil)
	require.NoError(t, n.createWith("log", &pb.QueueConfig{RetentionMessages: 10}))
	n.publish("log", "1", "2", "3")
	future := time.Now().Add(time.Hour)
	noTime := &timestamppb.Timestamp{Nanos: -1}
	create := func(change func(*pb.CreateSubscriptionRequest)) error {
		req := &pb.CreateSubscriptionRequest{Queue: "log", Name: "s"}
		change(req)
		_, err := n.queues.CreateSubscription(t.Context(), req)
		return err
	}
	seek := func(req *pb.SeekSubscriptionRequest) error {
		_, err := n.seek(req)
		return err
	}
	missing := toSequence("log", 1)
	missing.Subscription = "x"
	for name, tc := range map[string]struct {
		err, want error
		text      string
	}{
		"missing position":     {seek(&pb.SeekSubscriptionRequest{Queue: "log"}), apierror.ErrInvalid, "missing position"},
		"unspecified position": {seek(toPosition("log", 0)), apierror.ErrInvalid, "EARLIEST or LATEST"},
		"unknown position":     {seek(toPosition("log", 77)), apierror.ErrInvalid, "77"},
		"sequence 0":           {seek(toSequence("log", 0)), apierror.ErrInvalid, "at least 1"},
		"beyond the end":       {seek(toSequence("log", 5)), txn.ErrBeyondEnd, "is 4"},
		"far beyond the end":   {seek(toSequence("log", 1<<63)), txn.ErrBeyondEnd, "is 4"},
		"future":               {seek(toTime("log", future)), apierror.ErrInvalid, "future"},
		"unknown queue":        {seek(toSequence("x", 1)), txn.ErrQueueNotFound, `"x"`},
		"invalid queue name":   {seek(toSequence("x y", 1)), txn.ErrInvalidName, "only A-Z"},
		"unknown subscription": {seek(missing), txn.ErrSubscriptionNotFound, `"x"`},
		"invalid time": {
			seek(&pb.SeekSubscriptionRequest{Queue: "log", To: &pb.SeekSubscriptionRequest_Time{Time: noTime}}),
			apierror.ErrInvalid, "time",
		},
		"start beyond": {
			create(func(r *pb.CreateSubscriptionRequest) { r.StartSequence = 5 }), txn.ErrBeyondEnd, "next sequence",
		},
		"start in the future": {
			create(func(r *pb.CreateSubscriptionRequest) { r.StartTime = timestamppb.New(future) }), apierror.ErrInvalid,
			"future",
		},
		"two starts": {
			create(func(r *pb.CreateSubscriptionRequest) {
				r.StartSequence, r.Start = 1, pb.StartPosition_START_POSITION_LATEST
			}), apierror.ErrInvalid, "only one",
		},
		"three starts": {
			create(func(r *pb.CreateSubscriptionRequest) {
				r.StartSequence, r.StartTime = 1, timestamppb.New(future)
			}), apierror.ErrInvalid, "only one",
		},
		"overflow without a target": {
			n.createWith("q", &pb.QueueConfig{Overflow: pb.Overflow_OVERFLOW_DEAD_LETTER_HEAD}), txn.ErrNoDeadLetter,
			"dead-letter queue",
		},
		"overflow altered": {
			n.alter("log", &pb.QueueConfig{Overflow: pb.Overflow_OVERFLOW_DEAD_LETTER_HEAD}, "overflow"),
			txn.ErrNoDeadLetter, "dead-letter queue",
		},
	} {
		require.ErrorIs(t, kind(tc.err), tc.want, "%s: %v", name, tc.err)
		notFound := errors.Is(tc.want, txn.ErrQueueNotFound) || errors.Is(tc.want, txn.ErrSubscriptionNotFound)
		require.Equal(t, notFound, status.Code(tc.err) == codes.NotFound, name)
		require.Contains(t, tc.err.Error(), tc.text, name)
	}
	q, err := n.queues.GetQueue(t.Context(), &pb.GetQueueRequest{Name: "log"})
	require.NoError(t, err)
	require.Len(t, q.GetQueue().GetSubscriptions(), 1)
	require.Equal(t, uint64(3), q.GetQueue().GetSubscriptions()[0].GetBacklog())
	require.Equal(t, pb.Overflow_OVERFLOW_UNSPECIFIED, q.GetQueue().GetConfig().GetOverflow())
}

// A full queue with overflow drop-head accepts new messages and discards the oldest messages.
func TestDropHead(t *testing.T) { simulated(t, testDropHead) }

func testDropHead(t *testing.T) {
	n := startAlone(t, nil)
	require.NoError(t, n.createWith("q", &pb.QueueConfig{MaxMessages: 3, Overflow: pb.Overflow_OVERFLOW_DROP_HEAD}))
	for i := range 10 {
		n.publish("q", fmt.Sprint(i))
	}
	_, err := n.queues.Publish(t.Context(), &pb.PublishRequest{
		Queue: "q", Messages: batch(strings.Split("a b c d", " ")...),
	})
	require.ErrorIs(t, kind(err), txn.ErrQueueFull, "more than an empty queue holds")
	require.Equal(t, []string{"7", "8", "9"}, bodies(n.consume("q", 10).take(3)))
}

// stored returns the number of messages in a queue.
func (n *testNode) stored(queue string) uint64 {
	n.t.Helper()
	q, err := n.queues.GetQueue(n.t.Context(), &pb.GetQueueRequest{Name: queue})
	require.NoError(n.t, err)
	return q.GetQueue().GetMessages()
}

// drain acknowledges all messages of a queue. messages is their number.
func (n *testNode) drain(queue string, messages int) {
	n.t.Helper()
	c := n.consume(queue, uint32(messages))
	taken := c.take(messages)
	c.confirm(&pb.ConsumeRequest{
		Ack: span(taken[0].GetSequence(), taken[messages-1].GetSequence()), Confirm: 1,
	})
	require.NoError(n.t, c.stream.CloseSend())
}

// The number, the bytes or the age of messages limits which acknowledged messages are retained. A message that a
// subscription has not acknowledged is never removed.
func TestRetention(t *testing.T) { simulated(t, testRetention) }

func testRetention(t *testing.T) {
	n := startAlone(t, nil)
	hundred := make([]string, 100)
	for i := range hundred {
		hundred[i] = fmt.Sprintf("%03d", i)
	}
	for name, c := range map[string]*pb.QueueConfig{
		"messages": {RetentionMessages: 30},
		"bytes":    {RetentionBytes: 30 * 16},
		"both":     {RetentionMessages: 30, RetentionBytes: 1 << 20, RetentionAge: durationpb.New(time.Hour)},
	} {
		require.NoError(t, n.createWith(name, c))
		n.publish(name, hundred...)
		require.Equal(t, uint64(100), n.stored(name))
		n.drain(name, 100)
		require.Eventually(t, func() bool { return n.stored(name) == 30 }, testTimeout, 20*time.Millisecond, name)
		sequence, backlog := n.seekTo(toPosition(name, pb.StartPosition_START_POSITION_EARLIEST))
		require.Equal(t, []uint64{71, 30}, []uint64{sequence, backlog}, name)
	}
	require.NoError(t, n.createWith("age", &pb.QueueConfig{RetentionAge: durationpb.New(1500 * time.Millisecond)}))
	n.publish("age", hundred...)
	n.drain("age", 100)
	published := time.Now()
	n.publish("age", "not acknowledged")
	require.Equal(t, uint64(101), n.stored("age"))
	require.Eventually(t, func() bool { return n.stored("age") == 1 }, testTimeout, 20*time.Millisecond)
	require.Greater(t, time.Since(published), 1500*time.Millisecond, "not before the retention age")
	require.LessOrEqual(t, time.Since(published), 2500*time.Millisecond)
	require.NoError(t, n.alter("messages", &pb.QueueConfig{}, "retention_messages"))
	require.Equal(t, uint64(30), n.stored("messages"), "messages that the subscription has to acknowledge again")
	n.drain("messages", 30)
	require.Zero(t, n.stored("messages"))
}

// Retained messages survive a failover. Clients can read them again from the new active, which applies the
// limit of the retention.
func TestRetentionOverFailover(t *testing.T) { simulated(t, testRetentionOverFailover) }

func testRetentionOverFailover(t *testing.T) {
	active, standby := startPair(t, startEtcd(t))
	require.NoError(t, active.createWith("log", &pb.QueueConfig{RetentionMessages: 20}))
	for i := range 50 {
		active.publish("log", fmt.Sprint(i))
	}
	active.drain("log", 50)
	require.Eventually(t, func() bool { return active.stored("log") == 20 }, testTimeout, 20*time.Millisecond)
	active.stop()
	standby.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	require.Equal(t, uint64(20), standby.stored("log"))
	sequence, backlog := standby.seekTo(toPosition("log", pb.StartPosition_START_POSITION_EARLIEST))
	require.Equal(t, []uint64{31, 20}, []uint64{sequence, backlog})
	standby.drain("log", 20)
	for i := range 5 {
		standby.publish("log", fmt.Sprint(50+i))
	}
	require.Eventually(t, func() bool {
		browsed := standby.browse("log")
		return len(browsed) == 20 && browsed[0].GetSequence() == 36
	}, testTimeout, 20*time.Millisecond, "the new active applies the retention")
}

// The oldest messages of a queue that exceeds its limit become dead letters, once for each subscription that has
// not acknowledged them. While they do not fit into the dead-letter queue, the queue rejects publishes at its
// limit.
func TestDeadLetterHead(t *testing.T) { simulated(t, testDeadLetterHead) }

func testDeadLetterHead(t *testing.T) {
	n := startAlone(t, nil)
	require.NoError(t, n.createWith("dead", &pb.QueueConfig{MaxMessages: 8}))
	_, err := n.queues.CreateQueue(t.Context(), &pb.CreateQueueRequest{
		Name: "q", Subscriptions: []string{"default", "audit"}, Config: &pb.QueueConfig{
			MaxMessages: 5, Overflow: pb.Overflow_OVERFLOW_DEAD_LETTER_HEAD, DeadLetter: "dead",
		},
	})
	require.NoError(t, err)
	for i := range 8 {
		n.publish("q", fmt.Sprint(i))
	}
	require.Eventually(t, func() bool { return n.stored("dead") == 6 }, testTimeout, 5*time.Millisecond)
	require.Equal(t, uint64(5), n.stored("q"))
	seen := map[string]bool{}
	for _, m := range n.browse("dead") {
		l := m.GetDeadLetter()
		require.Equal(t, pb.DeadLetterReason_DEAD_LETTER_REASON_OVERFLOW, l.GetReason())
		require.Equal(t, fmt.Sprint(l.GetSequence()-1), string(m.GetMessage().GetBody()))
		seen[fmt.Sprint(l.GetSubscription(), l.GetSequence())] = true
	}
	require.Len(t, seen, 6, "%v", seen)
	require.Equal(t, []string{"3", "4", "5", "6", "7"}, bodies(n.browse("q")))

	n.publish("q", "8") // the dead-letter queue has space for one more message, and two are needed
	require.Eventually(t, func() bool { return n.stored("dead") == 8 }, testTimeout, 5*time.Millisecond)
	_, err = n.queues.Publish(t.Context(), &pb.PublishRequest{Queue: "q", Messages: batch("9")})
	require.ErrorIs(t, kind(err), txn.ErrQueueFull)
	require.Equal(t, uint64(5), n.stored("q"))
	n.drain("dead", 8)
	n.publish("q", "9")
	require.Eventually(t, func() bool { return n.stored("dead") == 2 && n.stored("q") == 5 }, testTimeout,
		5*time.Millisecond)
}
