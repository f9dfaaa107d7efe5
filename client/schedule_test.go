// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

func (n *fakeNode) GetFleet(context.Context, *pb.GetFleetRequest) (*pb.GetFleetResponse, error) {
	if n.pair.fleet == nil {
		return nil, answer(codes.FailedPrecondition, "FLEET_STATE", false)
	}
	return n.pair.fleet()
}

func (n *fakeNode) schedule(name string) (*pb.Schedule, error) {
	n.pair.mu.Lock()
	defer n.pair.mu.Unlock()
	if !n.pair.schedules[name] {
		return nil, answer(codes.NotFound, "SCHEDULE_NOT_FOUND", true)
	}
	return &pb.Schedule{Name: name, Queue: n.addr}, nil
}

func (n *fakeNode) GetSchedule(_ context.Context, r *pb.GetScheduleRequest) (*pb.GetScheduleResponse, error) {
	s, err := n.schedule(r.GetName())
	return &pb.GetScheduleResponse{Schedule: s}, err
}

func (n *fakeNode) RunSchedule(_ context.Context, r *pb.RunScheduleRequest) (*pb.RunScheduleResponse, error) {
	_, err := n.schedule(r.GetName())
	return &pb.RunScheduleResponse{Sequence: r.GetProducer().GetSequence()}, err
}

func (n *fakeNode) DeleteSchedule(_ context.Context, r *pb.DeleteScheduleRequest) (*pb.DeleteScheduleResponse, error) {
	_, err := n.schedule(r.GetName())
	n.pair.mu.Lock()
	defer n.pair.mu.Unlock()
	delete(n.pair.schedules, r.GetName())
	return &pb.DeleteScheduleResponse{}, err
}

// newScheduleFleet creates a fleet with schedules, by pair.
func newScheduleFleet(t *testing.T, schedules map[string][]string) *fakeFleet {
	f := newFakeFleet(t)
	for name, p := range f.pairs {
		p.schedules = make(map[string]bool)
		for _, s := range schedules[name] {
			p.schedules[s] = true
		}
		p.fleet = func() (*pb.GetFleetResponse, error) {
			resp := &pb.GetFleetResponse{Pair: name}
			for _, other := range []string{"a", "b", "c"} {
				resp.Pairs = append(resp.Pairs, &pb.FleetPair{Name: other, Addresses: f.pairs[other].addrs})
			}
			return resp, nil
		}
	}
	return f
}

// Methods with the name of a schedule find it at all pairs, and prefer the home pair.
func TestSchedulesOfFleet(t *testing.T) { synctest.Test(t, testSchedulesOfFleet) }

func testSchedulesOfFleet(t *testing.T) {
	f := newScheduleFleet(t, map[string][]string{"a": {"own"}, "b": {"own", "other", "twice"}, "c": {"twice"}})
	adm := admin.New(f.client(client.Options{}))
	s, err := adm.Schedule(soon(t), "own")
	require.NoError(t, err)
	require.Equal(t, f.pairs["a"].addrs[0], s.GetQueue())
	s, err = adm.Schedule(soon(t), "other")
	require.NoError(t, err)
	require.Equal(t, f.pairs["b"].addrs[0], s.GetQueue())
	_, err = adm.As(&admin.Request{}).RunSchedule(soon(t), "other")
	require.NoError(t, err)
	require.ErrorIs(t, adm.DeleteSchedule(soon(t), "twice"), admin.ErrSeveralSchedules)
	require.ErrorIs(t, adm.DeleteSchedule(soon(t), "none"), admin.ErrNoSchedule)
	require.ErrorIs(t, adm.AtHome().DeleteSchedule(soon(t), "other"), admin.ErrNoSchedule)
	require.True(t, f.pairs["b"].schedules["other"])
	require.NoError(t, adm.DeleteSchedule(soon(t), "other"))
	require.Equal(t, map[string]bool{"own": true, "twice": true}, f.pairs["b"].schedules)
}

// A schedule can be at a pair without an active node. The request is not sent to other pairs.
func TestScheduleOfLostPair(t *testing.T) { synctest.Test(t, testScheduleOfLostPair) }

func testScheduleOfLostPair(t *testing.T) {
	f := newScheduleFleet(t, map[string][]string{"b": {"s"}, "c": {"s"}})
	f.lose("c")
	adm := admin.New(f.lookupClient())
	err := adm.DeleteSchedule(during(t), "s")
	require.ErrorIs(t, err, client.ErrUnavailable)
	require.NotErrorIs(t, err, admin.ErrNoSchedule)
	require.True(t, f.pairs["b"].schedules["s"])
}

// Without the directory, only the schedules of the home pair are found.
func TestScheduleWithoutDirectory(t *testing.T) { synctest.Test(t, testScheduleWithoutDirectory) }

func testScheduleWithoutDirectory(t *testing.T) {
	f := newScheduleFleet(t, map[string][]string{"a": {"own"}, "b": {"s"}})
	adm := admin.New(f.client(client.Options{}))
	f.pairs["a"].fleet = func() (*pb.GetFleetResponse, error) {
		return nil, answer(codes.PermissionDenied, "DENIED", false)
	}
	_, err := adm.Schedule(soon(t), "own")
	require.NoError(t, err)
	_, err = adm.Schedule(soon(t), "s")
	require.ErrorIs(t, err, admin.ErrNoSchedule)
	require.ErrorIs(t, err, client.ErrDenied)
	f.pairs["a"].fleet = nil
	_, err = adm.Schedule(soon(t), "s")
	require.ErrorIs(t, err, admin.ErrNoSchedule)
	require.NotErrorIs(t, err, client.ErrRefused)
}
