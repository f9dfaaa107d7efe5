// SPDX-License-Identifier: Apache-2.0

// Package tracing records the publishes and deliveries of a client as spans of OpenTelemetry:
//
//	options.Tracer = tracing.New(provider, tracing.Options{})
//
// A publish that is sampled carries the name of its span in the properties traceparent and tracestate of its messages
// (W3C Trace Context): the nodes record their part below it, if they have tracing, and the span of the delivery, at
// whichever consumer has a Tracer, points to it. The same two properties are what applications in other languages read
// and write.
package tracing

import (
	"context"
	"maps"
	"slices"
	"strings"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const (
	scope = "github.com/lockstep-mq/lockstep/client/tracing"
	// traceparent and tracestate are the properties that name a span.
	traceparent, tracestate = "traceparent", "tracestate"
	// maxPropertiesBytes is how much the properties of a message may have; one that has no room for the name of a span
	// gets none.
	maxPropertiesBytes = 64 << 10
	// framingBytes is what a node counts for the lengths of a key and its value, at most.
	framingBytes = 8
)

// Options of New. The zero value is a good choice.
type Options struct {
	// DeliveriesInTrace has the span of a delivery be a part of the publish's trace. Without it, the delivery begins a
	// trace of its own, which the provider's sampler decides on, with a link to the publish.
	DeliveriesInTrace bool
}

// New returns a Tracer that records with the application's provider.
func New(provider trace.TracerProvider, o Options) client.Tracer {
	return &tracer{o: o, provider: provider, tracer: provider.Tracer(scope)}
}

type tracer struct {
	o        Options
	provider trace.TracerProvider
	tracer   trace.Tracer
	carrier  propagation.TraceContext
}

// Publish implements client.Tracer.
func (t *tracer) Publish(
	ctx context.Context, queue string, ms []client.Message,
) (send []client.Message, done func(client.Receipt, error)) {
	links := t.named(ms) //nolint:contextcheck // what is named is in the messages
	_, span := t.tracer.Start(ctx, "publish "+queue, trace.WithSpanKind(trace.SpanKindProducer),
		trace.WithLinks(links...), attributes("publish", queue,
			attribute.Int("messaging.batch.message_count", len(ms))))
	if !span.IsRecording() {
		return ms, nil
	}
	send = t.inject(span, ms) //nolint:contextcheck // into the messages
	return send, func(r client.Receipt, err error) {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		} else {
			span.SetAttributes(
				attribute.Int64("lockstep.sequence", int64(r.Sequence)),
				attribute.Int64("lockstep.lsn", int64(r.LSN)),
				attribute.Bool("lockstep.duplicate", r.Duplicate),
				attribute.String("server.address", r.Address),
			)
		}
		span.End()
	}
}

// named are the spans that the application has named in messages itself.
func (t *tracer) named(ms []client.Message) (links []trace.Link) {
	for i := range ms {
		if ms[i].Properties[traceparent] != "" {
			if c := t.remote(ms[i].Properties); c.IsValid() {
				links = append(links, trace.Link{SpanContext: c})
			}
		}
	}
	return links
}

func (t *tracer) remote(props map[string]string) trace.SpanContext {
	return trace.SpanContextFromContext(t.carrier.Extract(context.Background(), propagation.MapCarrier(props)))
}

// inject returns copies of messages that name the span. What the application has named is left as it is.
func (t *tracer) inject(span trace.Span, ms []client.Message) []client.Message {
	names := propagation.MapCarrier{}
	t.carrier.Inject(trace.ContextWithSpan(context.Background(), span), names)
	size := bytesOf(names)
	send := slices.Clone(ms)
	for i := range send {
		m := &send[i]
		if m.Properties[traceparent] != "" || m.Values[traceparent] != nil || m.Values[tracestate] != nil ||
			size+bytesOf(m.Properties) > maxPropertiesBytes {
			continue
		}
		props := make(map[string]string, len(m.Properties)+len(names))
		maps.Copy(props, m.Properties)
		maps.Copy(props, names)
		m.Properties = props
	}
	return send
}

// bytesOf returns what properties need at most.
func bytesOf(props map[string]string) (n int) {
	for k, v := range props {
		n += len(k) + len(v) + framingBytes
	}
	return n
}

func attributes(operation, queue string, more ...attribute.KeyValue) trace.SpanStartEventOption {
	return trace.WithAttributes(append(more,
		attribute.String("messaging.system", "lockstep"), attribute.String("messaging.operation.name", operation),
		attribute.String("messaging.destination.name", queue),
	)...)
}

// Deliver implements client.Tracer.
func (t *tracer) Deliver(d *client.Delivery) client.DeliveryTrace {
	ctx := context.Background()
	options := []trace.SpanStartOption{
		trace.WithSpanKind(trace.SpanKindConsumer), attributes("process", d.Queue(),
			attribute.String("messaging.destination.subscription.name", d.Subscription()),
			attribute.Int64("lockstep.sequence", int64(d.Sequence)),
			attribute.Int("lockstep.delivery_count", int(d.DeliveryCount)),
		),
	}
	if d.Properties[traceparent] != "" {
		switch c := t.remote(d.Properties); {
		case !c.IsValid():
		case t.o.DeliveriesInTrace:
			ctx = trace.ContextWithRemoteSpanContext(ctx, c)
		default:
			options = append(options, trace.WithLinks(trace.Link{SpanContext: c}))
		}
	}
	_, span := t.tracer.Start(ctx, "process "+d.Queue(), options...)
	if !span.IsRecording() {
		return nil
	}
	return delivery{span}
}

// delivery is the span of one.
type delivery struct{ span trace.Span }

// Into implements client.DeliveryTrace.
func (d delivery) Into(ctx context.Context) context.Context {
	return trace.ContextWithSpan(ctx, d.span)
}

// Answered implements client.DeliveryTrace.
func (d delivery) Answered(how string) {
	d.span.SetAttributes(attribute.String("lockstep.answer", how))
	d.span.End()
}

// DialOptions implements client.Tracer: calls that are no streams have spans, too, such as the commit of a transaction.
func (t *tracer) DialOptions() []grpc.DialOption {
	streams := make(map[string]bool)
	for _, service := range []*grpc.ServiceDesc{
		&pb.QueueService_ServiceDesc, &pb.AdminService_ServiceDesc, &pb.MaintenanceService_ServiceDesc,
		&pb.AccessService_ServiceDesc, &pb.AuditService_ServiceDesc,
	} {
		for i := range service.Streams {
			streams["/"+service.ServiceName+"/"+service.Streams[i].StreamName] = true
		}
	}
	streams[pb.AdminService_GetStatus_FullMethodName] = true // is asked again and again
	return []grpc.DialOption{grpc.WithStatsHandler(otelgrpc.NewClientHandler(
		otelgrpc.WithTracerProvider(t.provider), otelgrpc.WithPropagators(t.carrier),
		otelgrpc.WithFilter(func(call *stats.RPCTagInfo) bool {
			return strings.HasPrefix(call.FullMethodName, "/lockstep.") && !streams[call.FullMethodName]
		}),
	))}
}
