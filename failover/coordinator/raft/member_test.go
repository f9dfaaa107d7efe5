// SPDX-License-Identifier: Apache-2.0

package raft_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/raft"
	"github.com/lockstep-mq/lockstep/test/coordtest"
)

// A cluster is formed only when all three voters are running.
func TestFormsOnlyWithAllVoters(t *testing.T) { simulate(t, testFormsOnlyWithAllVoters) }

func testFormsOnlyWithAllVoters(t *testing.T) {
	c := newCluster(t, nil)
	c.start(nodeA)
	c.start(nodeB)
	c.awaitProblem(nodeA, "the voter at w.test:1 does not respond")
	require.Empty(t, c.voters[nodeA].Status().Voters)
	c.start(witness)
	c.awaitLeader(witness)
	require.Eventually(t, func() bool { return c.voters[nodeA].Status().Problem == "" }, bound, time.Millisecond)
	require.Eventually(t, func() bool {
		members, err := c.voters[nodeB].Members(timed(t))
		require.NoError(t, err)
		require.Len(t, members, 3)
		good := 0
		for _, m := range members {
			require.Equal(t, m.Address == witness, m.Kind == raft.KindWitness)
			if m.Leader == (m.Address == witness) && m.Voter && !m.LastContact.IsZero() {
				good++
			}
		}
		return good == 3
	}, bound, time.Millisecond)
}

func TestDifferentConfigurations(t *testing.T) { simulate(t, testDifferentConfigurations) }

func testDifferentConfigurations(t *testing.T) {
	c := newCluster(t, func(o *raft.Options) {
		if o.Advertise == nodeB {
			o.Voters = []string{nodeA, nodeB, spare}
		}
		if o.Advertise == witness {
			o.ElectionTimeout *= 2
		}
	})
	for _, name := range names() {
		c.start(name)
	}
	c.awaitProblem(nodeA, "has the voters")
	c.stop(nodeB)
	c.tune = nil
	c.start(nodeB)
	c.awaitProblem(nodeB, "use the same value")
}

// A voter that returns with an empty disk has no vote until an operator adds it, and never forms a second cluster.
func TestWipedVoter(t *testing.T) { simulate(t, testWipedVoter) }

func testWipedVoter(t *testing.T) {
	c := startCluster(t)
	b := c.connect(nodeB)
	rec := coordtest.SampleRecord("op1")
	rev, err := b.Swap(timed(t), 0, rec)
	require.NoError(t, err)
	old := c.voters[nodeA].ID()
	c.stop(nodeA)
	c.wipe(nodeA)
	fresh := c.start(nodeA)
	require.NotEqual(t, old, fresh.ID())
	c.awaitProblem(nodeA, "lockstep pair replace "+old+" "+nodeA)
	require.False(t, fresh.Status().Member)

	// The node of the wiped voter can still use the coordinator.
	a := c.connect(nodeA)
	got, at, err := a.Load(timed(t))
	require.NoError(t, err)
	require.Equal(t, rec, got)
	require.Equal(t, rev, at)

	// The fresh voter has no vote: without the witness, the cluster has no majority.
	c.stop(witness)
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, _, err = b.Load(short)
	require.ErrorIs(t, err, failover.ErrUnreachable)
	_, err = c.voters[nodeB].Replace(short, old, nodeA)
	require.ErrorIs(t, err, raft.ErrNoQuorum)
	require.Empty(t, fresh.Status().Voters)
	c.start(witness)

	m, err := fresh.Replace(timed(t), old, nodeA) // requested from the voter to be replaced
	require.NoError(t, err)
	require.Equal(t, fresh.ID(), m.ID)
	_, err = fresh.Replace(timed(t), old, nodeA)
	require.NoError(t, err, "the replacement is idempotent")
	require.Eventually(t, func() bool { s := fresh.Status(); return s.Member && s.Problem == "" }, bound,
		time.Millisecond)
	c.stop(witness)
	rec.Config, rec.OpID = 2, "op2"
	_, err = a.Swap(timed(t), rev, rec)
	require.NoError(t, err, "the new voter has a vote now")
}

// A new voter receives a snapshot if the log no longer contains the first entries. A voter restarts from its snapshot.
func TestSnapshot(t *testing.T) { simulate(t, testSnapshot) }

func testSnapshot(t *testing.T) {
	c := startCluster(t)
	rec := coordtest.SampleRecord("op")
	k := c.voters[nodeB].Connect()
	var rev failover.Revision
	for i := range 100 {
		var err error
		rec.Config, rec.OpID = uint64(i+1), fmt.Sprint("op", i)
		rev, err = k.Swap(timed(t), rev, rec)
		require.NoError(t, err)
	}
	require.NoError(t, k.Close())
	for _, name := range names() {
		require.NoError(t, c.voters[name].TakeSnapshot())
	}
	old := c.voters[nodeA].ID()
	c.stop(nodeA)
	c.wipe(nodeA)
	c.start(nodeA)
	_, err := c.voters[nodeB].Replace(timed(t), old, nodeA)
	require.NoError(t, err)
	for _, name := range []string{witness, nodeB} {
		c.stop(name)
		c.start(name)
	}
	c.stop(witness)
	got, at, err := c.connect(nodeA).Load(timed(t))
	require.NoError(t, err)
	require.Equal(t, rec, got)
	require.Equal(t, rev, at)
}

// Two empty disks and one with data do not form a cluster.
func TestTwoWipedVotersFormNoCluster(t *testing.T) { simulate(t, testTwoWipedVotersFormNoCluster) }

func testTwoWipedVotersFormNoCluster(t *testing.T) {
	c := startCluster(t)
	for _, name := range names() {
		c.stop(name)
	}
	c.wipe(nodeA)
	c.wipe(witness)
	for _, name := range names() {
		c.start(name)
	}
	c.awaitProblem(nodeA, "lockstep pair replace")
	c.awaitProblem(witness, "lockstep pair replace")
	require.Empty(t, c.voters[nodeA].Status().Voters)
	require.Empty(t, c.voters[witness].Status().Voters)
	require.Empty(t, c.voters[nodeB].Status().LeaderID)
}

// Admin replaces a permanently lost witness with a witness at another address.
func TestReplaceWitness(t *testing.T) { simulate(t, testReplaceWitness) }

func testReplaceWitness(t *testing.T) {
	c := startCluster(t)
	b := c.connect(nodeB)
	rev, err := b.Swap(timed(t), 0, coordtest.SampleRecord("op1"))
	require.NoError(t, err)
	admin, err := raft.NewAdmin(raft.AdminOptions{
		Voters: []string{nodeA}, Dial: c.net.dialFrom("admin"), RequestTimeout: 500 * time.Millisecond,
	})
	require.NoError(t, err)
	defer admin.Close()

	c.start(spare)
	_, err = admin.Add(timed(t), spare)
	require.ErrorIs(t, err, raft.ErrMembership, "the cluster already has three voters")
	require.Contains(t, err.Error(), "replace one")
	_, err = admin.Replace(timed(t), "z.test:1", spare)
	require.ErrorIs(t, err, raft.ErrNotMember)
	_, err = admin.Replace(timed(t), witness, nodeB)
	require.ErrorIs(t, err, raft.ErrMembership, "another voter cannot be its replacement")
	_, err = admin.Replace(timed(t), witness, "z.test:1")
	require.Error(t, err)
	require.NotErrorIs(t, err, raft.ErrNotMember)
	require.Contains(t, err.Error(), "z.test:1")

	// Replace waits for a voter that is still starting.
	c.stop(spare)
	var m raft.Member
	replaced := make(chan struct{})
	go func() {
		defer close(replaced)
		m, err = admin.Replace(timed(t), witness, spare) // the witness is the leader, and must transfer the leadership
	}()
	c.start(spare)
	<-replaced
	require.NoError(t, err)
	require.Equal(t, spare, m.Address)
	require.Equal(t, raft.KindWitness, m.Kind)
	c.awaitProblem(witness, "was removed from the cluster")
	c.stop(witness)
	c.awaitLeader(spare)
	members, err := admin.Members(timed(t))
	require.NoError(t, err)
	require.Len(t, members, 3)
	s, err := admin.Status(timed(t), nodeA)
	require.NoError(t, err)
	require.Equal(t, spare, s.LeaderAddress)

	c.stop(nodeA)
	next := coordtest.SampleRecord("op2")
	_, err = b.Swap(timed(t), rev, next)
	require.NoError(t, err)
	err = c.voters[nodeB].Remove(timed(t), spare)
	require.ErrorIs(t, err, raft.ErrMembership, "no majority would remain")
}

func TestRemoveAndAdd(t *testing.T) { simulate(t, testRemoveAndAdd) }

func testRemoveAndAdd(t *testing.T) {
	c := startCluster(t)
	a := c.voters[nodeA]
	require.NoError(t, a.Remove(timed(t), c.voters[witness].ID()))
	require.ErrorIs(t, a.Remove(timed(t), nodeB), raft.ErrMembership)
	_, err := a.Add(timed(t), witness)
	require.ErrorIs(t, err, raft.ErrMembership)
	require.Contains(t, err.Error(), "the state")
	c.stop(witness)
	c.wipe(witness)
	c.start(witness)
	c.awaitProblem(witness, "lockstep pair add "+witness)
	_, err = a.Add(timed(t), witness)
	require.NoError(t, err)
	c.awaitLeader(witness)
}

// The quorum is recovered by force after two of three voters were lost. Voters that return are excluded.
func TestRecover(t *testing.T) { simulate(t, testRecover) }

func testRecover(t *testing.T) {
	c := startCluster(t)
	rec := coordtest.SampleRecord("op1")
	k := c.voters[nodeA].Connect()
	rev, err := k.Swap(timed(t), 0, rec)
	require.NoError(t, err)
	require.NoError(t, k.Close())
	dir, old := c.options(nodeB).Dir, c.voters[nodeB].ID()
	_, err = raft.Recover(raft.RecoverOptions{Dir: dir})
	require.ErrorIs(t, err, raft.ErrInUse)
	_, err = raft.Recover(raft.RecoverOptions{Dir: t.TempDir()})
	require.ErrorIs(t, err, raft.ErrNoState)
	require.Eventually(t, func() bool { // the last swap has reached this voter
		s := c.voters[nodeB].Status()
		return s.LastIndex == c.voters[witness].Status().LastIndex
	}, bound, time.Millisecond)
	for _, name := range names() {
		c.stop(name)
	}
	done, err := raft.Recover(raft.RecoverOptions{Dir: dir, By: "operator", Reason: "fire"})
	require.NoError(t, err)
	require.Equal(t, old, done.OldID)
	require.NotEqual(t, old, done.ID, "voters of the old cluster must not connect to the recovered one")
	require.Len(t, done.Lost, 2)
	marker, err := os.ReadFile(done.Marker)
	require.NoError(t, err)
	require.Contains(t, string(marker), `"reason": "fire"`)

	require.Equal(t, done.ID, c.start(nodeB).ID())
	c.awaitLeader(nodeB)
	b := c.connect(nodeB)
	got, at, err := b.Load(timed(t))
	require.NoError(t, err)
	require.Equal(t, rec, got)
	require.Greater(t, at, rev, "a revision that the lost voters may have assigned was used again")

	// The lost voters return, and detect that they are excluded, regardless of their disks.
	c.start(nodeA)
	c.start(witness)
	c.awaitProblem(nodeA, "quorum was recovered by force")
	c.awaitProblem(witness, "quorum was recovered by force")
	for _, name := range []string{nodeA, witness} {
		c.stop(name)
		c.wipe(name)
		c.start(name)
		_, err = c.voters[nodeB].Add(timed(t), name)
		require.NoError(t, err)
	}
	c.awaitLeader(witness)
	got, _, err = c.connect(nodeA).Load(timed(t))
	require.NoError(t, err)
	require.Equal(t, rec, got)
	require.Eventually(t, func() bool { // the other voters may have answered Load
		return c.voters[nodeA].Status().Recoveries == 1
	}, bound, time.Millisecond)
}
