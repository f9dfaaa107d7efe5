// SPDX-License-Identifier: Apache-2.0

//go:build unix

package simulation

import (
	"cmp"
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
		Missed:  pb.MissedOccurrences_MISSED_OCCURRENCES_ALL,
		Message: &pb.Message{Body: []byte(`{"kind":"tick"}`)},
	}})
	return err
}

// checkSchedule waits for an occurrence after the call, and verifies that each occurrence until then was published
// once (INV-24). After a lowDisk fault, occurrences may be missing, because a node with low disk space rejects
// publishes.
func (w *world) checkSchedule(ctx context.Context) error {
	w.mu.Lock()
	failure := w.searchFailure
	w.mu.Unlock()
	if failure != nil {
		return failure
	}
	until := time.Now()
	for ctx.Err() == nil {
		times, err := w.publishedTimes(ctx)
		if err != nil || len(times) == 0 || times[len(times)-1].Before(until) {
			sleep(ctx, poll)
			continue
		}
		return w.checkTimes("schedule", times)
	}
	return errors.New("schedule: no occurrence after the recovery")
}

// checkTimes verifies that times has no gap and no duplicate. After a lowDisk fault, it accepts gaps.
func (w *world) checkTimes(label string, times []time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := 1; i < len(times); i++ {
		step := times[i].Sub(times[i-1])
		if step == scheduleEvery || step > 0 && w.done.faults[lowDisk] > 0 {
			continue
		}
		return fmt.Errorf("%s: the occurrence of %s follows that of %s", label, times[i].Format(time.RFC3339Nano),
			times[i-1].Format(time.RFC3339Nano))
	}
	return nil
}

// searchSchedule searches for the published occurrences until ctx ends. A search that succeeds, possibly on several
// nodes, must have found all occurrences.
func (w *world) searchSchedule(ctx context.Context) {
	for ctx.Err() == nil {
		if times, err := w.publishedTimes(ctx); err == nil {
			err = w.checkTimes("search", times)
			w.mu.Lock()
			w.searchFailure = cmp.Or(w.searchFailure, err)
			w.done.searches++
			w.mu.Unlock()
		}
		sleep(ctx, time.Second)
	}
}

// publishedTimes returns the times of the published occurrences, in the order of the queue. It searches in several
// calls, between which the roles can change.
func (w *world) publishedTimes(ctx context.Context) (times []time.Time, err error) {
	req := &pb.BrowseRequest{Queue: scheduleQueue, Filter: `body.kind == "tick"`, MaxScanned: 7}
	for {
		h := w.serving(ctx)
		if h == nil {
			return nil, errNotServing
		}
		more, progress, err := search(ctx, pb.NewQueueServiceClient(w.ConnTo(h.address)), req)
		if err != nil {
			return nil, err
		}
		times = append(times, more...)
		req.FromSequence, req.BeforeSequence = progress.GetFromSequence(), progress.GetBeforeSequence()
		if req.GetFromSequence() == req.GetBeforeSequence() {
			return times, nil
		}
	}
}

func search(
	ctx context.Context, queues pb.QueueServiceClient, req *pb.BrowseRequest,
) (times []time.Time, progress *pb.SearchProgress, err error) {
	stream, err := queues.Browse(ctx, req)
	if err != nil {
		return nil, nil, err
	}
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return times, progress, nil
		}
		if err != nil {
			return nil, nil, err
		}
		progress = resp.GetProgress()
		for _, m := range resp.GetMessages() {
			_, at, _ := strings.Cut(m.GetMessage().GetMessageId(), "@")
			t, err := time.Parse(time.RFC3339Nano, at)
			if err != nil {
				return nil, nil, err
			}
			times = append(times, t)
		}
	}
}
