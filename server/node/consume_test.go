// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// Messages are delivered within the credit of each consumer. Nacked messages and messages of a disconnected consumer
// are redelivered.
func TestConsume(t *testing.T) { simulated(t, testConsume) }

func testConsume(t *testing.T) {
	n := startAlone(t, nil)
	n.createQueue("q")
	n.publish("q", "1", "2", "3", "4")
	a := n.consume("q", 2)
	require.Equal(t, []string{"1", "2"}, bodies(a.take(2)))
	b := n.consume("q", 10)
	require.Equal(t, []string{"3", "4"}, bodies(b.take(2)))
	q, err := n.queues.GetQueue(t.Context(), &pb.GetQueueRequest{Name: "q"})
	require.NoError(t, err)
	require.Equal(t, uint64(4), q.GetQueue().GetSubscriptions()[0].GetInFlight())
	require.Equal(t, uint32(2), q.GetQueue().GetSubscriptions()[0].GetConsumers())

	// A nacked message is redelivered to any consumer, with its delivery count.
	b.confirm(&pb.ConsumeRequest{Nack: span(4, 4), Ack: span(3, 3), Confirm: 1})
	again := b.take(1)
	require.Equal(t, uint64(4), again[0].GetSequence())
	require.Equal(t, uint32(1), again[0].GetDeliveryCount())

	// The messages in flight of a consumer that disconnects are requeued.
	require.NoError(t, a.stream.CloseSend())
	_, err = a.stream.Recv()
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, []string{"1", "2"}, bodies(b.take(2)))
	b.confirm(&pb.ConsumeRequest{Ack: span(1, 4), Confirm: 2})
	q, err = n.queues.GetQueue(t.Context(), &pb.GetQueueRequest{Name: "q"})
	require.NoError(t, err)
	require.Zero(t, q.GetQueue().GetMessages())
}

// After a purge, the purged messages are no longer in flight, and consumers receive later messages.
func TestPurgeReachesConsumers(t *testing.T) { simulated(t, testPurgeReachesConsumers) }

func testPurgeReachesConsumers(t *testing.T) {
	n := startAlone(t, nil)
	n.createWithSubs("q", "a", "b")
	n.publish("q", "1", "2", "3")
	a := n.attach(&pb.Attach{Queue: "q", Subscription: "a"}, 2)
	a.take(2)
	b := n.attach(&pb.Attach{Queue: "q", Subscription: "b"}, 3)
	b.take(3)
	purge := func(subscription string) {
		_, err := n.queues.PurgeQueue(t.Context(), &pb.PurgeQueueRequest{Name: "q", Subscription: subscription})
		require.NoError(t, err)
	}
	purge("a")
	require.Zero(t, n.subscription("q", "a").GetInFlight())
	require.Equal(t, uint64(3), n.subscription("q", "b").GetInFlight())
	purge("")
	require.Zero(t, n.subscription("q", "b").GetInFlight())
	n.publish("q", "4")
	require.NoError(t, a.stream.Send(&pb.ConsumeRequest{Credit: 1}))
	require.Equal(t, []string{"4"}, bodies(a.take(1)))
	a.confirm(&pb.ConsumeRequest{Ack: span(1, 4), Confirm: 1})
	require.Zero(t, n.subscription("q", "a").GetBacklog())
}

// A client that has closed its sending side still receives confirmations.
func TestConsumeHalfClose(t *testing.T) { simulated(t, testConsumeHalfClose) }

func testConsumeHalfClose(t *testing.T) {
	n := startAlone(t, nil)
	n.createQueue("q")
	n.publish("q", "1")
	c := n.consume("q", 1)
	c.take(1)
	require.NoError(t, c.stream.Send(&pb.ConsumeRequest{Ack: span(1, 1), Confirm: 5}))
	require.NoError(t, c.stream.CloseSend())
	resp, err := c.stream.Recv()
	require.NoError(t, err)
	require.Equal(t, uint64(5), resp.GetConfirmed())
	_, err = c.stream.Recv()
	require.ErrorIs(t, err, io.EOF)
}

// An invalid request ends the stream of a consumer with an error.
func TestConsumeRefusals(t *testing.T) { simulated(t, testConsumeRefusals) }

func testConsumeRefusals(t *testing.T) {
	n := startAlone(t, func(c *config.Config) { c.Limits.Outstanding = 100 })
	n.createQueue("q")
	open := func(requests ...*pb.ConsumeRequest) error {
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		defer cancel()
		stream, err := n.queues.Consume(ctx)
		require.NoError(t, err)
		for _, r := range requests {
			require.NoError(t, stream.Send(r))
		}
		for {
			if _, err := stream.Recv(); err != nil {
				return kind(err)
			}
		}
	}
	attach := &pb.ConsumeRequest{Attach: &pb.Attach{Queue: "q"}}
	require.ErrorIs(t, open(&pb.ConsumeRequest{Credit: 1}), apierror.ErrInvalid)
	require.ErrorIs(t, open(attach, attach), apierror.ErrInvalid)
	require.ErrorIs(t, open(&pb.ConsumeRequest{Attach: &pb.Attach{Queue: "none"}}), txn.ErrQueueNotFound)
	require.ErrorIs(t, open(&pb.ConsumeRequest{Attach: &pb.Attach{Queue: "q", Subscription: "none"}}),
		txn.ErrSubscriptionNotFound)
	require.ErrorIs(t, open(attach, &pb.ConsumeRequest{Credit: 101}), dispatch.ErrTooMuchCredit)
	require.ErrorIs(t, open(attach, &pb.ConsumeRequest{Ack: span(0, 1)}), apierror.ErrInvalid)
	require.ErrorIs(t, open(attach, &pb.ConsumeRequest{Ack: span(1, 1)}), txn.ErrBeyondEnd)
	many := make([]*pb.SequenceRange, 10_001)
	for i := range many {
		many[i] = &pb.SequenceRange{First: 1, Last: 1}
	}
	require.ErrorIs(t, open(attach, &pb.ConsumeRequest{Nack: many}), apierror.ErrInvalid)
}

// The consumers of a deleted queue receive an error.
func TestConsumeDeletedQueue(t *testing.T) { simulated(t, testConsumeDeletedQueue) }

func testConsumeDeletedQueue(t *testing.T) {
	n := startAlone(t, nil)
	n.createQueue("q")
	c := n.consume("q", 1)
	_, err := n.queues.DeleteQueue(t.Context(), &pb.DeleteQueueRequest{Name: "q"})
	require.NoError(t, err)
	_, err = c.stream.Recv()
	require.Equal(t, codes.NotFound, status.Code(err))
}

// Browse returns the messages of a queue or the unacknowledged messages of a subscription, from a sequence and up to a
// limit.
func TestBrowse(t *testing.T) { simulated(t, testBrowse) }

func testBrowse(t *testing.T) {
	n := startAlone(t, nil)
	ctx := t.Context()
	_, err := n.queues.CreateQueue(ctx, &pb.CreateQueueRequest{Name: "q", Subscriptions: []string{"default", "other"}})
	require.NoError(t, err)
	for i := range 50 {
		_, err := n.queues.Publish(ctx, &pb.PublishRequest{Queue: "q", Messages: []*pb.Message{
			{Body: []byte(strings.Repeat("x", 100<<10)), Properties: map[string]string{"n": fmt.Sprint(i + 1)}},
		}})
		require.NoError(t, err)
	}
	_, err = n.queues.Commit(ctx, &pb.CommitRequest{Operations: []*pb.Operation{ackOp("q", 2, 49)}})
	require.NoError(t, err)
	browse := func(req *pb.BrowseRequest) (got []*pb.StoredMessage, err error) {
		stream, err := n.queues.Browse(ctx, req)
		require.NoError(t, err)
		for {
			resp, err := stream.Recv()
			if err != nil {
				if err.Error() == "EOF" {
					err = nil
				}
				return got, kind(err)
			}
			got = append(got, resp.GetMessages()...)
		}
	}
	all, err := browse(&pb.BrowseRequest{Queue: "q"})
	require.NoError(t, err)
	require.Len(t, all, 50)
	require.Equal(t, "7", all[6].GetMessage().GetProperties()["n"])
	require.Len(t, all[6].GetMessage().GetBody(), 100<<10)
	require.NotZero(t, all[6].GetPublishedAt().AsTime().Unix())

	mine, err := browse(&pb.BrowseRequest{Queue: "q", Subscription: "default", HeadersOnly: true})
	require.NoError(t, err)
	require.Len(t, mine, 2)
	require.Empty(t, mine[1].GetMessage().GetBody())
	require.Equal(t, uint64(50), mine[1].GetSequence())

	some, err := browse(&pb.BrowseRequest{Queue: "q", FromSequence: 10, Limit: 12})
	require.NoError(t, err)
	require.Len(t, some, 12)
	require.Equal(t, uint64(10), some[0].GetSequence())
	_, err = browse(&pb.BrowseRequest{Queue: "none"})
	require.ErrorIs(t, err, txn.ErrQueueNotFound)
}

// A message of the maximum size is stored and delivered.
func TestLargeMessages(t *testing.T) { simulated(t, testLargeMessages) }

func testLargeMessages(t *testing.T) {
	n := startAlone(t, nil)
	n.createQueue("q")
	body := strings.Repeat("0123456789abcdef", 4<<20) // 64 MiB
	n.publish("q", body)
	c := n.consume("q", 1)
	got := c.take(1)
	require.Len(t, got[0].GetMessage().GetBody(), len(body))
	require.Equal(t, body, string(got[0].GetMessage().GetBody()))
}
