package failover

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A standby of a paused pair stays one, whatever happens to the active, and takes over when the pair is resumed.
func TestPausedStandbyDoesNotTakeOver(t *testing.T) {
	for _, cause := range []LostCause{LostRefused, LostSilence, LostReset} {
		r := newRig(t, Settings{})
		rec := recordWith(1, 1, 0)
		rec.Paused = &Pause{Since: time.Unix(1, 0), Reason: "work on the network"}
		r.start(usedIdentity(), rec, 0, 1)
		r.report(FollowerConnected{Config: rec.Config, Term: rec.Term})
		requireNo[SwapRecord](t, r.report(FollowerLost{Cause: cause}))
		requireNo[SwapRecord](t, r.after(time.Hour))
		require.Contains(t, r.s.Reason(), "lockstep resume", "%v", cause)

		resumed := rec
		resumed.Config, resumed.OpID, resumed.Paused = rec.Config+1, "resume", nil
		effects := r.seeRecord(resumed, 200)
		effects = append(effects, r.after(time.Hour)...)
		require.NotEmpty(t, kinds(effects))
		require.Equal(t, RoleCandidate, r.s.Role(), "%v", cause)
	}
}
