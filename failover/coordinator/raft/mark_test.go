// SPDX-License-Identifier: Apache-2.0

package raft_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/raft"
	"github.com/lockstep-mq/lockstep/test/coordtest"
)

// writeMark retries a write until the leader has received a hello from every voter.
func writeMark(t *testing.T, k *raft.Coordinator, m failover.Mark) {
	t.Helper()
	var err error
	if !awaitTrue(func() bool { _, err = k.WriteMark(timed(t), m); return err == nil }) {
		require.NoError(t, err)
	}
}

// A mark is durable: it is in the voters' logs and in their snapshots.
func TestMarkOutlivesRestart(t *testing.T) { simulate(t, testMarkOutlivesRestart) }

func testMarkOutlivesRestart(t *testing.T) {
	c := startCluster(t)
	mark := failover.Mark{By: 1, Term: 1, LSN: 70}
	k := c.voters[nodeA].Connect()
	_, err := k.Swap(timed(t), 0, coordtest.SampleRecord("op1"))
	require.NoError(t, err)
	writeMark(t, k, failover.Mark{By: 1, Term: 1, LSN: 60})
	for _, name := range names() {
		require.True(t, awaitTrue(func() bool { return c.voters[name].TakeSnapshot() == nil }),
			"%s has applied nothing", name)
	}
	writeMark(t, k, mark)
	require.NoError(t, k.Close())
	for round := range 2 {
		for _, name := range names() {
			c.stop(name)
		}
		for _, name := range names() {
			c.start(name)
		}
		k := c.voters[nodeB].Connect()
		got, err := k.LoadMark(timed(t))
		require.NoError(t, err)
		require.Equal(t, mark, got)
		require.NoError(t, k.Close())
		c.awaitLeader(witness)
		if round == 0 { // in the second round, voters start from a snapshot that contains the mark
			for _, name := range names() {
				require.True(t, awaitTrue(func() bool { return c.voters[name].TakeSnapshot() == nil }),
					"%s has applied nothing new", name)
			}
		}
	}
}

// No mark is written while a voter's release may not support marks. The first mark permanently proves that all voters
// support them.
func TestMarkWaitsForOldVoters(t *testing.T) { simulate(t, testMarkWaitsForOldVoters) }

func testMarkWaitsForOldVoters(t *testing.T) {
	old := nodeB
	c := newCluster(t, func(o *raft.Options) {
		if o.Advertise == old {
			*o = o.Older()
		}
	})
	for _, name := range names() {
		c.start(name)
	}
	c.awaitLeader(witness)
	k := c.connect(nodeA)
	_, err := k.Swap(timed(t), 0, coordtest.SampleRecord("op1"))
	require.NoError(t, err)
	require.True(t, awaitTrue(func() bool {
		_, err = k.WriteMark(timed(t), failover.Mark{By: 1, Term: 1, LSN: 5})
		require.Error(t, err)
		return errors.Is(err, failover.ErrRefused) && contains(err.Error(), nodeB+" has an older release")
	}), "%v", err)
	got, err := k.LoadMark(timed(t))
	require.NoError(t, err)
	require.Equal(t, failover.Mark{}, got)

	c.stop(nodeB)
	old = ""
	c.start(nodeB)
	writeMark(t, k, failover.Mark{By: 1, Term: 1, LSN: 6})
	c.stop(nodeB) // marks are also written while a voter is stopped
	writeMark(t, k, failover.Mark{By: 1, Term: 1, LSN: 7})
	got, err = k.LoadMark(timed(t))
	require.NoError(t, err)
	require.Equal(t, failover.Mark{By: 1, Term: 1, LSN: 7}, got)
}
