// SPDX-License-Identifier: Apache-2.0

package pair

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/failover/coordinator/raft"
)

// A voter that does not respond to the leader, for example after a disk wipe, is not reported as a follower.
func TestRoleOf(t *testing.T) {
	now := time.Now()
	require.Equal(t, "leader", roleOf(raft.Member{Leader: true, Voter: true, LastContact: now}, now))
	require.Equal(t, "follower", roleOf(raft.Member{Voter: true, LastContact: now.Add(-time.Second)}, now))
	require.Equal(t, "catching up", roleOf(raft.Member{LastContact: now}, now))
	for _, m := range []raft.Member{{Voter: true}, {Voter: true, LastContact: now.Add(-time.Minute)}} {
		require.Contains(t, roleOf(m, now), "pair replace")
	}
}

// The time since the last contact is computed with the clock of the leader.
func TestLastContact(t *testing.T) {
	var b bytes.Buffer
	p, err := output.New(&b, "table")
	require.NoError(t, err)
	leader := time.Now().Add(time.Hour)
	require.NoError(t, printVoters(&cli.Env{Print: p}, []raft.Member{
		{ID: "1", Leader: true, Voter: true, LastContact: leader},
		{ID: "2", Voter: true, LastContact: leader.Add(-time.Second)},
	}))
	require.Regexp(t, `leader +0s ago`, b.String())
	require.Regexp(t, `follower +1s ago`, b.String())
}
