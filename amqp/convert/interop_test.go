// SPDX-License-Identifier: Apache-2.0

package convert_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-mq/lockstep/amqp/convert"
	"github.com/lockstep-mq/lockstep/amqp/wire"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/node"
)

// start runs a node with gRPC and AMQP listeners.
func start(t *testing.T) (queues pb.QueueServiceClient, amqp string) {
	t.Helper()
	c := config.Default()
	c.Node.Name, c.Data.Dir, c.Listen, c.AMQP.Listen = "a", t.TempDir(), "127.0.0.1:0", "127.0.0.1:0"
	c.Coordinator.Type = config.CoordinatorNone
	c.WAL.SegmentBytes, c.Disk.LowWatermark, c.Memory.Budget = 4<<20, 0, 32<<20
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan node.Ready, 1), make(chan error, 1)
	go func() {
		done <- node.Run(ctx, c, zap.NewNop(), node.Options{Version: "test", OnReady: func(r node.Ready) { ready <- r }})
	}()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	var r node.Ready
	select {
	case r = <-ready:
	case err := <-done:
		done <- err
		require.NoError(t, err)
	case <-time.After(testTimeout):
		require.Fail(t, "the node is not ready")
	}
	conn, err := grpc.NewClient("passthrough:///"+r.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	queues = pb.NewQueueServiceClient(conn)
	require.Eventually(t, func() bool {
		_, err := queues.CreateQueue(t.Context(), &pb.CreateQueueRequest{Name: "q"})
		return err == nil
	}, testTimeout, 50*time.Millisecond)
	return queues, r.AMQP
}

// browse reads all messages of a queue.
func browse(t *testing.T, queues pb.QueueServiceClient, queue string) (all []*pb.StoredMessage) {
	t.Helper()
	stream, err := queues.Browse(t.Context(), &pb.BrowseRequest{Queue: queue})
	require.NoError(t, err)
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		all = append(all, resp.GetMessages()...)
	}
}

// A gRPC consumer receives a message published by AMQP with all of its fields, and an AMQP consumer receives it
// unchanged.
func TestForwardedThroughNode(t *testing.T) {
	queues, address := start(t)
	p := connect(t, address, "interop")
	to := p.sender("q")
	var sent [][]byte
	var want []*pb.Message
	for i := uint64(0); len(sent) < 300; i++ {
		all, preserved := convert.Generate(rand.New(rand.NewPCG(11, i)))
		m, _, err := convert.Decode(all)
		require.NoError(t, err)
		if m.DeliverAt != nil || m.Delay != nil {
			continue // this message is delivered later, or in another order
		}
		require.Equal(t, wire.Accepted{}, p.publish(to, all), "%d: %x", i, all)
		sent, want = append(sent, preserved), append(want, m)
	}
	stored := browse(t, queues, "q")
	require.Len(t, stored, len(sent))
	for i, s := range stored {
		got := s.GetMessage()
		delete(got.GetProperties(), convert.ContainerKey)
		require.Equal(t, want[i].GetTtl() != nil || want[i].GetExpiresAt() != nil, got.GetExpiresAt() != nil)
		want[i].Ttl, want[i].ExpiresAt, got.ExpiresAt = nil, nil, nil
		require.True(t, proto.Equal(want[i], got), "%v\n%v", want[i], got)
	}
	p.receiver(&wire.Source{Address: "q"}, 1000)
	left := map[string]int{}
	for _, b := range sent {
		left[string(b)]++
	}
	for range sent { // messages of a group are delivered in sequence, possibly after other messages
		left[string(convert.CutHeader(t, p.receive(wire.Accepted{})))]--
	}
	for b, n := range left {
		require.Zero(t, n, "%x", b)
	}
}

// An AMQP consumer receives a message published by gRPC with all of its fields.
func TestPublishedByGRPC(t *testing.T) {
	queues, address := start(t)
	sent := &pb.Message{
		Body: bytes.Repeat([]byte("large "), 300_000), MessageId: "m", CorrelationId: "ID:AMQP_ULONG:7", ReplyTo: "answers",
		ContentType: "text/plain", Subject: "order", Group: "eu", Priority: new(uint32(7)), Ttl: durationpb.New(time.Hour),
		Properties:      map[string]string{"region": "eu"},
		TypedProperties: map[string]*pb.PropertyValue{"n": {Kind: &pb.PropertyValue_IntValue{IntValue: 5}}},
	}
	_, err := queues.Publish(t.Context(), &pb.PublishRequest{Queue: "q", Messages: []*pb.Message{sent}})
	require.NoError(t, err)
	p := connect(t, address, "interop")
	p.receiver(&wire.Source{Address: "q"}, 10)
	got, _, err := convert.Decode(p.receive(wire.Accepted{}))
	require.NoError(t, err)
	require.NotZero(t, got.GetTypedProperties()[convert.SectionsKey].GetBytesValue()[0]&0x80, "durable")
	require.InDelta(t, time.Hour.Seconds(), got.GetTtl().AsDuration().Seconds(), testTimeout.Seconds())
	delete(got.GetTypedProperties(), convert.SectionsKey)
	got.Ttl = sent.GetTtl()
	require.True(t, proto.Equal(sent, got), "%.200v\n%.200v", sent, got)
}

// A rejected message is in the dead-letter queue with its origin.
func TestDeadLetterByAMQP(t *testing.T) {
	queues, address := start(t)
	for _, req := range []*pb.CreateQueueRequest{
		{Name: "dead"}, {Name: "orders", Config: &pb.QueueConfig{DeadLetter: "dead"}},
	} {
		_, err := queues.CreateQueue(t.Context(), req)
		require.NoError(t, err)
	}
	p := connect(t, address, "interop")
	body := []byte{0, 0x53, 0x77, 0xa1, 2, 'h', 'i'}
	require.Equal(t, wire.Accepted{}, p.publish(p.sender("orders"), body))
	p.receiver(&wire.Source{Address: "orders"}, 1)
	require.Equal(t, body, p.receive(&wire.Rejected{}))
	p.receiver(&wire.Source{Address: "dead"}, 1)
	got := p.receive(wire.Accepted{})
	require.True(t, bytes.HasSuffix(got, body))
	a := convert.Annotations(t, got)
	require.Equal(t, "orders", a["x-opt-ORIG-QUEUE"])
	require.Equal(t, "rejected", a["x-opt-dead-letter-reason"])
}

// A message that cannot be stored is rejected with the reason, and the link remains attached.
func TestUnstorableMessageIsRejected(t *testing.T) {
	_, address := start(t)
	p := connect(t, address, "interop")
	to := p.sender("q")
	for _, c := range []struct {
		payload   []byte
		condition wire.Symbol
	}{
		{[]byte("hello"), "amqp:decode-error"},
		{[]byte{0, 0x53, 0x77, 0xa1, 1, 0xff}, "amqp:decode-error"},
		{
			append([]byte("\x00\x53\x74\xc1\x11\x02\xa1\x0damqp.sections\x40"), 0, 0x53, 0x75, 0xa0, 0),
			"amqp:not-allowed",
		},
		// The property and its copy in SectionsKey are each below 64 KiB, but not together.
		{convert.WithProperty(make([]byte, 40<<10)), "amqp:resource-limit-exceeded"},
		{convert.WithProperty(make([]byte, 70<<10)), "amqp:resource-limit-exceeded"},
	} {
		state, ok := p.publish(to, c.payload).(*wire.Rejected)
		require.True(t, ok, "%s", c.condition)
		require.Equal(t, c.condition, state.Error.Condition)
	}
	require.Equal(t, wire.Accepted{}, p.publish(to, []byte{0, 0x53, 0x75, 0xa0, 0}))
	// Maximum size.
	require.Equal(t, wire.Accepted{}, p.publish(to, convert.WithProperty(make([]byte, 32<<10-100))))
}

// A browser receives the messages that match its selector, and an invalid selector is rejected.
func TestSelectorOfALink(t *testing.T) {
	queues, address := start(t)
	var messages []*pb.Message
	for i := range 10 {
		messages = append(messages, &pb.Message{
			Body: []byte{byte('0' + i)}, Subject: []string{"even", "odd"}[i%2], Properties: map[string]string{"color": "red"},
			TypedProperties: map[string]*pb.PropertyValue{"n": {Kind: &pb.PropertyValue_IntValue{IntValue: int64(i)}}},
		})
	}
	_, err := queues.Publish(t.Context(), &pb.PublishRequest{Queue: "q", Messages: messages})
	require.NoError(t, err)
	p := connect(t, address, "interop")
	selected := func(text string) *wire.Source {
		return &wire.Source{Address: "q", DistributionMode: "copy", Filter: wire.Map{{
			Key:   wire.Symbol("selector"),
			Value: wire.Described{Descriptor: wire.Symbol("apache.org:selector-filter:string"), Value: text},
		}}}
	}
	_, attached := p.receiver(selected("color LIKE 'r%' AND JMSType = 'odd' AND (n > 4 OR other IS NOT NULL)"), 10)
	require.NotNil(t, attached)
	require.Len(t, attached.Filter, 1) // the filter is applied
	for _, want := range []string{"5", "7", "9"} {
		got, _, err := convert.Decode(p.receive(wire.Accepted{}))
		require.NoError(t, err)
		require.Equal(t, want, string(got.GetBody()))
	}
	p = connect(t, address, "other")
	_, attached = p.receiver(selected("color LIKE"), 0)
	require.Nil(t, attached)
	d, _ := await(p, func(*wire.Detach, []byte) bool { return true })
	require.Equal(t, wire.Symbol("amqp:invalid-field"), d.Error.Condition)
	require.Contains(t, d.Error.Description, "at character 11")
	require.Len(t, browse(t, queues, "q"), 10)
}
