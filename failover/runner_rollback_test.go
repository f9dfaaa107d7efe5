// SPDX-License-Identifier: Apache-2.0

package failover_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/memory"
)

// rolledBackPair returns an in-sync pair. Its coordinator was restored to a state before the standby was in sync.
func rolledBackPair(t *testing.T) (*pair, *memory.Server) {
	t.Helper()
	p, s := memoryPair(t)
	p.hub.marks = true
	p.start(0, failover.Settings{})
	p.nodes[0].awaitRole(failover.RoleActiveAlone)
	image := s.Image()
	p.start(1, failover.Settings{})
	p.nodes[0].awaitRole(failover.RoleActive)
	p.nodes[1].awaitRole(failover.RoleStandby)
	c := s.Connect()
	defer c.Close()
	require.Eventually(t, func() bool {
		m, err := c.LoadMark(t.Context())
		return err == nil && m.LSN > 0
	}, bound, 5*time.Millisecond, "no mark was written")
	s.Restore(image)
	return p, s
}

// adoptAfterRollback restarts both nodes, and checks that they wait until one of them has adopted the record (INV-9).
func adoptAfterRollback(t *testing.T, p *pair, by int) {
	t.Helper()
	for i, n := range p.nodes {
		n.end()
		p.start(i, failover.Settings{})
	}
	var above failover.Fence
	for _, n := range p.nodes {
		n.await("waiting for adoption", func(s failover.Status) bool {
			return s.Role == failover.RoleRecovering && strings.Contains(s.Reason, "lockstep pair adopt")
		})
		if f := n.plane.Identity().Fence; above.Less(f) {
			above = f
		}
	}
	found, err := p.nodes[by].run.Find(t.Context())
	require.NoError(t, err)
	rec, err := p.nodes[by].run.Adopt(t.Context(), failover.AdoptRequest{Found: found, Above: above, AcceptLoss: true})
	require.NoError(t, err)
	require.True(t, above.Less(rec.Fence()), "%v is not above %v", rec.Fence(), above)
	p.nodes[by].awaitRole(failover.RoleActive)
	p.nodes[1-by].awaitRole(failover.RoleStandby)
}

// INV-9: the coordinator of a running pair is restored to an older state. The active continues while the standby
// acknowledges. Without the standby, it blocks: the coordinator's record differs from the pair's state, so no node may
// be removed from in_sync.
func TestCoordinatorRolledBackStandbyFails(t *testing.T) {
	synctest.Test(t, testCoordinatorRolledBackStandbyFails)
}

func testCoordinatorRolledBackStandbyFails(t *testing.T) {
	p, s := rolledBackPair(t)
	c := s.Connect()
	defer c.Close()
	before, _, err := c.Load(t.Context())
	require.NoError(t, err)
	require.Equal(t, failover.RoleActive, p.nodes[0].run.Status().Role)
	p.kill(1)
	p.nodes[0].await("blocked with the reason", func(s failover.Status) bool {
		return s.Role == failover.RoleBlocked && strings.Contains(s.Reason, "config")
	})
	after, _, err := c.Load(t.Context())
	require.NoError(t, err)
	require.Equal(t, before, after, "the restored record was used")
	p.start(1, failover.Settings{})
	adoptAfterRollback(t, p, 0)
}

// INV-9: when the active fails, the standby does not take over with a record below its fence.
func TestCoordinatorRolledBackActiveFails(t *testing.T) {
	synctest.Test(t, testCoordinatorRolledBackActiveFails)
}

func testCoordinatorRolledBackActiveFails(t *testing.T) {
	p, s := rolledBackPair(t)
	c := s.Connect()
	defer c.Close()
	before, _, err := c.Load(t.Context())
	require.NoError(t, err)
	p.kill(0)
	p.nodes[1].await("waiting with the reason", func(s failover.Status) bool {
		return s.Role != failover.RoleStandby && strings.Contains(s.Reason, "config")
	})
	after, _, err := c.Load(t.Context())
	require.NoError(t, err)
	require.Equal(t, before, after, "the restored record was used")
	p.start(0, failover.Settings{})
	adoptAfterRollback(t, p, 1)
}

// After the coordinator was restored, the active writes its mark again, and marks later commits.
func TestMarkAfterCoordinatorRollback(t *testing.T) {
	synctest.Test(t, testMarkAfterCoordinatorRollback)
}

func testMarkAfterCoordinatorRollback(t *testing.T) {
	p, s := rolledBackPair(t)
	c := s.Connect()
	defer c.Close()
	p.hub.mu.Lock()
	for _, pl := range p.hub.planes {
		pl.id.End.LSN += 10
	}
	want := p.nodes[0].plane.id.End.LSN
	p.hub.mu.Unlock()
	require.Eventually(t, func() bool {
		m, err := c.LoadMark(t.Context())
		return err == nil && m.LSN >= want
	}, bound, 5*time.Millisecond, "the mark was not written again")
}
