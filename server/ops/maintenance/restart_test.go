// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// A node is not stopped if it would fail to start again. If the active would fail to start again, a restart plan
// does not start.
func TestRestartIsChecked(t *testing.T) {
	p, restarts := newPair(t), 0
	invalid := errors.New("limts is not a setting")
	m, err := New(Options{
		Store: p.store, Node: p, Peers: p, FS: memfs.New(), DataDir: "/", Restart: func() { restarts++ },
		CheckRestart: func(context.Context) error { return invalid },
	})
	require.NoError(t, err)
	_, err = m.StartPlan(t.Context(), PlanRestart, 0, false)
	require.ErrorIs(t, err, ErrSetting)
	require.ErrorIs(t, err, invalid)
	plan, err := m.Plan()
	require.NoError(t, err)
	require.Nil(t, plan)

	p.set(func() { p.role, p.serving = failover.RoleStandby, false })
	p.follows(m)
	for range 2 {
		done, err := m.Restart(t.Context(), "plan")
		require.ErrorIs(t, err, ErrSetting)
		require.False(t, done)
	}
	require.Zero(t, restarts)
	invalid = nil
	done, err := m.Restart(t.Context(), "plan")
	require.NoError(t, err)
	require.False(t, done)
	require.Equal(t, 1, restarts)
}

// A restart plan fails immediately if the other node would fail to start again.
func TestRestartRefused(t *testing.T) {
	p := newPair(t)
	p.restart = func() (bool, error) { return false, ErrSetting }
	m := p.manager()
	_, err := m.StartPlan(t.Context(), PlanRestart, 0, false)
	require.NoError(t, err)
	plan := p.planIs(m, PlanFailed)
	require.Empty(t, plan.Done)
	require.Zero(t, p.handovers)
}
