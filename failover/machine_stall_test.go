// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A standby disconnects from an active with a stalled disk in order to take over. The active does not remove it from
// in_sync while the disk is stalled, because then no node could serve.
func TestStalledActiveKeepsItsStandbyInSync(t *testing.T) {
	r := activePair(t, Settings{})
	requireNo[SwapRecord](t, r.report(DiskStalled{Stalled: true}))
	requireNo[SwapRecord](t, r.report(StandbyLost{Node: testNodes[1].ID, Cause: LostReset}))
	requireNo[SwapRecord](t, r.after(time.Minute))
	require.Equal(t, RoleBlocked, r.s.Role())
	require.True(t, r.s.act.sent.RequireStandby)
	swap := effect[SwapRecord](t, r.report(DiskStalled{}))
	require.Equal(t, []Member{memberOf(0)}, swap.Next.InSync)
}
