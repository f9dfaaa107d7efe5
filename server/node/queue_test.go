// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/dispatch"
	"github.com/lockstep-mq/lockstep/server/wire"
	"github.com/lockstep-mq/lockstep/store/txn"
)

func TestQueueAdministration(t *testing.T) {
	n := startAlone(t, func(c *config.Config) { c.Limits.Queues = 5 })
	ctx := t.Context()
	created, err := n.queues.CreateQueue(ctx, &pb.CreateQueueRequest{
		Name: "orders", Config: &pb.QueueConfig{MaxMessages: 10}, Subscriptions: []string{"b", "a"},
	})
	require.NoError(t, err)
	require.True(t, created.GetCreated())
	require.Equal(t, uint64(10), created.GetQueue().GetConfig().GetMaxMessages())
	require.Equal(t, "a", created.GetQueue().GetSubscriptions()[0].GetName(), "subscriptions come by name")

	_, err = n.queues.CreateQueue(ctx, &pb.CreateQueueRequest{Name: "orders"})
	require.ErrorIs(t, kind(err), txn.ErrQueueExists)
	again, err := n.queues.CreateQueue(ctx, &pb.CreateQueueRequest{Name: "orders", IfNotExists: true})
	require.NoError(t, err)
	require.False(t, again.GetCreated())
	require.Equal(t, created.GetQueue().GetId(), again.GetQueue().GetId())

	altered, err := n.queues.AlterQueue(ctx,
		&pb.AlterQueueRequest{Name: "orders", Config: &pb.QueueConfig{MaxBytes: 100}})
	require.NoError(t, err)
	require.Equal(t, uint64(100), altered.GetQueue().GetConfig().GetMaxBytes())
	require.Zero(t, altered.GetQueue().GetConfig().GetMaxMessages())

	n.publish("orders", "x")
	_, err = n.queues.DeleteQueue(ctx, &pb.DeleteQueueRequest{Name: "orders", IfEmpty: true})
	require.ErrorIs(t, kind(err), txn.ErrQueueNotEmpty)
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	purged, err := n.queues.PurgeQueue(ctx, &pb.PurgeQueueRequest{Name: "orders", Subscription: "a"})
	require.NoError(t, err)
	require.Equal(t, uint64(1), purged.GetMessages())
	deleted, err := n.queues.DeleteQueue(ctx, &pb.DeleteQueueRequest{Name: "orders"})
	require.NoError(t, err)
	require.Equal(t, uint64(1), deleted.GetMessages())
	_, err = n.queues.GetQueue(ctx, &pb.GetQueueRequest{Name: "orders"})
	require.ErrorIs(t, kind(err), txn.ErrQueueNotFound)

	for i := range 5 {
		n.createQueue(fmt.Sprintf("q/%d", i))
	}
	_, err = n.queues.CreateQueue(ctx, &pb.CreateQueueRequest{Name: "one-too-many"})
	require.ErrorIs(t, kind(err), txn.ErrTooManyQueues)
}

func TestListQueues(t *testing.T) {
	n := startAlone(t, nil)
	for i := range 7 {
		n.createQueue(fmt.Sprintf("a/%d", i))
	}
	n.createQueue("b")
	var names []string
	token := ""
	for {
		page, err := n.queues.ListQueues(t.Context(),
			&pb.ListQueuesRequest{Prefix: "a/", PageSize: 3, PageToken: token})
		require.NoError(t, err)
		require.LessOrEqual(t, len(page.GetQueues()), 3)
		for _, q := range page.GetQueues() {
			names = append(names, q.GetName())
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	require.Equal(t, []string{"a/0", "a/1", "a/2", "a/3", "a/4", "a/5", "a/6"}, names)
	_, err := n.queues.ListQueues(t.Context(), &pb.ListQueuesRequest{PageToken: "!"})
	require.ErrorIs(t, kind(err), wire.ErrInvalid)
}

func TestSubscriptions(t *testing.T) {
	n := startAlone(t, nil)
	ctx := t.Context()
	n.createQueue("events")
	n.publish("events", "old")
	for name, start := range map[string]pb.StartPosition{
		"late": pb.StartPosition_START_POSITION_UNSPECIFIED, "early": pb.StartPosition_START_POSITION_EARLIEST,
	} {
		resp, err := n.queues.CreateSubscription(ctx,
			&pb.CreateSubscriptionRequest{Queue: "events", Name: name, Start: start})
		require.NoError(t, err)
		require.True(t, resp.GetCreated())
	}
	_, err := n.queues.CreateSubscription(ctx, &pb.CreateSubscriptionRequest{Queue: "events", Name: "late"})
	require.ErrorIs(t, kind(err), txn.ErrSubscriptionExists)
	resp, err := n.queues.CreateSubscription(ctx,
		&pb.CreateSubscriptionRequest{Queue: "events", Name: "late", IfNotExists: true})
	require.NoError(t, err)
	require.False(t, resp.GetCreated())
	_, err = n.queues.CreateSubscription(ctx, &pb.CreateSubscriptionRequest{Queue: "events", Name: "x", Start: 9})
	require.ErrorIs(t, kind(err), wire.ErrInvalid)

	n.publish("events", "new")
	q, err := n.queues.GetQueue(ctx, &pb.GetQueueRequest{Name: "events"})
	require.NoError(t, err)
	backlog := map[string]uint64{}
	for _, s := range q.GetQueue().GetSubscriptions() {
		backlog[s.GetName()] = s.GetBacklog()
	}
	require.Equal(t, map[string]uint64{"default": 2, "early": 2, "late": 1}, backlog)
	_, err = n.queues.DeleteSubscription(ctx, &pb.DeleteSubscriptionRequest{Queue: "events", Name: "late"})
	require.NoError(t, err)
	_, err = n.queues.DeleteSubscription(ctx, &pb.DeleteSubscriptionRequest{Queue: "events", Name: "late"})
	require.ErrorIs(t, kind(err), txn.ErrSubscriptionNotFound)

	topic, err := n.queues.CreateQueue(ctx, &pb.CreateQueueRequest{Name: "topic", Topic: true})
	require.NoError(t, err)
	require.Empty(t, topic.GetQueue().GetSubscriptions())
	_, err = n.queues.CreateQueue(ctx, &pb.CreateQueueRequest{Name: "t2", Topic: true, Subscriptions: []string{"a"}})
	require.ErrorIs(t, kind(err), wire.ErrInvalid)
	_, err = n.queues.CreateQueue(ctx, &pb.CreateQueueRequest{Name: "t3", Subscriptions: []string{"a", "a"}})
	require.ErrorIs(t, kind(err), wire.ErrInvalid)
}

// TestPublishRefusals: what is wrong is refused before it reaches the log, and the message says what and how much.
func TestPublishRefusals(t *testing.T) {
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
		"no messages": {&pb.PublishRequest{Queue: "q"}, wire.ErrInvalid, "1 to 10000"},
		"many": {
			&pb.PublishRequest{Queue: "q", Messages: batch(make([]string, 10_001)...)}, wire.ErrInvalid,
			"10001 messages",
		},
		"large": {
			&pb.PublishRequest{Queue: "q", Messages: []*pb.Message{{Body: big}}}, txn.ErrTooLarge,
			"limits.message-bytes is 1MiB",
		},
		"large batch": {
			&pb.PublishRequest{Queue: "q", Messages: []*pb.Message{third, third, third}}, txn.ErrTooLarge,
			"limits.transaction-bytes is 2MiB",
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
			txn.ErrTooLarge, "subject has 1025 bytes, the limit is 1024",
		},
		"typed property without a type": {
			&pb.PublishRequest{Queue: "q", Messages: []*pb.Message{{
				TypedProperties: map[string]*pb.PropertyValue{"k": {}},
			}}},
			wire.ErrInvalid, `the typed property "k" has no value`,
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
			txn.ErrTooLarge, "typed properties have",
		},
		"property of both kinds": {
			&pb.PublishRequest{Queue: "q", Messages: []*pb.Message{{
				Properties:      map[string]string{"k": "v"},
				TypedProperties: map[string]*pb.PropertyValue{"k": {Kind: &pb.PropertyValue_BoolValue{}}},
			}}},
			txn.ErrMalformed, `property "k" is there as a text and as a value`,
		},
		"producer id": {
			&pb.PublishRequest{Queue: "q", Messages: batch("x"), Producer: &pb.Producer{Sequence: 1}},
			txn.ErrMalformed, "producer id",
		},
		"producer seq": {
			&pb.PublishRequest{Queue: "q", Messages: batch("x"), Producer: &pb.Producer{Id: "p"}},
			txn.ErrMalformed, "begins at 1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := n.queues.Publish(t.Context(), tc.req)
			require.ErrorIs(t, kind(err), tc.want)
			require.ErrorContains(t, err, tc.text)
		})
	}
	after, err := n.admin.GetStatus(t.Context(), &pb.GetStatusRequest{})
	require.NoError(t, err)
	require.Equal(t, before.GetStore().GetLogEnd().GetLsn(), after.GetStore().GetLogEnd().GetLsn(),
		"nothing was logged")
}

func TestQueueLimits(t *testing.T) {
	n := startAlone(t, nil)
	ctx := t.Context()
	_, err := n.queues.CreateQueue(ctx, &pb.CreateQueueRequest{Name: "few", Config: &pb.QueueConfig{MaxMessages: 2}})
	require.NoError(t, err)
	n.publish("few", "1", "2")
	_, err = n.queues.Publish(ctx, &pb.PublishRequest{Queue: "few", Messages: batch("3")})
	require.ErrorIs(t, kind(err), txn.ErrQueueFull)
	require.ErrorContains(t, err, "max_messages is 2")
	c := n.consume("few", 10)
	c.take(2)
	c.confirm(&pb.ConsumeRequest{Ack: span(1, 1), Confirm: 1})
	n.publish("few", "3")

	_, err = n.queues.CreateQueue(ctx, &pb.CreateQueueRequest{Name: "small", Config: &pb.QueueConfig{MaxBytes: 1000}})
	require.NoError(t, err)
	n.publish("small", strings.Repeat("x", 900))
	_, err = n.queues.Publish(ctx, &pb.PublishRequest{Queue: "small", Messages: batch(strings.Repeat("x", 100))})
	require.ErrorIs(t, kind(err), txn.ErrQueueFull)
}

// TestDiskLow: publishes are refused, acknowledgements are not, and a retry of what was committed is still answered.
func TestDiskLow(t *testing.T) {
	c := settings(t, "alone")
	n := start(t, c)
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	n.createQueue("q")
	retry := &pb.PublishRequest{Queue: "q", Messages: batch("1"), Producer: &pb.Producer{Id: "p", Sequence: 1}}
	_, err := n.queues.Publish(t.Context(), retry)
	require.NoError(t, err)
	n.stop()

	c.Disk.LowWatermark = 1 << 60
	n = start(t, c)
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	_, err = n.queues.Publish(t.Context(), &pb.PublishRequest{Queue: "q", Messages: batch("2")})
	require.ErrorIs(t, kind(err), wire.ErrDiskLow)
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	_, err = n.queues.Commit(t.Context(), &pb.CommitRequest{Operations: []*pb.Operation{publishOp("q", "2")}})
	require.ErrorIs(t, kind(err), wire.ErrDiskLow)
	resp, err := n.queues.Publish(t.Context(), retry)
	require.NoError(t, err)
	require.True(t, resp.GetDuplicate())
	consumer := n.consume("q", 1)
	consumer.take(1)
	consumer.confirm(&pb.ConsumeRequest{Ack: span(1, 1), Confirm: 1})
}

// TestRetries is INV-10 as a client sees it.
func TestRetries(t *testing.T) {
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
	require.NoError(t, err, "the queue is gone, but the transaction was committed")
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
	require.ErrorIs(t, kind(err), wire.ErrSequenceReused)
	require.ErrorContains(t, err, "used for another transaction")
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

func TestCommit(t *testing.T) {
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
	require.Equal(t, uint64(2), again[0].GetSequence(), "what the transaction released goes out again")
	require.Equal(t, uint32(1), again[0].GetDeliveryCount())

	// All or none: the second operation is refused, so the first does nothing.
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
		require.ErrorIs(t, kind(err), wire.ErrInvalid, name)
	}
	_, err = n.queues.Commit(ctx, &pb.CommitRequest{Operations: []*pb.Operation{ackOp("none", 1, 1)}})
	require.ErrorIs(t, kind(err), txn.ErrQueueNotFound)
}

func TestPublishStream(t *testing.T) {
	for _, together := range []uint64{1, 7} {
		t.Run(fmt.Sprint(together, " together"), func(t *testing.T) { testPublishStream(t, together) })
	}
}

// TestPublishStreamRefuses: what cannot come together ends the stream, and nothing of it was committed.
func TestPublishStreamRefuses(t *testing.T) {
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
		require.ErrorIs(t, kind(err), wire.ErrInvalid, name)
	}
	q, err := n.queues.GetQueue(t.Context(), &pb.GetQueueRequest{Name: "q"})
	require.NoError(t, err)
	require.Zero(t, q.GetQueue().GetMessages())
}

func testPublishStream(t *testing.T, together uint64) {
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
			if i%together == 0 {
				all = req
				all.TakesMore = together > 1
			} else {
				all.More = append(all.More, req)
			}
			if i%together != together-1 {
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
	var answers []*pb.PublishStreamResponse
	messages := 0
	for i := range uint64(requests) {
		if len(answers) == 0 {
			all, err := stream.Recv()
			require.NoError(t, err)
			require.Equal(t, i == 0, all.GetTakesMore())
			answers = append(answers, all)
			answers = append(answers, all.GetMore()...)
			messages++
		}
		resp := answers[0]
		answers = answers[1:]
		require.Equal(t, i, resp.GetCorrelation(), "answers come in order")
		switch i {
		case 100:
			require.Equal(t, "QUEUE_NOT_FOUND", resp.GetError().GetReason())
			require.ErrorIs(t, wire.FromRequestError(resp.GetError()), txn.ErrQueueNotFound)
		case 200:
			require.Equal(t, "INVALID", resp.GetError().GetReason())
		default:
			require.Nil(t, resp.GetError())
			require.Equal(t, next, resp.GetPublished().GetFirstSequence(), "requests commit in order")
			next++
		}
	}
	if together == 1 {
		require.Equal(t, requests, messages, "who did not say that it takes several answers gets one at a time")
	}
	_, err = stream.Recv()
	require.ErrorContains(t, err, "EOF")
	require.NoError(t, <-sent)
}

func TestConsume(t *testing.T) {
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

	// A nack goes to any consumer, with its count.
	b.confirm(&pb.ConsumeRequest{Nack: span(4, 4), Ack: span(3, 3), Confirm: 1})
	again := b.take(1)
	require.Equal(t, uint64(4), again[0].GetSequence())
	require.Equal(t, uint32(1), again[0].GetDeliveryCount())

	// A consumer that goes away gives back what it has.
	require.NoError(t, a.stream.CloseSend())
	_, err = a.stream.Recv()
	require.ErrorContains(t, err, "EOF")
	require.Equal(t, []string{"1", "2"}, bodies(b.take(2)))
	b.confirm(&pb.ConsumeRequest{Ack: span(1, 4), Confirm: 2})
	q, err = n.queues.GetQueue(t.Context(), &pb.GetQueueRequest{Name: "q"})
	require.NoError(t, err)
	require.Zero(t, q.GetQueue().GetMessages())
}

// TestConsumeHalfClose: a client that is done sending is still told what is committed.
func TestConsumeHalfClose(t *testing.T) {
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
	require.ErrorContains(t, err, "EOF")
}

func TestConsumeRefusals(t *testing.T) {
	n := startAlone(t, func(c *config.Config) { c.Limits.Outstanding = 100 })
	n.createQueue("q")
	open := func(requests ...*pb.ConsumeRequest) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
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
	require.ErrorIs(t, open(&pb.ConsumeRequest{Credit: 1}), wire.ErrInvalid)
	require.ErrorIs(t, open(attach, attach), wire.ErrInvalid)
	require.ErrorIs(t, open(&pb.ConsumeRequest{Attach: &pb.Attach{Queue: "none"}}), txn.ErrQueueNotFound)
	require.ErrorIs(t, open(&pb.ConsumeRequest{Attach: &pb.Attach{Queue: "q", Subscription: "none"}}),
		txn.ErrSubscriptionNotFound)
	require.ErrorIs(t, open(attach, &pb.ConsumeRequest{Credit: 101}), dispatch.ErrTooMuchCredit)
	require.ErrorIs(t, open(attach, &pb.ConsumeRequest{Ack: span(0, 1)}), wire.ErrInvalid)
	require.ErrorContains(t, open(attach, &pb.ConsumeRequest{Ack: span(1, 1)}), "never delivered")
	many := make([]*pb.SequenceRange, 10_001)
	for i := range many {
		many[i] = &pb.SequenceRange{First: 1, Last: 1}
	}
	require.ErrorContains(t, open(attach, &pb.ConsumeRequest{Nack: many}), "use several requests")
}

// TestConsumeDeletedQueue: the consumers of a queue that is deleted are told so.
func TestConsumeDeletedQueue(t *testing.T) {
	n := startAlone(t, nil)
	n.createQueue("q")
	c := n.consume("q", 1)
	_, err := n.queues.DeleteQueue(t.Context(), &pb.DeleteQueueRequest{Name: "q"})
	require.NoError(t, err)
	_, err = c.stream.Recv()
	require.Equal(t, codes.NotFound, status.Code(err))
	require.ErrorContains(t, err, `"q"`)
}

func TestBrowse(t *testing.T) {
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

// TestLargeMessages: the largest message goes in and out.
func TestLargeMessages(t *testing.T) {
	n := startAlone(t, nil)
	n.createQueue("q")
	body := strings.Repeat("0123456789abcdef", 4<<20) // 64 MiB
	n.publish("q", body)
	c := n.consume("q", 1)
	got := c.take(1)
	require.Len(t, got[0].GetMessage().GetBody(), len(body))
	require.Equal(t, body, string(got[0].GetMessage().GetBody()))
}
