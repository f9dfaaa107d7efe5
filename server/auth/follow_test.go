// SPDX-License-Identifier: Apache-2.0

package auth_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/auth"
	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/store/queue"
)

// loadRules loads rules for alice. If all is set, they grant all rights except Peer; otherwise they grant none.
func loadRules(t *testing.T, r *access.Rules, version uint64, all bool) {
	t.Helper()
	rule := &pb.AccessRule{Principal: "alice", Queue: "*", Rights: []pb.AccessRight{
		pb.AccessRight_ACCESS_RIGHT_BROWSE, pb.AccessRight_ACCESS_RIGHT_OPERATE, pb.AccessRight_ACCESS_RIGHT_AUDIT,
		pb.AccessRight_ACCESS_RIGHT_PUBLISH, pb.AccessRight_ACCESS_RIGHT_CONSUME,
	}}
	if !all {
		rule.Principal = "bob"
	}
	value, err := proto.Marshal(rule)
	require.NoError(t, err)
	require.NoError(t, r.Load(version, []queue.AccessEntry{{
		Kind: access.KindRule, Name: access.RuleName(rule), Value: value,
	}}))
}

// streams returns the server-streaming methods that the interceptor must end. It omits methods between nodes, and
// also PublishStream and Consume, because their handlers check the rights on queues.
func streams(t *testing.T) (methods []string) {
	t.Helper()
	protoregistry.GlobalFiles.RangeFilesByPackage("lockstep.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for k := range s.Methods().Len() {
				m := s.Methods().Get(k)
				name := "/" + string(s.FullName()) + "/" + string(m.Name())
				need, _ := access.NeedOf(name)
				if m.IsStreamingServer() && !m.IsStreamingClient() && need.Right != access.Peer {
					methods = append(methods, name)
				}
			}
		}
		return true
	})
	require.GreaterOrEqual(t, len(methods), 7)
	return append(methods, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
}

// A stream ends when the rules revoke the right that it requires, regardless of the state of its handler. Other
// changes of the rules have no effect on the stream.
func TestStreamEndsWithoutRight(t *testing.T) {
	for _, method := range streams(t) {
		for _, obedient := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				rules := &access.Rules{}
				loadRules(t, rules, 1, true)
				g := auth.New(auth.Options{Rules: rules})
				ctx := access.NewContext(t.Context(), &access.Identity{Principal: "alice"})
				ended, release := make(chan error, 1), make(chan struct{})
				defer close(release)
				go func() {
					ended <- g.RunStream(ctx, method, func(ctx context.Context) error {
						if obedient {
							<-ctx.Done() // like a handler that treats the end of ctx as a disconnected client
							return nil
						}
						<-release
						return nil
					})
				}()
				loadRules(t, rules, 2, true)
				synctest.Wait()
				require.Empty(t, ended, method)
				start := time.Now()
				loadRules(t, rules, 3, false)
				err := <-ended
				require.Equal(t, codes.PermissionDenied, status.Code(err), "%s: %v", method, err)
				require.LessOrEqual(t, time.Since(start), time.Second)
			})
		}
	}
}

// A stream also ends when the right on the queue in its request is revoked.
func TestStreamEndsWithoutQueueRight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rules := &access.Rules{}
		loadRules(t, rules, 1, true)
		g := auth.New(auth.Options{Rules: rules})
		gone := false
		err := g.RunStream(access.NewContext(t.Context(), &access.Identity{Principal: "alice"}),
			pb.QueueService_Browse_FullMethodName, func(ctx context.Context) error {
				may := func() error {
					if gone {
						return access.ErrDenied
					}
					return nil
				}
				require.NoError(t, access.EndUnless(ctx, may))
				gone = true
				loadRules(t, rules, 2, true)
				<-ctx.Done()
				return nil
			})
		require.Equal(t, codes.PermissionDenied, status.Code(err), "%v", err)
	})
}
