// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// settled reports whether a status marks the refusal as recorded in the log.
func settled(err error) bool {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetMetadata()["settled"] == "true" {
			return true
		}
	}
	return false
}

// An earlier attempt of a request marked as a retry may be in the log. If such a request is refused, the refusal
// is recorded in the log, and no later attempt with that sequence is executed (INV-10).
func TestRetryIsDecidedByTheLog(t *testing.T) { simulated(t, testRetryIsDecidedByTheLog) }

func testRetryIsDecidedByTheLog(t *testing.T) {
	n := startAlone(t, nil)
	ctx := t.Context()
	publish := func(queue string, sequence uint64, retry bool) error {
		_, err := n.queues.Publish(ctx, &pb.PublishRequest{
			Queue: queue, Messages: batch("x"), Producer: &pb.Producer{Id: "p", Sequence: sequence, Retry: retry},
		})
		return err
	}
	commit := func(sequence uint64, retry bool, ops ...*pb.Operation) error {
		_, err := n.queues.Commit(ctx, &pb.CommitRequest{
			Operations: ops, Producer: &pb.Producer{Id: "c", Sequence: sequence, Retry: retry},
		})
		return err
	}
	full, err := n.queues.CreateQueue(ctx, &pb.CreateQueueRequest{
		Name:   "full",
		Config: &pb.QueueConfig{MaxMessages: 1},
	})
	require.NoError(t, err)
	n.publish("full", "1")
	other := &pb.AckOperation{Queue: "full", Subscription: "other", Ranges: span(1, 1)}
	ackOther := &pb.Operation{Kind: &pb.Operation_Ack{Ack: other}}

	for _, c := range []struct {
		name string
		send func(sequence uint64, retry bool) error
		want error
	}{
		{"queue full", func(s uint64, retry bool) error { return publish("full", s, retry) }, txn.ErrQueueFull},
		{"no queue", func(s uint64, retry bool) error { return publish("later", 10+s, retry) }, txn.ErrQueueNotFound},
		{"transaction, queue full", func(s uint64, retry bool) error {
			return commit(20+s, retry,
				publishOp("full", "x"))
		}, txn.ErrQueueFull},
		{"transaction, no queue", func(s uint64, retry bool) error {
			return commit(30+s, retry,
				publishOp("later", "x"))
		}, txn.ErrQueueNotFound},
		{
			"transaction, no subscription", func(s uint64, retry bool) error { return commit(40+s, retry, ackOther) },
			txn.ErrSubscriptionNotFound,
		},
	} {
		section(t, c.name, func(t *testing.T) {
			err := c.send(1, false)
			require.ErrorIs(t, kind(err), c.want)
			require.False(t, settled(err), "the log was not queried")
			err = c.send(1, true)
			require.ErrorIs(t, kind(err), c.want)
			require.True(t, settled(err))
		})
	}

	// Now each request could succeed. However, a refused request remains refused, regardless of whether it is marked as
	// a retry.
	n.createQueue("later")
	_, err = n.queues.AlterQueue(ctx, &pb.AlterQueueRequest{Name: "full"})
	require.NoError(t, err)
	_, err = n.queues.CreateSubscription(ctx, &pb.CreateSubscriptionRequest{Queue: "full", Name: "other"})
	require.NoError(t, err)
	for _, retry := range []bool{false, true} {
		for _, err := range []error{
			publish("full", 1, retry), publish("later", 11, retry), commit(21, retry, publishOp("full", "x")),
			commit(31, retry, publishOp("later", "x")), commit(41, retry, ackOther),
		} {
			require.Error(t, err)
			require.True(t, settled(err))
		}
	}
	for _, name := range []string{"full", "later"} {
		q, err := n.queues.GetQueue(ctx, &pb.GetQueueRequest{Name: name})
		require.NoError(t, err)
		if name == "full" {
			require.Equal(t, full.GetQueue().GetNextSequence()+1, q.GetQueue().GetNextSequence())
		} else {
			require.Equal(t, uint64(1), q.GetQueue().GetNextSequence())
		}
	}
	require.NoError(t, publish("later", 12, true), "a lost first attempt is executed")
}

// A retry returns the original result, regardless of later changes, and changes nothing (INV-10).
func TestAdministrationRetries(t *testing.T) { simulated(t, testAdministrationRetries) }

func testAdministrationRetries(t *testing.T) {
	n := startAlone(t, nil)
	ctx := t.Context()
	sequence := uint64(0)
	// twice sends a request and calls during. It then repeats the request, first marked as a retry and then not
	// marked.
	twice := func(send func(p *pb.Producer) (any, error), during func()) {
		t.Helper()
		sequence++
		first, err := send(&pb.Producer{Id: "admin", Sequence: sequence})
		require.NoError(t, err)
		if during != nil {
			during()
		}
		for _, retry := range []bool{true, false} {
			again, err := send(&pb.Producer{Id: "admin", Sequence: sequence, Retry: retry})
			require.NoError(t, err)
			require.Equal(t, first, again)
		}
	}
	messages := func(queue string) uint64 {
		q, err := n.queues.GetQueue(ctx, &pb.GetQueueRequest{Name: queue})
		require.NoError(t, err)
		return q.GetQueue().GetMessages()
	}
	create := func(p *pb.Producer) (any, error) {
		r, err := n.queues.CreateQueue(ctx, &pb.CreateQueueRequest{Name: "q", Producer: p})
		return r.GetQueue().GetId(), err
	}
	purge := func(p *pb.Producer) (any, error) {
		r, err := n.queues.PurgeQueue(ctx, &pb.PurgeQueueRequest{Name: "q", Producer: p})
		return r.GetMessages(), err
	}
	purgeDefault := func(p *pb.Producer) (any, error) {
		r, err := n.queues.PurgeQueue(ctx, &pb.PurgeQueueRequest{Name: "q", Subscription: "default", Producer: p})
		return r.GetMessages(), err
	}
	remove := func(p *pb.Producer) (any, error) {
		r, err := n.queues.DeleteQueue(ctx, &pb.DeleteQueueRequest{Name: "q", Producer: p})
		return r.GetMessages(), err
	}
	subscribe := func(p *pb.Producer) (any, error) {
		r, err := n.queues.CreateSubscription(ctx, &pb.CreateSubscriptionRequest{Queue: "q", Name: "s", Producer: p})
		return r.GetCreated(), err
	}
	unsubscribe := func(p *pb.Producer) (any, error) {
		_, err := n.queues.DeleteSubscription(ctx, &pb.DeleteSubscriptionRequest{Queue: "q", Name: "s", Producer: p})
		return nil, err
	}
	alter := func(p *pb.Producer) (any, error) {
		_, err := n.queues.AlterQueue(ctx, &pb.AlterQueueRequest{
			Name: "q", Config: &pb.QueueConfig{MaxMessages: 1},
			Producer: p,
		})
		return nil, err
	}

	twice(create, nil)
	n.publish("q", "1", "2")
	twice(purge, func() { n.publish("q", "3") })
	require.Equal(t, uint64(1), messages("q"), "messages published after the purge")
	twice(purgeDefault, func() { n.publish("q", "4") })
	require.Equal(t, uint64(1), messages("q"))
	twice(alter, func() {
		_, err := n.queues.AlterQueue(ctx, &pb.AlterQueueRequest{Name: "q"})
		require.NoError(t, err)
	})
	n.publish("q", "5", "6")
	twice(subscribe, nil)
	twice(unsubscribe, func() {
		_, err := n.queues.CreateSubscription(ctx, &pb.CreateSubscriptionRequest{Queue: "q", Name: "s"})
		require.NoError(t, err)
	})
	q, err := n.queues.GetQueue(ctx, &pb.GetQueueRequest{Name: "q"})
	require.NoError(t, err)
	require.Len(t, q.GetQueue().GetSubscriptions(), 2, "the recreated subscription exists")
	twice(remove, func() {
		n.createQueue("q")
		n.publish("q", "of the new queue")
	})
	require.Equal(t, uint64(1), messages("q"))
	twice(remove, nil)
	sequence++
	_, err = remove(&pb.Producer{Id: "admin", Sequence: sequence, Retry: true})
	require.ErrorIs(t, kind(err), txn.ErrQueueNotFound)
	require.True(t, settled(err), "a late attempt must not delete the recreated queue")
	n.createQueue("q")
	_, err = remove(&pb.Producer{Id: "admin", Sequence: sequence})
	require.ErrorIs(t, kind(err), txn.ErrQueueNotFound)
	require.True(t, settled(err))
	require.Zero(t, messages("q"))
}

// A different request with the sequence of an earlier request is rejected and has no effect. Values that differ
// between attempts, such as the time, are not compared.
func TestRetryWithAnotherBody(t *testing.T) { simulated(t, testRetryWithAnotherBody) }

func testRetryWithAnotherBody(t *testing.T) {
	n := startAlone(t, nil)
	ctx := t.Context()
	n.createQueue("q")
	n.publish("q", "0")
	sequence := uint64(0)
	// both sends a request, its retry, and then a different request with the same sequence.
	both := func(name string, send func(p *pb.Producer, other bool) error) {
		section(t, name, func(t *testing.T) {
			sequence++
			require.NoError(t, send(&pb.Producer{Id: "p", Sequence: sequence}, false))
			for _, retry := range []bool{false, true} {
				require.NoError(t, send(&pb.Producer{Id: "p", Sequence: sequence, Retry: retry}, false))
				err := send(&pb.Producer{Id: "p", Sequence: sequence, Retry: retry}, true)
				require.ErrorIs(t, kind(err), apierror.ErrSequenceReused)
				require.Equal(t, codes.InvalidArgument, status.Code(err))
				require.False(t, settled(err))
			}
		})
	}
	message := func(other bool, body, otherBody string) []*pb.Message {
		m := &pb.Message{Body: []byte(body), Properties: map[string]string{"a": "1", "b": "2", "c": "3"}}
		if other {
			m.Body = []byte(otherBody)
		}
		return []*pb.Message{m}
	}
	publish := func(p *pb.Producer, messages []*pb.Message) error {
		_, err := n.queues.Publish(ctx, &pb.PublishRequest{Queue: "q", Messages: messages, Producer: p})
		return err
	}
	both("body", func(p *pb.Producer, other bool) error { return publish(p, message(other, "x", "y")) })
	both("boundary between bodies", func(p *pb.Producer, other bool) error {
		if other {
			return publish(p, batch("ab", "c"))
		}
		return publish(p, batch("a", "bc"))
	})
	both("property", func(p *pb.Producer, other bool) error {
		messages := message(false, "x", "")
		if other {
			messages[0].Properties["b"] = "3"
		}
		return publish(p, messages)
	})
	both("number of messages", func(p *pb.Producer, other bool) error {
		messages := message(false, "x", "")
		if other {
			messages = append(messages, messages...)
		}
		return publish(p, messages)
	})
	both("transaction", func(p *pb.Producer, other bool) error {
		ops := []*pb.Operation{publishOp("q", "x"), ackOp("q", 1, 1)}
		if other {
			ops[1] = ackOp("q", 1, 2)
		}
		_, err := n.queues.Commit(ctx, &pb.CommitRequest{Operations: ops, Producer: p})
		return err
	})
	both("another call", func(p *pb.Producer, other bool) error {
		if other {
			_, err := n.queues.DeleteQueue(ctx, &pb.DeleteQueueRequest{Name: "q", Producer: p})
			return err
		}
		_, err := n.queues.PurgeQueue(ctx, &pb.PurgeQueueRequest{Name: "q", Producer: p})
		return err
	})
	q, err := n.queues.GetQueue(ctx, &pb.GetQueueRequest{Name: "q"})
	require.NoError(t, err)
	require.Equal(t, uint64(1+1+2+1+1+1+1), q.GetQueue().GetNextSequence())

	stream, err := n.queues.PublishStream(ctx)
	require.NoError(t, err)
	for i, body := range []string{"x", "x", "y"} {
		require.NoError(t, stream.Send(&pb.PublishStreamRequest{Publish: &pb.PublishRequest{
			Queue: "q", Messages: batch(body), Producer: &pb.Producer{Id: "stream", Sequence: 1},
		}}))
		resp, err := stream.Recv()
		require.NoError(t, err)
		if i < 2 {
			require.Equal(t, i == 1, resp.GetPublished().GetDuplicate())
		} else {
			require.Equal(t, "SEQUENCE_REUSED", resp.GetError().GetReason())
		}
	}
}

// A different request with the sequence of an earlier request is also rejected after a restart. In that case, the
// checksum of the earlier request is read from the log.
func TestRetryWithAnotherBodyAfterARestart(t *testing.T) {
	simulated(t, testRetryWithAnotherBodyAfterARestart)
}

func testRetryWithAnotherBodyAfterARestart(t *testing.T) {
	n := startAlone(t, nil)
	n.createQueue("q")
	publish := func(n *testNode, body string) (*pb.PublishResponse, error) {
		return n.queues.Publish(t.Context(), &pb.PublishRequest{
			Queue: "q", Messages: batch(body), Producer: &pb.Producer{Id: "p", Sequence: 1},
		})
	}
	first, err := publish(n, "x")
	require.NoError(t, err)
	_, err = n.admin.Checkpoint(t.Context(), &pb.CheckpointRequest{})
	require.NoError(t, err)
	n.stop()
	n = start(t, n.config)
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	again, err := publish(n, "x")
	require.NoError(t, err)
	require.True(t, again.GetDuplicate())
	require.Equal(t, first.GetLsn(), again.GetLsn())
	_, err = publish(n, "y")
	require.ErrorIs(t, kind(err), apierror.ErrSequenceReused)
}

// An acknowledgement of a delivery from a deleted queue does not apply to a new queue with the same name.
func TestAcksOfAnotherQueue(t *testing.T) { simulated(t, testAcksOfAnotherQueue) }

func testAcksOfAnotherQueue(t *testing.T) {
	n := startAlone(t, nil)
	ctx := t.Context()
	n.createQueue("q")
	n.publish("q", "old")
	attach := func(id uint64) (*pb.ConsumeResponse, error) {
		stream, err := n.queues.Consume(ctx)
		require.NoError(t, err)
		require.NoError(t, stream.Send(&pb.ConsumeRequest{
			Attach: &pb.Attach{Queue: "q", QueueId: id}, Ack: span(1, 1),
			Confirm: 1,
		}))
		first, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		require.True(t, first.GetAttached())
		_, err = stream.Recv()
		return first, err
	}
	first, err := attach(0)
	require.NoError(t, err)
	require.NotZero(t, first.GetQueueId())
	_, err = attach(first.GetQueueId())
	require.NoError(t, err)

	_, err = n.queues.DeleteQueue(ctx, &pb.DeleteQueueRequest{Name: "q"})
	require.NoError(t, err)
	n.createQueue("q")
	n.publish("q", "new")
	_, err = attach(first.GetQueueId())
	require.ErrorIs(t, kind(err), txn.ErrQueueNotFound)
	for _, retry := range []bool{false, true} {
		for i, op := range []*pb.Operation{
			{Kind: &pb.Operation_Ack{Ack: &pb.AckOperation{
				Queue: "q", Ranges: span(1, 1),
				QueueId: first.GetQueueId(),
			}}},
			{Kind: &pb.Operation_Release{Release: &pb.ReleaseOperation{
				Queue: "q", Ranges: span(1, 1),
				QueueId: first.GetQueueId(),
			}}},
		} {
			_, err = n.queues.Commit(ctx, &pb.CommitRequest{
				Operations: []*pb.Operation{op}, Producer: &pb.Producer{Id: "p", Sequence: uint64(i) + 1, Retry: retry},
			})
			require.ErrorIs(t, kind(err), txn.ErrQueueNotFound)
		}
	}
	q, err := n.queues.GetQueue(ctx, &pb.GetQueueRequest{Name: "q"})
	require.NoError(t, err)
	require.Equal(t, uint64(1), q.GetQueue().GetMessages())
}
