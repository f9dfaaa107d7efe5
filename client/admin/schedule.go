// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/internal/link"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

func scheduleService(cc *grpc.ClientConn) pb.ScheduleServiceClient {
	return pb.NewScheduleServiceClient(cc)
}

// PutSchedule creates a schedule, or replaces the schedule with the same name and retains its history. If neither the
// times nor the pause change, the next occurrence does not change either. Errors include [client.ErrInvalid];
// [client.ErrLimit] if the maximum number of schedules exists; [client.ErrRefused] while one of the nodes runs
// release 0.1.0.
func (c *Client) PutSchedule(ctx context.Context, s *pb.Schedule) (*pb.Schedule, error) {
	resp, err := changeBy(ctx, c, "put schedule "+s.GetName(), &pb.PutScheduleRequest{Schedule: s}, scheduleService,
		pb.ScheduleServiceClient.PutSchedule)
	return resp.GetSchedule(), err
}

// DeleteSchedule deletes a schedule and its history. Published messages are not deleted. Errors include those of
// [Client.Schedule].
func (c *Client) DeleteSchedule(ctx context.Context, name string) error {
	_, err := changeSchedule(ctx, c, name, "delete schedule "+name, &pb.DeleteScheduleRequest{Name: name},
		pb.ScheduleServiceClient.DeleteSchedule)
	return err
}

// SetSchedulePaused pauses or resumes a schedule. Occurrences during the pause are not published. Errors include
// those of [Client.Schedule].
func (c *Client) SetSchedulePaused(ctx context.Context, name string, paused bool) (*pb.Schedule, error) {
	resp, err := changeSchedule(ctx, c, name, "pause or resume schedule "+name,
		&pb.SetSchedulePausedRequest{Name: name, Paused: paused}, pb.ScheduleServiceClient.SetSchedulePaused)
	return resp.GetSchedule(), err
}

// RunSchedule publishes the message of a schedule now, even if the schedule is paused, and does not change its next
// occurrence. Errors include those of [Client.Schedule], and those of a publish.
func (c *Client) RunSchedule(ctx context.Context, name string) (*pb.RunScheduleResponse, error) {
	return changeSchedule(ctx, c, name, "run schedule "+name, &pb.RunScheduleRequest{Name: name},
		pb.ScheduleServiceClient.RunSchedule)
}

// Schedule returns a schedule with its last occurrences. In a fleet, it is the schedule of the home pair of the
// client, or else of the only other pair that has a schedule with this name. To find it there, the client needs the
// operate permission on the home pair. Errors include [ErrNoSchedule]; [ErrSeveralSchedules]; an error of another
// pair.
func (c *Client) Schedule(ctx context.Context, name string) (*pb.Schedule, error) {
	return bySchedule(ctx, c, name, func(at link.Target) (*pb.Schedule, error) { return c.schedule(ctx, name, at) })
}

// AtHome returns a client that finds schedules only at the home pair.
func (c *Client) AtHome() *Client { return &Client{conns: c.conns, request: c.request, atHome: true} }

func (c *Client) schedule(ctx context.Context, name string, at link.Target) (*pb.Schedule, error) {
	resp, err := callAt(ctx, c.conns.Read, "schedule "+name, at, &pb.GetScheduleRequest{Name: name}, scheduleService,
		pb.ScheduleServiceClient.GetSchedule)
	return resp.GetSchedule(), err
}

func changeSchedule[Req any, Resp any, R interface {
	*Req
	proto.Message
}](
	ctx context.Context, c *Client, name, op string, req R,
	method func(pb.ScheduleServiceClient, context.Context, R, ...grpc.CallOption) (*Resp, error),
) (*Resp, error) {
	return bySchedule(ctx, c, name, func(at link.Target) (*Resp, error) {
		return changeAt(ctx, c, op, at, req, scheduleService, method)
	})
}

// bySchedule calls fn for the home pair. If the home pair does not have the schedule, it calls fn for the only other
// pair that has it, unless atHome is set.
func bySchedule[T any](
	ctx context.Context, c *Client, name string, fn func(at link.Target) (T, error),
) (found T, err error) {
	found, missing := fn(link.Target{})
	if c.atHome || !errors.Is(missing, ErrNoSchedule) || errors.Is(missing, client.ErrOutcomeUnknown) {
		return found, missing
	}
	pairs, err := c.otherPairs(ctx)
	if err != nil {
		return found, fmt.Errorf("%w; the other pairs of the fleet are unknown: %w", missing, err)
	}
	var names []string
	var at link.Target
	for _, p := range pairs {
		other := link.Target{Pair: p.GetName(), Addresses: p.GetAddresses()}
		_, err := c.schedule(ctx, name, other)
		switch {
		case err == nil:
			names, at = append(names, p.GetName()), other
		case !errors.Is(err, ErrNoSchedule):
			return found, fmt.Errorf("pair %s: %w", p.GetName(), err)
		}
	}
	switch len(names) {
	case 0:
		return found, missing
	case 1:
		return fn(at)
	default:
		return found, fmt.Errorf("%w: schedule %s, pairs %s", ErrSeveralSchedules, name, strings.Join(names, ", "))
	}
}

// otherPairs returns the pairs of the fleet, without the home pair; none if the home pair belongs to no fleet.
func (c *Client) otherPairs(ctx context.Context) (others []*pb.FleetPair, err error) {
	service := func(cc *grpc.ClientConn) pb.FleetServiceClient { return pb.NewFleetServiceClient(cc) }
	resp, err := call(ctx, c.conns.Read, "fleet", &pb.GetFleetRequest{}, service, pb.FleetServiceClient.GetFleet)
	if errors.Is(err, client.ErrRefused) {
		return nil, nil
	}
	for _, p := range resp.GetPairs() {
		if p.GetName() != resp.GetPair() && len(p.GetAddresses()) > 0 {
			others = append(others, p)
		}
	}
	return others, err
}

// Schedules returns the schedules of the home pair with names that begin with prefix, sorted by name, each with its
// last occurrence.
func (c *Client) Schedules(ctx context.Context, prefix string) ([]*pb.Schedule, error) {
	resp, err := call(ctx, c.conns.Read, "list schedules", &pb.ListSchedulesRequest{Prefix: prefix}, scheduleService,
		pb.ScheduleServiceClient.ListSchedules)
	return resp.GetSchedules(), err
}
