// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A reconnected standby may read the record that adds it to in_sync before it receives the hello response. The earlier
// outage does not cause a takeover. The standby still takes over if the active does not respond for the failover
// timeout, or its process has terminated.
func TestAdmittedAfterAnOutage(t *testing.T) {
	admitted := func(t *testing.T, cause LostCause) *rig {
		t.Helper()
		r := standbyPair(t, Settings{})
		dropped := recordWith(1, 1)
		dropped.Config, dropped.OpID = 6, "dropped"
		requireNo[SwapRecord](t, r.seeRecord(dropped, 101))
		requireNo[SwapRecord](t, r.report(FollowerLost{Cause: cause}))
		requireNo[SwapRecord](t, r.after(time.Minute))
		again := recordWith(1, 0, 1)
		again.Config, again.OpID = 7, "again"
		effects := r.seeRecord(again, 102)
		requireNo[SwapRecord](t, effects)
		requireNo[StopFollower](t, effects)
		return r
	}
	for _, cause := range []LostCause{LostSilence, LostRefused} {
		t.Run(fmt.Sprint(cause), func(t *testing.T) {
			r := admitted(t, cause)
			requireNo[SwapRecord](t, r.after(r.s.set.FailoverTimeout-time.Millisecond))
			effect[SwapRecord](t, r.handshake(r.after(time.Millisecond)))

			r = admitted(t, cause)
			effect[SwapRecord](t, r.handshake(r.report(FollowerLost{Cause: LostRefused})))

			r = admitted(t, cause)
			r.report(FollowerConnected{Config: 7, Term: 2})
			requireNo[SwapRecord](t, r.after(time.Minute))
			require.Equal(t, RoleStandby, r.s.Role())
		})
	}
}
