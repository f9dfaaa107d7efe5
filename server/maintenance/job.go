// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	// MaxJobs is how many jobs a pair may have.
	MaxJobs = 100
	// maxJobNameBytes leaves room for the prefix of a key.
	maxJobNameBytes = 200
	// keptRuns is how many runs of a job are remembered.
	keptRuns = 20
	// maxDetailBytes bounds what is remembered of one.
	maxDetailBytes = 1000
)

// The kinds of jobs, and where they can run.
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

// Outcomes of a run.
const (
	RunRunning = "running"
	RunOK      = "ok"
	RunFailed  = "failed"
	RunSkipped = "skipped"
)

// Job is a scheduled operation of the pair, as it is kept.
type Job struct {
	// Name, unique in the pair.
	Name string `json:"name"`
	// Schedule is a cron expression of five fields, or a descriptor such as "@daily" or "@every 6h"; local time of the
	// active.
	Schedule string `json:"schedule"`
	Kind     string `json:"kind"`
	// On is where it runs; empty means the default of its kind.
	On     string `json:"on,omitempty"`
	Paused bool   `json:"paused,omitempty"`
	// UpdatedAt is when it was last put: nothing before that was missed.
	UpdatedAt time.Time `json:"updated_at"`
}

// Run is one run of a job.
type Run struct {
	ID        string        `json:"id"`
	StartedAt time.Time     `json:"started_at"`
	Took      time.Duration `json:"took,omitempty"`
	Outcome   string        `json:"outcome"`
	Detail    string        `json:"detail,omitempty"`
	// Node that the operation ran on, by name.
	Node string `json:"node,omitempty"`
	// Scheduled is the time that it was due; zero for one that was asked for.
	Scheduled time.Time `json:"scheduled,omitzero"`
	// Term of the active that started it: in another term a running one does not run any more, unless it is a plan.
	Term uint64 `json:"term"`
	// Attempt counts how often the run was begun before, and met a change of roles.
	Attempt int `json:"attempt,omitempty"`
	// Plan that the run started, and whose end is its end; empty for none.
	Plan string `json:"plan,omitempty"`
}

// end is when the run was over; the time it was due at, if that is later.
func (r *Run) end() time.Time {
	if e := r.StartedAt.Add(r.Took); e.After(r.Scheduled) {
		return e
	}
	return r.Scheduled
}

type runHistory struct {
	Runs []Run `json:"runs"` // newest first
}

// JobInfo is a job with what is known about it.
type JobInfo struct {
	Job
	// NextRun is when it is due next; zero while it is paused.
	NextRun time.Time
	// History are the last runs, newest first.
	History []Run
}

// where gives the place that a job runs at, and whether that was said.
func (j *Job) where() (place string, said bool) {
	if j.On != "" {
		return j.On, true
	}
	if j.Kind == JobShrink {
		return OnBoth, false
	}
	return OnStandby, false
}

func (j *Job) check() error {
	if err := txn.CheckName(j.Name); err != nil || len(j.Name) > maxJobNameBytes {
		return fmt.Errorf("%w: the job's name: 1 to %d characters of A-Z a-z 0-9 . _ / - are possible: %w", ErrSetting,
			maxJobNameBytes, err)
	}
	if !slices.Contains([]string{JobScan, JobShrink, JobBackup, JobCompact, JobVerify}, j.Kind) {
		return fmt.Errorf("%w: %q is no kind of job; there are scan, shrink, backup, compact and verify", ErrSetting,
			j.Kind)
	}
	if !slices.Contains([]string{"", OnStandby, OnActive, OnBoth}, j.On) {
		return fmt.Errorf("%w: a job runs on the standby, the active or both, not on %q", ErrSetting, j.On)
	}
	if j.On != "" && (j.Kind == JobCompact || j.Kind == JobVerify) {
		return fmt.Errorf("%w: a %s is always about both nodes", ErrSetting, j.Kind)
	}
	if _, err := parseSchedule(j.Schedule); err != nil {
		return err
	}
	return nil
}

// Jobs lists the jobs by name, as this node knows them.
func (m *Manager) Jobs() ([]JobInfo, error) {
	var out []JobInfo
	for _, e := range m.store.MetaPrefix(keyJob) {
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

// addPlan says of a run whose plan is under way where that is: it may wait for a node for long.
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

// since is the time after which the next run is due: when the job was put or the last run was over, whichever is later.
// For a run that still runs, now. A time that is far ahead of now is of a clock that was wrong and has been set back:
// the job goes on from when that happened (steady), and does not wait until that time comes again.
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

// clockSetBack is by how much a clock was set back at least for jobs to be run once more at times that they have seen:
// not for what is corrected now and then.
const clockSetBack = 3 * time.Hour

// clock gives the time, and since when this node's clock has not been set back, as far as it knows (steady). The clock
// is read with the lock held: what one caller has read before another one, and compares after it, would look like a
// clock that was set back, and jobs that go by steady would start to wait anew.
func (m *Manager) clock() (now, steady time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now = m.o.Now()
	if m.clockSteady.IsZero() || now.Before(m.clockSeen) {
		m.clockSteady = now
	}
	m.clockSeen = now
	return now, m.clockSteady
}

// PutJob adds or replaces a job; its history stays. Only on the active. ErrSetting for what cannot be, ErrTooManyJobs.
func (m *Manager) PutJob(ctx context.Context, j Job) (JobInfo, error) {
	if err := j.check(); err != nil {
		return JobInfo{}, err
	}
	j.UpdatedAt = m.o.Now()
	_, err := change(ctx, m, keyJob+j.Name, func(old *Job) error {
		if old.Name == "" && len(m.store.MetaPrefix(keyJob)) >= MaxJobs {
			return ErrTooManyJobs
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

// DeleteJob removes a job and its history; a run under way goes on. Only on the active. ErrNoJob.
func (m *Manager) DeleteJob(ctx context.Context, name string) error {
	if err := m.committing.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("delete job %s: another change of the pair's entries is not committed yet: %w", name, err)
	}
	defer m.committing.Release(1)
	if _, ok := m.node.Serving(); ok {
		if _, there := m.store.Meta(keyJob + name); !there {
			return fmt.Errorf("delete job %s: %w", name, ErrNoJob)
		}
	}
	if err := m.remove(ctx, keyJob+name, keyRuns+name); err != nil {
		return fmt.Errorf("delete job %s: %w", name, err)
	}
	return nil
}

// noteRun puts a run into the history of its job, or changes it there. A job that was deleted meanwhile has none.
func (m *Manager) noteRun(ctx context.Context, name string, r Run) error {
	if len(r.Detail) > maxDetailBytes {
		r.Detail = strings.ToValidUTF8(r.Detail[:maxDetailBytes], "")
	}
	_, err := change(ctx, m, keyRuns+name, func(h *runHistory) error {
		if _, there := m.store.Meta(keyJob + name); !there {
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

// newRun is a run that begins now.
func (m *Manager) newRun(term uint64, scheduled time.Time) Run {
	return Run{ID: uuid.NewString(), StartedAt: m.o.Now(), Outcome: RunRunning, Scheduled: scheduled, Term: term}
}

// due gives the last time at or before now at which the job was due and has not run; ok is false when there is none.
func (j *JobInfo) due(now, steady time.Time) (at time.Time, ok bool) {
	if j.Paused {
		return at, false
	}
	s, err := parseSchedule(j.Schedule)
	if err != nil {
		return at, false // it was checked when it was put; another version may know more
	}
	next := s.Next(j.since(now, steady).In(now.Location())) // the active's local time
	for range maxMissed {
		if next.IsZero() || next.After(now) {
			return at, ok
		}
		at, ok = next, true
		next = s.Next(next)
	}
	return now, ok
}

// maxMissed bounds how many missed times are counted through.
const maxMissed = 10_000

// byName sorts jobs.
// After is when the job is due the first time after t; ok is false if that cannot be said.
func (j *Job) After(t time.Time) (due time.Time, ok bool) {
	s, err := parseSchedule(j.Schedule)
	if err != nil {
		return time.Time{}, false
	}
	return s.Next(t), true
}

// LastGood is when the last run that succeeded was started; ok is false if none is remembered.
func (j *JobInfo) LastGood() (t time.Time, ok bool) {
	for i := range j.History {
		if j.History[i].Outcome == RunOK {
			return j.History[i].StartedAt, true
		}
	}
	return time.Time{}, false
}

func byName(a, b JobInfo) int { return cmp.Compare(a.Name, b.Name) }
