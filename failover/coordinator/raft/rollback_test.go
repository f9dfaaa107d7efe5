// SPDX-License-Identifier: Apache-2.0

package raft_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/raft"
	"github.com/lockstep-mq/lockstep/test/coordtest"
)

// image stops a voter and returns a copy of its disk.
func (c *cluster) image(name string) string {
	c.t.Helper()
	c.stop(name)
	dir := c.t.TempDir()
	require.NoError(c.t, os.CopyFS(dir, os.DirFS(c.options(name).Dir)))
	return dir
}

// rollBack stops a voter and restores its disk.
func (c *cluster) rollBack(name, image string) {
	c.t.Helper()
	c.stop(name)
	dir := c.options(name).Dir
	require.NoError(c.t, os.RemoveAll(dir))
	require.NoError(c.t, os.CopyFS(dir, os.DirFS(image)))
}

// awaitFenced waits until a voter has detected that its disk was restored.
func (c *cluster) awaitFenced(name string) {
	c.t.Helper()
	require.True(c.t, awaitTrue(func() bool { return c.voters[name].Status().Fenced == raft.FencedRolledBack }),
		"%s was not fenced after its disk was restored: %+v", name, c.voters[name].Status())
	require.False(c.t, c.voters[name].Status().Member)
}

// awaitSame waits until all running voters have the same log, and each voter's progress is recorded by another
// voter. The loss of an entry is only detected if the voter has acknowledged the entry.
func (c *cluster) awaitSame() {
	c.t.Helper()
	require.True(c.t, awaitTrue(func() bool {
		last := make(map[uint64]bool)
		for _, v := range c.voters {
			s := v.Status()
			last[s.LastIndex] = true
			if !c.hasRecordedProgress(s.ID, s.LastIndex) {
				return false
			}
		}
		return len(last) == 1
	}), "the voters' logs differ")
}

// hasRecordedProgress reports whether a voter has recorded that the voter with this ID has an entry.
func (c *cluster) hasRecordedProgress(id string, index uint64) bool {
	c.t.Helper()
	for _, v := range c.voters {
		known, err := v.RecordedProgress(id)
		require.NoError(c.t, err)
		if known >= index && v.ID() != id {
			return true
		}
	}
	return false
}

// awaitCondition waits until a node reports a condition of a voter.
func (c *cluster) awaitCondition(at, kind, describe string) {
	c.t.Helper()
	k := c.voters[at].Connect()
	defer k.Close()
	var last []failover.Condition
	for o := range k.Watch(timed(c.t)) {
		last = o.Conditions
		for _, n := range last {
			if n.Kind == kind && strings.Contains(n.Details, describe) {
				return
			}
		}
	}
	require.Fail(c.t, "condition not reported", "%s about %s at %s: %+v", kind, describe, at, last)
}

// A node reports conditions for a missing voter and for a voter with a lost disk, and none when all are healthy.
func TestVoterConditions(t *testing.T) { simulate(t, testVoterConditions) }

func testVoterConditions(t *testing.T) {
	c := startCluster(t)
	k := c.connect(nodeA)
	for o := range k.Watch(timed(t)) {
		if o.Reachable && o.LiveKnown && len(o.Conditions) == 0 {
			break
		}
	}
	c.stop(witness)
	c.awaitCondition(nodeA, failover.ConditionVoterMissing, witness)
	c.stop(nodeB) // without a majority
	c.awaitCondition(nodeA, failover.ConditionVoterMissing, nodeB)
	c.start(nodeB)
	c.wipe(witness)
	fresh := c.start(witness)
	c.awaitCondition(nodeA, failover.ConditionVoterWiped, "lockstep pair replace")
	c.awaitCondition(witness, failover.ConditionVoterWiped, fresh.ID())
	_, err := c.voters[nodeA].Replace(timed(t), witness, witness)
	require.NoError(t, err)
	for o := range k.Watch(timed(t)) {
		if o.Reachable && len(o.Conditions) == 0 {
			return
		}
	}
	require.Fail(t, "a condition remains")
}

// swapNext replaces the current record.
func swapNext(t *testing.T, v *raft.Voter, op string) failover.Record {
	t.Helper()
	k := v.Connect()
	defer k.Close()
	rec, rev, err := k.Load(timed(t))
	if err != nil {
		require.ErrorIs(t, err, failover.ErrNoRecord)
		rec = coordtest.SampleRecord(op)
	}
	rec.Config, rec.OpID = rec.Config+1, op
	_, err = k.Swap(timed(t), rev, rec)
	require.NoError(t, err)
	return rec
}

// A voter with a restored disk is fenced, reports the rollback, and has a vote again after it was replaced.
func TestRolledBackVoter(t *testing.T) {
	t.Parallel()
	for _, name := range names() {
		t.Run(name[:1], func(t *testing.T) {
			simulate(t, func(t *testing.T) { testRolledBackVoter(t, name) })
		})
	}
}

func testRolledBackVoter(t *testing.T, name string) {
	t.Helper()
	c := startCluster(t)
	other := map[string]string{nodeA: nodeB, nodeB: nodeA, witness: nodeA}[name]
	swapNext(t, c.voters[other], "op1")
	image := c.image(name)
	id := c.start(name).ID()
	c.awaitLeader(witness)
	rec := swapNext(t, c.voters[other], "op2")
	c.awaitSame()
	c.rollBack(name, image)
	v := c.start(name)
	require.Equal(t, id, v.ID())
	c.awaitFenced(name)
	c.awaitProblem(name, "was restored from an older copy")
	require.Contains(t, v.Status().Problem, "pair replace "+id+" "+name)
	c.awaitProblem(other, "disk of the voter at "+name+" was restored")
	for _, at := range []string{name, other} {
		c.awaitCondition(at, failover.ConditionVoterRolledBack, name)
	}

	// The node of the fenced voter can still use the coordinator.
	k := c.connect(name)
	got, _, err := k.Load(timed(t))
	require.NoError(t, err)
	require.Equal(t, rec, got)
	require.NoError(t, k.Close())

	// The fenced voter has no vote: if another voter is stopped, the cluster has no majority. The same applies after a
	// restart if only one other voter is running.
	third := map[string]string{nodeA: witness, nodeB: witness, witness: nodeB}[name]
	c.stop(third)
	c.stop(name)
	v = c.start(name)
	c.awaitFenced(name)
	reader := c.connect(other)
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, _, err = reader.Load(short)
	require.ErrorIs(t, err, failover.ErrUnreachable)
	require.NotEqual(t, "Leader", c.voters[other].Status().State)
	require.Equal(t, raft.FencedRolledBack, v.Status().Fenced)
	c.start(third)

	c.stop(name)
	c.wipe(name)
	fresh := c.start(name)
	_, err = c.voters[other].Replace(timed(t), id, name)
	require.NoError(t, err)
	require.True(t, awaitTrue(func() bool { s := fresh.Status(); return s.Member && s.Problem == "" }), "%+v",
		fresh.Status())
}

// While all three voters are stopped, one of the two with the newest record is restored to an older state. It starts
// together with the voter that never had the record, and the third voter starts later. The record is not lost.
func TestRolledBackKeepsRecord(t *testing.T) { simulate(t, testRolledBackKeepsRecord) }

func testRolledBackKeepsRecord(t *testing.T) {
	c := newCluster(t, func(o *raft.Options) { o.RequestTimeout = 4 * time.Second })
	for _, name := range names() {
		c.start(name)
	}
	c.awaitLeader(witness)
	var history []porcupine.Operation
	var clock atomic.Int64
	client := 0
	use := func(name string) { // a few operations of a separate client
		client++
		k := c.voters[name].Connect()
		defer k.Close()
		done := 0
		for i := 0; done < 3; i++ {
			require.Less(t, i, 50, "no swap succeeds")
			swapOnce(k, fmt.Sprintf("%d/%d", client, i), &clock, func(in input, out output, call int64) {
				ret := clock.Add(1)
				if out.unknown {
					ret = 1<<63 - 1
				}
				if out.ok {
					done++
				}
				history = append(history, porcupine.Operation{
					ClientId: client, Input: in, Output: out, Call: call, Return: ret,
				})
			})
		}
	}
	for _, pair := range [][2]string{{nodeA, nodeB}, {nodeB, nodeA}} {
		name, outdated := pair[0], pair[1]
		use(outdated)
		image := c.image(name)
		id := c.start(name).ID()
		c.awaitLeader(witness)
		c.net.isolate(outdated, true)
		use(witness)
		for _, n := range names() {
			c.stop(n)
		}
		c.net.isolate(outdated, false)
		c.rollBack(name, image)
		old, behind := c.start(name), c.start(outdated)
		require.Never(t, func() bool { // its last poll may still run when it returns
			return old.Status().State == "Leader" || behind.Status().State == "Leader"
		}, 1500*time.Millisecond, 5*time.Millisecond, "voters without the newest record have elected a leader")
		c.start(witness)
		c.awaitFenced(name)
		use(outdated)
		c.stop(name)
		c.wipe(name)
		c.start(name)
		_, err := c.voters[outdated].Replace(timed(t), id, name)
		require.NoError(t, err)
		c.awaitLeader(witness)
	}
	require.Equal(t, porcupine.Ok, porcupine.CheckOperationsTimeout(model(), history, time.Minute),
		"the history of loads and swaps is not linearizable")
}

// If two of three voters are restored to an older state, the third voter detects the rollback, and keeps its state.
func TestTwoVotersRolledBack(t *testing.T) { simulate(t, testTwoVotersRolledBack) }

func testTwoVotersRolledBack(t *testing.T) {
	c := startCluster(t)
	swapNext(t, c.voters[nodeA], "op1")
	images := map[string]string{}
	for _, name := range []string{nodeA, nodeB} {
		images[name] = c.image(name)
		c.start(name)
		c.awaitLeader(witness)
	}
	rec := swapNext(t, c.voters[nodeA], "op2")
	c.awaitSame()
	for name, image := range images {
		c.rollBack(name, image)
	}
	for name := range images {
		c.start(name)
	}
	for name := range images {
		c.awaitFenced(name)
	}
	c.awaitProblem(witness, "lockstep pair recover-quorum")
	require.True(t, awaitTrue(func() bool { return c.voters[witness].Status().State != "Leader" }))

	dir := c.options(witness).Dir
	for _, name := range names() {
		c.stop(name)
	}
	_, err := raft.Recover(raft.RecoverOptions{Dir: dir})
	require.NoError(t, err)
	c.start(witness)
	c.awaitLeader(witness)
	k := c.connect(witness)
	got, _, err := k.Load(timed(t))
	require.NoError(t, err)
	require.Equal(t, rec, got)
}

// If all three voters are restored to the same point in time, no voter can detect the rollback, and all continue
// from there. (The nodes detect the rollback: INV-9.)
func TestAllVotersRolledBack(t *testing.T) { simulate(t, testAllVotersRolledBack) }

func testAllVotersRolledBack(t *testing.T) {
	c := startCluster(t)
	rec := swapNext(t, c.voters[nodeA], "op1")
	c.awaitSame()
	images := map[string]string{}
	for _, name := range names() {
		c.stop(name)
	}
	for _, name := range names() {
		images[name] = c.image(name)
	}
	for _, name := range names() {
		c.start(name)
	}
	c.awaitLeader(witness)
	swapNext(t, c.voters[nodeA], "op2")
	for name, image := range images {
		c.rollBack(name, image)
	}
	for _, name := range names() {
		c.start(name)
	}
	c.awaitLeader(witness)
	k := c.connect(nodeA)
	got, _, err := k.Load(timed(t))
	require.NoError(t, err)
	require.Equal(t, rec, got)
}

// A starting voter does not participate before another voter has sent its hello. Two voters suffice.
func TestStartPollsOthers(t *testing.T) { simulate(t, testStartPollsOthers) }

func testStartPollsOthers(t *testing.T) {
	c := startCluster(t)
	swapNext(t, c.voters[nodeA], "op1")
	for _, name := range names() {
		c.stop(name)
	}
	a := c.start(nodeA)
	require.Never(t, func() bool { return a.Status().State != "Follower" }, time.Second, 5*time.Millisecond,
		"a voter alone starts an election")
	c.start(nodeB)
	swapNext(t, a, "op2")
	swapNext(t, c.voters[nodeB], "op3")
}

// A voter that knows of a rollback, but did not respond at the start, rejects the connection later, and no messages are
// exchanged.
func TestHandshakeDetectsRollback(t *testing.T) { simulate(t, testHandshakeDetectsRollback) }

func testHandshakeDetectsRollback(t *testing.T) {
	c := startCluster(t)
	a, b := c.voters[nodeA], c.voters[nodeB]
	require.NoError(t, a.HandshakeFrom(b.ID(), 0))
	rejected := func(err error, part string) {
		t.Helper()
		require.Error(t, err)
		require.Contains(t, err.Error(), part)
	}
	rejected(a.HandshakeFrom(b.ID(), 1000), "this voter")
	c.awaitFenced(nodeA)
	rejected(a.HandshakeFrom(b.ID(), 0), "is fenced")
	// Conversely, b has recorded the former progress of a, from a or, a moment later, from the leader.
	require.Eventually(t, func() bool { return b.HandshakeBy(a.ID()) != nil }, time.Minute, 5*time.Millisecond)
	rejected(b.HandshakeBy(a.ID()), "connecting voter")
}
