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

// putBackPair is a pair in sync whose coordinator is then put back to before the standby was.
func putBackPair(t *testing.T) (*pair, *memory.Server) {
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
	s.PutBack(image)
	return p, s
}

// adoptAfterPutBack restarts both nodes: they wait, and go on when one of them has adopted the record (INV-9).
func adoptAfterPutBack(t *testing.T, p *pair, by int) {
	t.Helper()
	for i, n := range p.nodes {
		n.end()
		p.start(i, failover.Settings{})
	}
	var above failover.Fence
	for _, n := range p.nodes {
		n.await("it waits", func(s failover.Status) bool {
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

// INV-9: the coordinator is put back under a pair that runs. The active goes on as long as the standby acknowledges.
// Without it, the active blocks: what the coordinator says is not what the pair has agreed on, so that no client may be
// taken out of in_sync by it.
func TestCoordinatorPutBackStandbyDies(t *testing.T) {
	synctest.Test(t, testCoordinatorPutBackStandbyDies)
}

func testCoordinatorPutBackStandbyDies(t *testing.T) {
	p, s := putBackPair(t)
	c := s.Connect()
	defer c.Close()
	before, _, err := c.Load(t.Context())
	require.NoError(t, err)
	require.Equal(t, failover.RoleActive, p.nodes[0].run.Status().Role)
	p.kill(1)
	p.nodes[0].await("it blocks and says why", func(s failover.Status) bool {
		return s.Role == failover.RoleBlocked && strings.Contains(s.Reason, "config")
	})
	after, _, err := c.Load(t.Context())
	require.NoError(t, err)
	require.Equal(t, before, after, "the record that was put back was built on")
	p.start(1, failover.Settings{})
	adoptAfterPutBack(t, p, 0)
}

// INV-9: and when the active dies, the standby does not take over by a record that is older than what it has obeyed.
func TestCoordinatorPutBackActiveDies(t *testing.T) {
	synctest.Test(t, testCoordinatorPutBackActiveDies)
}

func testCoordinatorPutBackActiveDies(t *testing.T) {
	p, s := putBackPair(t)
	c := s.Connect()
	defer c.Close()
	before, _, err := c.Load(t.Context())
	require.NoError(t, err)
	p.kill(0)
	p.nodes[1].await("it says why it waits", func(s failover.Status) bool {
		return s.Role != failover.RoleStandby && strings.Contains(s.Reason, "config")
	})
	after, _, err := c.Load(t.Context())
	require.NoError(t, err)
	require.Equal(t, before, after, "the record that was put back was built on")
	p.start(0, failover.Settings{})
	adoptAfterPutBack(t, p, 1)
}

// The active writes its mark again when the coordinator was put back: what it commits from then on is marked as before.
func TestMarkAfterCoordinatorPutBack(t *testing.T) { synctest.Test(t, testMarkAfterCoordinatorPutBack) }

func testMarkAfterCoordinatorPutBack(t *testing.T) {
	p, s := putBackPair(t)
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
