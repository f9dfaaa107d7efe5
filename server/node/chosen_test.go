// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// sequences returns a range for each sequence.
func sequences(list ...uint64) []*pb.SequenceRange {
	out := make([]*pb.SequenceRange, len(list))
	for i, sequence := range list {
		out[i] = &pb.SequenceRange{First: sequence, Last: sequence}
	}
	return out
}

func (n *testNode) createWithSubs(name string, subscriptions ...string) {
	n.t.Helper()
	_, err := n.queues.CreateQueue(n.t.Context(), &pb.CreateQueueRequest{Name: name, Subscriptions: subscriptions})
	require.NoError(n.t, err)
}

func (n *testNode) move(req *pb.MoveMessagesRequest) (moved, skipped uint64) {
	n.t.Helper()
	resp, err := n.queues.MoveMessages(n.t.Context(), req)
	require.NoError(n.t, err)
	return resp.GetMoved(), resp.GetSkipped()
}

// publishNumbered publishes messages with the bodies 1, 2, and so on.
func (n *testNode) publishNumbered(queue string, messages int) {
	n.t.Helper()
	for i := range messages {
		_, err := n.queues.Publish(n.t.Context(), &pb.PublishRequest{Queue: queue, Messages: []*pb.Message{
			{Body: fmt.Appendf(nil, "%d", i+1), Subject: "s", Properties: map[string]string{"k": "v"}},
		}})
		require.NoError(n.t, err)
	}
}

// Selected messages are moved with all their properties. Each message is moved once, regardless of retries.
func TestMoveMessages(t *testing.T) { simulated(t, testMoveMessages) }

func testMoveMessages(t *testing.T) {
	n := startAlone(t, nil)
	n.createQueue("from")
	n.createQueue("to")
	n.publishNumbered("from", 6)
	_, err := n.queues.Publish(t.Context(), &pb.PublishRequest{Queue: "from", Messages: []*pb.Message{
		{Body: []byte("later"), Delay: durationpb.New(3600e9)},
	}})
	require.NoError(t, err)
	req := &pb.MoveMessagesRequest{Queue: "from", To: "to", Sequences: append(sequences(7, 2, 2), &pb.SequenceRange{
		First: 4, Last: 5,
	})}
	moved, skipped := n.move(req)
	require.Equal(t, []uint64{4, 0}, []uint64{moved, skipped})
	require.Equal(t, []string{"1", "3", "6"}, bodies(n.browse("from")))
	got := n.browse("to")
	require.Equal(t, []string{"2", "4", "5", "later"}, bodies(got))
	require.Equal(t, "s", got[0].GetMessage().GetSubject())
	require.Equal(t, "v", got[0].GetMessage().GetProperties()["k"])
	require.NotNil(t, got[3].GetMessage().GetDeliverAt())
	moved, skipped = n.move(req)
	require.Equal(t, []uint64{0, 4}, []uint64{moved, skipped}, "a retry moves nothing")
	require.Len(t, n.browse("to"), 4)

	c := n.consume("from", 1)
	_, err = c.stream.Recv()
	require.NoError(t, err)
	moved, _ = n.move(&pb.MoveMessagesRequest{Queue: "from", To: "to", Sequences: sequences(1)})
	require.Equal(t, uint64(1), moved, "a message in flight can be moved")
	c.settle(&pb.ConsumeRequest{Ack: sequences(1), Credit: 1})
	require.Equal(t, []string{"3", "6"}, bodies(n.browse("from")))

	for name, bad := range map[string]struct {
		req  *pb.MoveMessagesRequest
		code codes.Code
		text string
	}{
		"no sequences": {&pb.MoveMessagesRequest{Queue: "from", To: "to"}, codes.InvalidArgument, "no sequences"},
		"source is target": {
			&pb.MoveMessagesRequest{Queue: "from", To: "from", Sequences: sequences(3)},
			codes.InvalidArgument, "is the source queue",
		},
		"beyond the end": {
			&pb.MoveMessagesRequest{Queue: "from", To: "to", Sequences: sequences(8)},
			codes.InvalidArgument, "last one is 7",
		},
		"sequence 0": {
			&pb.MoveMessagesRequest{Queue: "from", To: "to", Sequences: sequences(0)},
			codes.InvalidArgument, "at least 1",
		},
		"no queue": {
			&pb.MoveMessagesRequest{Queue: "none", To: "to", Sequences: sequences(1)}, codes.NotFound,
			"none",
		},
		"no target": {
			&pb.MoveMessagesRequest{Queue: "from", To: "none", Sequences: sequences(1)},
			codes.NotFound, "none",
		},
		"no subscription": {&pb.MoveMessagesRequest{
			Queue: "from", Subscription: "x", To: "to",
			Sequences: sequences(1),
		}, codes.NotFound, "x"},
		"another queue id": {
			&pb.MoveMessagesRequest{Queue: "from", QueueId: 99, To: "to", Sequences: sequences(3)},
			codes.NotFound, "re-created",
		},
		"too many": {&pb.MoveMessagesRequest{Queue: "from", To: "to", Sequences: []*pb.SequenceRange{
			{First: 1, Last: 1 << 62}, {First: 1 << 62, Last: 1 << 63},
		}}, codes.InvalidArgument, "10000"},
	} {
		_, err := n.queues.MoveMessages(t.Context(), bad.req)
		require.Equal(t, bad.code, status.Code(err), "%s: %v", name, err)
		require.Contains(t, err.Error(), bad.text, name)
	}
	require.NoError(t, n.alter("to", &pb.QueueConfig{MaxMessages: 5}, "max_messages"))
	_, err = n.queues.MoveMessages(t.Context(),
		&pb.MoveMessagesRequest{Queue: "from", To: "to", Sequences: sequences(3)})
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	require.Equal(t, []string{"3", "6"}, bodies(n.browse("from")), "nothing was moved")
}

// Messages that are moved from all subscriptions are moved once. A move from one subscription does not affect the
// other subscriptions.
func TestMoveMessagesOfManySubscriptions(t *testing.T) {
	simulated(t, testMoveMessagesOfManySubscriptions)
}

func testMoveMessagesOfManySubscriptions(t *testing.T) {
	n := startAlone(t, nil)
	n.createWithSubs("from", "a", "b", "c")
	n.createQueue("to")
	n.publishNumbered("from", 5)
	ack := func(sub string, sequence uint64) {
		op := ackOp("from", sequence, sequence)
		op.GetAck().Subscription = sub
		_, err := n.queues.Commit(t.Context(), &pb.CommitRequest{Operations: []*pb.Operation{op}})
		require.NoError(t, err)
	}
	ack("a", 1)
	ack("a", 2)
	ack("b", 2)
	ack("c", 2)
	moved, skipped := n.move(&pb.MoveMessagesRequest{Queue: "from", To: "to", Sequences: sequences(1, 2, 3)})
	require.Equal(t, []uint64{2, 1}, []uint64{moved, skipped}, "message 2 is acknowledged in all subscriptions")
	require.Equal(t, []string{"1", "3"}, bodies(n.browse("to")))
	require.Equal(t, []string{"4", "5"}, bodies(n.browse("from")))

	moved, _ = n.move(&pb.MoveMessagesRequest{Queue: "from", Subscription: "b", To: "to", Sequences: sequences(4)})
	require.Equal(t, uint64(1), moved)
	require.Len(t, n.browse("to"), 3)
	require.Equal(t, []string{"4", "5"}, bodies(n.browse("from")), "message 4 remains in two subscriptions")

	removed, err := n.queues.RemoveMessages(t.Context(), &pb.RemoveMessagesRequest{
		Queue: "from", Subscription: "a", Sequences: sequences(4, 5),
	})
	require.NoError(t, err)
	require.Equal(t, uint64(2), removed.GetRemoved())
	require.Len(t, n.browse("from"), 2)
	removed, err = n.queues.RemoveMessages(t.Context(),
		&pb.RemoveMessagesRequest{Queue: "from", Sequences: sequences(4)})
	require.NoError(t, err)
	require.Equal(t, uint64(1), removed.GetRemoved())
	require.Equal(t, []string{"5"}, bodies(n.browse("from")))
	removed, err = n.queues.RemoveMessages(t.Context(),
		&pb.RemoveMessagesRequest{Queue: "from", Sequences: sequences(4)})
	require.NoError(t, err)
	require.Zero(t, removed.GetRemoved())
}

// Messages that a prepared transaction will acknowledge are not moved.
func TestMovePreparedMessages(t *testing.T) { simulated(t, testMovePreparedMessages) }

func testMovePreparedMessages(t *testing.T) {
	n := startAlone(t, nil)
	n.createQueue("from")
	n.createQueue("to")
	n.publishNumbered("from", 2)
	_, err := n.queues.Prepare(t.Context(), &pb.PrepareRequest{
		Xid:        "x",
		Operations: []*pb.Operation{ackOp("from", 1, 1)},
	})
	require.NoError(t, err)
	moved, skipped := n.move(&pb.MoveMessagesRequest{Queue: "from", To: "to", Sequences: sequences(1, 2)})
	require.Equal(t, []uint64{1, 1}, []uint64{moved, skipped})
	removed, err := n.queues.RemoveMessages(t.Context(),
		&pb.RemoveMessagesRequest{Queue: "from", Sequences: sequences(1)})
	require.NoError(t, err)
	require.Zero(t, removed.GetRemoved())
	_, err = n.queues.RollbackPrepared(t.Context(), &pb.RollbackPreparedRequest{Xid: "x"})
	require.NoError(t, err)
	require.Equal(t, []string{"1"}, bodies(n.browse("from")))
}

// Several callers move the same messages while the consumers of both subscriptions acknowledge some of them. Each
// message is either moved or acknowledged for both subscriptions, never both.
func TestMoveConcurrentWithAcks(t *testing.T) { simulated(t, testMoveConcurrentWithAcks) }

func testMoveConcurrentWithAcks(t *testing.T) {
	n := startAlone(t, nil)
	n.createWithSubs("from", "a", "b")
	n.createQueue("to")
	const messages = 200
	_, err := n.queues.Publish(t.Context(), &pb.PublishRequest{
		Queue:    "from",
		Messages: batch(make([]string, messages)...),
	})
	require.NoError(t, err)
	all := []*pb.SequenceRange{{First: 1, Last: messages}}
	var moved uint64
	var mu sync.Mutex
	var running sync.WaitGroup
	for range 3 {
		running.Go(func() {
			for range 5 {
				resp, err := n.queues.MoveMessages(t.Context(),
					&pb.MoveMessagesRequest{Queue: "from", To: "to", Sequences: all})
				if status.Code(err) == codes.Aborted {
					continue // all attempts had conflicts
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				moved += resp.GetMoved()
				mu.Unlock()
			}
		})
	}
	running.Go(func() {
		for sequence := uint64(1); sequence <= messages; sequence += 7 {
			for _, sub := range []string{"a", "b"} {
				op := ackOp("from", sequence, sequence)
				op.GetAck().Subscription = sub
				if _, err := n.queues.Commit(t.Context(),
					&pb.CommitRequest{Operations: []*pb.Operation{op}}); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	running.Wait()
	last, _ := n.move(&pb.MoveMessagesRequest{Queue: "from", To: "to", Sequences: all})
	require.Empty(t, n.browse("from"))
	require.Len(t, n.browse("to"), int(moved+last))
	require.LessOrEqual(t, moved+last, uint64(messages))
	require.GreaterOrEqual(t, moved+last, uint64(messages-messages/7-1))
}
