// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"net"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// A request connects again, even if the last connection attempt has just failed.
func TestRequestAfterFailedConnection(t *testing.T) {
	ln := bufconn.Listen(1 << 16)
	srv := grpc.NewServer()
	pb.RegisterSiteServiceServer(srv, pb.UnimplementedSiteServiceServer{})
	go func() { _ = srv.Serve(ln) }()
	defer srv.Stop()
	var listening atomic.Bool
	r := newRemote(&Options{Remote: []string{"a"}, Dial: []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			if !listening.Load() {
				return nil, syscall.ECONNREFUSED
			}
			return ln.DialContext(ctx)
		}),
	}})
	defer r.close()
	request := func() codes.Code {
		c, err := r.client("a")
		require.NoError(t, err)
		_, err = c.GetSite(t.Context(), &pb.GetSiteRequest{}, grpc.WaitForReady(false))
		return status.Code(err)
	}
	for range 3 {
		conn, err := r.conns.Conn("a")
		require.NoError(t, err)
		require.Equal(t, codes.Unavailable, request())
		for state := conn.GetState(); state != connectivity.TransientFailure; state = conn.GetState() {
			require.True(t, conn.WaitForStateChange(t.Context(), state))
		}
	}
	listening.Store(true)
	require.Equal(t, codes.Unimplemented, request())
}
