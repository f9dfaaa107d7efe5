// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/rewrite"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// A newly requested operation creates a new request, which no node has executed.
func TestStartupRequests(t *testing.T) {
	yes, no := true, false
	var p pairSettings
	p.requestStart(nil, nil)
	require.Nil(t, p.Startup)
	p.requestStart(&yes, nil)
	first := p.Startup.ID
	p.Startup.Done = []uuid.UUID{uuid.New()}
	p.requestStart(nil, nil)
	require.Equal(t, first, p.Startup.ID, "another setting was changed")
	require.Len(t, p.Startup.Done, 1)
	p.requestStart(nil, &yes)
	require.NotEqual(t, first, p.Startup.ID)
	require.True(t, p.Startup.Resize && p.Startup.Compact)
	require.Empty(t, p.Startup.Done)
	p.requestStart(&no, nil)
	require.True(t, p.Startup.Compact && !p.Startup.Resize)
	p.requestStart(nil, &no)
	require.Nil(t, p.Startup)
}

// Completed steps survive a restart, unless the store is replaced. An invalid file is ignored.
func TestLocalState(t *testing.T) {
	fs := memfs.New()
	require.NoError(t, fs.MkdirAll("/d", 0o700))
	l, err := openLocal(fs, "/d", zap.NewNop())
	require.NoError(t, err)
	for i := range 20 {
		require.NoError(t, l.recordStep(doneStep{ID: fmt.Sprint(i), PageSize: 4096, Incarnation: 1}))
	}
	r, c, err := l.config(true, false)
	require.NoError(t, err)
	require.True(t, r && !c)
	require.NoError(t, l.configDone(true, false))
	require.Zero(t, l.lastScan())
	scan := checkpoint.ScanResult{
		Time: time.Unix(1, 0).UTC(), PageSize: 2048, Candidates: []checkpoint.Candidate{{PageSize: 2048}},
		Histogram: []checkpoint.SizeBucket{{ToBytes: 7, Messages: 1}}, Problems: make([]string, 2*keptProblems),
	}
	require.NoError(t, l.saveScan(&scan))
	scan.Problems = scan.Problems[:keptProblems]

	l, err = openLocal(fs, "/d", zap.NewNop())
	require.NoError(t, err)
	require.Equal(t, scan, l.lastScan())
	require.True(t, l.done("19", 1))
	require.False(t, l.done("19", 2), "the store was replaced")
	require.False(t, l.done("0", 1), "only the last steps are kept")
	require.False(t, l.done("", 1))
	r, _, err = l.config(true, false)
	require.NoError(t, err)
	require.False(t, r, "a completed request is not repeated")
	_, _, err = l.config(false, false)
	require.NoError(t, err)
	r, _, err = l.config(true, false)
	require.NoError(t, err)
	require.True(t, r, "a request that was enabled again")

	require.NoError(t, vfs.WriteFileAtomic(fs, "/d/maintenance.json", []byte("{nonsense")))
	l, err = openLocal(fs, "/d", zap.NewNop())
	require.NoError(t, err)
	require.False(t, l.done("19", 1))
}

// A permanent error fails the plan. The reason contains the required and the available space.
func TestPlanFailsPermanently(t *testing.T) { synctest.Test(t, testPlanFailsPermanently) }

func testPlanFailsPermanently(t *testing.T) {
	p := newPair(t)
	p.rewrite = func(context.Context, RewriteRequest) (RewriteResult, error) {
		return RewriteResult{}, &rewrite.SpaceError{NeedBytes: 1000, AvailableBytes: 999}
	}
	m := p.manager()
	_, err := m.StartPlan(t.Context(), PlanResize, 8192, false)
	require.NoError(t, err)
	plan := p.planIs(m, PlanFailed)
	require.Contains(t, plan.Reason, "1000")
	require.Contains(t, plan.Reason, "999")
	require.Empty(t, plan.Done)
	require.False(t, plan.EndedAt.IsZero())
	_, err = m.CancelPlan(t.Context())
	require.ErrorIs(t, err, ErrNoPlan)

	// An error that is not known to be transient also fails the plan, after several attempts with increasing delays.
	var delays []time.Duration
	last := time.Now()
	p.rewrite = func(context.Context, RewriteRequest) (RewriteResult, error) {
		delays = append(delays, time.Since(last)/time.Millisecond)
		last = time.Now()
		return RewriteResult{}, errors.New("unknown")
	}
	_, err = m.StartPlan(t.Context(), PlanCompact, 0, false)
	require.NoError(t, err)
	plan = p.planIs(m, PlanFailed)
	require.Equal(t, maxFailures-1, plan.Retries)
	require.Equal(t, []time.Duration{1, 2, 4, 8, 16, 30, 30, 30, 30}, delays[1:])
}

// Transient errors are retried and counted. Each node executes its step, and the active role moves back at the
// end.
func TestPlanResumes(t *testing.T) { synctest.Test(t, testPlanResumes) }

func testPlanResumes(t *testing.T) {
	p := newPair(t)
	p.inSync = false
	var calls atomic.Int32
	p.rewrite = func(_ context.Context, req RewriteRequest) (RewriteResult, error) {
		require.Equal(t, 8192, req.PageSize)
		if calls.Add(1)%8 != 0 {
			return RewriteResult{}, fmt.Errorf("try: %w",
				[]error{ErrUnreachable, ErrBusy, ErrRoleChanged, ErrRole}[calls.Load()%4])
		}
		return RewriteResult{PageSizeAfter: 8192}, nil
	}
	m := p.manager()
	started, err := m.StartPlan(t.Context(), PlanResize, 8192, true)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return strings.Contains(p.planIs(m, PlanWaiting).Reason, "waits for a standby")
	}, testTimeout, time.Millisecond)
	p.set(func() { p.inSync = true })
	plan := p.planIs(m, PlanDone)
	require.Equal(t, started.ID, plan.ID)
	require.Equal(t, 14, plan.Retries)
	require.Len(t, plan.Done, 2)
	require.Equal(t, 2, p.handovers, "to the other node and back")
	require.Equal(t, plan.FirstActive, p.Pair().Self.ID)
}

// Only the serving active changes the plan.
func TestPlanWithoutTheActiveRole(t *testing.T) { synctest.Test(t, testPlanWithoutTheActiveRole) }

func testPlanWithoutTheActiveRole(t *testing.T) {
	p := newPair(t)
	m := p.manager()
	p.set(func() { p.serving = false })
	_, err := m.StartPlan(t.Context(), PlanCompact, 0, false)
	require.ErrorIs(t, err, replication.ErrNotActive)
	_, err = m.Update(t.Context(), Change{})
	require.ErrorIs(t, err, replication.ErrNotActive)
	_, err = m.RunJob(t.Context(), "x")
	require.ErrorIs(t, err, replication.ErrNotActive)
	require.ErrorIs(t, m.DeleteJob(t.Context(), "x"), replication.ErrNotActive)
}

// Between StopFollower and StartFollower, no rewrite can start, regardless of the reported role.
func TestRewriteRequiresFollower(t *testing.T) { synctest.Test(t, testRewriteRequiresFollower) }

func testRewriteRequiresFollower(t *testing.T) {
	p := newPair(t)
	m := p.manager()
	_, err := m.Rewrite(t.Context(), RewriteRequest{}, nil)
	require.ErrorIs(t, err, ErrRole)
	m.Following()
	_, err = m.Rewrite(t.Context(), RewriteRequest{}, nil)
	require.ErrorIs(t, err, ErrRole, "the role does not allow it")
	_, _, err = m.begin(t.Context(), opScan, "", nil)
	require.NoError(t, err)
	_, err = m.Shrink(t.Context(), true)
	var busy *BusyError
	require.ErrorAs(t, err, &busy)
	require.Equal(t, opScan, busy.Activity.Operation)
	require.Contains(t, err.Error(), "scan since")
	require.False(t, follows(failover.RoleActive) || follows(failover.RoleCandidate) || follows(failover.RoleFenced))
	require.True(t, follows(failover.RoleStandby) && follows(failover.RoleCatchingUp))
}

// A resize that is requested for the start of a node without a recommended page size is skipped with a warning, also
// together with a compaction.
func TestStartupResizeWithoutRecommendation(t *testing.T) {
	synctest.Test(t, testStartupResizeWithoutRecommendation)
}

func testStartupResizeWithoutRecommendation(t *testing.T) {
	for name, tt := range map[string]struct {
		compact, scanned bool
		warnings         int
	}{
		"no scan":                 {warnings: 1},
		"no scan, and compaction": {compact: true, warnings: 1},
		"recommended size":        {scanned: true},
	} {
		p := newPair(t)
		core, logs := observer.New(zap.WarnLevel)
		m, err := New(Options{
			Store: p.store, Node: p, Peers: p, FS: memfs.New(), DataDir: "/", Now: p.clock, Logger: zap.New(core),
			Defaults: Defaults{PageSizeMax: 32768, ResizeOnStartup: true, CompactOnStartup: tt.compact},
		})
		require.NoError(t, err)
		if tt.scanned {
			settings, err := m.Settings()
			require.NoError(t, err)
			_, err = change(t.Context(), m, keySettings, func(s *pairSettings) error {
				s.Recommended = settings.PageSizeCurrent
				return nil
			})
			require.NoError(t, err)
		}
		p.follows(m)
		for range 2 { // the request is executed once
			require.NoError(t, m.runStartup(t.Context()), name)
			require.Equal(t, tt.warnings, logs.Len(), "%s: %v", name, logs.All())
		}
	}
}

// CancelRewrite logs the cancellation of a rewrite, but not if the rewrite completes because it has begun to replace
// page.db.
func TestCancelRewriteLog(t *testing.T) {
	for name, c := range map[string]struct {
		kind faultfs.OpKind
		file string
		err  error
		logs int
	}{
		"canceled":  {faultfs.OpCreate, datadir.NewFileName, ErrRoleChanged, 1},
		"completed": {faultfs.OpRename, datadir.PageFileName, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := faultfs.New(memfs.New())
				p := newPairOn(t, fs)
				core, logs := observer.New(zap.WarnLevel)
				m, err := New(Options{
					Store: p.store, Node: p, Peers: p, FS: memfs.New(), DataDir: "/", Now: p.clock, Logger: zap.New(core),
				})
				require.NoError(t, err)
				p.follows(m)
				canceled := make(chan struct{})
				fs.SetHook(func(op faultfs.Op) error {
					if op.Kind == c.kind && path.Base(op.Name) == c.file {
						fs.SetHook(nil)
						go func() {
							defer close(canceled)
							m.CancelRewrite()
						}()
						synctest.Wait()
					}
					return nil
				})
				_, err = m.Rewrite(t.Context(), RewriteRequest{PageSize: 8192}, nil)
				require.ErrorIs(t, err, c.err)
				<-canceled
				require.Equal(t, c.logs, logs.FilterFieldKey("waited").Len())
			})
		})
	}
}

func (p *pair) put(m *Manager, j Job) {
	p.t.Helper()
	_, err := m.PutJob(p.t.Context(), j)
	require.NoError(p.t, err)
}

func (p *pair) history(m *Manager, name string) []Run {
	p.t.Helper()
	j, _, err := m.job(name)
	require.NoError(p.t, err)
	return j.History
}

// A job name that is too long is rejected. The error contains the limit.
func TestLongJobName(t *testing.T) {
	j := Job{Name: strings.Repeat("x", maxJobNameBytes), Schedule: "@daily", Kind: JobScan}
	require.NoError(t, j.check())
	j.Name += "x"
	require.ErrorIs(t, j.check(), ErrSetting)
	require.Regexp(t, `201 bytes.* 200$`, j.check().Error())
}

// A job that is running is not started a second time, neither by the schedule nor on request. Runs that become
// due in the meantime are skipped.
func TestJobRunsOnce(t *testing.T) { synctest.Test(t, testJobRunsOnce) }

func testJobRunsOnce(t *testing.T) {
	p := newPair(t)
	var calls atomic.Int32
	begun, resumePlan := make(chan struct{}), make(chan struct{})
	p.scan = func(ctx context.Context) (checkpoint.ScanResult, error) {
		if calls.Add(1) == 1 {
			close(begun)
		}
		select {
		case <-resumePlan:
		case <-ctx.Done():
		}
		return checkpoint.ScanResult{}, nil
	}
	m := p.manager()
	p.put(m, Job{Name: "scan", Schedule: "@every 1m", Kind: JobScan})
	p.pass(time.Minute)
	<-begun
	for range 5 {
		p.pass(time.Minute)
		_, err := m.RunJob(t.Context(), "scan")
		require.ErrorIs(t, err, ErrJobRuns)
	}
	require.Equal(t, int32(1), calls.Load())
	require.Equal(t, RunRunning, p.history(m, "scan")[0].Outcome)
	resumePlan <- struct{}{}
	require.Eventually(t, func() bool { return p.history(m, "scan")[0].Outcome == RunOK }, testTimeout, time.Millisecond)
	require.Len(t, p.history(m, "scan"), 1)
	close(resumePlan)
	for range 30 {
		p.pass(time.Minute)
		require.Eventually(t, func() bool {
			h := p.history(m, "scan")
			return h[0].Outcome == RunOK && !m.isDue(t, "scan")
		}, testTimeout, time.Millisecond)
	}
	require.Len(t, p.history(m, "scan"), keptRuns)
	require.Greater(t, calls.Load(), int32(20))
}

func (m *Manager) isDue(t *testing.T, name string) bool {
	t.Helper()
	j, _, err := m.job(name)
	require.NoError(t, err)
	_, due := j.due(m.clock())
	return due
}

// A run that was missed recently is started once, after its due time. An older missed run is recorded as skipped,
// and an interrupted run as failed.
func TestMissedRunsAfterTakeover(t *testing.T) { synctest.Test(t, testMissedRunsAfterTakeover) }

func testMissedRunsAfterTakeover(t *testing.T) {
	p := newPair(t)
	m := p.manager()
	p.put(m, Job{Name: "hourly", Schedule: "0 * * * *", Kind: JobBackup})
	p.put(m, Job{Name: "nightly", Schedule: "30 1 * * *", Kind: JobBackup})
	running := m.newRun(1, time.Time{})
	require.NoError(t, m.recordRun(t.Context(), "nightly", running))
	p.set(func() { p.serving = false }) // at 1 o'clock, this node stops serving
	p.pass(4*time.Hour + 5*time.Minute) // no node is active until 5:05
	require.Empty(t, p.history(m, "hourly"))
	p.set(func() { p.serving, p.term = true, 2 })
	require.Eventually(t, func() bool {
		h := p.history(m, "hourly")
		return len(h) == 1 && h[0].Outcome == RunOK
	}, testTimeout, time.Millisecond, "four were missed; the one at 05:00 is run late")
	require.Equal(t, 5, p.history(m, "hourly")[0].Scheduled.Hour())
	require.Eventually(t, func() bool { return p.history(m, "nightly")[0].Outcome == RunFailed }, testTimeout,
		time.Millisecond)

	p.set(func() { p.serving = false })
	p.pass(24 * time.Hour) // until 5:05 of the next day
	p.set(func() { p.serving, p.term = true, 3 })
	require.Eventually(t, func() bool {
		h := p.history(m, "nightly")
		return len(h) == 2 && h[0].Outcome == RunSkipped
	}, testTimeout, time.Millisecond)
}

// While the clock is a month ahead, a job runs once. After the clock is corrected, the job runs at its next
// scheduled time, not a month later. If the clock is set back by an hour, no job runs twice.
func TestClockSetBack(t *testing.T) { synctest.Test(t, testClockSetBack) }

func testClockSetBack(t *testing.T) {
	p := newPair(t)
	m := p.manager()
	p.put(m, Job{Name: "cron", Schedule: "0 * * * *", Kind: JobScan})
	p.put(m, Job{Name: "every", Schedule: "@every 1h", Kind: JobScan})
	runs := func(n int) {
		t.Helper()
		for _, job := range []string{"cron", "every"} {
			require.Eventually(t, func() bool {
				h := p.history(m, job)
				return len(h) == n && h[0].Outcome == RunOK && !m.isDue(t, job)
			}, testTimeout, time.Millisecond, "%d runs of %s: %v", n, job, p.history(m, job))
		}
	}
	p.pass(time.Hour)
	runs(1)
	const month = 30 * 24 * time.Hour
	p.pass(month)
	runs(2)
	p.pass(-month)
	runs(2)
	p.pass(time.Hour)
	runs(3)
	p.pass(time.Hour)
	runs(4)
	p.pass(-time.Hour)
	runs(4)
	p.pass(time.Hour)
	runs(4)
	p.pass(time.Hour)
	runs(5)
}

// Concurrent reads of the clock do not make it seem to have been set back, because a reader waits until the previous
// reader has finished.
func TestClockIsReadInOrder(t *testing.T) {
	var reads atomic.Int64
	m, other := &Manager{}, make(chan struct{})
	start := time.Date(2026, 3, 1, 1, 0, 0, 0, time.UTC)
	m.o.Now = func() time.Time {
		n := reads.Add(1)
		if n == 2 {
			go func() {
				defer close(other)
				m.clock()
			}()
			select {
			case <-other:
			case <-time.After(50 * time.Millisecond): // the other reader waits for this reader
			}
		}
		return start.Add(time.Duration(n) * time.Second)
	}
	_, first := m.clock()
	m.clock()
	<-other
	_, steady := m.clock()
	require.Equal(t, first, steady, "the clock was never set back")
}

// If a switchover interrupts a run, the new active restarts the run. The number of restarts is limited.
func TestJobRunDuringSwitchover(t *testing.T) { synctest.Test(t, testJobRunDuringSwitchover) }

func testJobRunDuringSwitchover(t *testing.T) {
	p := newPair(t)
	m := p.manager()
	p.put(m, Job{Name: "nightly", Schedule: "30 1 * * *", Kind: JobBackup})
	p.set(func() { p.serving = false })
	begun := m.newRun(1, m.o.Now())
	p.set(func() { p.serving = true })
	require.NoError(t, m.recordRun(t.Context(), "nightly", begun))
	p.set(func() { p.serving, p.term = true, 2 })
	require.Eventually(t, func() bool {
		h := p.history(m, "nightly")
		return len(h) == 2 && h[0].Outcome == RunOK
	}, testTimeout, time.Millisecond)
	h := p.history(m, "nightly")
	require.Equal(t, RunSkipped, h[1].Outcome)
	require.Equal(t, begun.Scheduled.Unix(), h[0].Scheduled.Unix(), "the schedule continues as after one run")
	require.Equal(t, 1, h[0].Attempt)

	again := m.newRun(2, m.o.Now())
	again.Attempt = maxAttempts - 1
	require.NoError(t, m.recordRun(t.Context(), "nightly", again))
	p.set(func() { p.term = 3 })
	require.Eventually(t, func() bool { return p.history(m, "nightly")[0].Outcome == RunFailed }, testTimeout,
		time.Millisecond)
	require.Len(t, p.history(m, "nightly"), 3)
}

// A verify job fails if the content of the nodes differs.
func TestVerifyJobReportsDifference(t *testing.T) { synctest.Test(t, testVerifyJobReportsDifference) }

func testVerifyJobReportsDifference(t *testing.T) {
	p := newPair(t)
	m := p.manager()
	p.put(m, Job{Name: "same", Schedule: "@weekly", Kind: JobVerify})
	run, err := m.RunJob(t.Context(), "same")
	require.NoError(t, err)
	require.Equal(t, RunOK, run.Outcome, run.Detail)
	m.o.Peers = wrongPeer{p}
	run, err = m.RunJob(t.Context(), "same")
	require.NoError(t, err)
	require.Equal(t, RunFailed, run.Outcome)
	require.Contains(t, run.Detail, "differ")
	require.NotEmpty(t, m.Difference())
	m.o.Peers = p
	_, err = m.RunJob(t.Context(), "same")
	require.NoError(t, err)
	require.Empty(t, m.Difference())
}

// A difference is reported until a comparison that includes it finds none at the same or a later record.
func TestDifference(t *testing.T) { synctest.Test(t, testDifference) }

func testDifference(t *testing.T) {
	m := newPair(t).manager()
	stores := m.InSync()
	m.ComparedDigests(stores, 5, "digests of q")
	require.Contains(t, m.Difference(), "digests of q")
	m.comparedContents(stores, 6, "messages")
	m.ComparedDigests(stores, 7, "")
	require.NotContains(t, m.Difference(), "digests of q")
	require.Contains(t, m.Difference(), "messages", "equal digests do not disprove it")
	m.ComparedDigests(stores, 8, "digests of q")
	m.comparedContents(stores, 7, "")
	require.NotContains(t, m.Difference(), "messages")
	require.Contains(t, m.Difference(), "digests of q", "found at a later record")
	m.comparedContents(stores, 9, "")
	require.Empty(t, m.Difference())
}

// A difference is reported, also by a standby and while the other node is not in sync, until one of the stores is
// replaced.
func TestDifferenceOfReplacedStore(t *testing.T) { synctest.Test(t, testDifferenceOfReplacedStore) }

func testDifferenceOfReplacedStore(t *testing.T) {
	p := newPair(t)
	m := p.manager()
	for name, replace := range map[string]func(){
		"snapshot":     func() { p.incarnation++ },
		"another node": func() { p.nodes[1-p.active].ID = uuid.New() },
	} {
		m.comparedContents(m.InSync(), p.store.End().LSN, "messages")
		p.set(func() { p.generation = uuid.New() })
		require.NotEmpty(t, m.Difference(), "%s: process restarted", name)
		p.follows(m)
		require.NotEmpty(t, m.Difference(), "%s: standby", name)
		p.set(func() { p.role, p.serving, p.inSync = failover.RoleActive, true, false })
		require.NotEmpty(t, m.Difference(), "%s: other node is not in sync", name)
		p.set(replace)
		require.NotEmpty(t, m.Difference(), "%s: new store is not in sync", name)
		p.set(func() { p.inSync = true })
		require.Empty(t, m.Difference(), name)
		p.set(func() { p.inSync = false })
		require.Empty(t, m.Difference(), "%s: new store is no longer in sync", name)
		p.set(func() { p.inSync = true })
	}
}

// wrongPeer is a node with content that differs.
type wrongPeer struct{ *pair }

func (l wrongPeer) At(string) Operations { return l }

func (l wrongPeer) Digest(ctx context.Context, at uint64) (checkpoint.Digest, error) {
	d, err := l.pair.Digest(ctx, at)
	d.Content[0]++
	return d, err
}

// A change that waits for the commit of the previous change ends when its own context ends.
func TestChangeEndsWithItsContext(t *testing.T) {
	synctest.Test(t, testChangeEndsWithItsContext)
}

func testChangeEndsWithItsContext(t *testing.T) {
	m := newPair(t).manager()
	require.NoError(t, m.committing.Acquire(t.Context(), 1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := change(ctx, m, keySettings, func(*pairSettings) error { return nil })
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, m.DeleteJob(ctx, "job"), context.Canceled)
	m.committing.Release(1)
	_, err = change(t.Context(), m, keySettings, func(*pairSettings) error { return errUnchanged })
	require.NoError(t, err)
}
