// SPDX-License-Identifier: Apache-2.0

//go:build measure

package guard

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// A node's allocations per delivered message are within their windows, for messages in memory, in pages, and in pages
// that another subscription has read before. The consumer acknowledges each response with one request.
func TestConsumeAllocations(t *testing.T) {
	node := startNode(t, "a", nil)
	conn := dial(t, node)
	waitFor(t, conn, pb.Role_ROLE_ACTIVE_ALONE)
	_, err := pb.NewQueueServiceClient(conn).CreateQueue(t.Context(), &pb.CreateQueueRequest{
		Name: queue, Subscriptions: []string{"warm-up", "memory", "pages", "again"},
	})
	require.NoError(t, err)
	const messages = 20_000
	next := uint64(0)
	publish(t, conn, load{"", messages / 100, 100, 8, bodyBytes}, messages/100, &next)
	count := func(subscription string) {
		before := node.counts()
		consume(t, conn, subscription, messages)
		check(t, "consume: allocations per message, "+subscription,
			float64(node.counts().since(before).Allocations)/messages)
	}
	consume(t, conn, "warm-up", messages)
	count("memory")
	_, err = pb.NewAdminServiceClient(conn).Checkpoint(t.Context(), &pb.CheckpointRequest{})
	require.NoError(t, err)
	count("pages")
	count("again")
}

// consume reads and acknowledges a number of messages, as the client does, and waits for the confirmation.
func consume(t *testing.T, conn *grpc.ClientConn, subscription string, messages uint64) {
	t.Helper()
	const credit = 256
	stream, err := pb.NewQueueServiceClient(conn).Consume(t.Context())
	require.NoError(t, err)
	attach := &pb.Attach{Queue: queue, Subscription: subscription}
	require.NoError(t, stream.Send(&pb.ConsumeRequest{Attach: attach, Credit: credit}))
	got, number := uint64(0), uint64(0)
	for confirmed := false; !confirmed; {
		r, err := stream.Recv()
		require.NoError(t, err)
		confirmed = got == messages && r.GetConfirmed() == number
		n := uint64(len(r.GetMessages()))
		if n == 0 {
			continue
		}
		require.Equal(t, got+1, r.GetMessages()[0].GetSequence())
		first := got + 1
		got += n
		number++
		require.NoError(t, stream.Send(&pb.ConsumeRequest{
			Ack: []*pb.SequenceRange{{First: first, Last: got}}, Confirm: number, Credit: uint32(n),
		}))
	}
	require.NoError(t, stream.CloseSend())
}
