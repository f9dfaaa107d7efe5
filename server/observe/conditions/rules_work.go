// SPDX-License-Identifier: Apache-2.0

package conditions

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/server/ops/maintenance"
	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/units"
)

const (
	// planStuckAfter is the time without progress after which a plan is reported. A plan is also reported after
	// planRetries retries.
	planStuckAfter = 10 * time.Minute
	planRetries    = 5
	// failedSwitchoverTTL is the time for which a failed switchover is reported, unless a later switchover succeeds.
	failedSwitchoverTTL = 10 * time.Minute
	// archiveStuckAfter is the time without progress after which the archive is reported while records are pending.
	archiveStuckAfter = 2 * time.Minute
	preparedOldAfter  = time.Hour
	// maxNamed is the maximum number of queues or consumers named in the details of a condition.
	maxNamed = 5
)

type switchoverSeen struct {
	at   time.Time
	why  string
	term uint64 // term of the pair at the time of the request
}

// workSeen is the last observed progress of background work. It is used to detect stalls.
type workSeen struct {
	plan       string // state and progress of the plan
	planAt     time.Time
	archive    uint64 // last archived LSN
	archivedAt time.Time
}

// SwitchoverEnded records the result of a switchover that was requested in the given term. A failed switchover is
// reported as a condition.
func (r *Rules) SwitchoverEnded(now time.Time, term uint64, err error) {
	r.switched = switchoverSeen{}
	// After ErrStopped and Canceled, the outcome is unknown.
	if err != nil && !errors.Is(err, failover.ErrStopped) && !errors.Is(err, context.Canceled) {
		r.switched = switchoverSeen{at: now, why: err.Error(), term: term}
	}
}

func (r *Rules) maintenance(f *findings, in *Input) {
	if rec := in.Pair.Record; rec != nil && rec.Term > r.switched.term {
		r.switched = switchoverSeen{} // the term has changed, by this switchover or another one
	}
	if s := r.switched; s.why != "" && in.Now.Sub(s.at) < failedSwitchoverTTL {
		f.all = append(f.all, Report{Kind: SwitchoverFailed, Node: f.self, Details: s.why, Since: s.at})
	}
	if in.Plan != nil {
		r.plan(f, in.Plan, in.Now)
	}
	for i := range in.Jobs {
		f.job(&in.Jobs[i], in.Now)
	}
	if in.Archive != nil {
		r.archive(f, in.Archive, in.Now)
	}
}

func (r *Rules) plan(f *findings, p *maintenance.Plan, now time.Time) {
	if p.State == maintenance.PlanFailed {
		f.all = append(f.all, Report{
			Kind: PlanFailed, Details: fmt.Sprintf("%s: %s", p.Kind, p.Reason), Since: p.EndedAt,
		})
	}
	if p.State.Ended() {
		return
	}
	seen := fmt.Sprint(p.ID, p.State, p.Node, len(p.Done))
	if p.Progress != nil {
		seen += fmt.Sprint(p.Progress.Phase, p.Progress.Bytes)
	}
	if seen != r.work.plan {
		r.work.plan, r.work.planAt = seen, now
	}
	f.pair(p.Retries >= planRetries || now.Sub(r.work.planAt) > planStuckAfter, PlanStuck,
		"%s is %s: %s; %d retries", p.Kind, p.State, p.Reason, p.Retries)
}

func (f *findings) job(j *maintenance.JobInfo, now time.Time) {
	if j.Paused {
		return
	}
	if len(j.History) > 0 {
		last := &j.History[0]
		f.pair(last.Outcome == maintenance.RunFailed, JobFailed, "job %s: %s", j.Name, last.Detail)
		next, known := j.After(last.StartedAt)
		f.pair(last.Outcome == maintenance.RunRunning && known && now.After(next), JobStuck,
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
	f.pair(!ok, BackupMissing, "job %s", j.Name)
	f.pair(ok, BackupOld, "job %s: last successful run at %s", j.Name, good.Format(time.RFC3339))
}

func (f *findings) work(in *Input) {
	if n := len(in.FailedSchedules); n > 0 {
		first := in.FailedSchedules[0]
		f.pair(true, ScheduleFailed, "schedule %s: %s; %d in total", first.Name, first.Error, n)
	}
	if p := in.OldestPrepared; p != nil {
		f.pair(in.Now.Sub(p.At) > preparedOldAfter, PreparedOld, "transaction %q prepared at %s", p.XID,
			p.At.UTC().Format(time.RFC3339))
	}
	f.pair(len(in.Full) > 0, DeadLetterQueueFull, "%s", firstOf(in.Full, func(e *dispatch.FullError) string {
		return e.Error()
	}))
	f.pair(len(in.Stuck) > 0, ConsumerStuck, "%s", firstOf(in.Stuck, func(c *StuckConsumer) string {
		return fmt.Sprintf("consumer %s of %q, subscription %q: %d messages in flight, none answered for %v", c.Address,
			c.Queue, c.Subscription, c.InFlight, c.For.Truncate(time.Minute))
	}))
	f.pair(len(in.PausedQueues) > 0, QueuesPaused, "%s", firstOf(in.PausedQueues, func(name *string) string {
		return strconv.Quote(*name)
	}))
}

// firstOf joins the texts of the first maxNamed elements of a list. If the list is longer, it adds the number of
// remaining elements.
func firstOf[T any](list []T, text func(*T) string) string {
	var parts []string
	for i := range list {
		if i == maxNamed {
			parts = append(parts, fmt.Sprintf("%d more", len(list)-i))
			break
		}
		parts = append(parts, text(&list[i]))
	}
	return strings.Join(parts, "; ")
}

func (r *Rules) archive(f *findings, st *backup.ArchiveStatus, now time.Time) {
	f.node(st.Gap != 0, ArchiveGap, "before record %d", st.Gap)
	if st.Last.LSN != r.work.archive || st.Behind == 0 {
		r.work.archive, r.work.archivedAt = st.Last.LSN, now
	}
	switch {
	case st.Err != nil:
		f.node(true, ArchiveLag, "%s records behind: %v", units.Count(st.Behind), st.Err)
	case now.Sub(r.work.archivedAt) > archiveStuckAfter:
		f.node(true, ArchiveLag, "%s records behind, none archived since %s", units.Count(st.Behind),
			r.work.archivedAt.Format(time.RFC3339))
	}
}
