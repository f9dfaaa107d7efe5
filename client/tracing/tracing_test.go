// SPDX-License-Identifier: Apache-2.0

package tracing_test

import (
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/tracing"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// A sampled publish stores its span context in copies of the messages; the application's messages are unchanged. A
// span context set by the application is retained and linked. A message without space for a span context is sent
// unchanged.
func TestPublish(t *testing.T) {
	r := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r))
	tracer := tracing.New(provider, tracing.Options{})
	props := map[string]string{"key": "value"}
	full := map[string]string{"key": strings.Repeat("x", 64<<10-3)}
	ms := []client.Message{
		{Body: []byte("1")}, {Properties: props}, {Properties: map[string]string{"traceparent": own}}, {Properties: full},
	}
	send, done := tracer.Publish(t.Context(), "q", ms)
	done(client.Receipt{Sequence: 3, LSN: 7}, nil)
	require.Len(t, r.Ended(), 1)
	span := r.Ended()[0]
	name := "00-" + span.SpanContext().TraceID().String() + "-" + span.SpanContext().SpanID().String() + "-01"
	require.Equal(t, map[string]string{"traceparent": name}, send[0].Properties)
	require.Equal(t, "1", string(send[0].Body))
	require.Equal(t, map[string]string{"key": "value", "traceparent": name}, send[1].Properties)
	require.Equal(t, own, send[2].Properties["traceparent"])
	require.Equal(t, full, send[3].Properties)
	require.Equal(t, map[string]string{"key": "value"}, props, "the application's own map was changed")
	require.Nil(t, ms[0].Properties)
	require.Len(t, span.Links(), 1)
	require.Equal(t, own[3:35], span.Links()[0].SpanContext.TraceID().String())
}

// The span context never makes a message larger than a node accepts.
func TestPublishNearTheLimit(t *testing.T) {
	tracer := tracing.New(sdktrace.NewTracerProvider(), tracing.Options{})
	named := 0
	for size := txn.MaxPropertiesBytes - 500; size < txn.MaxPropertiesBytes-10; size++ {
		ms := []client.Message{{Properties: map[string]string{"key": strings.Repeat("x", size)}}}
		send, _ := tracer.Publish(t.Context(), "q", ms)
		var props []txn.Property
		for k, v := range send[0].Properties {
			props = append(props, txn.Property{Key: k, Value: v})
		}
		require.NoError(t, txn.CheckMessage(nil, props, nil), "%d bytes", size)
		named += len(props) - 1
	}
	require.NotZero(t, named)
}

// Messages of an unsampled publish are sent unchanged.
func TestNotSampled(t *testing.T) {
	provider := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
	ms := []client.Message{{Body: []byte("1")}}
	send, done := tracing.New(provider, tracing.Options{}).Publish(t.Context(), "q", ms)
	require.Nil(t, done)
	require.Same(t, &ms[0], &send[0])
}

// The span of a publish ends with an error if the producer is closed before the publish is added.
func TestPublishToAClosedProducer(t *testing.T) {
	r := tracetest.NewSpanRecorder()
	tracer := tracing.New(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r)), tracing.Options{})
	c, err := client.OpenWith(t.Context(), client.Options{Addresses: []string{"127.0.0.1:1"}, Tracer: tracer})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	p, err := c.NewProducer(t.Context(), client.ProducerOptions{})
	require.NoError(t, err)
	require.NoError(t, p.Close())
	_, err = p.Publish(t.Context(), "q", client.Message{})
	require.ErrorIs(t, err, client.ErrClosed)
	require.Len(t, r.Ended(), 1)
	require.Equal(t, codes.Error, r.Ended()[0].Status().Code)
}

// A connection records a span for each unary call except GetStatus, and none for streams.
func TestDialOptions(t *testing.T) {
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer() // all methods are unimplemented
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	defer serving.Wait()
	defer server.Stop()
	r := tracetest.NewSpanRecorder()
	tracer := tracing.New(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r)), tracing.Options{})
	cc, err := grpc.NewClient(listener.Addr().String(),
		append(tracer.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(t, err)
	defer func() { require.NoError(t, cc.Close()) }()

	var want []string
	streams := 0
	protoregistry.GlobalFiles.RangeFilesByPackage("lockstep.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			methods := f.Services().Get(i).Methods()
			for j := range methods.Len() {
				m := methods.Get(j)
				name := string(m.Parent().FullName()) + "/" + string(m.Name())
				if m.IsStreamingClient() || m.IsStreamingServer() {
					streams++
				} else if m.Name() != "GetStatus" {
					want = append(want, name)
				}
				stream, err := cc.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/"+name)
				require.NoError(t, err)
				require.Equal(t, grpccodes.Unimplemented, status.Code(stream.RecvMsg(new(emptypb.Empty))), name)
			}
		}
		return true
	})
	require.NotZero(t, streams)
	var got []string
	for _, span := range r.Ended() {
		got = append(got, span.Name())
	}
	require.ElementsMatch(t, want, got)
}
