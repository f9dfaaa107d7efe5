// SPDX-License-Identifier: Apache-2.0

package tracing

import (
	"context"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/replication"
)

// maxParents is the maximum number of traces in which one request is recorded.
const maxParents = 8

// traceparent is the message property that contains the trace context.
const traceparent = "traceparent"

// Span records one operation. It contains one span for each trace to which the operation belongs, usually one.
type Span struct {
	tracer *Tracer
	spans  []trace.Span
}

var (
	_ replication.Span   = (*Span)(nil)
	_ replication.Tracer = (*Tracer)(nil)
)

// Publish starts the span of a publish request. It returns nil if the request is not sampled. A request with trace
// contexts, in ctx or in its messages, is sampled if one of them is. For other requests, the sampler decides.
func (t *Tracer) Publish(ctx context.Context, queue string, messages []*pb.Message) *Span {
	parents, named := t.parents(ctx, messages)
	if len(parents) == 0 {
		if named {
			return nil // the publishers have decided not to sample
		}
		parents = append(parents, trace.SpanContext{})
	}
	s := &Span{tracer: t}
	for _, p := range parents {
		_, span := t.tracer.Start(trace.ContextWithRemoteSpanContext(ctx, p), "publish "+queue,
			trace.WithSpanKind(trace.SpanKindServer),
			trace.WithAttributes(
				attribute.String("messaging.system", "lockstep"),
				attribute.String("messaging.operation.name", "publish"),
				attribute.String("messaging.destination.name", queue),
				attribute.Int("messaging.batch.message_count", len(messages)),
			))
		if span.IsRecording() {
			s.spans = append(s.spans, span)
		}
	}
	if len(s.spans) == 0 {
		return nil
	}
	return s
}

// parents returns the span in ctx if it is sampled, or else the sampled spans in the properties of the messages.
// named reports whether ctx or a message contains a span, sampled or not.
func (t *Tracer) parents(ctx context.Context, messages []*pb.Message) (parents []trace.SpanContext, named bool) {
	add := func(c trace.SpanContext) {
		if !c.IsValid() {
			return
		}
		named = true
		if c.IsSampled() && !slices.ContainsFunc(parents, func(p trace.SpanContext) bool {
			return p.TraceID() == c.TraceID() && p.SpanID() == c.SpanID()
		}) {
			parents = append(parents, c)
		}
	}
	add(trace.SpanContextFromContext(ctx))
	if len(parents) > 0 {
		return parents, named // the trace of the call is that of the publisher
	}
	for _, m := range messages {
		props := m.GetProperties()
		if len(props) == 0 || props[traceparent] == "" {
			continue
		}
		add(t.remote(props)) //nolint:contextcheck // the parent is the span in the message
		if len(parents) == maxParents {
			break
		}
	}
	return parents, named
}

func (t *Tracer) remote(props map[string]string) trace.SpanContext {
	return trace.SpanContextFromContext(t.carrier.Extract(context.Background(), propagation.MapCarrier(props)))
}

// Into returns a context in which this span is the parent of calls and transactions, in its first trace.
func (s *Span) Into(ctx context.Context) context.Context {
	return trace.ContextWithSpan(ctx, s.spans[0])
}

// Number adds a numeric attribute.
func (s *Span) Number(name string, n uint64) {
	for _, span := range s.spans {
		span.SetAttributes(attribute.Int64(name, int64(n)))
	}
}

// Of returns the span in ctx. It returns nil if ctx has no span or the span is not sampled. Of, Commit and Append
// implement replication.Tracer.
func (t *Tracer) Of(ctx context.Context) replication.Span {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		return &Span{t, []trace.Span{span}}
	}
	return nil
}

// Commit starts the span of a batch as a child of the first request in it, and links it with the other requests.
// n is the LSN of the batch.
func (t *Tracer) Commit(of []replication.Span, at time.Time, n uint64, bytes int) replication.Span {
	parent, ok := of[0].(*Span)
	if !ok {
		return nil
	}
	links := make([]trace.Link, 0, len(of))
	for i, s := range of {
		for j, span := range s.(*Span).spans { //nolint:forcetypeassert // Of and Commit create only these
			if i > 0 || j > 0 {
				links = append(links, trace.Link{SpanContext: span.SpanContext()})
			}
		}
	}
	_, span := t.tracer.Start(trace.ContextWithSpan(context.Background(), parent.spans[0]), "commit",
		trace.WithTimestamp(at), trace.WithLinks(links...), batchAttributes(n, bytes))
	for i, s := range of {
		for j, other := range s.(*Span).spans { //nolint:forcetypeassert // Of and Commit create only these
			if i > 0 || j > 0 {
				other.AddLink(trace.Link{SpanContext: span.SpanContext()})
			}
		}
	}
	return &Span{t, []trace.Span{span}}
}

// Append starts the span of a batch that a standby has received. It returns nil if the batch is not sampled.
func (t *Tracer) Append(parent replication.TraceContext, at time.Time, n uint64, bytes int) replication.Span {
	c := t.remote(map[string]string{traceparent: parent.Parent, "tracestate": parent.State})
	if !c.IsSampled() {
		return nil
	}
	_, span := t.tracer.Start(trace.ContextWithRemoteSpanContext(context.Background(), c), "append",
		trace.WithTimestamp(at), trace.WithSpanKind(trace.SpanKindServer), batchAttributes(n, bytes))
	if !span.IsRecording() {
		return nil
	}
	return &Span{t, []trace.Span{span}}
}

func batchAttributes(n uint64, bytes int) trace.SpanStartEventOption {
	return trace.WithAttributes(
		attribute.Int64("lockstep.lsn", int64(n)),
		attribute.Int("lockstep.log_bytes", bytes),
	)
}

// Part starts the span of a part of the operation. The span kind is client for requests to the other node, and
// internal otherwise. Part, Link, Context and End implement replication.Span.
func (s *Span) Part(name string, at time.Time) replication.Span {
	kind := trace.SpanKindInternal
	if name == "replicate" {
		kind = trace.SpanKindClient
	}
	_, span := s.tracer.tracer.Start(trace.ContextWithSpan(context.Background(), s.spans[0]), name,
		trace.WithTimestamp(at), trace.WithSpanKind(kind))
	return &Span{s.tracer, []trace.Span{span}}
}

// Link adds a link to another span.
func (s *Span) Link(to replication.Span) {
	if other, ok := to.(*Span); ok {
		for _, span := range s.spans {
			span.AddLink(trace.Link{SpanContext: other.spans[0].SpanContext()})
		}
	}
}

// Context returns the trace context of the span, which is sent with requests to the other node.
func (s *Span) Context() replication.TraceContext {
	carrier := propagation.MapCarrier{}
	s.tracer.carrier.Inject(trace.ContextWithSpan(context.Background(), s.spans[0]), carrier)
	return replication.TraceContext{Parent: carrier[traceparent], State: carrier["tracestate"]}
}

// End ends the span at the given time. If err is not nil, it sets the status of the span to an error with the text
// of err.
func (s *Span) End(at time.Time, err error) {
	for _, span := range s.spans {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End(trace.WithTimestamp(at))
	}
}
