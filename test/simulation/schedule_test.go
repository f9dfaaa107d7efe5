// SPDX-License-Identifier: Apache-2.0

//go:build unix

package simulation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const (
	scheduleQueue = "schedule-ticks"
	scheduleEvery = time.Second
)

// putSchedule creates a schedule that publishes every second during the simulation.
func (w *world) putSchedule(ctx context.Context) error {
	h := w.serving(ctx)
	if h == nil {
		return errNotServing
	}
	cc := w.ConnTo(h.address)
	if _, err := pb.NewQueueServiceClient(cc).CreateQueue(ctx, &pb.CreateQueueRequest{Name: scheduleQueue}); err != nil {
		return fmt.Errorf("create the queue of the schedule: %w", err)
	}
	_, err := pb.NewScheduleServiceClient(cc).PutSchedule(ctx, &pb.PutScheduleRequest{Schedule: &pb.Schedule{
		Name: "tick", Queue: scheduleQueue, Every: durationpb.New(scheduleEvery),
		Missed: pb.MissedOccurrences_MISSED_OCCURRENCES_ALL,
	}})
	return err
}

// checkSchedule waits for an occurrence after the call, and verifies that each one until then was published once
// (INV-24). After a lowDisk fault occurrences may be missing, because a node with low disk space rejects publishes.
func (w *world) checkSchedule(ctx context.Context) error {
	until := time.Now()
	for ctx.Err() == nil {
		times, err := w.publishedTimes(ctx)
		if err != nil || len(times) == 0 || times[len(times)-1].Before(until) {
			sleep(ctx, poll)
			continue
		}
		for i := 1; i < len(times); i++ {
			step := times[i].Sub(times[i-1])
			if step == scheduleEvery || step > 0 && w.done.faults[lowDisk] > 0 {
				continue
			}
			return fmt.Errorf("schedule: the occurrence of %s follows that of %s", times[i].Format(time.RFC3339Nano),
				times[i-1].Format(time.RFC3339Nano))
		}
		return nil
	}
	return errors.New("schedule: no occurrence after the recovery")
}

// publishedTimes returns the times of the published occurrences, in the order of the queue.
func (w *world) publishedTimes(ctx context.Context) (times []time.Time, err error) {
	h := w.serving(ctx)
	if h == nil {
		return nil, errNotServing
	}
	stream, err := pb.NewQueueServiceClient(w.ConnTo(h.address)).Browse(ctx, &pb.BrowseRequest{Queue: scheduleQueue})
	if err != nil {
		return nil, err
	}
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return times, nil
		}
		if err != nil {
			return nil, err
		}
		for _, m := range resp.GetMessages() {
			_, at, _ := strings.Cut(m.GetMessage().GetMessageId(), "@")
			t, err := time.Parse(time.RFC3339Nano, at)
			if err != nil {
				return nil, err
			}
			times = append(times, t)
		}
	}
}
