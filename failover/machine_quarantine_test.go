// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

// quarantinedIdentity returns the identity of node 0 after its store was lost: empty, with a quarantine.
func quarantinedIdentity() Identity {
	id := usedIdentity()
	id.PairID, id.Fence, id.End = uuid.Nil, Fence{}, lsn.Position{}
	id.MayHaveLost, id.Quarantine = true, "damaged-1"
	return id
}

// A node that lost its identity is empty, but not new. Without a record, it waits.
func TestQuarantinedCreatesNoPair(t *testing.T) {
	r := newRig(t, Settings{})
	r.step(Started{Identity: quarantinedIdentity()})
	r.observe(true, 0)
	for range 3 {
		require.Empty(t, kinds(r.step(Loaded{Err: ErrNoRecord})))
		require.Equal(t, RoleRecovering, r.s.Role())
		require.ErrorIs(t, r.s.refused, ErrRecordLost)
		require.Contains(t, r.s.Reason(), "damaged-1")
		effect[LoadRecord](t, r.after(time.Second))
	}
}

// With a record, a node that lost its identity joins the record's pair as an empty node.
func TestQuarantinedFollows(t *testing.T) {
	r := newRig(t, Settings{})
	r.step(Started{Identity: quarantinedIdentity()})
	r.observe(true, 0, 1)
	effects := kinds(r.step(Loaded{Record: recordWith(1, 1), Revision: 7}))
	require.Contains(t, effects, "join")
	require.Contains(t, effects, "start-follower")
	require.NotContains(t, effects, "start-active")
	r.report(FollowerLost{Cause: LostRefused})
	require.Contains(t, r.s.Reason(), "damaged-1")
	for range 20 {
		require.NotContains(t, kinds(r.after(time.Second)), "start-active")
		require.NotContains(t, kinds(r.after(time.Second)), "swap")
	}
}
