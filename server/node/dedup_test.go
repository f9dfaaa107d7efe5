// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-mq/lockstep/amqp/wire"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/amqp/wiretest"
)

// Message IDs survive a failover (INV-23). A publisher without a producer identity that resends to the new active
// receives the original sequence. The IDs of an idle queue are removed after the dedup window.
func TestDedupSurvivesFailover(t *testing.T) { simulated(t, testDedupSurvivesFailover) }

func testDedupSurvivesFailover(t *testing.T) {
	active, standby := startPair(t, startEtcd(t))
	_, err := active.queues.CreateQueue(t.Context(), &pb.CreateQueueRequest{
		Name: "q", Config: &pb.QueueConfig{DedupWindow: durationpb.New(time.Hour)}, Subscriptions: []string{"default"},
	})
	require.NoError(t, err)
	publish := func(n *testNode, ids ...string) *pb.PublishResponse {
		t.Helper()
		resp, err := n.queues.Publish(t.Context(), &pb.PublishRequest{Queue: "q", Messages: messagesWithIDs(ids)})
		require.NoError(t, err)
		return resp
	}
	stored := func(n *testNode) *pb.Queue {
		t.Helper()
		got, err := n.queues.GetQueue(t.Context(), &pb.GetQueueRequest{Name: "q"})
		require.NoError(t, err)
		return got.GetQueue()
	}
	require.Empty(t, publish(active, "a", "b").GetDuplicates())
	again := publish(active, "b", "c", "a")
	require.Equal(t, uint64(3), again.GetFirstSequence())
	require.Equal(t, []uint64{2, 1}, originalsOf(again.GetDuplicates()))
	active.stop()

	standby.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	again = publish(standby, "c", "a")
	require.Equal(t, uint64(3), again.GetFirstSequence())
	require.Equal(t, []uint64{3, 1}, originalsOf(again.GetDuplicates()))
	resp, err := standby.queues.Commit(t.Context(), &pb.CommitRequest{Operations: []*pb.Operation{
		{Kind: &pb.Operation_Publish{Publish: &pb.PublishOperation{Queue: "q", Messages: messagesWithIDs([]string{"a"})}}},
		ackOp("q", 1, 1),
	}})
	require.NoError(t, err)
	require.Equal(t, []uint64{1}, originalsOf(resp.GetResults()[0].GetDuplicates()))
	require.Equal(t, uint64(1), resp.GetResults()[1].GetChanged())
	require.Equal(t, uint64(3), stored(standby).GetMessageIds())
	require.Equal(t, uint64(5), stored(standby).GetDuplicates())
	require.Equal(t, uint64(2), stored(standby).GetMessages())

	<-time.After(time.Hour) // in simulated time
	require.Empty(t, publish(standby, "a").GetDuplicates())
	<-time.After(3 * time.Hour)
	require.Zero(t, stored(standby).GetMessageIds())
}

// If an AMQP client resends a message with the same message-id on another connection, the message is stored once.
func TestDedupAMQP(t *testing.T) { simulated(t, testDedupAMQP) }

func testDedupAMQP(t *testing.T) {
	n := startAlone(t, withAMQP)
	_, err := n.queues.CreateQueue(t.Context(), &pb.CreateQueueRequest{
		Name: "q", Config: &pb.QueueConfig{DedupWindow: durationpb.New(time.Hour)},
	})
	require.NoError(t, err)
	for range 2 {
		p := openAMQP(t, n)
		require.Nil(t, p.sender(0, targetNode("q")))
		id := wiretest.AppendSection(nil, wire.SectionProperties, wire.List{"ID:1"})
		p.raw(0, wiretest.AppendData(id, []byte("body")), nil)
		require.Equal(t, wire.Accepted{}, p.outcome())
	}
	n.eventually("q", func(q *pb.Queue) bool { return q.GetMessages() == 1 && q.GetDuplicates() == 1 })
}

func messagesWithIDs(ids []string) (messages []*pb.Message) {
	for _, id := range ids {
		messages = append(messages, &pb.Message{MessageId: id, Body: []byte("body")})
	}
	return messages
}

func originalsOf(duplicates []*pb.DuplicateMessage) (sequences []uint64) {
	for _, d := range duplicates {
		sequences = append(sequences, d.GetSequence())
	}
	return sequences
}
