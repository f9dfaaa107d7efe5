// SPDX-License-Identifier: Apache-2.0

package pair

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover/coordinator/raft"
)

// A voter that does not respond to the leader, for example after a disk wipe, is not reported as a follower.
func TestRoleOf(t *testing.T) {
	now := time.Now()
	require.Equal(t, "leader", roleOf(raft.Member{Leader: true, Voter: true, LastContact: now}, now))
	require.Equal(t, "follower", roleOf(raft.Member{Voter: true, LastContact: now.Add(-time.Second)}, now))
	require.Equal(t, "catching up", roleOf(raft.Member{LastContact: now}, now))
	for _, m := range []raft.Member{{Voter: true}, {Voter: true, LastContact: now.Add(-time.Minute)}} {
		require.Contains(t, roleOf(m, now), "lockstep pair replace")
	}
}
