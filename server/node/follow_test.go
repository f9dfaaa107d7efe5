// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	reflectpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// openWatch is a kind of stream. open opens it, and recv receives one response.
type openWatch struct {
	name string
	open func(ctx context.Context, n *testNode) (recv func() error, err error)
	// silent is set if the stream has no first response.
	silent bool
	// blocked is set if the client reads only the first response, so that the node blocks when it sends.
	blocked bool
}

func received[T any](s grpc.ServerStreamingClient[T], err error) (func() error, error) {
	return func() error {
		_, err := s.Recv()
		return err
	}, err
}

func openWatches() []openWatch {
	return []openWatch{
		{name: "WatchStatus", open: func(ctx context.Context, n *testNode) (func() error, error) {
			return received(pb.NewAdminServiceClient(n.conn).WatchStatus(ctx, &pb.WatchStatusRequest{}))
		}},
		{name: "TailAudit", silent: true, open: func(ctx context.Context, n *testNode) (func() error, error) {
			return received(pb.NewAuditServiceClient(n.conn).TailAudit(ctx, &pb.TailAuditRequest{Follow: true}))
		}},
		{name: "Browse", blocked: true, open: func(ctx context.Context, n *testNode) (func() error, error) {
			return received(n.queues.Browse(ctx, &pb.BrowseRequest{Queue: "q"}))
		}},
		{name: "Reflection", open: func(ctx context.Context, n *testNode) (func() error, error) {
			s, err := reflectpb.NewServerReflectionClient(n.conn).ServerReflectionInfo(ctx)
			if err == nil {
				err = s.Send(&reflectpb.ServerReflectionRequest{
					MessageRequest: &reflectpb.ServerReflectionRequest_ListServices{},
				})
			}
			return func() error {
				_, err := s.Recv()
				return err
			}, err
		}},
	}
}

// If a caller loses the right to a stream, the stream ends within a second. This applies to all streams other
// than PublishStream and Consume. Streams of other callers continue.
func TestLostRightEndsWatches(t *testing.T) { simulated(t, testLostRightEndsWatches) }

func testLostRightEndsWatches(t *testing.T) {
	n := startNamedAlone(t, nil)
	require.NoError(t, n.createAs("root", "q"))
	for range 64 { // far more than a connection buffers for a client that does not read
		require.NoError(t, n.publishAs("root", "q", string(bytes.Repeat([]byte("x"), 256<<10))))
	}
	all := func(identity string) *pb.AccessRule {
		return &pb.AccessRule{Principal: identity, Queue: "*", Rights: []pb.AccessRight{
			mayBrowse, mayOperate, pb.AccessRight_ACCESS_RIGHT_AUDIT,
		}}
	}
	for _, w := range openWatches() {
		section(t, w.name, func(t *testing.T) {
			for _, identity := range []string{"alice", "bob"} {
				_, err := n.access().Grant(as(t.Context(), "root"), &pb.GrantRequest{Rule: all(identity)})
				require.NoError(t, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			defer cancel()
			losing, err := w.open(as(ctx, "alice"), n)
			require.NoError(t, err)
			staying, err := w.open(as(ctx, "bob"), n)
			require.NoError(t, err)
			if w.silent { // the start of the stream cannot be observed
				<-time.After(300 * time.Millisecond)
			} else {
				require.NoError(t, losing())
				require.NoError(t, staying())
			}
			ended := make(chan error, 2)
			drain := func(recv func() error) {
				for {
					if err := recv(); err != nil {
						ended <- err
						return
					}
				}
			}
			if !w.blocked {
				go drain(losing)
			}
			start := time.Now()
			_, err = n.access().Revoke(as(t.Context(), "root"), &pb.RevokeRequest{Rule: all("alice")})
			require.NoError(t, err)
			if w.blocked {
				// Responses that were sent before still arrive.
				<-time.After(time.Second)
				start = time.Now()
				go drain(losing)
			}
			select {
			case err := <-ended:
				require.Equal(t, codes.PermissionDenied, status.Code(err), "%v", err)
				require.LessOrEqual(t, time.Since(start), time.Second)
			case <-ctx.Done():
				t.Fatal("the stream continues")
			}
			if w.name == "WatchStatus" {
				require.NoError(t, staying())
			}
		})
	}
}
