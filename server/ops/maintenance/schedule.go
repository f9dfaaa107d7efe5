// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/store/units"
)

const (
	// missedGrace is the maximum delay of a run that was due while no node was active. If the delay is longer, the run
	// is recorded as skipped.
	missedGrace = 10 * time.Minute
	// maxAttempts is the maximum number of attempts of a run that is interrupted by role changes.
	maxAttempts = 3
)

func (m *Manager) schedule(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	term := uint64(0)     // last term in which all interrupted runs were handled
	active := time.Time{} // last time at which this node observed an active node
	for m.wait(ctx, nil, nil, m.o.Tick) {
		seen := m.o.Now() // read before Serving: after it, the role may be lost and hours may pass
		now, ok := m.node.Serving()
		if !ok {
			if m.otherActs() {
				active = seen
			}
			continue
		}
		if now != term {
			again, err := m.endInterrupted(ctx, now, active)
			m.startAgain(ctx, again, &running)
			if err != nil {
				continue // the next tick handles the remaining runs
			}
			term = now
		}
		active = seen
		m.endPlanned(ctx)
		m.startDue(ctx, term, &running)
	}
}

func (m *Manager) otherActs() bool {
	st := m.node.Pair()
	return st.Record != nil && st.Record.Active != st.Self.ID && st.IsLive(st.Record.Active)
}

type interrupted struct {
	job Job
	run Run
}

// endInterrupted records the end of runs that the active of another term started, except runs with a plan. It returns
// the runs to restart, even if it also returns an error. A run is restarted if a node was active, or the run started,
// within the last missedGrace, but at most maxAttempts-1 times. active is the last time at which a node was active.
func (m *Manager) endInterrupted(ctx context.Context, term uint64, active time.Time) (again []interrupted, err error) {
	jobs, err := m.Jobs()
	if err != nil {
		return nil, err
	}
	for _, j := range jobs {
		for _, r := range j.History {
			if r.Outcome != RunRunning || r.Term == term || r.Plan != "" {
				continue
			}
			next := r
			r.Outcome, r.Detail = RunFailed, "the node that started the run is no longer active; the next "+
				"run is not affected"
			now := m.o.Now()
			if recent := now.Sub(active) <= missedGrace || now.Sub(r.StartedAt) <= missedGrace; recent &&
				r.Attempt+1 < maxAttempts {
				r.Outcome, r.Detail = RunSkipped, "the active role moved during the run; the run is restarted"
				next.ID, next.StartedAt, next.Term, next.Attempt = uuid.NewString(), now, term, r.Attempt+1
			}
			r.Duration = max(now.Sub(r.StartedAt), 0)
			if err := m.recordRun(ctx, j.Name, r); err != nil {
				return again, err
			}
			if r.Outcome == RunSkipped {
				again = append(again, interrupted{job: j.Job, run: next})
			}
		}
	}
	return again, nil
}

func (m *Manager) startAgain(ctx context.Context, again []interrupted, running *sync.WaitGroup) {
	for _, i := range again {
		if !m.claim(i.job.Name) {
			continue // a client has just started a run of the job
		}
		m.startRun(ctx, i.job, i.run, running)
	}
}

// startRun records a run of a job claimed by the caller. Unless the outcome is RunSkipped, it executes the run in the
// background. The claim is released when the run has ended.
func (m *Manager) startRun(ctx context.Context, j Job, run Run, running *sync.WaitGroup) {
	err := m.recordRun(ctx, j.Name, run)
	if err != nil {
		m.log.Warn("job cannot be started", zap.String("job", j.Name), zap.Error(err))
	}
	if err != nil || run.Outcome == RunSkipped {
		m.release(j.Name)
		return
	}
	running.Go(func() {
		defer m.release(j.Name)
		_ = m.finishRun(ctx, j, run) // the result is in the history
	})
}

// endPlanned records the end of runs with a plan that has ended.
func (m *Manager) endPlanned(ctx context.Context) {
	jobs, err := m.Jobs()
	if err != nil {
		return // startDue logs the error
	}
	for _, j := range jobs {
		for _, r := range j.History {
			if r.Outcome != RunRunning || r.Plan == "" {
				continue
			}
			p, _, err := read[Plan](m, keyPlan)
			if err != nil || p.ID == r.Plan && !p.State.Ended() {
				continue
			}
			if err := m.recordRun(ctx, j.Name, m.withEnd(r, &p)); err != nil {
				m.log.Warn("job result not stored", zap.String("job", j.Name), zap.Error(err))
			}
		}
	}
}

// withEnd returns the run with the outcome of its plan. p is the pair's last plan.
func (m *Manager) withEnd(r Run, p *Plan) Run {
	end := p.EndedAt
	switch {
	case p.ID != r.Plan:
		end = m.o.Now()
		r.Outcome, r.Detail = RunFailed, "plan "+r.Plan+" was replaced by another plan before its result was stored"
	case p.State == PlanDone:
		r.Outcome, r.Detail = RunOK, "plan "+p.ID+": "+p.Reason
	default:
		r.Outcome, r.Detail = RunFailed, "plan "+p.ID+" "+string(p.State)+": "+p.Reason
	}
	r.Duration = max(end.Sub(r.StartedAt), 1)
	return r
}

func (m *Manager) startDue(ctx context.Context, term uint64, running *sync.WaitGroup) {
	now, steady := m.clock() // read before the jobs, so that the jobs contain all earlier runs
	jobs, err := m.Jobs()
	if err != nil {
		m.log.Error("jobs cannot be read", zap.Error(err))
		return
	}
	slices.SortFunc(jobs, func(a, b JobInfo) int { return cmp.Compare(a.Name, b.Name) })
	for _, j := range jobs {
		at, due := j.due(now, steady)
		if !due || !m.claim(j.Name) {
			continue
		}
		run := m.newRun(term, at)
		if now.Sub(at) > missedGrace {
			run.Outcome, run.Detail = RunSkipped, "no node was active at "+
				at.Format(time.RFC3339)+"; too long ago to catch up"
		}
		if serving, ok := m.node.Serving(); !ok || serving != term {
			m.release(j.Name)
			return // the active of the next term starts due jobs and detects missed ones
		}
		m.startRun(ctx, j.Job, run, running)
	}
}

func (m *Manager) claim(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.jobs[name] {
		return false
	}
	m.jobs[name] = true
	return true
}

func (m *Manager) release(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.jobs, name)
}

// RunJob runs a job immediately. It returns the run when it has ended or, for JobCompact, when the plan has started.
// It must be called on the active. It returns ErrNoJob if the job does not exist, and ErrJobRuns while a run of the
// job is in progress on this node. A failed run is not an error.
func (m *Manager) RunJob(ctx context.Context, name string) (Run, error) {
	term, ok := m.node.Serving()
	if !ok {
		return Run{}, replication.ErrNotActive
	}
	j, ok, err := m.job(name)
	if err != nil {
		return Run{}, err
	}
	if !ok {
		return Run{}, fmt.Errorf("run job %s: %w", name, ErrNoJob)
	}
	if !m.claim(name) {
		return Run{}, fmt.Errorf("run job %s: %w", name, ErrJobRuns)
	}
	defer m.release(name)
	run := m.newRun(term, time.Time{})
	if err := m.recordRun(ctx, name, run); err != nil {
		return Run{}, fmt.Errorf("run job %s: %w", name, err)
	}
	return m.finishRun(ctx, j.Job, run), nil
}

func (m *Manager) finishRun(ctx context.Context, j Job, run Run) Run {
	jobCtx, stop := m.servingContext(ctx, nil)
	if j.Kind == JobCompact {
		plan, err := m.startCompact(jobCtx)
		stop()
		return m.recordEnd(ctx, j, compactRun(run, plan, err))
	}
	node, detail, err := m.perform(jobCtx, j)
	err = cause(jobCtx, err)
	stop()
	run.Duration, run.Node, run.Detail, run.Outcome = max(m.o.Now().Sub(run.StartedAt), 1), node, detail, outcomeOf(err)
	if err != nil {
		run.Detail = err.Error()
	}
	return m.recordEnd(ctx, j, run)
}

func outcomeOf(err error) string {
	switch {
	case err == nil:
		return RunOK
	case errors.Is(err, errSkip), errors.Is(err, ErrBusy), errors.Is(err, ErrPlanRuns):
		return RunSkipped
	default:
		return RunFailed
	}
}

func (m *Manager) recordEnd(ctx context.Context, j Job, run Run) Run {
	m.log.Info("job finished", zap.String("job", j.Name), zap.String("kind", j.Kind), zap.String("outcome", run.Outcome),
		zap.String("node", run.Node),
		zap.String("detail", run.Detail), zap.Duration("took", run.Duration))
	// The end is recorded even if the caller has canceled ctx.
	recordCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	if err := m.recordRun(recordCtx, j.Name, run); err != nil {
		m.log.Warn("job result not stored", zap.String("job", j.Name), zap.Error(err))
	}
	return run
}

const recordTimeout = 2 * time.Second

// errSkip is wrapped by errors for which the run is recorded as skipped.
var errSkip = errors.New("skipped")

type target struct {
	name string
	ops  Operations
}

func (m *Manager) targets(j Job) ([]target, error) {
	self := target{name: name(m.node.Pair().Self), ops: m}
	if m.node.Alone() {
		return []target{self}, nil
	}
	other, reason := m.partner()
	place, explicit := j.location()
	switch {
	case place == OnActive:
		return []target{self}, nil
	case reason != "" && explicit && place == OnStandby:
		return nil, fmt.Errorf("%w: job runs on the standby, but the active %s", errSkip, reason)
	case reason != "":
		return []target{self}, nil // the active replaces the unavailable standby
	case place == OnBoth:
		return []target{m.remote(other), self}, nil
	default:
		return []target{m.remote(other)}, nil
	}
}

func (m *Manager) remote(n failover.NodeInfo) target {
	return target{name: name(n), ops: m.o.Peers.At(n.Address)}
}

func (m *Manager) perform(ctx context.Context, j Job) (node, detail string, err error) {
	if j.Kind == JobVerify {
		return m.performVerify(ctx)
	}
	targets, err := m.targets(j)
	if err != nil {
		return "", "", err
	}
	var names, details []string
	for _, t := range targets {
		d, err := m.performOn(ctx, j.Kind, t)
		names, details = append(names, t.name), append(details, t.name+": "+d)
		if err != nil {
			return strings.Join(names, ", "), strings.Join(details, "; "), fmt.Errorf("node %s: %w", t.name, err)
		}
	}
	return strings.Join(names, ", "), strings.Join(details, "; "), nil
}

func (m *Manager) performOn(ctx context.Context, kind string, t target) (detail string, err error) {
	switch kind {
	case JobScan:
		r, err := t.ops.Scan(ctx, 0, nil)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%s messages, page size %s, recommended %s, saves %s of %s",
			units.Count(r.Messages), units.Bytes(r.PageSize), units.Bytes(r.Recommended),
			units.Bytes(max(r.GainBytes, 0)), units.Bytes(r.FileBytes)), nil
	case JobShrink:
		r, err := t.ops.Shrink(ctx, false)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("page.db: %s before, %s after", units.Bytes(r.FileBytesBefore), units.Bytes(r.FileBytesAfter)), nil
	case JobBackup:
		set, err := t.ops.Backup(ctx, BackupRequest{}, nil)
		if err != nil {
			return "", err
		}
		return set.Path, nil
	default:
		return "", fmt.Errorf("%w: job kind %q is unknown to this version", errSkip, kind)
	}
}

// startCompact starts a rolling compaction plan.
func (m *Manager) startCompact(ctx context.Context) (*Plan, error) {
	p, err := m.StartPlan(ctx, PlanCompact, 0, false)
	if errors.Is(err, ErrRole) {
		return nil, fmt.Errorf("%w: %w", errSkip, err)
	}
	return p, cause(ctx, err)
}

func compactRun(run Run, p *Plan, err error) Run {
	if err != nil {
		run.Outcome, run.Detail, run.Duration = outcomeOf(err), err.Error(), 1
		return run
	}
	run.Plan, run.Detail = p.ID, "rolling plan "+p.ID+" is running"
	return run
}
