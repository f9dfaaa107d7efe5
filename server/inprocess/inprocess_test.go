// SPDX-License-Identifier: Apache-2.0

package inprocess_test

import (
	"context"
	"crypto/tls"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"

	"github.com/lockstep-mq/lockstep/server/inprocess"
)

// TestCallers: a call is one of the caller that it names, as long as that has not left; any other comes from nowhere
// and has no certificate.
func TestCallers(t *testing.T) {
	link := inprocess.New()
	var seen *peer.Peer
	s := grpc.NewServer(link.ServerOption(), grpc.UnaryInterceptor(func(
		ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler,
	) (any, error) {
		seen, _ = peer.FromContext(ctx)
		return handle(ctx, req)
	}))
	healthpb.RegisterHealthServer(s, health.NewServer())
	go func() { _ = s.Serve(link.Listener()) }()
	t.Cleanup(s.Stop)
	conn, err := link.Dial()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	call := func(ctx context.Context) *peer.Peer {
		_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
		require.NoError(t, err)
		return seen
	}
	alice := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 7}
	key, leave := link.Enter(inprocess.Caller{Addr: alice, TLS: &tls.ConnectionState{ServerName: "x"}})
	bob := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 2), Port: 7}
	other, leaveOther := link.Enter(inprocess.Caller{Addr: bob})
	defer leaveOther()

	p := call(inprocess.As(t.Context(), key))
	require.Equal(t, alice, p.Addr)
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	require.True(t, ok)
	require.Equal(t, "x", info.State.ServerName)
	p = call(inprocess.As(t.Context(), other))
	require.Equal(t, bob, p.Addr)
	require.Nil(t, p.AuthInfo)
	leave()
	for _, ctx := range []context.Context{
		t.Context(), inprocess.As(t.Context(), key), inprocess.As(t.Context(), "77"),
		inprocess.As(inprocess.As(t.Context(), other), other),
	} {
		p = call(ctx)
		require.Equal(t, "unix", p.Addr.Network())
		require.Nil(t, p.AuthInfo)
	}
}
