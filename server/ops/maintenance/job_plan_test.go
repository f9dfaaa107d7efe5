// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// If a job starts a rolling plan, its run ends with the plan and has the outcome of the plan, regardless of which
// node is active.
func TestCompactRunEndsWithItsPlan(t *testing.T) { synctest.Test(t, testCompactRunEndsWithItsPlan) }

func testCompactRunEndsWithItsPlan(t *testing.T) {
	p := newPair(t)
	reached, resumePlan := make(chan struct{}, 2), make(chan struct{})
	p.rewrite = func(ctx context.Context, _ RewriteRequest) (RewriteResult, error) {
		reached <- struct{}{}
		select {
		case <-resumePlan:
			return RewriteResult{}, nil
		case <-ctx.Done():
			return RewriteResult{}, ctx.Err()
		}
	}
	m := p.manager()
	p.put(m, Job{Name: "pack", Schedule: "@monthly", Kind: JobCompact})
	run, err := m.RunJob(t.Context(), "pack")
	require.NoError(t, err)
	require.Equal(t, RunRunning, run.Outcome, "the plan has only started")
	require.NotEmpty(t, run.Plan)
	<-reached
	require.Equal(t, RunRunning, p.history(m, "pack")[0].Outcome)
	require.Contains(t, p.history(m, "pack")[0].Detail, string(PlanRewriting), "the run reports the state of the plan")
	require.False(t, m.isDue(t, "pack"))
	p.pass(time.Minute)
	close(resumePlan)
	p.planIs(m, PlanDone)
	require.Positive(t, p.handovers, "the role moved to the other node in the meantime")
	ended := func() bool { return p.history(m, "pack")[0].Outcome != RunRunning }
	require.Eventually(t, ended, testTimeout, time.Millisecond)
	h := p.history(m, "pack")
	require.Len(t, h, 1)
	require.Equal(t, RunOK, h[0].Outcome, h[0].Detail)
	require.Equal(t, time.Minute, h[0].Duration)

	resumePlan = make(chan struct{})
	run, err = m.RunJob(t.Context(), "pack")
	require.NoError(t, err)
	<-reached
	second, err := m.RunJob(t.Context(), "pack")
	require.NoError(t, err)
	require.Equal(t, RunSkipped, second.Outcome, "only one plan at a time")
	_, err = m.CancelPlan(t.Context())
	require.NoError(t, err)
	find := func() Run {
		for _, r := range p.history(m, "pack") {
			if r.ID == run.ID {
				return r
			}
		}
		return Run{}
	}
	require.Eventually(t, func() bool { return find().Outcome != RunRunning }, testTimeout, time.Millisecond)
	require.Equal(t, RunFailed, find().Outcome)
	require.Contains(t, find().Detail, "canceled")
}

// An unfinished plan that was restored from a backup is not continued.
func TestPlanOfAnotherPair(t *testing.T) { synctest.Test(t, testPlanOfAnotherPair) }

func testPlanOfAnotherPair(t *testing.T) {
	p := newPair(t)
	m := p.manager()
	_, err := change(t.Context(), m, keyPlan, func(plan *Plan) error {
		*plan = Plan{ID: "old", Kind: PlanCompact, Pair: uuid.New(), FirstActive: uuid.New(), State: PlanRewriting}
		return nil
	})
	require.NoError(t, err)
	plan := p.planIs(m, PlanCancelled)
	require.Contains(t, plan.Reason, "another pair")
	_, err = m.StartPlan(t.Context(), PlanCompact, 0, false)
	require.NoError(t, err, "the canceled plan does not block a new one")
	p.planIs(m, PlanDone)
}

// A backup path must be absolute and outside the data directory.
func TestBackupPaths(t *testing.T) { synctest.Test(t, testBackupPaths) }

func testBackupPaths(t *testing.T) {
	p := newPair(t)
	m := p.manager()
	for path, want := range map[string]error{
		"": ErrNoBackupPath, "backups": ErrSetting, "../b": ErrSetting,
		"/data/../within": ErrSetting,
	} {
		_, err := m.Backup(t.Context(), BackupRequest{Path: path}, nil)
		require.ErrorIs(t, err, want, path)
		_, err = m.Backups(t.Context(), path)
		require.ErrorIs(t, err, want, path)
	}
}

// A backup path inside the data directory is rejected, regardless of its name and of whether it exists.
func TestBackupPathInDataDir(t *testing.T) { synctest.Test(t, testBackupPathInDataDir) }

func testBackupPathInDataDir(t *testing.T) {
	p, root := newPair(t), t.TempDir()
	data, alongside := filepath.Join(root, "data"), filepath.Join(root, "data-backups")
	require.NoError(t, os.MkdirAll(data, 0o700))
	require.NoError(t, os.Symlink(data, filepath.Join(root, "link")))
	m, err := New(Options{Store: p.store, Node: p, Peers: p, FS: memfs.New(), DataDir: data})
	require.NoError(t, err)
	for _, path := range []string{
		data, filepath.Join(data, "sets"), filepath.Join(root, "link"),
		filepath.Join(root, "link", "sets", "deep"), data + "/../data/x",
	} {
		_, err := m.checkBackupPath(path)
		require.ErrorIs(t, err, ErrSetting, path)
		_, err = m.Update(t.Context(), Change{BackupPath: &path})
		require.ErrorIs(t, err, ErrSetting, path)
	}
	for _, path := range []string{root, alongside, filepath.Join(alongside, "sets"), data + "/../sets"} {
		_, err := m.checkBackupPath(path)
		require.NoError(t, err, path)
	}
	_, err = m.Update(t.Context(), Change{BackupPath: &alongside})
	require.NoError(t, err)
}

// Each node restarts once. The plan waits for each restart, and the active role moves to the other node and back.
func TestRestartPlan(t *testing.T) { synctest.Test(t, testRestartPlan) }

func testRestartPlan(t *testing.T) {
	p := newPair(t)
	var asked atomic.Int32
	p.restart = func() (bool, error) {
		switch asked.Add(1) % 3 {
		case 1:
			return false, nil // the restart is pending
		case 2:
			return false, ErrUnreachable // the node is restarting
		}
		return true, nil
	}
	m := p.manager()
	_, err := m.StartPlan(t.Context(), PlanRestart, 8192, true)
	require.NoError(t, err)
	plan := p.planIs(m, PlanDone)
	require.Zero(t, plan.PageSize)
	require.Len(t, plan.Done, 2)
	require.Equal(t, int32(6), asked.Load())
	require.Zero(t, plan.Retries, "an unreachable node is not a failure")
	require.Equal(t, 2, p.handovers)
}

// A requested restart counts as done only when another process runs.
func TestRestartOnce(t *testing.T) { synctest.Test(t, testRestartOnce) }

func testRestartOnce(t *testing.T) {
	p := newPair(t)
	fs, restarts := memfs.New(), 0
	open := func() *Manager {
		m, err := New(Options{Store: p.store, Node: p, Peers: p, FS: fs, DataDir: "/", Restart: func() { restarts++ }})
		require.NoError(t, err)
		return m
	}
	m := open()
	_, err := m.Restart(t.Context(), "plan")
	require.ErrorIs(t, err, ErrRole, "it is active")
	p.set(func() { p.role, p.serving = failover.RoleStandby, false })
	done, err := m.Restart(t.Context(), "plan")
	require.NoError(t, err, "the node does not follow yet")
	require.False(t, done)
	require.Zero(t, restarts)
	p.follows(m)
	for want := 1; want <= 2; want++ {
		done, err := m.Restart(t.Context(), "plan")
		require.NoError(t, err)
		require.False(t, done)
		require.Equal(t, want, restarts)
	}
	m = open()
	done, err = m.Restart(t.Context(), "plan")
	require.NoError(t, err)
	require.True(t, done)
	require.Equal(t, 2, restarts)
	_, err = m.Restart(t.Context(), "")
	require.ErrorIs(t, err, ErrSetting)
}

// On a node that cannot restart itself, a manual restart after the request counts as the requested restart.
func TestManualRestart(t *testing.T) { synctest.Test(t, testManualRestart) }

func testManualRestart(t *testing.T) {
	p, fs := newPair(t), memfs.New()
	open := func() *Manager {
		m, err := New(Options{Store: p.store, Node: p, Peers: p, FS: fs, DataDir: "/"})
		require.NoError(t, err)
		p.follows(m)
		return m
	}
	m := open()
	for range 2 {
		done, err := m.Restart(t.Context(), "plan")
		require.ErrorIs(t, err, ErrRole)
		require.False(t, done)
	}
	done, err := open().Restart(t.Context(), "plan")
	require.NoError(t, err)
	require.True(t, done)
}
