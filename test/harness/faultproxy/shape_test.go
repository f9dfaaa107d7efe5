// SPDX-License-Identifier: Apache-2.0

package faultproxy_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/lockstep-mq/lockstep/test/harness/faultproxy"
)

// A shape delays the connections that it selects by their first request, and no others.
func TestShape(t *testing.T) {
	const delay = 50 * time.Millisecond
	check := healthpb.Health_Check_FullMethodName
	for name, c := range map[string]struct {
		shape faultproxy.Shape
		least time.Duration
	}{
		"selected":     {faultproxy.Shape{Delay: delay, Only: func(path string) bool { return path == check }}, 2 * delay},
		"not selected": {faultproxy.Shape{Delay: time.Hour, Only: func(path string) bool { return path != check }}, 0},
		"rate limit":   {faultproxy.Shape{BytesPerSecond: 1000}, delay}, // a request has more than 100 bytes
	} {
		t.Run(name, func(t *testing.T) {
			client, _ := throughRelay(t, c.shape)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			began := time.Now()
			_, err := client.Check(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
			require.NoError(t, err)
			require.GreaterOrEqual(t, time.Since(began), c.least)
		})
	}
}

// CutShaped holds data only of the selected connections.
func TestCutShaped(t *testing.T) {
	for name, selected := range map[string]bool{"selected": true, "not selected": false} {
		t.Run(name, func(t *testing.T) {
			client, p := throughRelay(t, faultproxy.Shape{Only: func(string) bool { return selected }})
			p.CutShaped()
			ended := make(chan error, 1)
			go func() {
				_, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
				ended <- err
			}()
			if selected {
				require.Eventually(t, func() bool { return p.Held() > 0 }, time.Minute, time.Millisecond)
				require.Empty(t, ended)
				p.HealShaped()
			}
			require.NoError(t, <-ended)
		})
	}
}

// throughRelay returns a client of a gRPC server behind a relay with a shape.
func throughRelay(t *testing.T, s faultproxy.Shape) (healthpb.HealthClient, *faultproxy.Relay) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	p, err := faultproxy.Listen(l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	p.SetShape(s)
	conn, err := grpc.NewClient("passthrough:///"+p.Address(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return healthpb.NewHealthClient(conn), p
}
