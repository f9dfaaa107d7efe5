// SPDX-License-Identifier: Apache-2.0

package failover_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
)

// After the active has failed, a standby that is not in sync waits. A forced failover makes it active, and the old
// active follows when it returns.
func TestForce(t *testing.T) { synctest.Test(t, testForce) }

func testForce(t *testing.T) {
	p, _ := memoryPair(t)
	p.both(failover.Settings{})
	p.kill(1)
	p.nodes[0].awaitRole(failover.RoleActiveAlone)
	p.hub.mu.Lock()
	p.nodes[1].plane.id.Incarnation++ // the standby returned too late to be in sync
	p.hub.mu.Unlock()
	req := failover.ForceRequest{By: "ann", Reason: "a test"}
	_, err := p.nodes[0].run.Force(t.Context(), req)
	require.ErrorIs(t, err, failover.ErrForce, "the node is active")
	p.kill(0)
	p.start(1, failover.Settings{})
	st := p.nodes[1].await("the active is disconnected", func(s failover.Status) bool {
		return s.Role == failover.RoleCatchingUp && s.CoordinatorReachable && len(s.Live) == 1
	})
	require.Contains(t, st.Reason, "--dry-run ")
	req.Config = st.Record.Config - 1
	_, err = p.nodes[1].run.Force(t.Context(), req)
	require.ErrorIs(t, err, failover.ErrForce)
	require.Contains(t, err.Error(), "changed")
	req.Config++
	rec, err := p.nodes[1].run.Force(t.Context(), req)
	require.NoError(t, err)
	require.Equal(t, p.nodes[1].plane.id.Node, rec.Active)
	require.Equal(t, st.Record.Term+1, rec.Term)
	require.Equal(t, "ann", rec.Forced.By)
	p.nodes[1].awaitRole(failover.RoleActiveAlone)
	p.hub.mu.Lock()
	calls := slices.Clone(p.nodes[1].plane.calls)
	p.hub.mu.Unlock()
	at := slices.Index(calls, "start-active")
	require.Equal(t, []string{"stop-follower", "fence", "fence"}, calls[at-3:at], "INV-4, INV-1")

	p.start(0, failover.Settings{})
	p.nodes[0].awaitRole(failover.RoleStandby)
	st = p.nodes[1].awaitRole(failover.RoleActive)
	require.True(t, st.Record.Forced.Settled)
	p.hub.mu.Lock()
	spec := p.nodes[0].plane.follow
	p.hub.mu.Unlock()
	require.Equal(t, rec.Forced, spec.Forced)
}

// A preferred node that returns receives the role after the delay, but not while failback is blocked.
func TestFailback(t *testing.T) { synctest.Test(t, testFailback) }

func testFailback(t *testing.T) {
	const delay = 300 * time.Millisecond
	p, _ := memoryPair(t)
	preferred, other := failover.Settings{Preferred: true, FailbackDelay: delay},
		failover.Settings{FailbackDelay: delay}
	p.start(0, preferred)
	p.nodes[0].awaitRole(failover.RoleActiveAlone)
	p.start(1, other)
	p.nodes[0].awaitRole(failover.RoleActive)
	p.nodes[1].awaitRole(failover.RoleStandby)
	require.Zero(t, p.nodes[0].run.Status().FailbackAt)

	p.kill(0)
	p.nodes[1].awaitRole(failover.RoleActiveAlone)
	p.nodes[1].run.BlockFailback("a plan runs")
	p.start(0, preferred)
	st := p.nodes[1].awaitRole(failover.RoleActive)
	require.Zero(t, st.FailbackAt)
	free := time.Now()
	p.nodes[1].run.BlockFailback("")
	p.nodes[1].await("announced", func(s failover.Status) bool {
		return !s.FailbackAt.IsZero() ||
			s.Role != failover.RoleActive
	})
	p.nodes[0].awaitRole(failover.RoleActive)
	require.Equal(t, delay, time.Since(free))
	p.nodes[1].awaitRole(failover.RoleStandby)
	require.Equal(t, st.Record.Term+1, p.nodes[0].run.Status().Record.Term)
}
