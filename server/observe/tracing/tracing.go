// SPDX-License-Identifier: Apache-2.0

// Package tracing implements tracing of publishes with OpenTelemetry. It traces the request, its commit batch,
// the writes and syncs of the log on both nodes, and the transfer between the nodes. Spans are exported to a
// collector over OTLP. docs/reference/tracing.md describes the spans.
//
// A node without tracing has no Tracer. Code that uses a *Tracer must check for nil.
package tracing

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

const (
	stopLimit = time.Second
	// errorLogInterval is the minimum interval between two log entries about lost spans.
	errorLogInterval = time.Minute
	scope            = "github.com/lockstep-mq/lockstep/server"
)

// Options configures Start.
type Options struct {
	// Endpoint is the address of an OTLP/gRPC collector: host:port, or a URL with http or https. If it is empty, the
	// address in the environment is used.
	Endpoint string
	// Sample is the fraction, from 0 to 1, of the requests without a trace context that are traced. A request with a
	// trace context is traced if the context is sampled. SampleSet is false if Sample is the default, which the
	// environment can override.
	Sample    float64
	SampleSet bool
	// Headers are added to each request to the collector. Each has the form key=value.
	Headers []string
	// Insecure disables TLS. CAFile is a file with the CAs that verify the certificate of the collector. If CAFile is
	// empty, the CAs of the system are used.
	Insecure bool
	CAFile   string
	// Dial connects to the collector. If it is nil, TCP is used.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// NodeName, NodeID and Version describe this node.
	NodeName, NodeID, Version string
	Logger                    *zap.Logger // logs lost spans
}

// Enabled reports whether the settings or the environment enable tracing.
func Enabled(endpoint string) bool {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") || os.Getenv("OTEL_TRACES_EXPORTER") == "none" {
		return false
	}
	return endpoint != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "" ||
		os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != ""
}

// Tracer creates the spans of a node.
type Tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	exporter *exporter
	carrier  propagation.TraceContext
}

// Stats contains the numbers of spans since the start: those that the collector has accepted, and those that
// could not be sent.
type Stats struct {
	Sent, Lost uint64
}

// Start starts the export of spans. It does not wait for the collector. The caller must call Stop.
func Start(ctx context.Context, o Options) (*Tracer, error) {
	client, err := o.client()
	if err != nil {
		return nil, err
	}
	otlp, err := otlptrace.New(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("tracing.endpoint: %w", err)
	}
	described, err := resource.New(ctx,
		resource.WithAttributes(
			attribute.String("service.name", "lockstep"), attribute.String("service.version", o.Version),
			attribute.String("service.instance.id", o.NodeID), attribute.String("lockstep.node", o.NodeName),
		),
		resource.WithHost(), resource.WithProcessPID(), resource.WithTelemetrySDK(),
		resource.WithFromEnv(), // last, because the environment takes precedence
	)
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	e := &exporter{SpanExporter: otlp, log: o.Logger}
	options := []sdktrace.TracerProviderOption{sdktrace.WithBatcher(e), sdktrace.WithResource(described)}
	if o.SampleSet || os.Getenv("OTEL_TRACES_SAMPLER") == "" {
		options = append(options, sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(o.Sample))))
	}
	provider := sdktrace.NewTracerProvider(options...)
	return &Tracer{
		provider: provider, tracer: provider.Tracer(scope, trace.WithInstrumentationVersion(o.Version)), exporter: e,
	}, nil
}

func (o *Options) client() (otlptrace.Client, error) {
	var options []otlptracegrpc.Option
	switch {
	case strings.Contains(o.Endpoint, "://"):
		options = append(options, otlptracegrpc.WithEndpointURL(o.Endpoint))
	case o.Endpoint != "":
		options = append(options, otlptracegrpc.WithEndpoint(o.Endpoint))
	}
	if o.Dial != nil {
		options = append(options, otlptracegrpc.WithDialOption(grpc.WithContextDialer(o.Dial)))
	}
	if len(o.Headers) > 0 {
		headers := make(map[string]string, len(o.Headers))
		for _, h := range o.Headers {
			key, value, _ := strings.Cut(h, "=") // config has validated the headers
			headers[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
		options = append(options, otlptracegrpc.WithHeaders(headers))
	}
	switch {
	case o.Insecure:
		options = append(options, otlptracegrpc.WithInsecure())
	case o.CAFile != "":
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("tracing.ca: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tracing.ca: no PEM certificate in %s", o.CAFile)
		}
		secure := &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
		options = append(options, otlptracegrpc.WithTLSCredentials(credentials.NewTLS(secure)))
	}
	return otlptracegrpc.NewClient(options...), nil
}

// Stop exports the remaining spans, for at most stopLimit, and stops the export.
func (t *Tracer) Stop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	if t.provider.Shutdown(ctx) != nil {
		// The collector does not respond. Cancel the current request.
		_ = t.exporter.Shutdown(ctx) // lost spans are counted
	}
}

// Stats returns the span counters.
func (t *Tracer) Stats() Stats {
	return Stats{Sent: t.exporter.sent.Load(), Lost: t.exporter.lost.Load()}
}

// exporter counts spans and logs lost spans.
type exporter struct {
	sdktrace.SpanExporter

	log        *zap.Logger
	sent, lost atomic.Uint64

	mu            sync.Mutex // guards the fields below
	errorLoggedAt time.Time
}

func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	if err == nil {
		e.sent.Add(uint64(len(spans)))
		return nil
	}
	e.lost.Add(uint64(len(spans)))
	e.mu.Lock()
	defer e.mu.Unlock()
	if time.Since(e.errorLoggedAt) >= errorLogInterval {
		e.errorLoggedAt = time.Now()
		e.log.Warn("spans lost: the collector did not accept them",
			zap.Error(err), zap.Uint64("lost", e.lost.Load()))
	}
	return nil
}
