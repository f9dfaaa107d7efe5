// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/units"
)

// autotuneName is the name that autotune claims, so that it runs once at a time. It is not a valid job name.
const autotuneName = "(autotune)"

// autotuneEntry records the last run of autotune.
type autotuneEntry struct {
	// Day on which the window began.
	Day string `json:"day"`
	// At is the time of the run, and Outcome its result.
	At      time.Time `json:"at"`
	Outcome string    `json:"outcome"`
}

// autotune scans once in each window, and starts a rolling plan if the gain is large enough.
func (m *Manager) autotune(ctx context.Context, running *sync.WaitGroup) {
	s, err := m.Settings()
	if err != nil {
		return // reported elsewhere
	}
	window, err := ParseWindow(s.AutotuneWindow)
	if err != nil {
		return // validated when it was set
	}
	day, open := window.Contains(m.o.Now())
	last, _, err := read[autotuneEntry](m, keyAutotune)
	if !open || err != nil || last.Day == day {
		return
	}
	if p, err := m.Plan(); err != nil || p != nil && !p.State.Ended() || !m.claim(autotuneName) {
		return
	}
	if _, reason := m.partner(); reason != "" || m.node.Alone() {
		m.release(autotuneName)
		return // a standby may become available while the window is open
	}
	running.Go(func() {
		defer m.release(autotuneName)
		ctx, stop := m.servingContext(ctx, nil)
		defer stop()
		m.autotuneToday(ctx, day, s.AutotuneMinGain)
	})
}

func (m *Manager) autotuneToday(ctx context.Context, day string, minGain int) {
	outcome, err := m.autotuneOnce(ctx, minGain)
	switch {
	case errors.Is(err, ErrBusy) || ctx.Err() != nil:
		return // try again while the window is open
	case err != nil:
		outcome = "failed: " + err.Error()
	}
	m.log.Info("autotune", zap.String("outcome", outcome))
	_, err = change(ctx, m, keyAutotune, func(e *autotuneEntry) error {
		*e = autotuneEntry{Day: day, At: m.o.Now(), Outcome: outcome}
		return nil
	})
	if err != nil {
		m.log.Warn("autotune result not stored", zap.Error(err))
	}
}

// autotuneOnce scans the standby and decides.
func (m *Manager) autotuneOnce(ctx context.Context, minGain int) (outcome string, err error) {
	targets, err := m.targets(Job{Kind: JobScan})
	if err != nil {
		return "", err
	}
	r, err := targets[0].ops.Scan(ctx, 0, nil)
	if err != nil {
		return "", fmt.Errorf("scan: %w", err)
	}
	space, reads := savings(&r)
	if max(space, reads) < minGain {
		return fmt.Sprintf("page size %d saves %d %% of space and %d %% of reads, below min-gain of %d %%: nothing "+
			"to do", r.Recommended, space, reads,
			minGain), nil
	}
	kind, size := PlanResize, r.Recommended
	if r.Recommended == r.PageSize {
		kind, size = PlanCompact, 0
	}
	p, err := m.StartPlan(ctx, kind, size, false)
	if errors.Is(err, ErrPlanRuns) {
		return "a plan is already running", nil
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s: started plan %s", tuned(kind, &r, space, reads, minGain), p.ID), nil
}

// tuned describes the operation that autotune has started, and the reason.
func tuned(kind PlanKind, r *checkpoint.ScanResult, space, reads, minGain int) string {
	gain := fmt.Sprintf("saves %d %% of space and %d %% of reads, min-gain is %d %%", space,
		reads, minGain)
	if kind == PlanCompact {
		return fmt.Sprintf("compact: page size %s is already the best, repacking the pages saves "+
			"enough: %s", units.Bytes(r.PageSize), gain)
	}
	return fmt.Sprintf("resize from page size %s to %s: %s", units.Bytes(r.PageSize), units.Bytes(r.Recommended), gain)
}

// savings returns the savings of a rewrite with the recommended page size, in percent: of the file size, and of the
// reads needed to read all messages.
func savings(r *checkpoint.ScanResult) (space, reads int) {
	if r.FileBytes > 0 && r.GainBytes > 0 {
		space = int(min(uint64(r.GainBytes)*100/r.FileBytes, 100))
	}
	var now, then uint64
	for _, c := range r.Candidates {
		if c.PageSize == r.PageSize {
			now = c.Runs
		}
		if c.PageSize == r.Recommended {
			then = c.Runs
		}
	}
	if now > then {
		reads = int((now - then) * 100 / now)
	}
	return space, reads
}
