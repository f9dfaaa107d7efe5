// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A standby of a paused pair takes over only when the pair is resumed.
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

// A delayed record that lists this node as active has no effect while the node follows an active of a later term. The
// data plane would reject the activation, and the node would stop.
func TestLateRecordIsNotActedOn(t *testing.T) {
	r := newRig(t, Settings{})
	rec := recordWith(1, 1, 0)
	r.start(usedIdentity(), rec, 0, 1)
	r.report(FollowerConnected{Config: rec.Config, Term: rec.Term})
	r.report(FollowerLost{Cause: LostRejected})
	r.report(FollowerConnected{Config: rec.Config + 3, Term: rec.Term + 2})

	late := rec
	late.Config, late.Term, late.Active, late.OpID = rec.Config+1, rec.Term+1, testNodes[0].ID, "handed over"
	requireNo[StartActive](t, r.seeRecord(late, 101))
	requireNo[SwapRecord](t, r.after(time.Hour))
	now := recordWith(1, 1, 0)
	now.Config, now.Term, now.OpID = rec.Config+3, rec.Term+2, "withdrawn"
	requireNo[StartActive](t, r.seeRecord(now, 103))
	require.Equal(t, RoleStandby, r.s.Role())
}

// A feature is usable when both nodes support it, according to their current announcements.
func TestMissingFeature(t *testing.T) {
	var st Status
	_, lacks := st.MissingFeature(FeatureAttributes)
	require.False(t, lacks, "without a record there is no other node")
	rec := withFeatures(recordWith(0, 0, 1))
	st.Record = &rec
	_, lacks = st.MissingFeature(FeatureAttributes)
	require.False(t, lacks)
	rec.Nodes[1].Features, rec.Nodes[1].Version = FeaturePause+" "+FeatureGenerations, "0.1.1"
	lack, lacks := st.MissingFeature(FeatureAttributes)
	require.True(t, lacks)
	require.False(t, lack.Unknown())
	for _, part := range []string{"runs 0.1.1", "which harms", "lockstep restart"} {
		require.Contains(t, lack.Message("harms"), part)
	}
	now := rec.Nodes[1]
	now.Features = KnownFeatures()
	st.Live = []Live{{Node: now}}
	_, lacks = st.MissingFeature(FeatureAttributes)
	require.False(t, lacks, "the other node was upgraded")

	rec.Nodes, st.Live = rec.Nodes[:1], nil // in sync before its announcement is visible
	lack, lacks = st.MissingFeature(FeatureAttributes)
	require.True(t, lacks)
	require.True(t, lack.Unknown())
	require.Contains(t, lack.Message("harms"), rec.InSync[1].Node.String())
	require.NotContains(t, lack.Message("harms"), "upgrade")
}
