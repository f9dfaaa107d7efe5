// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// Operations that run while publishers are measured.
const (
	WorkNothing = "nothing" // another quiet period, for the difference between two quiet periods
	WorkResize  = "resize"  // a rolling resize of both nodes, with its switchover
	WorkCompact = "compact" // a rolling compact of both nodes, with its switchover
	WorkBackup  = "backup"  // a backup of the standby, with the configured background share
	WorkScan    = "scan"    // a scan of the standby, with the configured background share
	WorkVerify  = "verify"  // a deep comparison of both nodes, with the configured background share
	WorkRejoin  = "rejoin"  // the standby restarts without its disk and receives a snapshot
)

// Works returns all operations, in the default order of measurement.
func Works() []string {
	return []string{WorkNothing, WorkResize, WorkCompact, WorkBackup, WorkScan, WorkVerify, WorkRejoin}
}

const (
	workBound = 30 * time.Minute
	// stealAttempts is the maximum number of measurements of one operation in one round.
	stealAttempts = 20
)

// MaintenanceOptions configures the stored data, the load and the operations.
type MaintenanceOptions struct {
	// StoreBytes is the total size of the bodies in the store.
	StoreBytes int64
	// PerSecond is the total number of messages per second. Each publisher waits for its acknowledgements.
	SizeBytes, PerSecond, Publishers int
	// Quiet is the measuring time without an operation before each operation. Settle is a pause before Quiet.
	Quiet, Settle time.Duration
	Works         []string
	// PageSizes are the page sizes between which a resize alternates, in bytes.
	PageSizes [2]int
	Rounds    int
	// MaxSteal is the maximum Latencies.Steal of both phases of a measurement, in percent. A measurement with more steal
	// is discarded and repeated, up to stealAttempts times in total. 0: no measurement is discarded.
	MaxSteal float64
}

// MaintenanceResult is the result of one operation in one round. Latencies are in milliseconds, from the time at
// which a message was due; MB are 10^6 bytes.
type MaintenanceResult struct {
	Workload   string  `json:"workload"`
	Phase      string  `json:"phase"`
	Sync       string  `json:"sync"`
	Round      int     `json:"round"`
	StoreMB    float64 `json:"store_mb"`
	SizeBytes  int     `json:"size_bytes"`
	Publishers int     `json:"publishers"`
	PerSecond  int     `json:"per_second"`
	// Quiet contains the latencies before the operation, While those during it.
	Quiet    Latencies `json:"quiet"`
	While    Latencies `json:"while"`
	P50Ratio float64   `json:"p50_ratio"`
	P99Ratio float64   `json:"p99_ratio"`
	// MB is the amount of data that the operation read in Seconds: the page files of both nodes for a resize, a compact
	// and a verification, otherwise the page file, the backup or the snapshot of the standby.
	MB      float64 `json:"mb"`
	Seconds float64 `json:"seconds"`
	Rate    float64 `json:"mb_per_s"`
	Slowest []Slow  `json:"slowest"`
	// Discarded is set if the steal was higher than MaintenanceOptions.MaxSteal. The measurement is repeated.
	Discarded bool `json:"discarded,omitempty"`
	// Median is set for the round with the median P99Ratio. The following fields cover all rounds.
	Median      bool    `json:"median,omitempty"`
	P99RatioMin float64 `json:"p99_ratio_min,omitempty"`
	P99RatioMax float64 `json:"p99_ratio_max,omitempty"`
	MaxOfAll    float64 `json:"max_ms_of_all,omitempty"`
}

// MedianWork returns the round with the median P99Ratio; for an even number of rounds, the one with the higher of the
// two middle ratios. rounds must not be empty.
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

type maintenanceWork struct {
	MaintenanceOptions
	t    bench.Target
	load *steadyLoad
}

// Maintenance fills the store, publishes at a constant rate, and runs each operation in each round, after a quiet
// period as the baseline.
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
			u := &maintenanceWork{MaintenanceOptions: o, t: t, load: p}
			for round := range o.Rounds {
				for _, work := range o.Works {
					if err := u.measureUndisturbed(ctx, work, round+1, report); err != nil {
						return fmt.Errorf("%s: %w", work, err)
					}
				}
			}
			return nil
		})
	})
}

// measureUndisturbed measures an operation until the steal is at most MaxSteal. It reports all measurements.
func (u *maintenanceWork) measureUndisturbed(
	ctx context.Context, work string, round int, report func(MaintenanceResult) error,
) error {
	for range stealAttempts {
		r, err := u.measure(ctx, work)
		if err != nil {
			return err
		}
		r.Round, r.Discarded = round, u.MaxSteal > 0 && max(r.Quiet.Steal, r.While.Steal) > u.MaxSteal
		if err := report(r); err != nil || !r.Discarded {
			return err
		}
	}
	return fmt.Errorf("the steal was higher than %v %% in each of %d measurements", u.MaxSteal, stealAttempts)
}

func (u *maintenanceWork) measure(ctx context.Context, work string) (MaintenanceResult, error) {
	r := MaintenanceResult{
		Workload: "maintenance", Phase: work, Sync: u.t.Sync, StoreMB: float64(u.StoreBytes) / 1e6,
		SizeBytes: u.SizeBytes, Publishers: u.Publishers, PerSecond: u.PerSecond,
	}
	limit, cancel := context.WithTimeout(ctx, workBound)
	defer cancel()
	if err := u.t.Pair.WaitReady(limit, nil); err != nil {
		return r, err
	}
	if err := elapse(ctx, u.Settle); err != nil {
		return r, err
	}
	u.load.next()
	if err := elapse(ctx, u.Quiet); err != nil {
		return r, err
	}
	r.Quiet = u.load.next()
	start := time.Now()
	mb, seconds, after, err := u.do(limit, work)
	if err != nil {
		return r, err
	}
	r.Slowest, r.While = u.load.slowMoments(), u.load.next()
	u.load.during("")
	r.MB, r.Seconds = mb, cmp.Or(seconds, time.Since(start).Seconds())
	r.Rate = r.MB / max(r.Seconds, 1e-3)
	r.P50Ratio, r.P99Ratio = r.While.P50/max(r.Quiet.P50, 1e-3), r.While.P99/max(r.Quiet.P99, 1e-3)
	return r, after()
}

// do executes an operation. If seconds is 0, the operation took the whole time of the call. The caller must call
// after to clean up.
func (u *maintenanceWork) do(ctx context.Context, work string) (mb, seconds float64, after func() error, err error) {
	after = func() error { return nil }
	switch work {
	case WorkNothing:
		err = elapse(ctx, u.Quiet)
	case WorkResize:
		mb, err = u.resize(ctx)
	case WorkCompact:
		mb, err = u.rolling(ctx, &pb.StartPlanRequest{Kind: pb.PlanKind_PLAN_KIND_COMPACT})
	case WorkBackup:
		mb, err = u.backup(ctx)
	case WorkScan:
		mb, err = u.scan(ctx)
	case WorkVerify:
		mb, err = u.verify(ctx)
	case WorkRejoin:
		mb, seconds, after, err = u.rejoin(ctx)
	default:
		err = fmt.Errorf("unknown operation %q", work)
	}
	return mb, seconds, after, err
}

func (u *maintenanceWork) resize(ctx context.Context) (mb float64, err error) {
	s, err := admin.New(u.t.Client).MaintenanceSettings(ctx)
	if err != nil {
		return 0, err
	}
	to := u.PageSizes[0]
	if int(s.GetPageSizeCurrent()) == to {
		to = u.PageSizes[1]
	}
	return u.rolling(ctx, &pb.StartPlanRequest{Kind: pb.PlanKind_PLAN_KIND_RESIZE, PageSize: uint32(to)})
}

// rolling executes a plan. mb is the size of the page files of both nodes before.
func (u *maintenanceWork) rolling(ctx context.Context, req *pb.StartPlanRequest) (mb float64, err error) {
	if mb, err = u.pageFiles(); err != nil {
		return 0, err
	}
	if _, err := admin.New(u.t.Client).StartPlan(ctx, req); err != nil {
		return 0, err
	}
	for plan, err := range admin.New(u.t.Client).WatchPlan(ctx) {
		if err != nil {
			return 0, err
		}
		state := strings.ToLower(strings.TrimPrefix(plan.GetState().String(), "PLAN_STATE_"))
		step := fmt.Sprintf("%s, %d done", state, len(plan.GetDoneNodes()))
		if phase := plan.GetProgress().GetPhase(); phase != "" {
			step += ": " + phase
		}
		u.load.during(step)
		if admin.PlanEnded(plan) && plan.GetState() != pb.PlanState_PLAN_STATE_DONE {
			return 0, fmt.Errorf("the plan is %s: %s", state, plan.GetReason())
		}
	}
	return mb, nil
}

func (u *maintenanceWork) pageFiles() (mb float64, err error) {
	for _, n := range u.t.Pair.Nodes {
		info, err := os.Stat(datadir.PageFile(n.DataDir()))
		if err != nil {
			return 0, fmt.Errorf("bench: %w", err)
		}
		mb += float64(info.Size()) / 1e6
	}
	return mb, nil
}

func (u *maintenanceWork) standby(ctx context.Context) (*harness.Node, *admin.Node, error) {
	active, err := bench.ActiveNode(ctx, u.t)
	if err != nil {
		return nil, nil, err
	}
	n := u.t.Pair.Other(active)
	c, err := admin.New(u.t.Client).Node(n.Address)
	return n, c, err
}

func (u *maintenanceWork) backup(ctx context.Context) (mb float64, err error) {
	_, n, err := u.standby(ctx)
	if err != nil {
		return 0, err
	}
	set, err := n.Backup(ctx, &pb.BackupRequest{Path: filepath.Join(u.t.Dir, "backup"), KeepGenerations: 1}, nil)
	return float64(set.GetBytes()) / 1e6, err
}

func (u *maintenanceWork) scan(ctx context.Context) (mb float64, err error) {
	_, n, err := u.standby(ctx)
	if err != nil {
		return 0, err
	}
	found, err := n.Scan(ctx, &pb.ScanRequest{}, nil)
	return float64(found.GetFileBytes()) / 1e6, err
}

func (u *maintenanceWork) verify(ctx context.Context) (mb float64, err error) {
	if mb, err = u.pageFiles(); err != nil {
		return 0, err
	}
	active, err := bench.ActiveNode(ctx, u.t)
	if err != nil {
		return 0, err
	}
	n, err := admin.New(u.t.Client).Node(active.Address)
	if err != nil {
		return 0, err
	}
	found, err := n.Verify(ctx, &pb.VerifyRequest{Deep: true})
	if err == nil && found.GetContentError() != "" {
		err = errors.New(found.GetContentError())
	}
	return mb, err
}

// rejoin restarts the standby without its data, and waits until the pair is in sync. mb and seconds are the size and
// the duration of the snapshot, including its installation. after deletes the old data.
func (u *maintenanceWork) rejoin(ctx context.Context) (mb, seconds float64, after func() error, err error) {
	n, _, err := u.standby(ctx)
	if err != nil {
		return 0, 0, nil, err
	}
	if err := n.Kill(); err != nil {
		return 0, 0, nil, err
	}
	// Delete the data later, because deletions would load the disk that both nodes share.
	lost := n.DataDir() + ".lost"
	if err := os.Rename(n.DataDir(), lost); err != nil {
		return 0, 0, nil, fmt.Errorf("wipe the standby: %w", err)
	}
	after = func() error { return os.RemoveAll(lost) }
	// The failure itself is not measured here, but by bench failover.
	if err := elapse(ctx, u.Settle); err != nil {
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

// readSnapshot returns the size and the duration of the received snapshot, from the log file of the standby.
func readSnapshot(n *harness.Node, since time.Time) (mb, seconds float64, err error) {
	f, err := os.Open(n.LogFile())
	if err != nil {
		return 0, 0, fmt.Errorf("bench: %w", err)
	}
	defer func() { _ = f.Close() }() // the file was only read
	var began time.Time
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct {
			TS    string `json:"ts"`
			Msg   string `json:"msg"`
			Bytes uint64 `json:"bytes"`
		}
		if json.Unmarshal(lines.Bytes(), &line) != nil {
			continue // a line that is not JSON
		}
		at, err := time.Parse("2006-01-02T15:04:05.000Z0700", line.TS)
		if err != nil || at.Before(since.Add(-time.Second)) {
			continue
		}
		switch line.Msg {
		case "receiving a snapshot":
			began, mb = at, float64(line.Bytes)/1e6
		case "snapshot installed":
			seconds = at.Sub(began).Seconds()
		}
	}
	if err := lines.Err(); err != nil {
		return 0, 0, fmt.Errorf("bench: %s: %w", n.LogFile(), err)
	}
	if seconds == 0 {
		return 0, 0, errors.New("bench: the standby rejoined without a snapshot, because the log was sufficient; " +
			"increase --store")
	}
	return mb, seconds, nil
}
