// SPDX-License-Identifier: Apache-2.0

package tracing

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc/stats"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/replication"
)

func newTracer(sample float64) (*Tracer, *tracetest.SpanRecorder) {
	r := tracetest.NewSpanRecorder()
	p := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(sample))))
	return &Tracer{provider: p, tracer: p.Tracer(scope)}, r
}

// message returns a message with the trace context of span n.
func message(n int, sampled bool) *pb.Message {
	flags := "00"
	if sampled {
		flags = "01"
	}
	return &pb.Message{Properties: map[string]string{
		traceparent: fmt.Sprintf("00-%032x-%016x-%s", n+1, n+1, flags), "other": "x",
	}}
}

// A request has a span in each trace of its messages, up to a limit. Malformed and unsampled trace contexts are
// ignored.
func TestRequestOfManyTraces(t *testing.T) {
	tracer, recorder := newTracer(0)
	messages := []*pb.Message{{}, message(100, false), {Properties: map[string]string{traceparent: "nonsense"}}}
	for n := range maxParents + 3 {
		messages = append(messages, message(n, true), message(n, true))
	}
	s := tracer.Publish(t.Context(), "q", messages)
	require.Len(t, s.spans, maxParents)
	s.End(time.Now(), nil)
	for n, span := range recorder.Ended() {
		require.Equal(t, fmt.Sprintf("%032x", n+1), span.SpanContext().TraceID().String())
		require.Equal(t, fmt.Sprintf("%016x", n+1), span.Parent().SpanID().String())
	}
	for name, messages := range map[string][]*pb.Message{
		"none": nil, "no properties": {{}}, "not sampled": {message(1, false)},
		"nonsense": {{Properties: map[string]string{traceparent: "00-0-0-01"}}},
	} {
		require.Nil(t, tracer.Publish(t.Context(), "q", messages), name)
	}
	always, _ := newTracer(1)
	require.NotNil(t, always.Publish(t.Context(), "q", []*pb.Message{{}}), "sampled by the node")
	require.Nil(t, always.Publish(t.Context(), "q", []*pb.Message{message(1, false)}), "the publisher did not sample it")
}

// The span of a batch is a child of the span of its first request. It is linked with the spans of the other
// requests in both directions.
func TestBatchOfManyRequests(t *testing.T) {
	tracer, recorder := newTracer(0)
	of := make([]replication.Span, 3)
	for n := range of {
		of[n] = tracer.Publish(t.Context(), "q", []*pb.Message{message(n, true)})
	}
	start := time.Now().Add(-time.Second)
	commit := tracer.Commit(of, start, 7, 512)
	replicate := commit.Part("replicate", time.Now())
	remote := tracer.Append(replicate.Context(), time.Now(), 7, 512)
	require.NotNil(t, remote)
	for _, s := range append([]replication.Span{remote, replicate, commit}, of...) {
		s.End(time.Now(), nil)
	}
	spans := recorder.Ended()
	byName := make(map[string]sdktrace.ReadOnlySpan)
	for _, s := range spans {
		byName[s.Name()+s.SpanContext().TraceID().String()[31:]] = s
	}
	batch := byName["commit1"]
	require.NotNil(t, batch)
	require.Equal(t, byName["publish q1"].SpanContext().SpanID(), batch.Parent().SpanID())
	require.True(t, batch.StartTime().Equal(start))
	require.Len(t, batch.Links(), 2)
	require.Empty(t, byName["publish q1"].Links())
	for _, other := range []string{"publish q2", "publish q3"} {
		require.Len(t, byName[other].Links(), 1)
		require.Equal(t, batch.SpanContext().SpanID(), byName[other].Links()[0].SpanContext.SpanID())
	}
	require.Equal(t, byName["replicate1"].SpanContext().SpanID(), byName["append1"].Parent().SpanID())
	require.Nil(t, tracer.Append(replication.TraceContext{Parent: "nonsense"}, time.Now(), 7, 512))
}

// On a node with tracing, a transaction without a trace causes no allocation.
func TestUntracedAllocatesNothing(t *testing.T) {
	tracer, _ := newTracer(0)
	ctx := t.Context()
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if tracer.Of(ctx) != nil {
			t.Error("unexpected span")
		}
	}))
}

// A stream may last for weeks, so no stream of any service has a span.
func TestStreamsAreNotTraced(t *testing.T) {
	traced := traceFilter()
	streams := 0
	protoregistry.GlobalFiles.RangeFilesByPackage("lockstep.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for k := range s.Methods().Len() {
				m := s.Methods().Get(k)
				if m.IsStreamingClient() || m.IsStreamingServer() {
					streams++
					require.False(t, traced(&stats.RPCTagInfo{FullMethodName: fmt.Sprintf("/%s/%s", s.FullName(), m.Name())}),
						m.FullName())
				}
			}
		}
		return true
	})
	require.Positive(t, streams)
	require.True(t, traced(&stats.RPCTagInfo{FullMethodName: pb.QueueService_CreateQueue_FullMethodName}))
}
