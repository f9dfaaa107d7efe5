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

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

const (
	raftRounds = 12
	raftTime   = 25 * time.Second
)

// TestChaosRaft is TestChaosKill with the two nodes and a witness for a coordinator; the witness is struck, too.
func TestChaosRaft(t *testing.T) {
	t.Parallel() // it mostly waits
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

// TestRaftWithoutWitness: a pair in sync needs no coordinator to go on; without one it changes no roles, and blocks
// rather than acknowledge alone; what comes back lets it go on.
func TestRaftWithoutWitness(t *testing.T) {
	t.Parallel() // it mostly waits
	p := start(t, cluster.Options{Raft: true})
	w := work(t, p, cluster.WorkloadOptions{Seed: seed(t)})
	active, standby := inSync(t, p)

	require.NoError(t, p.Witness.Kill())
	for range 3 {
		acked(t, w, ackBound) // the nodes are a quorum
	}
	require.NoError(t, standby.Kill())
	quiet(t, w) // one of three voters: it cannot say that the standby is out
	require.NoError(t, p.WaitRole(limited(t), active, pb.Role_ROLE_BLOCKED))
	require.NoError(t, p.Witness.Start())
	acked(t, w, bound)
	require.NoError(t, standby.Start())
	inSync(t, p)

	require.NoError(t, p.Witness.Kill())
	require.NoError(t, active.Kill())
	quiet(t, w) // no node may take over
	require.NoError(t, active.Start())
	acked(t, w, bound)
	require.NoError(t, p.Witness.Start())
	verify(t, p, w)
}

// TestRaftAllKilled: everything is killed at once and comes back, the witness last.
func TestRaftAllKilled(t *testing.T) {
	t.Parallel() // it mostly waits
	p := start(t, cluster.Options{Raft: true})
	w := work(t, p, cluster.WorkloadOptions{Seed: seed(t)})
	acked(t, w, ackBound)
	all := []*cluster.Node{p.A, p.B, p.Witness}
	for _, n := range all {
		require.NoError(t, n.Kill())
	}
	for _, n := range all {
		require.NoError(t, n.Start())
	}
	acked(t, w, bound)
	verify(t, p, w)
}

// TestWitnessLosesItsDisk: it comes back as another voter, which is not taken for the one before until an operator says
// so.
func TestWitnessLosesItsDisk(t *testing.T) {
	t.Parallel() // it mostly waits
	p := start(t, cluster.Options{Raft: true})
	w := work(t, p, cluster.WorkloadOptions{Seed: seed(t)})
	acked(t, w, ackBound)
	require.NoError(t, p.Witness.Kill())
	require.NoError(t, os.RemoveAll(p.Witness.DataDir()))
	require.NoError(t, p.Witness.Start())
	acked(t, w, ackBound)
	out, err := p.Command(limited(t), "pair", "replace", p.Witness.Address, p.Witness.Address, "--voters",
		p.Voters())
	require.NoError(t, err, "%s", out)
	// Now it is one of three again: the active may die.
	active, _ := inSync(t, p)
	since := w.History().Now()
	require.NoError(t, active.Kill())
	ackedSince(t, w, since, active, bound)
	require.NoError(t, active.Start())
	verify(t, p, w)
	require.FileExists(t, filepath.Join(p.Witness.Dir, "node.log"))
}
