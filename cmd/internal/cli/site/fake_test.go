// SPDX-License-Identifier: Apache-2.0

package site_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/proto/reason"
)

// node is a fake node of a site.
type node struct {
	pb.UnimplementedAdminServiceServer
	pb.UnimplementedSiteServiceServer

	address string
	server  *grpc.Server
	asked   chan struct{} // receives a value for each GetSite
	during  func()        // if not nil: called by SwitchSite

	mu        sync.Mutex // guards all fields below
	status    *pb.GetStatusResponse
	site      *pb.GetSiteResponse
	refuse    error
	switched  *pb.SwitchSiteRequest
	deadline  time.Time // of SwitchSite
	operated  int       // requests of Switchover and SetPaused
	promoted  *pb.PromoteSiteRequest
	demoted   *pb.DemoteSiteRequest
	promotion *pb.PromoteSiteResponse
	verified  *pb.VerifySitesResponse
}

func (n *node) GetStatus(context.Context, *pb.GetStatusRequest) (*pb.GetStatusResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return proto.CloneOf(n.status), nil
}

// WatchStatus keeps the connections of the client open. Without a response, the client replaces them.
func (n *node) WatchStatus(_ *pb.WatchStatusRequest, s grpc.ServerStreamingServer[pb.WatchStatusResponse]) error {
	if err := s.Send(&pb.WatchStatusResponse{Status: &pb.GetStatusResponse{}}); err != nil {
		return err
	}
	<-s.Context().Done()
	return nil
}

func (n *node) GetSite(context.Context, *pb.GetSiteRequest) (*pb.GetSiteResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	select {
	case n.asked <- struct{}{}:
	default:
	}
	return proto.CloneOf(n.site), nil
}

func (n *node) SwitchSite(ctx context.Context, r *pb.SwitchSiteRequest) (*pb.SwitchSiteResponse, error) {
	if n.during != nil {
		n.during()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.switched = r
	n.deadline, _ = ctx.Deadline()
	return &pb.SwitchSiteResponse{
		Primary: r.GetTo(), Epoch: 4, Pause: durationpb.New(120 * time.Millisecond), Addresses: []string{"west-a:7420"},
	}, n.refuse
}

func (n *node) PromoteSite(_ context.Context, r *pb.PromoteSiteRequest) (*pb.PromoteSiteResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.promoted = r
	return n.promotion, n.refuse
}

func (n *node) DemoteSite(_ context.Context, r *pb.DemoteSiteRequest) (*pb.DemoteSiteResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.demoted = r
	return &pb.DemoteSiteResponse{Primary: "west", Epoch: 4, Upstream: at(12, 4560)}, n.refuse
}

func (n *node) VerifySites(context.Context, *pb.VerifySitesRequest) (*pb.VerifySitesResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.verified, n.refuse
}

// start runs a fake node until the test ends.
func start(t *testing.T) *node {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	n := &node{
		address: ln.Addr().String(), server: grpc.NewServer(), asked: make(chan struct{}, 100),
		status: &pb.GetStatusResponse{Role: pb.Role_ROLE_ACTIVE_ALONE},
		site:   &pb.GetSiteResponse{Site: &pb.SiteState{}},
	}
	pb.RegisterAdminServiceServer(n.server, n)
	pb.RegisterSiteServiceServer(n.server, n)
	go func() { _ = n.server.Serve(ln) }()
	t.Cleanup(n.server.Stop)
	return n
}

func (n *node) cli(t *testing.T) clitest.CLI { t.Helper(); return clitest.CLI{T: t, Addr: n.address} }

func at(term, lsn uint64) *pb.Position { return &pb.Position{Term: term, Lsn: lsn, Chain: uint32(lsn)} }

// started is the clock of the fake nodes.
var started = time.Date(2026, 11, 29, 6, 0, 0, 0, time.UTC)

// sites are two fake sites, east (the primary) and west (its replica), with one node each.
type sites struct{ east, west *node }

const lineage = "0192f3a4-7c1e-7a55-9d3e-52a1b4c8d901"

// startSites runs two sites. The replica lacks 7 records. Its last contact with the primary was 2 s ago.
func startSites(t *testing.T) sites {
	t.Helper()
	s := sites{start(t), start(t)}
	s.east.site.Site = &pb.SiteState{
		Name: "east", Role: pb.SiteRole_SITE_ROLE_PRIMARY, Lineage: lineage, Epoch: 3, Applied: at(12, 4567),
		Addresses: []string{s.east.address}, Now: timestamppb.New(started),
	}
	s.west.site.Site = &pb.SiteState{
		Name: "west", Role: pb.SiteRole_SITE_ROLE_REPLICA, Lineage: lineage, Epoch: 3, Applied: at(2, 4600),
		Upstream: at(12, 4560), Addresses: []string{s.west.address}, Now: timestamppb.New(started.Add(time.Hour)),
	}
	s.west.site.Replication = &pb.SiteReplication{
		Connected: true, HeardAt: timestamppb.New(started.Add(-2 * time.Second)), PrimaryEnd: at(12, 4567), LagRecords: 7,
		LagBytes: 1300, Lag: durationpb.New(400 * time.Millisecond), BytesPerSecond: 3 << 20, Connections: 2,
	}
	s.east.status.Site = &pb.SiteInfo{RemoteAddresses: []string{s.west.address}}
	s.west.status.Site = &pb.SiteInfo{RemoteAddresses: []string{s.east.address}}
	s.connect()
	return s
}

// connect makes each site report the state of the other site.
func (s sites) connect() {
	s.east.site.Remote, s.west.site.Remote = s.west.site.GetSite(), s.east.site.GetSite()
}

// stopEast stops the primary, as seen by both the replica and the CLI.
func (s sites) stopEast() {
	s.east.server.Stop()
	s.west.site.Error = "connection refused" // the last state is kept
	s.west.site.Replication.Connected = false
}

// refusal returns an error of a node with a reason of the API.
func refusal(t *testing.T, r pb.ErrorReason) error {
	t.Helper()
	st, err := status.New(reason.Code(r), "refused by the node").
		WithDetails(&errdetails.ErrorInfo{Reason: reason.Name(r), Domain: reason.Domain})
	require.NoError(t, err)
	return st.Err()
}

// lost is the error of a request with a lost response.
var lost = status.Error(codes.Unavailable, "connection lost")
