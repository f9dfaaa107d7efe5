// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestStalledActiveKeepsItsStandbyInSync: the standby goes away because it was not heard from, in order to take over;
// an active that can write nothing must not be faster and take it out of the in-sync set, for then no node could serve.
// When the disk answers again, it may.
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
