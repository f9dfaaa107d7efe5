// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"encoding/json"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/proto/reason"
)

// node is a fake node of a pair in a fleet.
type node struct {
	pb.UnimplementedAdminServiceServer
	pb.UnimplementedFleetServiceServer
	pb.UnimplementedQueueServiceServer

	address string
	server  *grpc.Server

	mu      sync.Mutex // guards all fields below
	status  *pb.GetStatusResponse
	fleet   *pb.GetFleetResponse
	refuse  error // of all requests for changes
	pages   map[string]*pb.ListPlacementsResponse
	listed  []*pb.ListPlacementsRequest
	put     *pb.PlacementRule
	deleted string
	state   *pb.SetPairStateRequest
	rebuilt []*pb.RebuildDirectoryRequest
	reports []*pb.RebuildDirectoryResponse // responses to RebuildDirectory; the last one is repeated
	left    int
	forgets []*pb.ForgetPairResponse // responses to ForgetPair
	moves   *pb.ListMovesResponse    // without world

	world    *world                           // if set, the source of pairs, placements, queues and moves
	onFleet  func(*pb.GetFleetResponse) error // if set, GetFleet calls it with the response
	switched int
	peer     *node // other node of the pair
}

func (n *node) GetStatus(context.Context, *pb.GetStatusRequest) (*pb.GetStatusResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return proto.CloneOf(n.status), nil
}

// WatchStatus keeps the connections of the client open. Without a response, the client replaces them.
func (n *node) WatchStatus(_ *pb.WatchStatusRequest, s grpc.ServerStreamingServer[pb.WatchStatusResponse]) error {
	n.mu.Lock()
	st := proto.CloneOf(n.status)
	n.mu.Unlock()
	if err := s.Send(&pb.WatchStatusResponse{Status: st}); err != nil {
		return err
	}
	<-s.Context().Done()
	return nil
}

func (n *node) GetFleet(context.Context, *pb.GetFleetRequest) (*pb.GetFleetResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fleet == nil {
		return nil, n.refuse
	}
	resp := proto.CloneOf(n.fleet)
	if n.world != nil {
		resp = n.world.fleet(n.fleet)
	}
	if n.onFleet != nil {
		return resp, n.onFleet(resp)
	}
	return resp, nil
}

func (n *node) ListPlacements(
	_ context.Context, r *pb.ListPlacementsRequest,
) (*pb.ListPlacementsResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listed = append(n.listed, r)
	if n.world != nil {
		return n.world.placements(), nil
	}
	return n.pages[r.GetAfter()], n.refuse
}

func (n *node) PutPlacementRule(
	_ context.Context, r *pb.PutPlacementRuleRequest,
) (*pb.PutPlacementRuleResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.put = r.GetRule()
	return &pb.PutPlacementRuleResponse{}, n.refuse
}

func (n *node) DeletePlacementRule(
	_ context.Context, r *pb.DeletePlacementRuleRequest,
) (*pb.DeletePlacementRuleResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.deleted = r.GetPattern()
	return &pb.DeletePlacementRuleResponse{}, n.refuse
}

func (n *node) SetPairState(_ context.Context, r *pb.SetPairStateRequest) (*pb.SetPairStateResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.state = r
	return &pb.SetPairStateResponse{}, n.refuse
}

func (n *node) RebuildDirectory(
	_ context.Context, r *pb.RebuildDirectoryRequest,
) (*pb.RebuildDirectoryResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rebuilt = append(n.rebuilt, r)
	return n.reports[min(len(n.rebuilt), len(n.reports))-1], n.refuse
}

func (n *node) ForgetPair(_ context.Context, r *pb.ForgetPairRequest) (*pb.ForgetPairResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.refuse != nil || r.GetPair() != "b" {
		return nil, n.refuse
	}
	resp := n.forgets[0]
	if len(n.forgets) > 1 {
		n.forgets = n.forgets[1:]
	}
	return resp, nil
}

func (n *node) LeaveFleet(context.Context, *pb.LeaveFleetRequest) (*pb.LeaveFleetResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.left++
	return &pb.LeaveFleetResponse{}, n.refuse
}

// start runs a fake node until the test ends. It is the active of a pair.
func start(t *testing.T, pair string) *node {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	n := &node{
		address: ln.Addr().String(), server: grpc.NewServer(),
		status:  &pb.GetStatusResponse{Role: pb.Role_ROLE_ACTIVE_ALONE},
		fleet:   &pb.GetFleetResponse{Pair: pair},
		reports: []*pb.RebuildDirectoryResponse{{Added: 2}},
	}
	pb.RegisterAdminServiceServer(n.server, n)
	pb.RegisterFleetServiceServer(n.server, n)
	pb.RegisterQueueServiceServer(n.server, n)
	go func() { _ = n.server.Serve(ln) }()
	t.Cleanup(n.server.Stop)
	return n
}

func (n *node) cli(t *testing.T) clitest.CLI { t.Helper(); return clitest.CLI{T: t, Addr: n.address} }

// fleet is a fake fleet with the pairs a and b, with one node each.
type fleet struct{ a, b *node }

const fleetID = "0192f3a4-7c1e-7a55-9d3e-52a1b4c8d901"

func startFleet(t *testing.T) fleet {
	t.Helper()
	f := fleet{start(t, "a"), start(t, "b")}
	for _, n := range []*node{f.a, f.b} {
		n.fleet.Directory = &pb.FleetDirectory{
			Loaded: true, Current: true, FleetId: fleetID, LastEpoch: 47, Queues: 1240,
		}
		n.fleet.Pairs = []*pb.FleetPair{
			{
				Name: "a", PairId: "id-a", Addresses: []string{f.a.address}, State: pb.PairState_PAIR_STATE_OPEN, Live: true,
				Queues: 1200, CapacityBytes: 1 << 40, Labels: map[string]string{"region": "eu", "disk": "ssd"},
				Load: &pb.PairLoad{Queues: 1200, StoredBytes: 3 << 30, FreeBytes: 200 << 30, PublishRate: 512.4},
			},
			{
				Name: "b", PairId: "id-b", Addresses: []string{f.b.address}, State: pb.PairState_PAIR_STATE_DRAINING, Live: true,
				Queues: 40, Load: &pb.PairLoad{Queues: 41, FreeBytes: 100 << 30},
			},
		}
		n.fleet.Rules = []*pb.PlacementRule{
			{Pattern: "eu.*", Labels: map[string]string{"region": "eu", "disk": "ssd"}}, {Pattern: "orders.*", Pair: "b"},
		}
	}
	return f
}

func (f fleet) both(t *testing.T) clitest.CLI {
	t.Helper()
	return clitest.CLI{T: t, Addr: f.a.address + "," + f.b.address}
}

// masked replaces the addresses of the nodes.
func (f fleet) masked(text string) string {
	return strings.NewReplacer(f.a.address, "A", f.b.address, "B").Replace(text)
}

// refusal returns an error of a node with a reason of the API.
func refusal(t *testing.T, r pb.ErrorReason) error { t.Helper(); return errorOf(r) }

// errorOf is like refusal, for functions without a test.
func errorOf(r pb.ErrorReason) error {
	st, err := status.New(reason.Code(r), "rejected").
		WithDetails(&errdetails.ErrorInfo{Reason: reason.Name(r), Domain: reason.Domain})
	if err != nil {
		return err
	}
	return st.Err()
}

// lost is the error of a request with a lost response.
var lost = status.Error(codes.Unavailable, "connection lost")

const (
	noFleet       = pb.ErrorReason_ERROR_REASON_FLEET_STATE
	noDirectory   = pb.ErrorReason_ERROR_REASON_DIRECTORY_UNAVAILABLE
	notRegistered = noFleet
)

func decode(t *testing.T, text string) map[string]any {
	t.Helper()
	v := map[string]any{}
	require.NoError(t, json.Unmarshal([]byte(text), &v))
	return v
}
