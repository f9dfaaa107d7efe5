// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
)

// The preferred node becomes active again when it has been in sync for the delay. A pause of the pair, or a
// rewrite of the node's page file, postpones the failback. The status of the active contains the time of the
// failback.
func TestFailback(t *testing.T) { simulated(t, testFailback) }

func testFailback(t *testing.T) {
	p := startMaintenancePair(t)
	for _, n := range p.nodes {
		n.config.Failover.FailbackDelay = config.Duration(2 * time.Second)
	}
	p.nodes[1].config.Failover.Preferred = true
	p.restart(1)
	p.nodes[0].waitFor(pb.Role_ROLE_ACTIVE)
	p.restart(0) // the delay starts
	p.nodes[1].waitFor(pb.Role_ROLE_ACTIVE)
	require.Nil(t, p.nodes[1].status().GetPair().GetFailbackAt(), "the preferred node is active")
	pause := func(n *testNode, paused bool) {
		_, err := n.admin.SetPaused(t.Context(), &pb.SetPausedRequest{Paused: paused})
		require.NoError(t, err)
	}
	p.nodes[1].stop()
	p.nodes[0].waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	pause(p.nodes[0], true)
	p.restart(1)
	a, b := p.nodes[0], p.nodes[1]
	a.waitFor(pb.Role_ROLE_ACTIVE)
	require.Nil(t, a.status().GetPair().GetFailbackAt(), "paused")

	reached := p.barriers[1].block()
	var done sync.WaitGroup
	var err error
	done.Go(func() { _, _, err = b.rewrite(&pb.RewriteRequest{PageSize: 16384}) })
	<-reached
	pause(a, false)
	announced := func() bool { return a.status().GetPair().GetFailbackAt() != nil }
	require.Eventually(t, announced, testTimeout, time.Millisecond)
	require.Eventually(t, func() bool { return !announced() }, testTimeout, time.Millisecond, "the standby is busy")
	require.Equal(t, pb.Role_ROLE_ACTIVE, a.role())
	p.barriers[1].release()
	done.Wait()
	require.NoError(t, err)
	require.Eventually(t, announced, testTimeout, time.Millisecond)
	b.waitFor(pb.Role_ROLE_ACTIVE)
	a.waitFor(pb.Role_ROLE_STANDBY)
}
