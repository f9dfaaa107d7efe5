package node_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// settled tells whether a status says that the log keeps the refusal.
func settled(err error) bool {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetMetadata()["settled"] == "true" {
			return true
		}
	}
	return false
}

// TestRetryIsDecidedByTheLog: a request that says that it was sent before may be in the log by now, so that a look at the queue proves
// nothing. What refuses it is kept: no attempt with that sequence is carried out any more.
func TestRetryIsDecidedByTheLog(t *testing.T) { // INV-10
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
	full, err := n.queues.CreateQueue(ctx, &pb.CreateQueueRequest{Name: "full", Config: &pb.QueueConfig{MaxMessages: 1}})
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
		{"transaction, queue full", func(s uint64, retry bool) error { return commit(20+s, retry, publishOp("full", "x")) }, txn.ErrQueueFull},
		{"transaction, no queue", func(s uint64, retry bool) error { return commit(30+s, retry, publishOp("later", "x")) }, txn.ErrQueueNotFound},
		{"transaction, no subscription", func(s uint64, retry bool) error { return commit(40+s, retry, ackOther) }, txn.ErrSubscriptionNotFound},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.send(1, false)
			require.ErrorIs(t, kind(err), c.want)
			require.False(t, settled(err), "the log was not asked")
			err = c.send(1, true)
			require.ErrorIs(t, kind(err), c.want)
			require.True(t, settled(err))
		})
	}

	// Now all of them would work, and what was refused stays refused, whether it says that it is a retry or not.
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
	require.NoError(t, publish("later", 12, true), "a first attempt that did not come is carried out")
}
