// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	// MaxJobs is the maximum number of jobs of a pair.
	MaxJobs = 100
	// maxJobNameBytes is the maximum size of the name of a job.
	maxJobNameBytes = 200
	keptRuns        = 20
	maxDetailBytes  = 1000
)

// Values of Job.Kind and Job.On.
const (
	JobScan    = "scan"
	JobShrink  = "shrink"
	JobBackup  = "backup"
	JobCompact = "compact"
	JobVerify  = "verify"

	OnStandby = "standby"
	OnActive  = "active"
	OnBoth    = "both"
)

// Values of Run.Outcome.
const (
	RunRunning = "running"
	RunOK      = "ok"
	RunFailed  = "failed"
	RunSkipped = "skipped"
)

// Job is a scheduled operation of the pair, as stored.
type Job struct {
	Name string `json:"name"`
	// Schedule is a cron expression of five fields, or a descriptor such as "@daily" or "@every 6h". It refers to the
	// local time of the active, unless it begins with a time zone such as "TZ=UTC".
	Schedule string `json:"schedule"`
	Kind     string `json:"kind"`
	// On selects the nodes on which the job runs: OnStandby, OnActive or OnBoth. If it is empty, the default of the kind
	// applies.
	On     string `json:"on,omitempty"`
	Paused bool   `json:"paused,omitempty"`
	// UpdatedAt is the time of the last change. Due times before it do not count as missed.
	UpdatedAt time.Time `json:"updated_at"`
}

// Run is one run of a job.
type Run struct {
	ID        string        `json:"id"`
	StartedAt time.Time     `json:"started_at"`
	Duration  time.Duration `json:"took,omitempty"`
	Outcome   string        `json:"outcome"`
	Detail    string        `json:"detail,omitempty"`
	Node      string        `json:"node,omitempty"`
	// Scheduled is the due time. It is zero for a run that a client requested.
	Scheduled time.Time `json:"scheduled,omitzero"`
	// Term is the term of the active that started the run. A role change ends the run, unless the run started a
	// plan.
	Term uint64 `json:"term"`
	// Attempt is the number of earlier attempts that a role change interrupted.
	Attempt int `json:"attempt,omitempty"`
	// Plan is the ID of the plan that the run started, if any. The run ends when the plan ends.
	Plan string `json:"plan,omitempty"`
}

// end returns the end time of the run, or its due time if that is later.
func (r *Run) end() time.Time {
	if e := r.StartedAt.Add(r.Duration); e.After(r.Scheduled) {
		return e
	}
	return r.Scheduled
}

type runHistory struct {
	Runs []Run `json:"runs"` // newest first
}

// JobInfo is a job with its status.
type JobInfo struct {
	Job
	// NextRun is the next due time. It is zero if the job is paused or no due time is known.
	NextRun time.Time
	History []Run // newest first
}

// location returns the value of On that applies to a scan, shrink or backup, and whether the job sets it explicitly.
func (j *Job) location() (place string, explicit bool) {
	if j.On != "" {
		return j.On, true
	}
	if j.Kind == JobShrink {
		return OnBoth, false
	}
	return OnStandby, false
}

func (j *Job) check() error {
	if err := txn.CheckName(j.Name); err != nil {
		return fmt.Errorf("%w: job name: %w", ErrSetting, err)
	}
	if len(j.Name) > maxJobNameBytes {
		return fmt.Errorf("%w: job name has %d bytes; maximum %d", ErrSetting, len(j.Name), maxJobNameBytes)
	}
	if !slices.Contains([]string{JobScan, JobShrink, JobBackup, JobCompact, JobVerify}, j.Kind) {
		return fmt.Errorf("%w: job kind %q, must be scan, shrink, backup, compact or verify", ErrSetting,
			j.Kind)
	}
	if !slices.Contains([]string{"", OnStandby, OnActive, OnBoth}, j.On) {
		return fmt.Errorf("%w: job node %q, must be standby, active or both", ErrSetting, j.On)
	}
	if j.On != "" && (j.Kind == JobCompact || j.Kind == JobVerify) {
		return fmt.Errorf("%w: a %s job always runs on both nodes", ErrSetting, j.Kind)
	}
	if _, err := parseSchedule(j.Schedule); err != nil {
		return err
	}
	return nil
}

// Jobs returns the jobs as applied on this node, sorted by name.
func (m *Manager) Jobs() ([]JobInfo, error) {
	var out []JobInfo
	for _, e := range query.MetaPrefix(m.store, keyJob) {
		j, ok, err := m.job(strings.TrimPrefix(e.Key, keyJob))
		if err != nil {
			return nil, err
		}
		if ok {
			out = append(out, j)
		}
	}
	return out, nil
}

func (m *Manager) job(name string) (JobInfo, bool, error) {
	j, ok, err := read[Job](m, keyJob+name)
	if err != nil || !ok {
		return JobInfo{}, false, err
	}
	h, _, err := read[runHistory](m, keyRuns+name)
	if err != nil {
		return JobInfo{}, false, err
	}
	info := JobInfo{Job: j, History: h.Runs}
	if err := m.addPlan(h.Runs); err != nil {
		return JobInfo{}, false, err
	}
	if s, err := parseSchedule(j.Schedule); err == nil && !j.Paused {
		now, steady := m.clock()
		info.NextRun = s.Next(info.since(now, steady).In(now.Location()))
	}
	return info, true, nil
}

// addPlan sets the detail of each run that waits for the running plan to the state of that plan.
func (m *Manager) addPlan(runs []Run) error {
	for i := range runs {
		if runs[i].Outcome != RunRunning || runs[i].Plan == "" {
			continue
		}
		p, ok, err := read[Plan](m, keyPlan)
		if err != nil {
			return err
		}
		if ok && p.ID == runs[i].Plan && !p.State.Ended() {
			runs[i].Detail = "plan " + p.ID + " " + string(p.State) + ": " + p.Reason
		}
	}
	return nil
}

// since returns the time after which the next run is due. During a run, that is now. Otherwise, it is the later of
// the last change of the job and the end of the last run. If the later time is more than clockSetBack in the future,
// since returns steady.
func (j *JobInfo) since(now, steady time.Time) time.Time {
	t := j.UpdatedAt
	if len(j.History) > 0 {
		last := &j.History[0]
		if last.Outcome == RunRunning {
			return now
		}
		if e := last.end(); e.After(t) {
			t = e
		}
	}
	if t.Sub(now) > clockSetBack {
		return steady
	}
	return t
}

// clockSetBack is the minimum by which the clock must have been set back for jobs to run again at the same clock times.
const clockSetBack = 3 * time.Hour

// clock returns the current time and steady. steady is the time of the last call that found the clock set back, or
// else of the first call. The clock is read with the lock held.
func (m *Manager) clock() (now, steady time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now = m.o.Now()
	if m.clockSteady.IsZero() || now.Before(m.latestClock) {
		m.clockSteady = now
	}
	m.latestClock = now
	return now, m.clockSteady
}

// PutJob adds a job, or replaces the job with the same name and keeps its history. It must be called on the
// active. It returns ErrSetting for an invalid job, and ErrTooManyJobs if the pair already has MaxJobs jobs.
func (m *Manager) PutJob(ctx context.Context, j Job) (JobInfo, error) {
	if err := j.check(); err != nil {
		return JobInfo{}, err
	}
	j.UpdatedAt = m.o.Now()
	_, err := change(ctx, m, keyJob+j.Name, func(old *Job) error {
		if old.Name == "" && len(query.MetaPrefix(m.store, keyJob)) >= MaxJobs {
			return fmt.Errorf("%w: maximum %d; delete some first", ErrTooManyJobs, MaxJobs)
		}
		*old = j
		return nil
	})
	if err != nil {
		return JobInfo{}, fmt.Errorf("put job %s: %w", j.Name, err)
	}
	info, _, err := m.job(j.Name)
	return info, err
}

// DeleteJob deletes a job and its history. A run in progress continues. DeleteJob must be called on the active. It
// returns ErrNoJob if the job does not exist.
func (m *Manager) DeleteJob(ctx context.Context, name string) error {
	if err := m.committing.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("delete job %s: another change of internal entries is not committed yet: %w", name, err)
	}
	defer m.committing.Release(1)
	if _, ok := m.node.Serving(); ok {
		if _, there := query.Meta(m.store, keyJob+name); !there {
			return fmt.Errorf("delete job %s: %w", name, ErrNoJob)
		}
	}
	err := m.commit(ctx, func(b *txn.Builder) {
		b.DeleteMeta(keyJob + name)
		b.DeleteMeta(keyRuns + name)
	})
	if err != nil {
		return fmt.Errorf("delete job %s: %w", name, err)
	}
	return nil
}

// recordRun adds a run to the history of its job, or updates the run in the history. It does nothing if the job was
// deleted.
func (m *Manager) recordRun(ctx context.Context, name string, r Run) error {
	if len(r.Detail) > maxDetailBytes {
		r.Detail = strings.ToValidUTF8(r.Detail[:maxDetailBytes], "")
	}
	_, err := change(ctx, m, keyRuns+name, func(h *runHistory) error {
		if _, there := query.Meta(m.store, keyJob+name); !there {
			return errUnchanged
		}
		if i := slices.IndexFunc(h.Runs, func(o Run) bool { return o.ID == r.ID }); i >= 0 {
			h.Runs[i] = r
			return nil
		}
		h.Runs = slices.Insert(h.Runs, 0, r)
		h.Runs = h.Runs[:min(len(h.Runs), keptRuns)]
		return nil
	})
	return err
}

func (m *Manager) newRun(term uint64, scheduled time.Time) Run {
	return Run{ID: uuid.NewString(), StartedAt: m.o.Now(), Outcome: RunRunning, Scheduled: scheduled, Term: term}
}

// due returns the latest due time, not after now, for which the job has not run. If maxMissed or more due times were
// missed, it returns now. ok is false if no due time was missed, the job is paused, or its schedule cannot be parsed.
func (j *JobInfo) due(now, steady time.Time) (at time.Time, ok bool) {
	if j.Paused {
		return at, false
	}
	s, err := parseSchedule(j.Schedule)
	if err != nil {
		return at, false // another version accepted the schedule
	}
	next := s.Next(j.since(now, steady).In(now.Location())) // local time of the active
	for range maxMissed {
		if next.IsZero() || next.After(now) {
			return at, ok
		}
		at, ok = next, true
		next = s.Next(next)
	}
	return now, ok
}

// maxMissed is the maximum number of missed due times that due enumerates.
const maxMissed = 10_000

// After returns the first due time after t. ok is false if the schedule cannot be parsed.
func (j *Job) After(t time.Time) (due time.Time, ok bool) {
	s, err := parseSchedule(j.Schedule)
	if err != nil {
		return time.Time{}, false
	}
	return s.Next(t), true
}

// LastSuccess returns the start time of the last successful run in the history.
func (j *JobInfo) LastSuccess() (t time.Time, ok bool) {
	for i := range j.History {
		if j.History[i].Outcome == RunOK {
			return j.History[i].StartedAt, true
		}
	}
	return time.Time{}, false
}
