// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

// In a paused pair, the standby does not take over when the active is killed, a requested switchover is executed, and a
// restarted active continues. If the active is down when the pair is resumed, the standby takes over.
func TestPausedPair(t *testing.T) {
	p := start(t, cluster.Options{})
	w := work(t, p, cluster.WorkloadOptions{Seed: seed(t)})
	active, standby := inSync(t, p)
	setPaused := func(n *cluster.Node, paused bool) {
		_, err := pb.NewAdminServiceClient(n.Conn()).SetPaused(limited(t),
			&pb.SetPausedRequest{Paused: paused, Reason: "a test"})
		require.NoError(t, err)
	}
	setPaused(standby, true)
	require.NoError(t, p.Wait(limited(t), "the pause on both nodes", func(a, b *pb.GetStatusResponse) bool {
		return a.GetPair().GetPaused().GetReason() == "a test" && b.GetPair().GetPaused() != nil
	}))
	acked(t, w)

	stays := eventsOf(t, standby)
	require.NoError(t, active.Kill())
	stays.condition(conditions.ActiveUnreachable)
	s, err := standby.Status(limited(t))
	require.NoError(t, err)
	require.Equal(t, pb.Role_ROLE_STANDBY.String(), s.GetRole().String(), s.GetReason())
	require.Contains(t, s.GetReason(), "lockstep resume")
	stays.never(logSize(t, standby), activeRoles()...)
	require.NoError(t, active.Start())
	acked(t, w)

	now, _ := inSync(t, p)
	require.Equal(t, active.Name, now.Name, "the role must not change")
	stays.never(logSize(t, standby), activeRoles()...)
	_, err = pb.NewAdminServiceClient(active.Conn()).Switchover(limited(t), &pb.SwitchoverRequest{})
	require.NoError(t, err)
	now, other := inSync(t, p)
	require.Equal(t, standby.Name, now.Name)
	stays.role(failover.RoleActivating, failover.CodeSwitchover)
	acked(t, w)

	stays = eventsOf(t, other)
	require.NoError(t, now.Kill())
	stays.condition(conditions.ActiveUnreachable)
	stays.never(logSize(t, other), activeRoles()...)
	setPaused(other, false)
	stays.takeovers(gone()...)
	acked(t, w)
	require.NoError(t, now.Start())
	verify(t, p, w)
}
