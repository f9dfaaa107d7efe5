// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// list returns the names on one page of queues, and the number of queues on all pages.
func (n *testNode) list(req *pb.ListQueuesRequest) (names []string, total uint32) {
	n.t.Helper()
	resp, err := n.queues.ListQueues(n.t.Context(), req)
	require.NoError(n.t, err)
	require.False(n.t, resp.GetOrderUncertain())
	require.Empty(n.t, resp.GetNextPageToken())
	for _, q := range resp.GetQueues() {
		names = append(names, q.GetName())
	}
	return names, resp.GetTotal()
}

// The node filters, sorts and pages the list of queues.
func TestListQueuesInOrder(t *testing.T) { simulated(t, testListQueuesInOrder) }

func testListQueuesInOrder(t *testing.T) {
	n := startAlone(t, nil)
	for i, messages := range []int{3, 0, 5, 1} {
		name := fmt.Sprintf("q/%c", 'a'+i)
		n.createQueue(name)
		for range messages {
			n.publish(name, string(make([]byte, 10*(4-i))))
		}
	}
	n.createQueue("Other-B")
	names, total := n.list(&pb.ListQueuesRequest{Order: pb.QueueOrder_QUEUE_ORDER_MESSAGES, Descending: true, PageSize: 2})
	require.Equal(t, []string{"q/c", "q/a"}, names)
	require.Equal(t, uint32(5), total)
	names, total = n.list(&pb.ListQueuesRequest{
		Order: pb.QueueOrder_QUEUE_ORDER_MESSAGES, Descending: true, PageSize: 2, Offset: 2,
	})
	require.Equal(t, []string{"q/d", "Other-B"}, names, "ties are sorted by name")
	require.Equal(t, uint32(5), total)
	names, _ = n.list(&pb.ListQueuesRequest{Order: pb.QueueOrder_QUEUE_ORDER_MESSAGES, Offset: 9})
	require.Empty(t, names)
	names, total = n.list(&pb.ListQueuesRequest{Contains: "B"})
	require.Equal(t, []string{"Other-B", "q/b"}, names, "the comparison ignores case")
	require.Equal(t, uint32(2), total)
	names, _ = n.list(&pb.ListQueuesRequest{Prefix: "q/", Contains: "/", Descending: true})
	require.Equal(t, []string{"q/d", "q/c", "q/b", "q/a"}, names)
	names, _ = n.list(&pb.ListQueuesRequest{Order: pb.QueueOrder_QUEUE_ORDER_AGE, Descending: true})
	require.Equal(t, []string{"q/a", "q/c", "q/d", "Other-B", "q/b"}, names, "empty queues are sorted like the newest")
	names, _ = n.list(&pb.ListQueuesRequest{Order: pb.QueueOrder_QUEUE_ORDER_BYTES, Descending: true, PageSize: 1})
	require.Equal(t, []string{"q/c"}, names)

	for name, bad := range map[string]*pb.ListQueuesRequest{
		"token and order": {PageToken: "cQ", Order: pb.QueueOrder_QUEUE_ORDER_AGE},
		"unknown order":   {Order: 99},
		"long text":       {Contains: string(make([]byte, 300))},
	} {
		_, err := n.queues.ListQueues(t.Context(), bad)
		require.Equal(t, codes.InvalidArgument, status.Code(err), "%s: %v", name, err)
	}
}

// Rates are computed from the changes between two calls. The reported age is that of the oldest message.
func TestQueueActivity(t *testing.T) { simulated(t, testQueueActivity) }

func testQueueActivity(t *testing.T) {
	n := startAlone(t, nil)
	n.createQueue("q")
	n.createQueue("idle")
	check := func() *pb.QueueActivity {
		resp, err := n.queues.ListQueues(t.Context(), &pb.ListQueuesRequest{Prefix: "q", Activity: true})
		require.NoError(t, err)
		require.Len(t, resp.GetQueues(), 1)
		return resp.GetQueues()[0].GetActivity()
	}
	require.Nil(t, check().PublishedPerSecond, "no previous call")
	before := time.Now().Add(-time.Second)
	n.publish("q", make([]string, 100)...)
	c := n.consume("q", 40)
	c.confirm(&pb.ConsumeRequest{Ack: span(1, uint64(len(c.take(40)))), Confirm: 1})
	var a *pb.QueueActivity
	require.Eventually(t, func() bool { a = check(); return a.PublishedPerSecond != nil }, testTimeout,
		20*time.Millisecond)
	seconds := 100 / a.GetPublishedPerSecond() // time between the two calls
	require.Greater(t, seconds, 0.9)
	require.InDelta(t, 40, a.GetDeliveredPerSecond()*seconds, 0.01)
	require.InDelta(t, 40, a.GetAcknowledgedPerSecond()*seconds, 0.01)
	require.Equal(t, uint32(1), a.GetConsumers())
	require.WithinRange(t, a.GetOldestAt().AsTime(), before, time.Now())
	names, _ := n.list(&pb.ListQueuesRequest{Order: pb.QueueOrder_QUEUE_ORDER_CONSUMERS, Descending: true, PageSize: 1})
	require.Equal(t, []string{"q"}, names)

	one, err := n.queues.GetQueue(t.Context(), &pb.GetQueueRequest{Name: "idle", Activity: true})
	require.NoError(t, err)
	require.Nil(t, one.GetQueue().GetActivity().GetOldestAt())
	one, err = n.queues.GetQueue(t.Context(), &pb.GetQueueRequest{Name: "q"})
	require.NoError(t, err)
	require.Nil(t, one.GetQueue().GetActivity(), "it was not requested")
	require.Eventually(t, func() bool { return check().GetPublishedPerSecond() == 0 }, testTimeout, 20*time.Millisecond)
}

// ListConnections returns the connections with their traffic. CloseConnection closes a connection.
func TestConnections(t *testing.T) { simulated(t, testConnections) }

func testConnections(t *testing.T) {
	n := startAlone(t, nil)
	n.createQueue("q")
	n.publish("q", make([]string, 30)...)
	c := n.consume("q", 20)
	require.Len(t, c.take(20), 20)
	connections := pb.NewConnectionServiceClient(n.conn)
	list, err := connections.ListConnections(t.Context(), &pb.ListConnectionsRequest{Queue: "q"})
	require.NoError(t, err)
	require.Len(t, list.GetConnections(), 1)
	got := list.GetConnections()[0]
	require.Equal(t, "anonymous", got.GetPrincipal())
	require.Contains(t, got.GetClient(), "grpc-go")
	require.Contains(t, got.GetAddress(), "127.0.0.1:")
	require.Empty(t, got.GetTls())
	require.Nil(t, got.GetReceived().BytesPerSecond, "no previous call")
	require.Greater(t, got.GetReceived().GetBytes(), uint64(30))
	require.Equal(t, uint64(30), got.GetReceived().GetMessages())
	require.Equal(t, uint64(20), got.GetSent().GetMessages())
	require.Len(t, got.GetStreams(), 1)
	stream := got.GetStreams()[0]
	require.Equal(t, pb.ConnectionStreamKind_CONNECTION_STREAM_KIND_CONSUME, stream.GetKind())
	require.Equal(t, "default", stream.GetSubscription())
	require.Equal(t, []uint64{0, 20, 20}, []uint64{stream.GetCredit(), stream.GetUnacknowledged(), stream.GetMessages()})
	list, err = connections.ListConnections(t.Context(), &pb.ListConnectionsRequest{Queue: "other"})
	require.NoError(t, err)
	require.Empty(t, list.GetConnections())
	require.Equal(t, uint32(1), list.GetTotal())

	_, err = connections.CloseConnection(t.Context(), &pb.CloseConnectionRequest{Id: 99})
	require.Equal(t, codes.NotFound, status.Code(err))
	_, _ = connections.CloseConnection(t.Context(), &pb.CloseConnectionRequest{Id: got.GetId()}) // its own connection
	_, err = c.stream.Recv()
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.Eventually(t, func() bool {
		list, err = connections.ListConnections(t.Context(), &pb.ListConnectionsRequest{AfterId: got.GetId()})
		return err == nil && len(list.GetConnections()) == 1
	}, testTimeout, 5*time.Millisecond, "the client connects again")
}
