// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/internal/progress"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// ResizeOptions configures Resize. Duration is ignored: the demo lasts until the plan is done.
type ResizeOptions struct {
	Options
	// FillBytes is the size of the messages in the queues before the scan.
	FillBytes int64
	// PageSize is the new page size; 0 selects the recommendation of the scan.
	PageSize uint32
	NoKill   bool
	// ShowScan receives the result of the scan; may be nil.
	ShowScan func(node string, r *pb.ScanResult)
}

// ResizeVerdict is the result of the resize demo. Verdict covers the messages published during the scan and the
// plan. The fields that start with Backlog cover the messages stored before the scan.
type ResizeVerdict struct {
	Verdict
	BacklogMessages int   `json:"stock_messages"`
	BacklogBytes    int64 `json:"stock_bytes"`
	// BacklogLost counts missing and changed messages.
	BacklogLost       int `json:"stock_lost"`
	BacklogDuplicated int `json:"stock_duplicated"`
	// Plan is the final state of the plan, such as "done".
	Plan string `json:"plan"`
	// PlanSeconds includes the failover and the restart of the killed node.
	PlanSeconds float64 `json:"plan_s"`
	// PlanRetries is the number of retried steps.
	PlanRetries uint32 `json:"plan_retries"`
	Recommended uint32 `json:"page_size_recommended"`
	// PageSizesBefore and PageSizesAfter are the page sizes of nodes a and b, in bytes.
	PageSizesBefore [2]uint32 `json:"page_sizes_before"`
	PageSizesAfter  [2]uint32 `json:"page_sizes_after"`
	// KilledAtPercent is the progress of the standby's rewrite when the active was killed.
	KilledAtPercent float64 `json:"killed_at_percent"`
	// PauseMS is the duration of the slowest publish, except from the kill until the pair was in sync again; KillPauseMS
	// covers that time.
	PauseMS     float64 `json:"pause_ms"`
	KillPauseMS float64 `json:"kill_pause_ms"`
	// OneCopyMS is the time with fewer than two copies, except from the kill until the pair was in sync again;
	// KillOneCopyMS covers that time. Both are sampled.
	OneCopyMS     float64 `json:"fewer_than_two_copies_ms"`
	KillOneCopyMS float64 `json:"kill_fewer_than_two_copies_ms"`
	Samples       int     `json:"samples"`

	// PauseAt is the end of the publish that PauseMS measures, relative to the start of the screen.
	PauseAt time.Duration `json:"-"`

	target uint32
}

// Passed reports whether Verdict passed, the plan is done, no message of the backlog was lost or duplicated, and both
// nodes have the new page size. In addition, there must have been two copies at any time, except from the kill until
// the pair was in sync again.
func (v ResizeVerdict) Passed() bool {
	return v.Verdict.Passed() && v.BacklogLost == 0 && v.BacklogDuplicated == 0 && v.Plan == "done" &&
		v.PageSizesAfter == [2]uint32{v.target, v.target} && v.OneCopyMS == 0
}

const (
	fillBound = 5 * time.Minute
	planBound = 10 * time.Minute
	fallback  = 16 << 10 // page size if the scan recommends the current one
	// minRewrite is the minimum duration of a rewrite, enforced by a rate limit, so that the active can be killed during
	// the rewrite.
	minRewrite = 3 * time.Second
)

type resize struct {
	run
	o       ResizeOptions
	backlog backlog
	copies  *copies
	view    *progress.View
	bars    map[string]*progress.Bar
	verdict ResizeVerdict
}

// Resize runs the demo of a rolling resize under load. The verdict is valid only if the error is nil.
func Resize(ctx context.Context, o ResizeOptions) (_ ResizeVerdict, err error) {
	r := &resize{
		run: run{Options: o.Options, ledger: newLedger()}, o: o, copies: newCopies(),
		bars: make(map[string]*progress.Bar),
	}
	r.run.verdict = Verdict{Coordinator: o.coordinator(), Seed: o.Seed}
	r.backlog.seed = o.Seed
	o.Screen.Event("starting %s and two nodes with pages of 2 KiB in %s (seed %d)", o.third(), o.Dir, o.Seed)
	settings := maps.Clone(o.Settings)
	if settings == nil {
		settings = make(map[string]string)
	}
	if rate := o.FillBytes / int64(minRewrite/time.Second); !o.NoKill {
		settings["maintenance.rewrite-rate"] = strconv.FormatInt(rate, 10)
		o.Screen.Event("rewrites are limited to %s per second, so that the active can be killed during one",
			output.Bytes(uint64(rate)))
	}
	r.pair, err = harness.Start(ctx, harness.Options{
		Dir: o.Dir, Settings: settings, NodeSettings: o.NodeSettings, Raft: o.Raft,
	})
	if err != nil {
		return ResizeVerdict{}, err
	}
	defer func() { err = errors.Join(err, r.pair.Close()) }()
	if r.client, err = r.openClient(ctx); err != nil {
		return ResizeVerdict{}, err
	}
	defer func() { err = errors.Join(err, r.client.Close()) }()
	if err := r.waitInSync(ctx, startBound); err != nil {
		return ResizeVerdict{}, err
	}
	if err := r.fill(ctx); err != nil {
		return ResizeVerdict{}, err
	}
	if err := r.script(ctx); err != nil {
		return ResizeVerdict{}, err
	}
	if o.Keep != nil {
		o.Keep(ctx, r.pair)
	}
	r.verdict.Verdict = r.run.verdict
	return r.verdict, nil
}

func (r *resize) fill(ctx context.Context) error {
	if err := r.createQueue(ctx); err != nil {
		return err
	}
	r.Screen.Event("filling %d queues with %s of small, medium and large messages", backlogQueues,
		output.Bytes(r.o.FillBytes))
	ctx, cancel := context.WithTimeout(ctx, fillBound)
	defer cancel()
	r.Screen.Progress(func() string {
		return fmt.Sprintf("%s of %s", output.Bytes(r.backlog.bytes.Load()), output.Bytes(r.o.FillBytes))
	})
	defer r.Screen.Progress(nil)
	if err := r.backlog.fill(ctx, r.client, r.o.FillBytes); err != nil {
		return err
	}
	r.verdict.BacklogMessages, r.verdict.BacklogBytes = r.backlog.count(), r.backlog.bytes.Load()
	return nil
}

func (r *resize) script(ctx context.Context) error {
	w, err := startWorkload(ctx, r.client, r.ledger, r.Seed, r.Rate)
	if err != nil {
		return err
	}
	defer w.stop()
	r.Screen.Event("publishing and consuming %d messages per second from now on", r.Rate)
	watching, stop := context.WithCancel(ctx)
	var joined sync.WaitGroup
	joined.Go(func() { r.copies.watch(watching, r.client, r.pair.Addresses()) })
	defer joined.Wait()
	defer stop()
	if err := r.scan(ctx); err != nil {
		return err
	}
	if r.verdict.PageSizesBefore, err = r.pageSizes(ctx); err != nil {
		return err
	}
	if err := r.plan(ctx, w); err != nil {
		return err
	}
	stop()
	joined.Wait()
	r.Screen.Event("publishing stopped; the consumer reads the remaining messages")
	settle, cancel := context.WithTimeout(ctx, settleBound)
	defer cancel()
	if err := w.finish(settle); err != nil {
		return err
	}
	r.Screen.Progress(nil)
	return r.findings(settle)
}

func (r *resize) findings(ctx context.Context) (err error) {
	v := &r.verdict
	pause, at, killPause := r.ledger.pauses()
	v.PauseMS, v.KillPauseMS = output.Milliseconds(pause), output.Milliseconds(killPause)
	v.PauseAt = r.Screen.Time(at)
	one, killOne, samples := r.copies.totals()
	v.OneCopyMS, v.KillOneCopyMS, v.Samples = output.Milliseconds(one), output.Milliseconds(killOne), samples
	if v.PageSizesAfter, err = r.pageSizes(ctx); err != nil {
		return err
	}
	if err := r.check(ctx); err != nil {
		return err
	}
	r.Screen.Event("reading all %s in the filled queues again", output.Plural(v.BacklogMessages, "message"))
	v.BacklogLost, v.BacklogDuplicated, err = r.backlog.check(ctx, r.client)
	return err
}

func (r *resize) pageSizes(ctx context.Context) (sizes [2]uint32, err error) {
	for i, n := range r.pair.Nodes {
		s, err := n.Status(ctx)
		if err != nil {
			return sizes, err
		}
		sizes[i] = s.GetStore().GetPageSize()
	}
	return sizes, nil
}

func (r *resize) standby(ctx context.Context) (*harness.Node, error) {
	active, err := r.client.WaitActive(ctx)
	if err != nil {
		return nil, err
	}
	n := r.pair.Find(active.Address)
	if n == nil {
		return nil, fmt.Errorf("unknown active node %s", active.Address)
	}
	return r.pair.Other(n), nil
}

func (r *resize) scan(ctx context.Context) error {
	standby, err := r.standby(ctx)
	if err != nil {
		return err
	}
	r.Screen.Event("scanning the page file of node %s, the standby", standby.Name)
	n, err := admin.New(r.client).Node(standby.Address)
	if err != nil {
		return err
	}
	bar := progress.NewBar("node " + standby.Name)
	r.Screen.Progress(bar.Line)
	result, err := n.Scan(ctx, &pb.ScanRequest{}, func(p *pb.Progress) { bar.Set(progress.StepOf(p)) })
	r.Screen.Progress(nil)
	if err != nil {
		return err
	}
	if r.o.ShowScan != nil {
		r.o.ShowScan("node "+standby.Name, result)
	}
	r.verdict.Recommended, r.verdict.target = result.GetRecommended(), result.GetRecommended()
	switch {
	case r.o.PageSize != 0:
		r.verdict.target = r.o.PageSize
	case result.GetRecommended() == result.GetCurrent():
		r.verdict.target = fallback
		r.Screen.Event("the scan recommends the current page size; resizing to another one anyway")
	}
	return nil
}

// Set displays the progress of a bar. With End and Line, resize implements progress.Show.
func (r *resize) Set(b *progress.Bar, s progress.Step) {
	b.Set(s)
	r.plain(b)
}

// End displays the result of a bar.
func (r *resize) End(b *progress.Bar, format string, args ...any) {
	b.End(fmt.Sprintf(format, args...))
	r.plain(b)
}

// Line displays an event.
func (r *resize) Line(format string, args ...any) { r.Screen.Event(format, args...) }

// plain prints a bar periodically if the output is not a terminal.
func (r *resize) plain(b *progress.Bar) {
	if line, due := b.Due(); due && !r.Screen.Terminal() {
		r.Screen.Event("%s", line)
	}
}

// plan runs the rolling resize, and kills the active once during the standby's rewrite.
func (r *resize) plan(ctx context.Context, w *workload) error {
	ctx, cancel := context.WithTimeout(ctx, planBound)
	defer cancel()
	r.view = progress.NewView(r, r.pair.Addresses(), func(address string) *progress.Bar {
		r.bars[address] = progress.NewBar("node " + r.pair.Find(address).Name)
		return r.bars[address]
	})
	r.Screen.Event("starting a rolling resize to pages of %s", output.Bytes(uint64(r.verdict.target)))
	start := time.Now()
	p, err := admin.New(r.client).StartPlan(ctx, &pb.StartPlanRequest{
		Kind:     pb.PlanKind_PLAN_KIND_RESIZE,
		PageSize: r.verdict.target,
	})
	if err != nil {
		return err
	}
	r.Screen.Progress(func() string {
		lines := []string{r.ledger.line()}
		for _, n := range r.pair.Nodes {
			lines = append(lines, r.bars[n.Address].Line())
		}
		return strings.Join(lines, "\n")
	})
	if !r.o.NoKill {
		if err := r.killInTheMiddle(ctx, w, p); err != nil {
			return err
		}
	}
	if p, err = r.follow(ctx, w, p, admin.PlanEnded); err != nil {
		return err
	}
	r.verdict.Plan, r.verdict.PlanSeconds, r.verdict.PlanRetries = progress.PlanState(p.GetState()),
		time.Since(start).Seconds(), p.GetRetries()
	// Continue the load for a moment, to include the effects of the last switchover.
	return w.run(ctx, 500*time.Millisecond)
}

func (r *resize) killInTheMiddle(ctx context.Context, w *workload, p *pb.Plan) error {
	rng := rand.New(rand.NewPCG(r.Seed, 1))
	percent := 15 + 40*rng.Float64()
	missed := true
	_, err := r.follow(ctx, w, p, func(p *pb.Plan) bool {
		snap, _ := r.copies.now()
		for address, st := range snap.Nodes {
			a := st.GetMaintenance()
			if address == snap.Active || a.GetOperation() != "rewrite" || a.GetProgress().GetPhase() != "copy" ||
				a.GetProgress().GetTotalBytes() == 0 {
				continue
			}
			r.verdict.KilledAtPercent = 100 * float64(a.GetProgress().GetDoneBytes()) / float64(
				a.GetProgress().GetTotalBytes())
			if r.verdict.KilledAtPercent >= percent {
				missed = false
				return true
			}
		}
		return len(p.GetDoneNodes()) > 0
	})
	switch {
	case err != nil:
		return err
	case missed:
		return errors.New("the rewrite finished before the active could be killed: increase --fill")
	}
	r.copies.except(true)
	r.Screen.Event("the standby's rewrite is at %.0f%%", r.verdict.KilledAtPercent)
	victim, err := r.kill(ctx, w)
	if err != nil {
		return err
	}
	if err := w.run(ctx, time.Second); err != nil {
		return err
	}
	if err := r.restart(ctx, w, victim); err != nil {
		return err
	}
	r.copies.except(false)
	r.ledger.settled()
	return nil
}

func (r *resize) follow(ctx context.Context, w *workload, p *pb.Plan, until func(*pb.Plan) bool) (*pb.Plan, error) {
	for {
		snap, changed := r.copies.now()
		if snap.Plan.GetId() == p.GetId() {
			p = snap.Plan
			r.view.Update(snap)
			if until(p) {
				return p, nil
			}
			if admin.PlanEnded(p) {
				return p, fmt.Errorf("the plan ended early: %s",
					progress.DescribePlan(p, func(id string) string { return id }))
			}
		}
		select {
		case <-changed:
		case err := <-w.failed:
			return p, err
		case <-ctx.Done():
			return p, fmt.Errorf("the plan did not end: %s: %w",
				progress.DescribePlan(p, func(id string) string { return id }), ctx.Err())
		}
	}
}
