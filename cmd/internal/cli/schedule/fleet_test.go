// SPDX-License-Identifier: Apache-2.0

package schedule_test

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/proto/reason"
)

// fakePair is the only node of a pair of a fleet, with schedules.
type fakePair struct {
	pb.UnimplementedAdminServiceServer
	pb.UnimplementedFleetServiceServer
	pb.UnimplementedQueueServiceServer
	pb.UnimplementedScheduleServiceServer

	name, address string
	fleet         *pb.GetFleetResponse

	mu        sync.Mutex // guards the fields below
	schedules map[string]*pb.Schedule
}

func (p *fakePair) status() *pb.GetStatusResponse {
	return &pb.GetStatusResponse{
		Role: pb.Role_ROLE_ACTIVE_ALONE, Fleet: &pb.FleetStatus{FleetId: "f", Pair: p.name, DirectoryCurrent: true},
	}
}

func (p *fakePair) GetStatus(context.Context, *pb.GetStatusRequest) (*pb.GetStatusResponse, error) {
	return p.status(), nil
}

func (p *fakePair) WatchStatus(_ *pb.WatchStatusRequest, s grpc.ServerStreamingServer[pb.WatchStatusResponse]) error {
	if err := s.Send(&pb.WatchStatusResponse{Status: p.status()}); err != nil {
		return err
	}
	<-s.Context().Done()
	return nil
}

func (p *fakePair) GetFleet(context.Context, *pb.GetFleetRequest) (*pb.GetFleetResponse, error) {
	return p.fleet, nil
}

func (p *fakePair) find(name string) (*pb.Schedule, error) {
	if s := p.schedules[name]; s != nil {
		return s, nil
	}
	const missing = pb.ErrorReason_ERROR_REASON_SCHEDULE_NOT_FOUND
	st, err := status.New(reason.Code(missing), "schedule not found").
		WithDetails(&errdetails.ErrorInfo{Reason: reason.Name(missing), Domain: reason.Domain})
	if err != nil {
		return nil, err
	}
	return nil, st.Err()
}

func (p *fakePair) GetSchedule(_ context.Context, r *pb.GetScheduleRequest) (*pb.GetScheduleResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, err := p.find(r.GetName())
	return &pb.GetScheduleResponse{Schedule: s}, err
}

func (p *fakePair) ListSchedules(context.Context, *pb.ListSchedulesRequest) (*pb.ListSchedulesResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	resp := &pb.ListSchedulesResponse{}
	for _, s := range p.schedules {
		resp.Schedules = append(resp.Schedules, s)
	}
	return resp, nil
}

func (p *fakePair) SetSchedulePaused(
	_ context.Context, r *pb.SetSchedulePausedRequest,
) (*pb.SetSchedulePausedResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, err := p.find(r.GetName())
	if err == nil {
		s.Paused = r.GetPaused()
	}
	return &pb.SetSchedulePausedResponse{Schedule: s}, err
}

func (p *fakePair) DeleteSchedule(
	_ context.Context, r *pb.DeleteScheduleRequest,
) (*pb.DeleteScheduleResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := p.find(r.GetName())
	delete(p.schedules, r.GetName())
	return &pb.DeleteScheduleResponse{}, err
}

func (p *fakePair) has(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.schedules[name] != nil
}

// startFleet starts pairs with schedules.
func startFleet(t *testing.T, schedules map[string][]string) map[string]*fakePair {
	t.Helper()
	all, fleet := map[string]*fakePair{}, &pb.GetFleetResponse{}
	for name, list := range schedules {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		p := &fakePair{name: name, address: listener.Addr().String(), fleet: fleet, schedules: map[string]*pb.Schedule{}}
		for _, s := range list {
			p.schedules[s] = &pb.Schedule{Name: s, Queue: name + ".q", Cron: "@daily"}
		}
		all[name] = p
		fleet.Pairs = append(fleet.Pairs, &pb.FleetPair{Name: name, Addresses: []string{p.address}})
		server := grpc.NewServer()
		pb.RegisterAdminServiceServer(server, p)
		pb.RegisterFleetServiceServer(server, p)
		pb.RegisterQueueServiceServer(server, p)
		pb.RegisterScheduleServiceServer(server, p)
		t.Cleanup(server.Stop)
		go func() { _ = server.Serve(listener) }()
	}
	return all
}

// In a fleet, commands find a schedule at all pairs, and prefer the pair in --addr. If the name is ambiguous, they
// change nothing.
func TestSchedulesOfFleet(t *testing.T) {
	pairs := startFleet(t, map[string][]string{"a": {"own"}, "b": {"other", "own", "twice"}, "c": {"twice"}})
	c := clitest.CLI{T: t, Addr: pairs["a"].address}
	require.Equal(t, "b.q", c.Lines("schedule", "show", "other")[0]["queue"])
	require.Equal(t, "a.q", c.Lines("schedule", "show", "own")[0]["queue"])
	require.Equal(t, true, c.Lines("schedule", "pause", "other")[0]["paused"])
	listed := c.Lines("schedule", "list")
	require.Len(t, listed, 5)
	require.Equal(t, "a", listed[0]["pair"])
	require.Contains(t, c.OK("schedule", "list"), "Pair")

	_, _, code := c.Run("", "schedule", "delete", "twice")
	require.Equal(t, cli.ExitUsage, code)
	require.True(t, pairs["b"].has("twice"))
	require.True(t, pairs["c"].has("twice"))
	_, _, code = c.Run("", "schedule", "delete", "none")
	require.Equal(t, cli.ExitError, code)
	c.OK("schedule", "delete", "own")
	c.OK("schedule", "delete", "other")
	require.False(t, pairs["a"].has("own"))
	require.True(t, pairs["b"].has("own"))
	require.False(t, pairs["b"].has("other"))
}
