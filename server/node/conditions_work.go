// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/server/ops/maintenance"
	"github.com/lockstep-mq/lockstep/store/units"
)

const (
	// planStuckAfter is how long a plan may stay at one step without progress, and planRetries how often it may retry
	// a step.
	planStuckAfter = 10 * time.Minute
	planRetries    = 5
	// switchoverTold is how long a failed switchover is reported, unless a later one succeeds.
	switchoverTold = 10 * time.Minute
	// switchoverLimit bounds the wait for the result of a switchover after its caller has left.
	switchoverLimit = 15 * time.Second
	// archiveStuckAfter is how long the archive may make no progress while records are pending.
	archiveStuckAfter = 2 * time.Minute
)

// switchoverSeen is the last requested switchover, if it failed.
type switchoverSeen struct {
	at   time.Time
	why  string
	term uint64 // term of the pair at the time of the request
}

// workSeen is the last observed progress of background work, used to detect stalls.
type workSeen struct {
	plan       string // state and progress of the plan
	planAt     time.Time
	archive    uint64 // last archived LSN
	archivedAt time.Time
}

// termOf returns the term of the pair, or 0 if it is not known.
func termOf(st failover.Status) uint64 {
	if st.Record == nil {
		return 0
	}
	return st.Record.Term
}

// switchoverEnded records the result of a switchover that was requested in a term.
func (l *conditionMonitor) switchoverEnded(term uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.switched = switchoverSeen{}
	if err != nil && !errors.Is(err, failover.ErrStopped) && !errors.Is(err, context.Canceled) { // otherwise it is unknown
		l.switched = switchoverSeen{at: time.Now(), why: err.Error(), term: term}
	}
}

// maintenance reports failed and stalled switchovers, plans, jobs and archiving. mu is held.
func (l *conditionMonitor) maintenance(f *findings, now time.Time) {
	if termOf(l.n.runner.Status()) > l.switched.term {
		l.switched = switchoverSeen{} // the role has changed since, by this switchover or another one
	}
	if s := l.switched; s.why != "" && now.Sub(s.at) < switchoverTold {
		f.all = append(f.all, conditions.Report{
			Kind: conditions.SwitchoverFailed, Node: f.self, Details: s.why,
			Since: s.at,
		})
	}
	if p, err := l.n.maintenance.Plan(); err == nil && p != nil {
		l.plan(f, p, now)
	}
	if jobs, err := l.n.maintenance.Jobs(); err == nil {
		for i := range jobs {
			job(f, &jobs[i], now)
		}
	}
	l.archive(f, now)
}

func (l *conditionMonitor) plan(f *findings, p *maintenance.Plan, now time.Time) {
	if p.State == maintenance.PlanFailed {
		f.all = append(f.all, conditions.Report{
			Kind: conditions.PlanFailed, Details: fmt.Sprintf("%s: %s", p.Kind, p.Reason), Since: p.EndedAt,
		})
	}
	if p.State.Ended() {
		return
	}
	seen := fmt.Sprint(p.ID, p.State, p.Node, len(p.Done))
	if p.Progress != nil {
		seen += fmt.Sprint(p.Progress.Phase, p.Progress.Bytes)
	}
	if seen != l.work.plan {
		l.work.plan, l.work.planAt = seen, now
	}
	f.pair(p.Retries >= planRetries || now.Sub(l.work.planAt) > planStuckAfter, conditions.PlanStuck,
		"%s is %s: %s; %d retries", p.Kind, p.State, p.Reason, p.Retries)
}

// job reports a failed, stalled or overdue job.
func job(f *findings, j *maintenance.JobInfo, now time.Time) {
	if j.Paused {
		return
	}
	if len(j.History) > 0 {
		last := &j.History[0]
		f.pair(last.Outcome == maintenance.RunFailed, conditions.JobFailed, "job %s: %s", j.Name, last.Detail)
		next, known := j.After(last.StartedAt)
		f.pair(last.Outcome == maintenance.RunRunning && known && now.After(next), conditions.JobStuck,
			"job %s running since %s",
			j.Name, last.StartedAt.Format(time.RFC3339))
	}
	if j.Kind != maintenance.JobBackup {
		return
	}
	good, ok := j.LastSuccess()
	from := good
	if !ok {
		from = j.UpdatedAt
	}
	late, known := j.After(from)
	if known {
		late, known = j.After(late)
	}
	if !known || !now.After(late) {
		return
	}
	f.pair(!ok, conditions.BackupMissing, "job %s", j.Name)
	f.pair(ok, conditions.BackupOld, "job %s: last successful run at %s", j.Name, good.Format(time.RFC3339))
}

// preparedOldAfter is how long a transaction may be prepared before a condition is reported.
const preparedOldAfter = time.Hour

// prepared reports a transaction that has waited for its coordinator too long. timeMS is when it was prepared.
func prepared(f *findings, xid string, timeMS int64, now time.Time) {
	since := time.UnixMilli(timeMS)
	f.pair(now.Sub(since) > preparedOldAfter, conditions.PreparedOld, "transaction %q prepared at %s", xid,
		since.UTC().Format(time.RFC3339))
}

// maxFullNamed bounds the queues that the details of DeadLettersWait name.
const maxFullNamed = 5

// deadLettersWait reports the queues whose dead-letter queues are full.
func deadLettersWait(f *findings, full []dispatch.FullError) {
	var text []string
	for i := range full {
		if i == maxFullNamed {
			text = append(text, fmt.Sprintf("%d more", len(full)-i))
			break
		}
		text = append(text, full[i].Error())
	}
	f.pair(len(full) > 0, conditions.DeadLetterQueueFull, "%s", strings.Join(text, "; "))
}

// archive reports gaps and lag of the log archive. mu is held.
func (l *conditionMonitor) archive(f *findings, now time.Time) {
	if l.n.archiver == nil {
		return
	}
	st := l.n.archiver.Status()
	f.node(st.Gap != 0, conditions.ArchiveGap, "before record %d", st.Gap)
	if st.Last.LSN != l.work.archive || st.Behind == 0 {
		l.work.archive, l.work.archivedAt = st.Last.LSN, now
	}
	switch {
	case st.Err != nil:
		f.node(true, conditions.ArchiveLag, "%s records behind: %v", units.Count(st.Behind), st.Err)
	case now.Sub(l.work.archivedAt) > archiveStuckAfter:
		f.node(true, conditions.ArchiveLag, "%s records behind, none archived since %s", units.Count(st.Behind),
			l.work.archivedAt.Format(time.RFC3339))
	}
}
