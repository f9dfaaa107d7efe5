// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
)

// collector is a trace collector that counts connections and records the names of spans.
type collector struct {
	collectorpb.UnimplementedTraceServiceServer
	net.Listener

	connections atomic.Int64

	mu    sync.Mutex // guards the fields below
	names []string   // names of the received spans
}

// Accept counts connections.
func (c *collector) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.connections.Add(1)
	}
	return conn, err
}

// Export implements the service.
func (c *collector) Export(
	_ context.Context, req *collectorpb.ExportTraceServiceRequest,
) (*collectorpb.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range req.GetResourceSpans() {
		for _, s := range r.GetScopeSpans() {
			for _, span := range s.GetSpans() {
				c.names = append(c.names, span.GetName())
			}
		}
	}
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

func (c *collector) seen() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string{}, c.names...)
}

func startCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{Listener: freePort(t)}
	server := grpc.NewServer()
	collectorpb.RegisterTraceServiceServer(server, c)
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(c) })
	t.Cleanup(func() {
		server.Stop()
		running.Wait()
	})
	return c
}

const (
	sampledParent   = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	unsampledParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
)

// publishIn publishes a message with a parent span twice: by a unary call and on a stream.
func publishIn(t *testing.T, n *testNode, parent string) {
	t.Helper()
	req := &pb.PublishRequest{Queue: "q", Messages: []*pb.Message{{Body: []byte("x")}}}
	if parent != "" {
		req.Messages[0].Properties = map[string]string{"traceparent": parent}
	}
	_, err := n.queues.Publish(t.Context(), req)
	require.NoError(t, err)
	stream, err := n.queues.PublishStream(t.Context())
	require.NoError(t, err)
	require.NoError(t, stream.Send(&pb.PublishStreamRequest{Correlation: 1, Publish: req}))
	response, err := stream.Recv()
	require.NoError(t, err)
	require.Nil(t, response.GetError())
	require.NoError(t, stream.CloseSend())
}

// The node does not connect to the collector in three cases: tracing is not configured, the environment disables it,
// or no request is sampled.
func TestTracingIsOff(t *testing.T) {
	for name, tt := range map[string]struct {
		env, parent string
		set         bool
		sample      config.Ratio
	}{
		"not configured":               {parent: sampledParent, sample: 1},
		"OTEL_SDK_DISABLED":            {env: "OTEL_SDK_DISABLED=true", parent: sampledParent, set: true, sample: 1},
		"not sampled":                  {set: true},
		"not sampled by the publisher": {set: true, parent: unsampledParent, sample: 0},
		"invalid trace context":        {set: true, parent: "00-zz-zz-01"},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T) {
				c := startCollector(t)
				if tt.env != "" {
					t.Setenv("OTEL_SDK_DISABLED", "true")
				}
				s := settings(t, "alone")
				if tt.set {
					s.Tracing.Endpoint, s.Tracing.Insecure = c.Addr().String(), true
				}
				s.Tracing.Sample = tt.sample
				n := start(t, s)
				n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
				n.createQueue("q")
				publishIn(t, n, tt.parent)
				n.stop() // pending spans would be sent at the stop
				require.Zero(t, c.connections.Load())
			})
		})
	}
}

// Environment variables enable tracing. A sampled publish produces all spans, as a unary call and on a stream. An
// unresponsive collector does not prevent the node from stopping.
func TestTracingStandalone(t *testing.T) { simulated(t, testTracingStandalone) }

func testTracingStandalone(t *testing.T) {
	c := startCollector(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+c.Addr().String())
	s := settings(t, "alone")
	s.Tracing.Sample = 0
	n := start(t, s)
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	n.createQueue("q")
	publishIn(t, n, sampledParent)
	n.stop()
	names := make(map[string]int)
	for _, name := range c.seen() {
		names[name]++
	}
	require.Equal(t, map[string]int{
		"publish q": 2, "commit": 2, "log write": 2, "log sync": 2, "apply": 2,
	}, names)

	silent := freePort(t) // accepts connections and sends nothing
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+silent.Addr().String())
	n = start(t, settings(t, "alone"))
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	n.createQueue("q")
	publishIn(t, n, sampledParent)
	began := time.Now()
	n.stop()
	require.InDelta(t, time.Second, time.Since(began), float64(10*time.Millisecond), "the limit of package tracing")
}
