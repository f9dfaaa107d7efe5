// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

func schedulesPage() Page {
	return Page{
		Path: "/schedules", Title: "Schedules", Key: "h", Right: "browse", Template: "schedules", Live: true,
		Load: withSchedules(loadSchedules),
		Actions: []Action{
			{Name: "run", Title: "Run schedule now", Right: "manage", Dialog: "run", Do: withSchedules(runSchedule)},
			{Name: "pause", Title: "Pause schedule", Right: "manage", Dialog: "pause", Do: withSchedules(pauseSchedule(true))},
			{
				Name: "resume", Title: "Resume schedule", Right: "manage", Dialog: "resume",
				Do: withSchedules(pauseSchedule(false)),
			},
			{
				Name: "delete", Title: "Delete schedule", Right: "manage", Dialog: "delete", Danger: true,
				Do: withSchedules(deleteSchedule),
			},
		},
	}
}

// withSchedules is like withActive, but passes a client of ScheduleService.
func withSchedules[T any](
	fn func(context.Context, *View, pb.ScheduleServiceClient) (T, error),
) func(context.Context, *View) (T, error) {
	return withActive(pb.NewScheduleServiceClient, fn)
}

type schedulesView struct {
	rights

	Rows []scheduleRow
}

type scheduleRow struct {
	*pb.Schedule

	Times string
	Last  *pb.ScheduleRun
	State label
}

func loadSchedules(ctx context.Context, v *View, schedules pb.ScheduleServiceClient) (any, error) {
	may, err := v.rights(ctx)
	if err != nil {
		return nil, err
	}
	resp, err := schedules.ListSchedules(ctx, &pb.ListSchedulesRequest{})
	if err != nil {
		return nil, err
	}
	d := &schedulesView{rights: may}
	for _, s := range resp.GetSchedules() {
		row := scheduleRow{Schedule: s, Times: s.GetCron() + " " + s.GetTimeZone(), State: label{"no occurrence yet", ""}}
		if s.GetEvery() != nil {
			row.Times = "every " + s.GetEvery().AsDuration().String()
		}
		if len(s.GetHistory()) > 0 {
			row.Last = s.GetHistory()[0]
			switch row.Last.GetOutcome() {
			case pb.ScheduleOutcome_SCHEDULE_OUTCOME_PUBLISHED:
				row.State = label{"published", "good"}
			case pb.ScheduleOutcome_SCHEDULE_OUTCOME_FAILED:
				row.State = label{"failed", "bad"}
			case pb.ScheduleOutcome_SCHEDULE_OUTCOME_SKIPPED, pb.ScheduleOutcome_SCHEDULE_OUTCOME_UNSPECIFIED:
				row.State = label{"skipped", "warn"}
			}
		}
		d.Rows = append(d.Rows, row)
	}
	return d, nil
}

func runSchedule(ctx context.Context, v *View, schedules pb.ScheduleServiceClient) (Done, error) {
	r, err := schedules.RunSchedule(ctx, &pb.RunScheduleRequest{Name: v.Query.Get("name")})
	if err != nil {
		return Done{}, err
	}
	if active, err := v.Active(ctx); err == nil {
		if text := discarded(ctx, pb.NewQueueServiceClient(active), r.GetQueue()); text != "" {
			return Done{Message: text}, nil
		}
	}
	return Done{Message: "Published a message to " + r.GetQueue() + "."}, nil
}

func pauseSchedule(paused bool) func(context.Context, *View, pb.ScheduleServiceClient) (Done, error) {
	return func(ctx context.Context, v *View, schedules pb.ScheduleServiceClient) (Done, error) {
		name := v.Query.Get("name")
		_, err := schedules.SetSchedulePaused(ctx, &pb.SetSchedulePausedRequest{Name: name, Paused: paused})
		if paused {
			return Done{Message: "Paused " + name + "."}, err
		}
		return Done{Message: "Resumed " + name + "."}, err
	}
}

func deleteSchedule(ctx context.Context, v *View, schedules pb.ScheduleServiceClient) (Done, error) {
	name := v.Query.Get("name")
	_, err := schedules.DeleteSchedule(ctx, &pb.DeleteScheduleRequest{Name: name})
	return Done{Message: "Deleted " + name + "."}, err
}
