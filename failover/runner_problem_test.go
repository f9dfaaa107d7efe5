// SPDX-License-Identifier: Apache-2.0

package failover_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
)

// If the record of a running pair is lost or reverted, both nodes keep their roles, and their status has the problem
// until the record returns.
func TestProblemOfRunningPair(t *testing.T) { synctest.Test(t, testProblemOfRunningPair) }

func testProblemOfRunningPair(t *testing.T) {
	p, s := memoryPair(t)
	p.start(0, failover.Settings{})
	p.nodes[0].awaitRole(failover.RoleActiveAlone)
	old := s.Image()
	p.start(1, failover.Settings{})
	a, b := p.nodes[0], p.nodes[1]
	a.await("record with both nodes", func(st failover.Status) bool { return len(st.Record.Nodes) == 2 })
	time.Sleep(time.Second) //nolint:forbidigo // simulated time
	current := s.Image()
	require.Empty(t, a.run.Status().Problem)
	require.Empty(t, b.run.Status().Problem)

	for _, change := range []func(){s.Forget, func() { s.Restore(old) }} {
		s.SetDown(true)
		time.Sleep(time.Second) //nolint:forbidigo // simulated time
		change()
		s.SetDown(false)
		for n, role := range map[*node]failover.Role{a: failover.RoleActive, b: failover.RoleStandby} {
			st := n.await("problem", func(st failover.Status) bool { return st.Problem != "" })
			require.Equal(t, role, st.Role)
		}
		s.Restore(current)
		for _, n := range p.nodes {
			n.await("no problem", func(st failover.Status) bool { return st.Problem == "" })
		}
	}
}
