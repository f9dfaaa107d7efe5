// SPDX-License-Identifier: Apache-2.0

//go:build unix

package sites

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/cluster"
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
)

const (
	scheduleQueue = "ticks"
	scheduleName  = "tick"
	scheduleEvery = time.Second
	// finishLimit is the limit for the delivery of the remaining messages.
	finishLimit = 2 * time.Minute
)

func TestSites(t *testing.T) {
	runSeeds(t, append(kindNames[:], switchesDone, takeoversRefused, "txn acked", "unknown, then acked"), simulateSwitches)
}

// simulateSwitches runs the workload with faults and planned switches, and checks everything.
func simulateSwitches(w *world) (err error) {
	w.start()
	ctx := w.T.Context()
	rng := rand.New(rand.NewPCG(w.seed, 2))
	load, err := cluster.StartWorkload(ctx, w, cluster.WorkloadOptions{
		Seed: w.seed, PerSecond: 5 + rng.IntN(20), InFlight: 8, LargeBytes: 64 << 10,
		OperationsPerSecond: 2, SideClientsPerSecond: 3, Features: rng.IntN(2) == 0,
	})
	if err != nil {
		return err
	}
	defer load.Abort()
	c, err := w.NewClient(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := putSchedule(ctx, c); err != nil {
		return err
	}
	changes := w.changeRoles(ctx, c)
	length := time.Duration(4+rng.IntN(12)) * time.Second
	w.execute(ctx, drawPlan(rng, length))
	if _, _, err := w.settled(ctx); err != nil {
		return err
	}
	w.note("recovered")
	ctx, cancel := context.WithTimeout(ctx, finishLimit)
	defer cancel()
	roles := changes()
	if err := checkSchedule(ctx, c); err != nil {
		return err
	}
	if err := load.Finish(ctx); err != nil {
		return err
	}
	w.note("finished: %v", load.History().Counts())
	return errors.Join(w.checkHistory(load.History()), w.checkOther(ctx, c, roles))
}

func putSchedule(ctx context.Context, c *client.Client) error {
	if _, _, err := admin.New(c).CreateQueue(ctx, scheduleQueue, admin.CreateQueueOptions{}); err != nil {
		return err
	}
	_, err := admin.New(c).PutSchedule(ctx, &pb.Schedule{
		Name: scheduleName, Queue: scheduleQueue, Every: durationpb.New(scheduleEvery),
		Missed: pb.MissedOccurrences_MISSED_OCCURRENCES_ALL, Message: &pb.Message{Body: []byte("tick")},
	})
	return err
}

// checkSchedule waits for an occurrence after the call, deletes the schedule, and verifies that each occurrence was
// published once (INV-24).
func checkSchedule(ctx context.Context, c *client.Client) error {
	until := time.Now()
	var times []time.Time
	for len(times) == 0 || times[len(times)-1].Before(until) {
		if time.Since(until) > recoveryLimit {
			return fmt.Errorf("schedule: no occurrence after %v: %v", until, times)
		}
		sleep(ctx, poll)
		times = nil
		for m, err := range c.Browse(ctx, scheduleQueue, client.BrowseOptions{}) {
			if err != nil {
				return fmt.Errorf("schedule: %w", err)
			}
			_, text, _ := strings.Cut(m.MessageID, "@")
			at, err := time.Parse(time.RFC3339Nano, text)
			if err != nil {
				return fmt.Errorf("schedule: message ID %s: %w", m.MessageID, err)
			}
			times = append(times, at)
		}
	}
	for i := 1; i < len(times); i++ {
		if times[i].Sub(times[i-1]) != scheduleEvery {
			return fmt.Errorf("schedule: the occurrence of %v follows that of %v", times[i], times[i-1])
		}
	}
	return admin.New(c).DeleteSchedule(ctx, scheduleName)
}

// changeRoles creates roles for access rules until end is called. end returns the names of the confirmed roles.
func (w *world) changeRoles(ctx context.Context, c *client.Client) (end func() []string) {
	ctx, cancel := context.WithCancel(ctx)
	var confirmed []string
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for n := 1; ctx.Err() == nil; n++ {
			name := fmt.Sprintf("role-%04d", n)
			call, done := context.WithTimeout(ctx, switchLimit)
			_, err := admin.New(c).PutRole(call, &pb.AccessRole{
				Name: name, Rights: []pb.AccessRight{pb.AccessRight_ACCESS_RIGHT_BROWSE},
			}, true)
			done()
			if err == nil {
				confirmed = append(confirmed, name)
			}
			sleep(ctx, time.Second)
		}
	}()
	return func() []string {
		cancel()
		<-ended
		return confirmed
	}
}

// checkOther switches to the other site, and verifies that it has the same content and access rules.
func (w *world) checkOther(ctx context.Context, c *client.Client, roles []string) error {
	before, err := admin.New(c).ListAccess(ctx)
	if err != nil {
		return err
	}
	var names []string
	for _, r := range before.GetRoles() {
		names = append(names, r.GetName())
	}
	for _, r := range roles {
		if !slices.Contains(names, r) {
			return fmt.Errorf("access: role %s was confirmed, but does not exist: %v", r, names)
		}
	}
	primary, _, err := w.settled(ctx)
	if err != nil {
		return err
	}
	m, _ := w.active(ctx, primary)
	if _, err := w.siteService(m).SwitchSite(ctx, &pb.SwitchSiteRequest{}); err != nil {
		return fmt.Errorf("switch at the end: %w", err)
	}
	now, _, err := w.settled(ctx)
	if err != nil {
		return err
	}
	if now == primary {
		return fmt.Errorf("%s is the primary after a switch to the other site", primary.name)
	}
	after, err := admin.New(c).ListAccess(ctx)
	if err != nil {
		return err
	}
	if !proto.Equal(before, after) {
		return fmt.Errorf("access: %v at %s, %v at the other site", before, primary.name, after)
	}
	return w.equal(ctx)
}

// checkHistory checks the responses and the contents of the queues against all guarantees.
func (w *world) checkHistory(h *historycheck.History) error {
	for _, p := range h.Publishes {
		if p.Outcome == historycheck.Refused {
			h.AddBroken(historycheck.Violation{
				Rule: historycheck.RuleRefused, Text: fmt.Sprintf("%v was rejected for no reason: %s", p.ID, p.Error),
			})
		}
	}
	h.MaxUnknown = 0
	var text []string
	for _, v := range h.Check() {
		text = append(text, v.String())
	}
	w.mu.Lock()
	w.count["acknowledged"] += len(h.Publishes)
	w.count["violations"] += len(text)
	for call, n := range h.Calls {
		w.count[call] += n
	}
	w.mu.Unlock()
	if len(text) == 0 {
		return nil
	}
	if dir := os.Getenv("LOCKSTEP_KEEP"); dir != "" {
		if err := h.Save(filepath.Join(dir, fmt.Sprintf("seed-%d", w.seed))); err != nil {
			return err
		}
	}
	return fmt.Errorf("%d violations:\n%s", len(text), strings.Join(text[:min(len(text), 20)], "\n"))
}
