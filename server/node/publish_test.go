// SPDX-License-Identifier: Apache-2.0

package node_test

import (
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
	"github.com/lockstep-mq/lockstep/store/txn"
)

// Invalid publishes are rejected before they are logged. The error contains the cause and the limit.
func TestPublishRefusals(t *testing.T) { simulated(t, testPublishRefusals) }

func testPublishRefusals(t *testing.T) {
	n := startAlone(t, func(c *config.Config) {
		c.Limits.MessageBytes, c.Limits.TransactionBytes = 1<<20, 2<<20
	})
	n.createQueue("q")
	before, err := n.admin.GetStatus(t.Context(), &pb.GetStatusRequest{})
	require.NoError(t, err)
	big := make([]byte, 1<<20+1)
	third := &pb.Message{Body: make([]byte, 800<<10)}
	for name, tc := range map[string]struct {
		req  *pb.PublishRequest
		want error
		text string
	}{
		"no queue": {&pb.PublishRequest{Queue: "none", Messages: batch("x")}, txn.ErrQueueNotFound, `"none"`},
		"no name":  {&pb.PublishRequest{Messages: batch("x")}, txn.ErrInvalidName, "empty"},
		"bad name": {&pb.PublishRequest{Queue: "a b", Messages: batch("x")}, txn.ErrInvalidName, "only A-Z"},
		"long name": {
			&pb.PublishRequest{Queue: strings.Repeat("x", 256), Messages: batch("x")}, txn.ErrInvalidName,
			"255",
		},
		"no messages": {&pb.PublishRequest{Queue: "q"}, apierror.ErrInvalid, "1 to 10000"},
		"many": {
			&pb.PublishRequest{Queue: "q", Messages: batch(make([]string, 10_001)...)}, apierror.ErrInvalid,
			"10001 messages",
		},
		"large": {
			&pb.PublishRequest{Queue: "q", Messages: []*pb.Message{{Body: big}}}, txn.ErrTooLarge,
			"limits.message-bytes",
		},
		"large batch": {
			&pb.PublishRequest{Queue: "q", Messages: []*pb.Message{third, third, third}}, txn.ErrTooLarge,
			"limits.transaction-bytes",
		},
		"property key": {&pb.PublishRequest{
			Queue:    "q",
			Messages: []*pb.Message{{Properties: map[string]string{"": "x"}}},
		}, txn.ErrInvalidName, "property key"},
		"properties": {
			&pb.PublishRequest{Queue: "q", Messages: []*pb.Message{{
				Properties: map[string]string{"x": strings.Repeat("x", 65<<10)},
			}}},
			txn.ErrTooLarge, "properties",
		},
		"standard field": {
			&pb.PublishRequest{Queue: "q", Messages: []*pb.Message{{Subject: strings.Repeat("x", 1025)}}},
			txn.ErrTooLarge, "subject has",
		},
		"typed property without a type": {
			&pb.PublishRequest{Queue: "q", Messages: []*pb.Message{{
				TypedProperties: map[string]*pb.PropertyValue{"k": {}},
			}}},
			apierror.ErrInvalid, `property "k"`,
		},
		"typed property key": {
			&pb.PublishRequest{Queue: "q", Messages: []*pb.Message{{
				TypedProperties: map[string]*pb.PropertyValue{"": {Kind: &pb.PropertyValue_IntValue{}}},
			}}},
			txn.ErrInvalidName, "property key",
		},
		"typed properties": {
			&pb.PublishRequest{Queue: "q", Messages: []*pb.Message{{TypedProperties: map[string]*pb.PropertyValue{
				"k": {Kind: &pb.PropertyValue_BytesValue{BytesValue: make([]byte, 64<<10)}},
			}}}},
			txn.ErrTooLarge, "typed properties",
		},
		"property of both kinds": {
			&pb.PublishRequest{Queue: "q", Messages: []*pb.Message{{
				Properties:      map[string]string{"k": "v"},
				TypedProperties: map[string]*pb.PropertyValue{"k": {Kind: &pb.PropertyValue_BoolValue{}}},
			}}},
			apierror.ErrInvalid, `property "k"`,
		},
		"producer id": {
			&pb.PublishRequest{Queue: "q", Messages: batch("x"), Producer: &pb.Producer{Sequence: 1}},
			txn.ErrMalformed, "producer id",
		},
		"producer seq": {
			&pb.PublishRequest{Queue: "q", Messages: batch("x"), Producer: &pb.Producer{Id: "p"}},
			txn.ErrMalformed, "at 1",
		},
	} {
		section(t, name, func(t *testing.T) {
			_, err := n.queues.Publish(t.Context(), tc.req)
			require.ErrorIs(t, kind(err), tc.want)
			require.Contains(t, err.Error(), tc.text)
		})
	}
	after, err := n.admin.GetStatus(t.Context(), &pb.GetStatusRequest{})
	require.NoError(t, err)
	require.Equal(t, before.GetStore().GetLogEnd().GetLsn(), after.GetStore().GetLogEnd().GetLsn(),
		"nothing was logged")
}

// Retries are idempotent for clients (INV-10).
func TestRetries(t *testing.T) { simulated(t, testRetries) }

func testRetries(t *testing.T) {
	n := startAlone(t, nil)
	ctx := t.Context()
	n.createQueue("q")
	publish := func(epoch uint32, sequence uint64) (*pb.PublishResponse, error) {
		return n.queues.Publish(ctx, &pb.PublishRequest{
			Queue: "q", Messages: batch("x", "y"), Producer: &pb.Producer{Id: "p", Epoch: epoch, Sequence: sequence},
		})
	}
	first, err := publish(1, 1)
	require.NoError(t, err)
	require.False(t, first.GetDuplicate())
	second, err := publish(1, 2)
	require.NoError(t, err)
	again, err := publish(1, 1)
	require.NoError(t, err)
	require.True(t, again.GetDuplicate())
	require.Equal(t, first.GetFirstSequence(), again.GetFirstSequence())
	require.Equal(t, first.GetLsn(), again.GetLsn())
	require.Equal(t, uint64(3), second.GetFirstSequence())

	_, err = n.queues.DeleteQueue(ctx, &pb.DeleteQueueRequest{Name: "q"})
	require.NoError(t, err)
	again, err = publish(1, 2)
	require.NoError(t, err, "the queue is deleted, but the transaction was committed")
	require.Equal(t, uint64(3), again.GetFirstSequence())
	n.createQueue("q")

	_, err = publish(2, 1)
	require.NoError(t, err)
	_, err = publish(1, 3)
	require.ErrorIs(t, kind(err), txn.ErrFenced)
	require.Equal(t, codes.Aborted, status.Code(err))
	for i := range uint64(300) {
		_, err = publish(2, i+2)
		require.NoError(t, err)
	}
	_, err = publish(2, 1)
	require.ErrorIs(t, kind(err), txn.ErrTooOld)
	require.Equal(t, codes.OutOfRange, status.Code(err))

	_, err = n.queues.Commit(ctx, &pb.CommitRequest{
		Operations: []*pb.Operation{publishOp("q", "a"), publishOp("q", "b")},
		Producer:   &pb.Producer{Id: "p", Epoch: 2, Sequence: 301},
	})
	require.ErrorIs(t, kind(err), apierror.ErrSequenceReused)
}

func publishOp(queue string, bodies ...string) *pb.Operation {
	return &pb.Operation{Kind: &pb.Operation_Publish{Publish: &pb.PublishOperation{
		Queue:    queue,
		Messages: batch(bodies...),
	}}}
}

func ackOp(queue string, first, last uint64) *pb.Operation {
	return &pb.Operation{Kind: &pb.Operation_Ack{Ack: &pb.AckOperation{Queue: queue, Ranges: span(first, last)}}}
}

func releaseOp(queue string, first, last uint64) *pb.Operation {
	return &pb.Operation{Kind: &pb.Operation_Release{Release: &pb.ReleaseOperation{
		Queue:  queue,
		Ranges: span(first, last),
	}}}
}

// A transaction commits all of its operations, or none. Messages that it releases are redelivered.
func TestCommit(t *testing.T) { simulated(t, testCommit) }

func testCommit(t *testing.T) {
	n := startAlone(t, nil)
	ctx := t.Context()
	n.createQueue("in")
	n.createQueue("out")
	n.publish("in", "1", "2", "3")
	c := n.consume("in", 10)
	c.take(3)
	resp, err := n.queues.Commit(ctx, &pb.CommitRequest{Operations: []*pb.Operation{
		ackOp("in", 1, 1), publishOp("out", "a", "b"), releaseOp("in", 2, 2),
	}})
	require.NoError(t, err)
	require.Equal(t, uint64(1), resp.GetResults()[0].GetChanged())
	require.Equal(t, uint64(1), resp.GetResults()[1].GetFirstSequence())
	require.Equal(t, uint64(1), resp.GetResults()[2].GetChanged())
	again := c.take(1)
	require.Equal(t, uint64(2), again[0].GetSequence(), "messages released by the transaction are redelivered")
	require.Equal(t, uint32(1), again[0].GetDeliveryCount())

	// The second operation is rejected, so the first operation has no effect.
	_, err = n.queues.Commit(ctx, &pb.CommitRequest{Operations: []*pb.Operation{
		publishOp("out", "c"),
		ackOp("in", 9, 9),
	}})
	require.ErrorIs(t, kind(err), txn.ErrBeyondEnd)
	q, err := n.queues.GetQueue(ctx, &pb.GetQueueRequest{Name: "out"})
	require.NoError(t, err)
	require.Equal(t, uint64(2), q.GetQueue().GetMessages())

	for name, ops := range map[string][]*pb.Operation{
		"none":     nil,
		"unknown":  {{}},
		"no range": {{Kind: &pb.Operation_Ack{Ack: &pb.AckOperation{Queue: "in"}}}},
		"range":    {ackOp("in", 3, 2)},
	} {
		_, err = n.queues.Commit(ctx, &pb.CommitRequest{Operations: ops})
		require.ErrorIs(t, kind(err), apierror.ErrInvalid, name)
	}
	_, err = n.queues.Commit(ctx, &pb.CommitRequest{Operations: []*pb.Operation{ackOp("none", 1, 1)}})
	require.ErrorIs(t, kind(err), txn.ErrQueueNotFound)
}

// A stream responds to each publish in order, regardless of whether publishes are sent individually or combined.
// An invalid publish does not end the stream.
func TestPublishStream(t *testing.T) {
	for _, concurrent := range []uint64{1, 7} {
		t.Run(fmt.Sprint(concurrent, " together"), func(t *testing.T) {
			simulated(t, func(t *testing.T) { testPublishStream(t, concurrent) })
		})
	}
}

// An invalid combined request ends the stream, and none of its publishes is committed.
func TestPublishStreamRefuses(t *testing.T) { simulated(t, testPublishStreamRefuses) }

func testPublishStreamRefuses(t *testing.T) {
	n := startAlone(t, nil)
	n.createQueue("q")
	one := func() *pb.PublishStreamRequest {
		return &pb.PublishStreamRequest{Publish: &pb.PublishRequest{Queue: "q", Messages: batch("x")}}
	}
	many, nested := one(), one()
	for range 257 {
		many.More = append(many.More, one())
	}
	nested.More = append(nested.More, one())
	nested.More[0].More = append(nested.More[0].More, one())
	for name, req := range map[string]*pb.PublishStreamRequest{"too many": many, "nested": nested} {
		stream, err := n.queues.PublishStream(t.Context())
		require.NoError(t, err)
		require.NoError(t, stream.Send(req))
		_, err = stream.Recv()
		require.ErrorIs(t, kind(err), apierror.ErrInvalid, name)
	}
	q, err := n.queues.GetQueue(t.Context(), &pb.GetQueueRequest{Name: "q"})
	require.NoError(t, err)
	require.Zero(t, q.GetQueue().GetMessages())
}

func testPublishStream(t *testing.T, concurrent uint64) {
	n := startAlone(t, func(c *config.Config) { c.Limits.StreamInFlight = 8 })
	n.createQueue("q")
	stream, err := n.queues.PublishStream(t.Context())
	require.NoError(t, err)
	const requests = 504
	sent := make(chan error, 1)
	go func() {
		var all *pb.PublishStreamRequest
		for i := range uint64(requests) {
			queue := "q"
			if i == 100 {
				queue = "none"
			}
			req := &pb.PublishStreamRequest{
				Correlation: i,
				Publish:     &pb.PublishRequest{Queue: queue, Messages: batch(fmt.Sprint(i))},
			}
			if i == 200 {
				req.Publish = nil
			}
			if i%concurrent == 0 {
				all = req
				all.AcceptsMore = concurrent > 1
			} else {
				all.More = append(all.More, req)
			}
			if i%concurrent != concurrent-1 {
				continue
			}
			if err := stream.Send(all); err != nil {
				sent <- err
				return
			}
		}
		sent <- stream.CloseSend()
	}()
	next := uint64(1)
	var responses []*pb.PublishStreamResponse
	messages := 0
	for i := range uint64(requests) {
		if len(responses) == 0 {
			all, err := stream.Recv()
			require.NoError(t, err)
			require.Equal(t, i == 0, all.GetAcceptsMore())
			responses = append(responses, all)
			responses = append(responses, all.GetMore()...)
			messages++
		}
		resp := responses[0]
		responses = responses[1:]
		require.Equal(t, i, resp.GetCorrelation(), "responses are in the order of the requests")
		switch i {
		case 100:
			require.Equal(t, "QUEUE_NOT_FOUND", resp.GetError().GetReason())
		case 200:
			require.Equal(t, "INVALID", resp.GetError().GetReason())
		default:
			require.Nil(t, resp.GetError())
			require.Equal(t, next, resp.GetPublished().GetFirstSequence(), "requests commit in order")
			next++
		}
	}
	if concurrent == 1 {
		require.Equal(t, requests, messages, "a client without accepts_more gets one response at a time")
	}
	_, err = stream.Recv()
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, <-sent)
}
