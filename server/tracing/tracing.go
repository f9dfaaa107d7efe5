// SPDX-License-Identifier: Apache-2.0

// Package tracing records where publishes spend their time, with OpenTelemetry: the request, the batch that it is
// committed with, writes and syncs of the log on both nodes, and the way between them. Spans go to a collector over
// OTLP. docs/reference/tracing.md describes them.
//
// A node without tracing has no Tracer: everything that may be traced is behind a test for nil.
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
	// stopLimit is how long the last spans may take to the collector when the node stops.
	stopLimit = time.Second
	// complainEvery is how often the log says that spans are lost.
	complainEvery = time.Minute
	// scope names this program as the one that records.
	scope = "github.com/lockstep-mq/lockstep/server"
)

// Options of Start.
type Options struct {
	// Endpoint of a collector that speaks OTLP over gRPC: host:port, or a URL with http or https. Empty: as the
	// environment says.
	Endpoint string
	// Sample is the share of the requests without a trace of their own that are traced, 0 to 1. Those that belong to a
	// trace are as that says. SampleSet is false for the default, over which the environment wins.
	Sample    float64
	SampleSet bool
	// Headers, key=value, of each request to the collector.
	Headers []string
	// Insecure: the connection is not encrypted. CAFile has the authorities that the collector's certificate is checked
	// against; empty: the system's.
	Insecure bool
	CAFile   string
	// Dial connects to the collector; nil means TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// NodeName, NodeID and Version describe this node.
	NodeName, NodeID, Version string
	// Logger is told of spans that are lost.
	Logger *zap.Logger
}

// Wanted tells whether the settings or the environment ask for tracing.
func Wanted(endpoint string) bool {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") || os.Getenv("OTEL_TRACES_EXPORTER") == "none" {
		return false
	}
	return endpoint != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "" ||
		os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != ""
}

// Tracer of a node.
type Tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	exporter *exporter
	carrier  propagation.TraceContext
}

// Stats count spans since the start.
type Stats struct {
	// Sent were taken by the collector, Lost could not be sent.
	Sent, Lost uint64
}

// Start begins to send spans. It does not wait for the collector. The caller must call Stop.
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
		resource.WithFromEnv(), // the environment wins
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

// client makes the connection to the collector, which opens when it is used. What is not set is as the environment
// says.
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
			key, value, _ := strings.Cut(h, "=") // config has checked it
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
			return nil, fmt.Errorf("tracing.ca: %s holds no certificate in PEM", o.CAFile)
		}
		secure := &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
		options = append(options, otlptracegrpc.WithTLSCredentials(credentials.NewTLS(secure)))
	}
	return otlptracegrpc.NewClient(options...), nil
}

// Stop sends what is left, for a moment, and ends.
func (t *Tracer) Stop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	if t.provider.Shutdown(ctx) != nil {
		// The collector does not answer. The provider waits for the request under way in the background: cancel it.
		_ = t.exporter.Shutdown(ctx) // what is lost by it is counted
	}
}

// Stats tell what became of the spans.
func (t *Tracer) Stats() Stats {
	return Stats{Sent: t.exporter.sent.Load(), Lost: t.exporter.lost.Load()}
}

// exporter counts spans, and tells the log when they are lost: OpenTelemetry's own way to tell is one for the whole
// process.
type exporter struct {
	sdktrace.SpanExporter

	log        *zap.Logger
	sent, lost atomic.Uint64

	mu         sync.Mutex // guards what follows
	complained time.Time
}

// ExportSpans implements sdktrace.SpanExporter.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	if err == nil {
		e.sent.Add(uint64(len(spans)))
		return nil
	}
	e.lost.Add(uint64(len(spans)))
	e.mu.Lock()
	defer e.mu.Unlock()
	if time.Since(e.complained) >= complainEvery {
		e.complained = time.Now()
		e.log.Warn("spans of traces cannot be sent to the collector and are lost; nothing else suffers",
			zap.Error(err), zap.Uint64("lost", e.lost.Load()))
	}
	return nil
}
