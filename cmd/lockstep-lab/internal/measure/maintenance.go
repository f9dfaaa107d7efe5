// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// What publishers are measured beside.
const (
	WorkNothing = "nothing" // the quiet time once more: how far two of them are apart
	WorkResize  = "resize"  // a rolling resize of both nodes, with its switchover
	WorkBackup  = "backup"  // of the standby, with the setting of the background's share
	WorkScan    = "scan"    // of the standby, the same
	WorkRejoin  = "rejoin"  // the standby comes back without its disk and gets a snapshot
)

// Works are all of them, in the order in which they are measured.
func Works() []string { return []string{WorkNothing, WorkResize, WorkBackup, WorkScan, WorkRejoin} }

// workBound is how long one piece of work may take.
const workBound = 30 * time.Minute

// MaintenanceOptions say what is in the store, what is published, and what is done meanwhile.
type MaintenanceOptions struct {
	// StoreBytes of bodies that are in the store.
	StoreBytes int64
	// SizeBytes of a message that is published meanwhile, PerSecond how many of all Publishers, each of which waits for
	// its answers.
	SizeBytes, PerSecond, Publishers int
	// Quiet is for how long publishers are measured before each piece of work, with nothing going on, and Settle how
	// long nothing is measured after each.
	Quiet, Settle time.Duration
	// Works to do, of Works.
	Works []string
	// PageSizes that a resize goes to and fro between.
	PageSizes [2]int
	Rounds    int
}

// MaintenanceResult is one piece of work of one round. Latencies are in milliseconds, from the time at which a message
// was due; MB are 10^6 bytes.
type MaintenanceResult struct {
	Workload   string  `json:"workload"`
	Phase      string  `json:"phase"`
	Sync       string  `json:"sync"`
	Round      int     `json:"round"`
	StoreMB    float64 `json:"store_mb"`
	SizeBytes  int     `json:"size_bytes"`
	Publishers int     `json:"publishers"`
	PerSecond  int     `json:"per_second"`
	// Quiet, directly before the work, and While it was done.
	Quiet Latencies `json:"quiet"`
	While Latencies `json:"while"`
	// Ratios of While to Quiet.
	P50Ratio float64 `json:"p50_ratio"`
	P99Ratio float64 `json:"p99_ratio"`
	// MB that were read or copied, by both nodes together, in Seconds.
	MB      float64 `json:"mb"`
	Seconds float64 `json:"seconds"`
	Rate    float64 `json:"mb_per_s"`
	// Slowest moments of While.
	Slowest []Slow `json:"slowest"`
	// Median: the round with the median P99Ratio, with the spread over all of them, and the longest latency of any.
	Median      bool    `json:"median,omitempty"`
	P99RatioMin float64 `json:"p99_ratio_min,omitempty"`
	P99RatioMax float64 `json:"p99_ratio_max,omitempty"`
	MaxOfAll    float64 `json:"max_ms_of_all,omitempty"`
}

// MedianWork returns the round with the median ratio, of two in the middle the higher, with the spread over all of
// them. There must be one.
func MedianWork(rounds []MaintenanceResult) MaintenanceResult {
	sorted := slices.SortedFunc(slices.Values(rounds), func(a, b MaintenanceResult) int {
		return cmp.Compare(a.P99Ratio, b.P99Ratio)
	})
	m := sorted[len(sorted)/2]
	m.Median, m.P99RatioMin, m.P99RatioMax = true, sorted[0].P99Ratio, sorted[len(sorted)-1].P99Ratio
	for _, r := range rounds {
		m.MaxOfAll = max(m.MaxOfAll, r.While.Max)
	}
	return m
}

// upkeep is one measurement under way.
type upkeep struct {
	MaintenanceOptions
	t    bench.Target
	load *steadyLoad
}

// Maintenance fills the store, publishes at a steady rate, and does each piece of work in each round, always after a
// quiet time that it is compared with. report is called for each.
func Maintenance(
	ctx context.Context, t bench.Target, o MaintenanceOptions, report func(MaintenanceResult) error,
) error {
	names := bench.QueueNames(2)
	return bench.WithQueues(ctx, t.Client, names, func() error {
		if err := fillStore(ctx, t, names[0], o.StoreBytes); err != nil {
			return err
		}
		return publishSteadily(ctx, t, steady{
			queue: names[1], sizeBytes: o.SizeBytes, perSecond: o.PerSecond, publishers: o.Publishers,
		}, func(ctx context.Context, p *steadyLoad) error {
			u := &upkeep{MaintenanceOptions: o, t: t, load: p}
			for round := range o.Rounds {
				for _, work := range o.Works {
					r, err := u.measure(ctx, work)
					if err != nil {
						return fmt.Errorf("%s: %w", work, err)
					}
					r.Round = round + 1
					if err := report(r); err != nil {
						return err
					}
				}
			}
			return nil
		})
	})
}

// measure measures a quiet time, and one piece of work.
func (u *upkeep) measure(ctx context.Context, work string) (MaintenanceResult, error) {
	r := MaintenanceResult{
		Workload: "maintenance", Phase: work, Sync: u.t.Sync, StoreMB: float64(u.StoreBytes) / 1e6,
		SizeBytes: u.SizeBytes, Publishers: u.Publishers, PerSecond: u.PerSecond,
	}
	limit, cancel := context.WithTimeout(ctx, workBound)
	defer cancel()
	if err := u.t.Pair.WaitReady(limit, nil); err != nil {
		return r, err
	}
	if err := letPass(ctx, u.Settle); err != nil {
		return r, err
	}
	u.load.next()
	if err := letPass(ctx, u.Quiet); err != nil {
		return r, err
	}
	r.Quiet = u.load.next()
	began := time.Now()
	mb, seconds, after, err := u.do(limit, work)
	if err != nil {
		return r, err
	}
	r.Slowest, r.While = u.load.slowMoments(), u.load.next()
	u.load.during("")
	r.MB, r.Seconds = mb, cmp.Or(seconds, time.Since(began).Seconds())
	r.Rate = r.MB / max(r.Seconds, 1e-3)
	r.P50Ratio, r.P99Ratio = r.While.P50/max(r.Quiet.P50, 1e-3), r.While.P99/max(r.Quiet.P99, 1e-3)
	return r, after()
}

// do does a piece of work; seconds is 0 where all of its time is meant. after tidies up.
func (u *upkeep) do(ctx context.Context, work string) (mb, seconds float64, after func() error, err error) {
	after = func() error { return nil }
	switch work {
	case WorkNothing:
		err = letPass(ctx, u.Quiet)
	case WorkResize:
		mb, err = u.resize(ctx)
	case WorkBackup:
		mb, err = u.backup(ctx)
	case WorkScan:
		mb, err = u.scan(ctx)
	case WorkRejoin:
		mb, seconds, after, err = u.rejoin(ctx)
	default:
		err = fmt.Errorf("there is no work %q", work)
	}
	return mb, seconds, after, err
}

// resize has the pair rewrite both page files.
func (u *upkeep) resize(ctx context.Context) (mb float64, err error) {
	s, err := u.t.Client.MaintenanceSettings(ctx)
	if err != nil {
		return 0, err
	}
	to := u.PageSizes[0]
	if int(s.GetPageSizeCurrent()) == to {
		to = u.PageSizes[1]
	}
	if _, err := u.t.Client.StartPlan(ctx, &pb.StartPlanRequest{
		Kind: pb.PlanKind_PLAN_KIND_RESIZE, PageSize: uint32(to),
	}); err != nil {
		return 0, err
	}
	for plan, err := range u.t.Client.WatchPlan(ctx) {
		if err != nil {
			return 0, err
		}
		state := strings.ToLower(strings.TrimPrefix(plan.GetState().String(), "PLAN_STATE_"))
		step := fmt.Sprintf("%s, %d done", state, len(plan.GetDoneNodes()))
		if phase := plan.GetProgress().GetPhase(); phase != "" {
			step += ": " + phase
		}
		u.load.during(step)
		if client.PlanEnded(plan) && plan.GetState() != pb.PlanState_PLAN_STATE_DONE {
			return 0, fmt.Errorf("the plan has %s: %s", state, plan.GetReason())
		}
	}
	return 2 * float64(u.StoreBytes) / 1e6, nil
}

// standby is the node that is, and its client.
func (u *upkeep) standby(ctx context.Context) (*harness.Node, *client.Node, error) {
	active, err := bench.ActiveNode(ctx, u.t)
	if err != nil {
		return nil, nil, err
	}
	n := u.t.Pair.Other(active)
	c, err := u.t.Client.Node(n.Address)
	return n, c, err
}

func (u *upkeep) backup(ctx context.Context) (mb float64, err error) {
	_, n, err := u.standby(ctx)
	if err != nil {
		return 0, err
	}
	set, err := n.Backup(ctx, &pb.BackupRequest{Path: filepath.Join(u.t.Dir, "backup"), KeepGenerations: 1}, nil)
	return float64(set.GetBytes()) / 1e6, err
}

func (u *upkeep) scan(ctx context.Context) (mb float64, err error) {
	_, n, err := u.standby(ctx)
	if err != nil {
		return 0, err
	}
	found, err := n.Scan(ctx, &pb.ScanRequest{}, nil)
	return float64(found.GetFileBytes()) / 1e6, err
}

// rejoin takes the standby's disk away and waits until the pair is in sync again. mb and seconds are of the snapshot,
// with its installation.
func (u *upkeep) rejoin(ctx context.Context) (mb, seconds float64, after func() error, err error) {
	n, _, err := u.standby(ctx)
	if err != nil {
		return 0, 0, nil, err
	}
	if err := n.Kill(); err != nil {
		return 0, 0, nil, err
	}
	// The files are deleted later: that is not what a lost disk does to the other machine.
	lost := n.DataDir() + ".lost"
	if err := os.Rename(n.DataDir(), lost); err != nil {
		return 0, 0, nil, fmt.Errorf("wipe the standby: %w", err)
	}
	after = func() error { return os.RemoveAll(lost) }
	// The loss itself is what bench failover measures. Publishers are measured from when it is over.
	if err := letPass(ctx, u.Settle); err != nil {
		return 0, 0, nil, errors.Join(err, after())
	}
	u.load.next()
	started := time.Now()
	if err := n.Start(); err != nil {
		return 0, 0, nil, errors.Join(err, after())
	}
	if err := u.t.Pair.WaitReady(ctx, nil); err != nil {
		return 0, 0, nil, errors.Join(err, after())
	}
	mb, seconds, err = readSnapshot(n, started)
	return mb, seconds, after, err
}
