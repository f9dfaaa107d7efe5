// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

const (
	raftRounds = 12
	raftTime   = 25 * time.Second
)

// TestChaosRaft is like TestChaosKill, but the coordinator is a raft quorum of the two nodes and a witness. Faults
// also affect the witness.
func TestChaosRaft(t *testing.T) {
	t.Parallel() // mostly idle
	rounds, limit := length(t)
	if limit == defaultTime {
		rounds, limit = min(rounds, raftRounds), raftTime
	}
	s := seed(t)
	k := newKiller(t, rand.New(rand.NewPCG(s, 7)), cluster.Options{Raft: true, Settings: map[string]string{
		"checkpoint.bytes": "1MiB", "wal.segment-bytes": "1MiB", "wal.keep-bytes": "64KiB",
		"disk.stall-timeout": matrixStall,
	}})
	k.run(s, rounds, limit)
}

// A pair in sync continues without a quorum, but changes no roles. Without its standby, the active blocks until a
// voter returns.
func TestRaftWithoutWitness(t *testing.T) {
	t.Parallel() // mostly idle
	p := start(t, cluster.Options{Raft: true})
	w := work(t, p, cluster.WorkloadOptions{Seed: seed(t)})
	active, standby := inSync(t, p)

	require.NoError(t, p.Witness.Kill())
	for range 3 {
		acked(t, w) // the nodes are a quorum
	}
	leads := eventsOf(t, active)
	require.NoError(t, standby.Kill())
	// The active is one of three voters, so it cannot drop the standby.
	leads.role(failover.RoleBlocked, gone()...)
	witnessless := logSize(t, active)
	require.NoError(t, p.Witness.Start())
	require.Greater(t, leads.dropped(gone()...).End, witnessless)
	acked(t, w)
	require.NoError(t, standby.Start())
	inSync(t, p)

	waits := eventsOf(t, standby)
	require.NoError(t, p.Witness.Kill())
	require.NoError(t, active.Kill())
	waits.condition(conditions.CoordinatorLost)
	// The standby may be a candidate until it detects the witness's failure.
	waits.never(logSize(t, standby), failover.RoleActivating, failover.RoleActive, failover.RoleActiveAlone)
	require.NoError(t, active.Start())
	acked(t, w)
	require.NoError(t, p.Witness.Start())
	verify(t, p, w)
}

// After all processes are killed together and restarted, with the witness last, the pair is in sync again.
func TestRaftAllKilled(t *testing.T) {
	t.Parallel() // mostly idle
	p := start(t, cluster.Options{Raft: true})
	w := work(t, p, cluster.WorkloadOptions{Seed: seed(t)})
	acked(t, w)
	all := []*cluster.Node{p.A, p.B, p.Witness}
	for _, n := range all {
		require.NoError(t, n.Kill())
	}
	for _, n := range all {
		require.NoError(t, n.Start())
	}
	acked(t, w)
	verify(t, p, w)
}

// A witness that lost its disk returns as a new voter. An operator's command replaces the previous voter with it.
func TestWitnessLosesItsDisk(t *testing.T) {
	t.Parallel() // mostly idle
	p := start(t, cluster.Options{Raft: true})
	w := work(t, p, cluster.WorkloadOptions{Seed: seed(t)})
	acked(t, w)
	require.NoError(t, p.Witness.Kill())
	require.NoError(t, os.RemoveAll(p.Witness.DataDir()))
	require.NoError(t, p.Witness.Start())
	acked(t, w)
	out, err := p.Command(limited(t), "pair", "replace", p.Witness.Address, p.Witness.Address, "--voters",
		p.Voters())
	require.NoError(t, err, "%s", out)
	// The witness is one of three voters again, so the pair tolerates a failure of the active.
	active, _ := inSync(t, p)
	takes := eventsOf(t, p.Other(active))
	since := w.History().Now()
	require.NoError(t, active.Kill())
	takes.takeovers(gone()...)
	ackedSince(t, w, since, active)
	require.NoError(t, active.Start())
	verify(t, p, w)
	require.FileExists(t, filepath.Join(p.Witness.Dir, "node.log"))
}
