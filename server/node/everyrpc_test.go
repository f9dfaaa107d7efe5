// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	calls "github.com/lockstep-mq/lockstep/server/auth"
	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/server/node"
)

// rpcCaller is a kind of caller with its rights.
type rpcCaller struct {
	name string
	// shows is the credential in the metadata of the call, or empty.
	shows string
	// rights contains the rights on the queue q and on the pair. all is set if the caller has every right.
	rights access.Right
	all    bool
	// known is set if the caller has any right, even if it has none of the rights above.
	known bool
}

func rpcCallers() []rpcCaller {
	return []rpcCaller{
		{name: "anonymous"},
		{name: "unknown", shows: "unknown"},
		{name: "reader", shows: "reader", rights: access.Browse},
		{name: "publisher", shows: "publisher", rights: access.Publish},
		{name: "consumer", shows: "consumer", rights: access.Consume},
		{name: "manager", shows: "manager", rights: access.Manage},
		{name: "elsewhere", shows: "elsewhere", known: true},
		{name: "operator", shows: "operator", rights: access.Operate},
		{name: "auditor", shows: "auditor", rights: access.Audit},
		{name: "peer", shows: "b:peer", rights: access.Operate | access.Audit | access.Peer},
		{name: "bootstrap operator", shows: "root", all: true},
	}
}

// may reports whether the table permits a method. It does not use the code under test.
func (c *rpcCaller) may(method string, need access.Need) bool {
	known := c.known || c.all || c.rights != 0
	switch _, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/"); {
	case need.Unauthenticated:
		return true
	case need.Right == access.Peer:
		return c.rights&access.Peer != 0
	case name == "PutSchedule": // requires two rights
		return c.all
	case name == "GetSchedule": // the schedule does not exist
		return c.all || c.known || c.rights&access.QueueRights != 0
	case strings.HasPrefix(method, "/lockstep.v1.ScheduleService/") && name != "ListSchedules":
		return c.all || c.known || c.rights&need.Right != 0
	case need.Right == 0 || name == "ListQueues" || name == "ListSchedules" || name == "CommitPrepared" ||
		name == "RollbackPrepared":
		return known // lists are empty for callers without rights, and no transaction is prepared under this xid
	case name == "GetQueue" || name == "GetHistory":
		return c.all || c.rights&access.QueueRights != 0
	case name == "Commit" || name == "Prepare": // the test publishes with them
		return c.all || c.rights&access.Publish != 0
	default:
		return c.all || c.rights&need.Right != 0
	}
}

// requestOf creates a request that contains the queue q in each suitable field.
func requestOf(t *testing.T, m protoreflect.MethodDescriptor) proto.Message {
	t.Helper()
	publish := &pb.PublishOperation{Queue: "q", Messages: []*pb.Message{{}}}
	operation := []*pb.Operation{{Kind: &pb.Operation_Publish{Publish: publish}}}
	switch m.Name() {
	case "Commit":
		return &pb.CommitRequest{Operations: operation}
	case "Prepare":
		return &pb.PrepareRequest{Xid: "x", Operations: operation}
	case "Publish":
		return &pb.PublishRequest{Queue: "q", Messages: publish.GetMessages()}
	case "PublishStream":
		return &pb.PublishStreamRequest{Publish: &pb.PublishRequest{Queue: "q", Messages: publish.GetMessages()}}
	case "PutSchedule":
		return &pb.PutScheduleRequest{Schedule: &pb.Schedule{Name: "s", Queue: "q", Cron: "@daily"}}
	case "Consume":
		return &pb.ConsumeRequest{Attach: &pb.Attach{Queue: "q"}}
	}
	req := dynamicpb.NewMessage(m.Input())
	names := []protoreflect.Name{"queue"}
	if strings.HasSuffix(string(m.Name()), "Queue") {
		names = append(names, "name")
	}
	for _, name := range names {
		if f := m.Input().Fields().ByName(name); f != nil && f.Kind() == protoreflect.StringKind {
			req.Set(f, protoreflect.ValueOfString("q"))
		}
	}
	return req
}

// callOf calls a method and returns its error. For a stream, it returns the error of the first response.
func callOf(
	ctx context.Context, t *testing.T, conn grpc.ClientConnInterface, method string, m protoreflect.MethodDescriptor,
	may bool,
) error {
	t.Helper()
	limit := testTimeout
	if m.IsStreamingServer() && may {
		limit = 300 * time.Millisecond // a permitted watch may receive nothing
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	req, resp := requestOf(t, m), dynamicpb.NewMessage(m.Output())
	if !m.IsStreamingServer() && !m.IsStreamingClient() {
		return conn.Invoke(ctx, method, req, resp)
	}
	desc := &grpc.StreamDesc{ServerStreams: m.IsStreamingServer(), ClientStreams: m.IsStreamingClient()}
	s, err := conn.NewStream(ctx, desc, method)
	if err != nil {
		return err
	}
	if err := s.SendMsg(req); err == nil && !m.IsStreamingClient() {
		_ = s.CloseSend()
	}
	if err := s.RecvMsg(resp); err != nil {
		return err
	}
	if m.Name() == "PublishStream" { // the stream continues, and its response contains the error
		raw, err := proto.Marshal(resp)
		require.NoError(t, err)
		response := new(pb.PublishStreamResponse)
		require.NoError(t, proto.Unmarshal(raw, response))
		if e := response.GetError(); e != nil {
			return status.Error(codes.Code(e.GetCode()), e.GetMessage())
		}
	}
	return nil
}

// rpcConn is a connection to the node's services.
type rpcConn struct {
	name string
	conn grpc.ClientConnInterface
}

// check calls a method and checks that the result matches the caller's rights. It reports whether the call is
// permitted.
func (c *rpcCaller) check(
	t *testing.T, via rpcConn, method string, m protoreflect.MethodDescriptor, need access.Need,
) (may bool) {
	t.Helper()
	ctx := t.Context()
	if c.shows != "" {
		ctx = as(ctx, c.shows)
	}
	err := callOf(ctx, t, via.conn, method, m, c.may(method, need))
	code := status.Code(err)
	if m.Parent().Name() == "ReplicationService" && via.name != "over the network" { // only for the other node
		require.Equal(t, codes.Unimplemented, code, method)
		return false
	}
	require.NotEqual(t, codes.Unimplemented, code, "%s is not served %s", method, via.name)
	if may = c.may(method, need); may {
		require.NotContains(t, []codes.Code{codes.PermissionDenied, codes.Unauthenticated}, code,
			"%s by the %s %s: %v", method, c.name, via.name, err)
	} else {
		require.Equal(t, codes.PermissionDenied, code, "%s by the %s %s: %v", method, c.name, via.name, err)
	}
	return may
}

// Every kind of caller calls every RPC of every service on a real node: over the network, and in-process like the
// console and the AMQP port. The RPCs are read from the descriptors. An RPC without a declared right fails the
// test.
func TestEveryRPC(t *testing.T) { simulated(t, testEveryRPC) }

func testEveryRPC(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "peer-token")
	require.NoError(t, os.WriteFile(secret, []byte(strings.Repeat("s", 64)), 0o600))
	etcd := startEtcd(t)
	c := settingsOfPair(t, "a", etcd)
	c.PeerToken = secret
	c.Access.Operators = []string{"root"}
	conns := []rpcConn{{name: "over the network"}, {name: "within the process"}}
	n := startIn(t, c, node.Options{Environment: node.Environment{
		Authenticators: []calls.Authenticator{byName},
		InProcess:      func(conn grpc.ClientConnInterface) { conns[1].conn = conn },
	}})
	conns[0].conn = n.conn
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	require.NoError(t, n.createAs("root", "q"))
	for _, caller := range rpcCallers() {
		rule := &pb.AccessRule{Principal: caller.shows, Rights: access.RightsToProto(caller.rights &^ access.Peer)}
		if caller.rights&access.QueueRights != 0 {
			rule.Queue = "q"
		}
		if caller.known {
			rule.Queue, rule.Rights = "other/*", access.RightsToProto(access.QueueRights)
		}
		if len(rule.GetRights()) == 0 || caller.rights&access.Peer != 0 {
			continue
		}
		_, err := n.access().Grant(as(t.Context(), "root"), &pb.GrantRequest{Rule: rule})
		require.NoError(t, err)
	}
	methods, refused, allowed := 0, 0, 0
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		if !strings.HasPrefix(string(f.Package()), "lockstep.") && f.Package() != "grpc.health.v1" {
			return true
		}
		for i := range f.Services().Len() {
			service := f.Services().Get(i)
			for j := range service.Methods().Len() {
				m := service.Methods().Get(j)
				method := "/" + string(service.FullName()) + "/" + string(m.Name())
				need, known := access.NeedOf(method)
				require.True(t, known, "%s has no declared right", method)
				methods++
				for _, caller := range rpcCallers() {
					for _, via := range conns {
						if caller.check(t, via, method, m, need) {
							allowed++
						} else {
							refused++
						}
					}
				}
			}
		}
		return true
	})
	t.Logf("%d methods: %d calls allowed, %d refused", methods, allowed, refused)
	require.Greater(t, methods, 70)
	require.Greater(t, refused, 600)
	require.Greater(t, allowed, 300)
}
