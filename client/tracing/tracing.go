// SPDX-License-Identifier: Apache-2.0

// Package tracing implements [client.Tracer] with OpenTelemetry:
//
//	options.Tracer = tracing.New(provider, tracing.Options{})
//
// A sampled publish stores its span context in the message properties traceparent and tracestate (W3C Trace Context).
// Nodes with tracing record child spans, and the span of a delivery links to the publish. Applications in other
// languages use the same two properties.
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
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const (
	scope                   = "github.com/lockstep-mq/lockstep/client/tracing"
	traceparent, tracestate = "traceparent", "tracestate"
	// maxPropertiesBytes is the size limit of the properties of a message. A message without space for the span context is
	// sent without it.
	maxPropertiesBytes = 64 << 10
	// framingBytes is the maximum overhead that a node counts for a key and its value.
	framingBytes = 8
)

// Options configures [New].
type Options struct {
	// DeliveriesInTrace makes the span of a delivery part of the publish's trace. If false, the span of a delivery
	// starts a new trace, subject to the provider's sampler, with a link to the publish.
	DeliveriesInTrace bool
}

// New returns a Tracer that records spans with the application's provider.
func New(provider trace.TracerProvider, o Options) client.Tracer {
	return &tracer{o: o, provider: provider, tracer: provider.Tracer(scope)}
}

type tracer struct {
	o        Options
	provider trace.TracerProvider
	tracer   trace.Tracer
	carrier  propagation.TraceContext
}

func (t *tracer) Publish(
	ctx context.Context, queue string, ms []client.Message,
) (send []client.Message, done func(client.Receipt, error)) {
	links := t.named(ms) //nolint:contextcheck // span contexts are in the messages
	_, span := t.tracer.Start(ctx, "publish "+queue, trace.WithSpanKind(trace.SpanKindProducer),
		trace.WithLinks(links...), attributes("publish", queue,
			attribute.Int("messaging.batch.message_count", len(ms))))
	if !span.IsRecording() {
		return ms, nil
	}
	send = t.inject(span, ms) //nolint:contextcheck // the span context is written to the messages
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

// named returns links to the span contexts that the application itself set in the messages.
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

// inject returns copies of the messages with the span context. It does not change messages in which the application
// has set a span context, or without space for one.
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

// bytesOf returns an upper bound of the encoded size of properties.
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

type delivery struct{ span trace.Span }

func (d delivery) Into(ctx context.Context) context.Context {
	return trace.ContextWithSpan(ctx, d.span)
}

func (d delivery) Answered(how string) {
	d.span.SetAttributes(attribute.String("lockstep.answer", how))
	d.span.End()
}

// DialOptions implements [client.Tracer]. It returns options that also record spans of unary calls, such as Commit.
// Streams are not traced.
func (t *tracer) DialOptions() []grpc.DialOption {
	unwanted := map[string]bool{pb.AdminService_GetStatus_FullMethodName: true} // polled frequently
	protoregistry.GlobalFiles.RangeFilesByPackage("lockstep.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			service := f.Services().Get(i)
			for j := range service.Methods().Len() {
				if m := service.Methods().Get(j); m.IsStreamingClient() || m.IsStreamingServer() {
					unwanted["/"+string(service.FullName())+"/"+string(m.Name())] = true
				}
			}
		}
		return true
	})
	return []grpc.DialOption{grpc.WithStatsHandler(otelgrpc.NewClientHandler(
		otelgrpc.WithTracerProvider(t.provider), otelgrpc.WithPropagators(t.carrier),
		otelgrpc.WithFilter(func(call *stats.RPCTagInfo) bool {
			return strings.HasPrefix(call.FullMethodName, "/lockstep.") && !unwanted[call.FullMethodName]
		}),
	))}
}
