// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/simpair"
)

// byteLimit is the byte limit of the queues in TestByteLimit. A body of largeBody bytes nearly fills such a
// queue.
const byteLimit, largeBody = 1 << 20, 900 << 10

type limitedQueue struct {
	t    *testing.T
	node *simpair.Node
	name string
}

func newLimitedQueue(t *testing.T, n *simpair.Node, name string, overflow pb.Overflow) *limitedQueue {
	t.Helper()
	_, err := n.Queues().CreateQueue(t.Context(), &pb.CreateQueueRequest{
		Name: name, Config: &pb.QueueConfig{MaxBytes: byteLimit, Overflow: overflow},
	})
	require.NoError(t, err)
	return &limitedQueue{t: t, node: n, name: name}
}

// publish publishes messages with bodies of the given sizes. Each message is a separate request.
func (q *limitedQueue) publish(sizes ...int) error {
	q.t.Helper()
	for _, n := range sizes {
		_, err := q.node.Queues().Publish(q.t.Context(), &pb.PublishRequest{
			Queue: q.name, Messages: []*pb.Message{{Body: []byte(strings.Repeat("x", n))}},
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (q *limitedQueue) ack(first, last uint64) {
	q.t.Helper()
	stream, err := q.node.Queues().Consume(q.t.Context())
	require.NoError(q.t, err)
	c := &consumer{t: q.t, stream: stream}
	require.NoError(q.t, stream.Send(&pb.ConsumeRequest{Attach: &pb.Attach{Queue: q.name}, Credit: uint32(last)}))
	resp, err := stream.Recv()
	require.NoError(q.t, err)
	require.True(q.t, resp.GetAttached())
	c.take(int(last))
	c.confirm(&pb.ConsumeRequest{Ack: span(first, last), Confirm: 1})
	require.NoError(q.t, stream.CloseSend())
	for err == nil {
		_, err = stream.Recv()
	}
}

func (q *limitedQueue) get(n *simpair.Node) *pb.Queue {
	q.t.Helper()
	resp, err := n.Queues().GetQueue(q.t.Context(), &pb.GetQueueRequest{Name: q.name})
	require.NoError(q.t, err)
	return resp.GetQueue()
}

// After acknowledgements of messages of different sizes, the byte count of a limited queue equals the size of its
// remaining messages. This applies on both nodes, after a failover and after a restart.
func TestByteLimit(t *testing.T) {
	simpair.Test(t, func(t *testing.T, w *simpair.World) {
		a, b := w.StartPair()
		const small = 50

		free := newLimitedQueue(t, a, "free", pb.Overflow_OVERFLOW_REJECT)
		require.NoError(t, free.publish(small, largeBody))
		free.ack(2, 2)
		require.NoError(t, free.publish(largeBody), "one message of a hundred bytes is stored")

		full := newLimitedQueue(t, a, "full", pb.Overflow_OVERFLOW_REJECT)
		require.NoError(t, full.publish(largeBody))
		for range 60 {
			require.NoError(t, full.publish(1))
		}
		large := newLimitedQueue(t, a, "large", pb.Overflow_OVERFLOW_REJECT)
		require.NoError(t, large.publish(largeBody))
		want := large.get(a).GetBytes()
		full.ack(2, 61)
		require.Equal(t, codes.ResourceExhausted, status.Code(full.publish(largeBody)))
		require.Equal(t, want, full.get(a).GetBytes())

		ring := newLimitedQueue(t, a, "ring", pb.Overflow_OVERFLOW_DROP_HEAD)
		require.NoError(t, ring.publish(small, largeBody))
		ring.ack(2, 2)
		require.NoError(t, ring.publish(largeBody))
		require.Equal(t, uint64(2), ring.get(a).GetMessages(), "the message fits without a drop")

		before := map[*limitedQueue]uint64{}
		for _, q := range []*limitedQueue{free, full, ring} {
			before[q] = q.get(a).GetBytes()
		}
		w.Eventually(func() bool {
			x, err := a.Admin().GetDigest(t.Context(), &pb.GetDigestRequest{})
			require.NoError(t, err)
			y, err := b.Admin().GetDigest(t.Context(), &pb.GetDigestRequest{})
			require.NoError(t, err)
			return x.GetLsn() == y.GetLsn() && x.GetContent() == y.GetContent()
		}, "both nodes have the same content")
		a.Kill()
		b.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
		for q, bytes := range before {
			require.Equal(t, bytes, q.get(b).GetBytes(), q.name)
		}
		a = a.Restart()
		w.WaitInSync(b, a)
		b.Kill()
		a.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
		for q, bytes := range before {
			require.Equal(t, bytes, q.get(a).GetBytes(), q.name)
		}
	})
}
