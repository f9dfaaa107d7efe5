// SPDX-License-Identifier: Apache-2.0

package raft_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/raft"
	"github.com/lockstep-mq/lockstep/test/coordtest"
)

// A response to a message that was sent before a read does not confirm the leader.
func TestReadNeedsNewResponses(t *testing.T) { simulate(t, testReadNeedsNewResponses) }

func testReadNeedsNewResponses(t *testing.T) {
	c := startCluster(t)
	k := c.connect(witness)
	_, err := k.Swap(timed(t), 0, coordtest.SampleRecord("op1"))
	require.NoError(t, err)
	const late = 100 * time.Millisecond // shorter than the election timeout
	load := func(limit time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		_, _, err := k.Load(ctx)
		return err
	}
	for _, name := range []string{nodeA, nodeB} {
		c.net.delay(name, witness, late)
	}
	require.NoError(t, load(bound))

	// This read makes the witness send heartbeats. The other voters receive them, and their responses are in flight.
	first := make(chan error, 1)
	go func() { first <- load(late / 2) }()
	<-time.After(5 * latency)
	synctest.Wait()
	for _, name := range []string{nodeA, nodeB} {
		c.net.hold(witness, name, true)
	}
	before := c.lastContact()
	require.ErrorIs(t, load(late+late/2), failover.ErrUnreachable)
	require.True(t, c.lastContact().After(before), "no response has arrived during the read")
	require.Equal(t, "Leader", c.voters[witness].Status().State)
	require.ErrorIs(t, <-first, failover.ErrUnreachable)

	for _, name := range []string{nodeA, nodeB} {
		c.net.hold(witness, name, false)
		c.net.delay(name, witness, latency)
	}
	require.NoError(t, load(bound))
}

// lastContact returns the time of the last response to the witness.
func (c *cluster) lastContact() (last time.Time) {
	for _, m := range c.voters[witness].Status().Voters {
		if m.Address != witness && m.LastContact.After(last) {
			last = m.LastContact
		}
	}
	return last
}

// A removal is rejected if too few of the remaining voters respond; a voter that has just stopped does not count.
func TestRemoveAfterStop(t *testing.T) { simulate(t, testRemoveAfterStop) }

func testRemoveAfterStop(t *testing.T) {
	c := startCluster(t)
	w := c.voters[witness]
	term := w.Status().Term
	c.stop(nodeA)
	require.ErrorIs(t, w.Remove(timed(t), nodeB), raft.ErrMembership)
	_, err := w.Replace(timed(t), nodeB, nodeB)
	require.NoError(t, err, "a voter that is its own replacement is not removed")
	c.start(spare)
	_, err = w.Replace(timed(t), nodeB, spare)
	require.ErrorIs(t, err, raft.ErrMembership)

	members, err := w.Members(timed(t))
	require.NoError(t, err)
	require.Len(t, members, 3)
	swapNext(t, w, "op1")
	require.Equal(t, "Leader", w.Status().State)
	require.Equal(t, term, w.Status().Term, "the leader has changed")

	require.NoError(t, w.Remove(timed(t), nodeA), "the other two voters respond")
	swapNext(t, w, "op2")
}

// The leader is isolated after it has sent a removal, and before it has received a response. The removal succeeds when
// the leader is connected again.
func TestRemoveInterrupted(t *testing.T) { simulate(t, testRemoveInterrupted) }

func testRemoveInterrupted(t *testing.T) {
	c := startCluster(t)
	a, b := c.voters[nodeA], c.voters[nodeB]
	c.net.delay(nodeA, witness, 100*time.Millisecond)
	removed := make(chan error, 1)
	go func() { removed <- a.Remove(timed(t), b.ID()) }()
	require.Eventually(t, func() bool { return len(a.Status().Voters) == 2 }, bound, latency)
	c.net.isolate(witness, true)
	require.Eventually(t, func() bool { return c.voters[witness].Status().State != "Leader" }, bound, latency)
	c.net.isolate(witness, false)
	c.net.delay(nodeA, witness, latency)
	require.NoError(t, <-removed)
	members, err := a.Members(timed(t))
	require.NoError(t, err)
	require.Len(t, members, 2)
	require.ErrorIs(t, a.Remove(timed(t), b.ID()), raft.ErrNotMember)
}
