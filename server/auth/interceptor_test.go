// SPDX-License-Identifier: Apache-2.0

package auth_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/auth"
	"github.com/lockstep-mq/lockstep/server/auth/access"
)

// Begin authenticates the caller and checks the right that the method requires. Observe is called for denied and
// audited calls.
func TestBegin(t *testing.T) {
	var seen []auth.Call
	var shown *access.Identity
	var wrong error
	g := auth.New(auth.Options{
		Unauthenticated: func(context.Context) error { return access.ErrNotPeer },
		Authenticators: []auth.Authenticator{
			func(context.Context) (*access.Identity, error) { return nil, nil }, //nolint:nilnil // no credentials
			func(context.Context) (*access.Identity, error) { return shown, wrong },
		},
		Observe: func(_ context.Context, c auth.Call) { seen = append(seen, c) },
	})

	ctx, audited, err := g.Begin(t.Context(), pb.QueueService_Publish_FullMethodName)
	require.NoError(t, err)
	require.False(t, audited)
	require.Equal(t, t.Context(), ctx, "the context is unchanged")
	require.Equal(t, access.Anonymous, access.FromContext(ctx).Principal)

	_, _, err = g.Begin(t.Context(), pb.ReplicationService_Replicate_FullMethodName)
	require.Equal(t, codes.PermissionDenied, status.Code(err))
	_, _, err = g.Begin(t.Context(), "/lockstep.v1.QueueService/Unknown")
	require.Equal(t, codes.PermissionDenied, status.Code(err))
	require.Len(t, seen, 2, "refusals are reported")

	shown = &access.Identity{Principal: "b", Peer: true}
	ctx, audited, err = g.Begin(t.Context(), pb.ReplicationService_Replicate_FullMethodName)
	require.NoError(t, err)
	require.False(t, audited)
	require.Same(t, shown, access.FromContext(ctx))

	ctx, audited, err = g.Begin(t.Context(), pb.AdminService_Switchover_FullMethodName)
	require.NoError(t, err)
	require.True(t, audited)
	seen = nil
	start := time.Now()
	g.Finish(ctx, pb.AdminService_Switchover_FullMethodName, &pb.SwitchoverRequest{}, start, nil)
	require.Len(t, seen, 1)
	require.Same(t, shown, seen[0].Identity)
	require.Equal(t, start, seen[0].Began)
	g.Finish(ctx, pb.QueueService_Publish_FullMethodName, nil, start, status.Error(codes.Unavailable, "")) // not denied
	g.Finish(ctx, pb.QueueService_Publish_FullMethodName, nil, start, status.Error(codes.PermissionDenied, ""))
	require.Len(t, seen, 2)

	shown = &access.Identity{Principal: "fleet", Fleet: true}
	_, _, err = g.Begin(t.Context(), pb.FleetService_FenceQueues_FullMethodName)
	require.NoError(t, err)
	for _, method := range []string{
		pb.FleetService_MoveQueues_FullMethodName, pb.QueueService_Publish_FullMethodName,
		pb.SiteService_PullLog_FullMethodName, pb.ReplicationService_Replicate_FullMethodName,
	} {
		_, _, err = g.Begin(t.Context(), method)
		require.Equal(t, codes.PermissionDenied, status.Code(err), method)
	}

	shown, wrong = nil, fmt.Errorf("%w: the token has expired", access.ErrUnauthenticated)
	_, _, err = g.Begin(t.Context(), pb.QueueService_Publish_FullMethodName)
	require.Equal(t, codes.Unauthenticated, status.Code(err))
}

// A nil Interceptor permits all calls.
func TestNilInterceptor(t *testing.T) {
	var g *auth.Interceptor
	ctx, audited, err := g.Begin(t.Context(), "anything")
	require.NoError(t, err)
	require.False(t, audited)
	require.Equal(t, t.Context(), ctx)
	g.Finish(ctx, "anything", nil, time.Time{}, nil)
}
