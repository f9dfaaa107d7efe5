// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/client/tracing"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

// recorded is a span received by the collector.
type recorded struct {
	*tracepb.Span

	process string // process that recorded the span
}

// collector receives traces over OTLP.
type collector struct {
	collectorpb.UnimplementedTraceServiceServer

	address string

	mu    sync.Mutex // guards the fields below
	spans []recorded
}

func startCollector(t *testing.T) *collector {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	c := &collector{address: l.Addr().String()}
	server := grpc.NewServer()
	collectorpb.RegisterTraceServiceServer(server, c)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-ended
	})
	return c
}

// Export implements the OTLP trace service.
func (c *collector) Export(
	_ context.Context, req *collectorpb.ExportTraceServiceRequest,
) (*collectorpb.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, from := range req.GetResourceSpans() {
		process := "client"
		for _, a := range from.GetResource().GetAttributes() {
			if a.GetKey() == "lockstep.node" {
				process = a.GetValue().GetStringValue()
			}
		}
		for _, scope := range from.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				c.spans = append(c.spans, recorded{s, process})
			}
		}
	}
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

// of returns the spans of one trace.
func (c *collector) of(id trace.TraceID) (out []recorded) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if trace.TraceID(s.GetTraceId()) == id {
			out = append(out, s)
		}
	}
	return out
}

// tree returns each span as its process and name, prefixed by its ancestors, in sorted order.
func tree(spans []recorded) []string {
	byID := make(map[string]recorded)
	for _, s := range spans {
		byID[hex.EncodeToString(s.GetSpanId())] = s
	}
	var out []string
	for _, s := range spans {
		path := s.process + ": " + s.GetName()
		for at := s; len(at.GetParentSpanId()) > 0; {
			parent, ok := byID[hex.EncodeToString(at.GetParentSpanId())]
			if !ok {
				path = "? > " + path
				break
			}
			path, at = fmt.Sprintf("%s: %s > %s", parent.process, parent.GetName(), path), parent
		}
		out = append(out, path)
	}
	slices.Sort(out)
	return out
}

// tracedClient returns a client of an application that traces all its calls.
func tracedClient(t *testing.T, p *cluster.Pair, c *collector) (*client.Client, *sdktrace.TracerProvider) {
	t.Helper()
	exporter, err := otlptracegrpc.New(t.Context(), otlptracegrpc.WithEndpoint(c.address), otlptracegrpc.WithInsecure())
	require.NoError(t, err)
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter), sdktrace.WithSampler(sdktrace.AlwaysSample()))
	t.Cleanup(func() { _ = provider.Shutdown(context.WithoutCancel(t.Context())) })
	cl, err := client.OpenWith(t.Context(), client.Options{
		Addresses: []string{p.A.Address, p.B.Address}, Tracer: tracing.New(provider, tracing.Options{}),
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = cl.Close() })
	return cl, provider
}

// A publish is one trace with the spans of the client, the active and the standby, including both syncs and the
// replication. The consumer's span links to the publish. A publish that is retried after a failover remains in its
// original trace. An unsampled publish has no spans.
func TestPublishTrace(t *testing.T) {
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "50") // maximum time in ms until nodes export their spans
	c := startCollector(t)
	settings := steady() // otherwise, a slow standby is dropped, and its spans are missing
	settings["tracing.endpoint"], settings["tracing.insecure"], settings["tracing.sample"] = c.address, "true", "0"
	p := start(t, cluster.Options{Settings: settings})
	ctx := limited(t)
	active, standby, err := p.WaitInSync(ctx)
	require.NoError(t, err)
	cl, provider := tracedClient(t, p, c)
	_, _, err = admin.New(cl).CreateQueue(ctx, "traced", admin.CreateQueueOptions{})
	require.NoError(t, err)

	// This client has no Tracer, and tracing.sample is 0.
	silent, err := p.NewClient(ctx)
	require.NoError(t, err)
	_, err = silent.Publish(ctx, "traced", client.Message{Body: []byte("not traced")})
	require.NoError(t, err)

	app := provider.Tracer("test")
	inTrace, span := app.Start(ctx, "order")
	receipt, err := cl.Publish(inTrace, "traced", client.Message{Body: []byte("traced")})
	require.NoError(t, err)
	span.End()
	id := span.SpanContext().TraceID()
	a, b := active.Name, standby.Name
	at := "client: order > client: publish traced"
	onActive := at + " > " + a + ": publish traced"
	inBatch := onActive + " > " + a + ": commit"
	atStandby := inBatch + " > " + a + ": replicate > " + b + ": append"
	want := []string{
		"client: order", at, onActive, inBatch, inBatch + " > " + a + ": log write", inBatch + " > " + a + ": log sync",
		inBatch + " > " + a + ": replicate", inBatch + " > " + a + ": apply",
		atStandby, atStandby + " > " + b + ": log write", atStandby + " > " + b + ": log sync",
	}
	slices.Sort(want)
	require.EventuallyWithT(t, func(t *assert.CollectT) { require.Equal(t, want, tree(c.of(id))) }, bound,
		20*time.Millisecond)
	checkTimes(t, c.of(id), receipt.LSN)
	requireDelivery(ctx, t, cl, c, id)

	// The active is suspended with a publish in flight, and is then killed.
	require.NoError(t, active.Pause())
	inTrace, span = app.Start(ctx, "order")
	answered := make(chan error, 1)
	go func() {
		_, err := cl.Publish(inTrace, "traced", client.Message{Body: []byte("repeated")})
		answered <- err
	}()
	require.NoError(t, active.Kill())
	require.NoError(t, <-answered)
	span.End()
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		paths := tree(c.of(span.SpanContext().TraceID()))
		require.Contains(t, paths, at+" > "+b+": publish traced > "+b+": commit > "+b+": log sync")
		require.Contains(t, paths, at+" > "+b+": publish traced > "+b+": commit > "+b+": apply")
	}, bound, 20*time.Millisecond)

	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if s.process != "client" && s.GetName() == "publish traced" {
			require.NotEmpty(t, s.GetParentSpanId(), "an unsampled publish has a span")
		}
	}
}

// checkTimes checks that no span ends before its start or takes longer than bound, and that every LSN in a span
// equals lsn.
func checkTimes(t *testing.T, spans []recorded, lsn uint64) {
	t.Helper()
	for _, s := range spans {
		require.LessOrEqual(t, s.GetStartTimeUnixNano(), s.GetEndTimeUnixNano(), s.GetName())
		require.Less(t, s.GetEndTimeUnixNano()-s.GetStartTimeUnixNano(), uint64(bound), s.GetName())
		for _, a := range s.GetAttributes() {
			if a.GetKey() == "lockstep.lsn" {
				require.EqualValues(t, lsn, a.GetValue().GetIntValue(), "%s of %s", s.GetName(), s.process)
			}
		}
	}
}

// requireDelivery receives the message, and waits for the consumer's span, which links to the publish.
func requireDelivery(ctx context.Context, t *testing.T, cl *client.Client, c *collector, id trace.TraceID) {
	t.Helper()
	consumer, err := cl.Consume(ctx, "traced", client.ConsumerOptions{})
	require.NoError(t, err)
	defer func() { _ = consumer.Close() }()
	for {
		d, err := consumer.Receive(ctx)
		require.NoError(t, err)
		within := trace.SpanContextFromContext(d.Context(ctx))
		require.True(t, within.IsSampled(), "the consumer's span is sampled")
		require.NoError(t, d.AckSync(ctx))
		if string(d.Body) != "traced" {
			continue
		}
		require.NotEqual(t, id, within.TraceID(), "the consumer's span belongs to a separate trace")
		require.EventuallyWithT(t, func(t *assert.CollectT) {
			spans := c.of(within.TraceID())
			require.Equal(t, []string{"client: process traced"}, tree(spans))
			require.Len(t, spans[0].GetLinks(), 1)
			require.Equal(t, id, trace.TraceID(spans[0].GetLinks()[0].GetTraceId()))
		}, bound, 20*time.Millisecond)
		return
	}
}
