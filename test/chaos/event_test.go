// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/test/cluster"
)

// TestFailoverEvents: a standby whose active is killed becomes a candidate, and then the active of a later term, with
// all of its log; and the other one follows it when it is back.
func TestFailoverEvents(t *testing.T) {
	t.Parallel() // it mostly waits
	p := start(t, cluster.Options{Settings: steady()})
	active, standby := inSync(t, p)
	becomes := func(role string) func(cluster.Event) bool {
		return func(e cluster.Event) bool { return e.Is("to", role) }
	}
	was, err := standby.WaitEvent(limited(t), 0, cluster.EventRole, becomes("STANDBY"))
	require.NoError(t, err)
	from := logged(t, active)
	require.NoError(t, active.Kill())
	candidate, err := standby.WaitEvent(limited(t), was.End, cluster.EventRole, becomes("CANDIDATE"))
	require.NoError(t, err)
	leads, err := standby.WaitEvent(limited(t), candidate.End, cluster.EventRole, becomes("ACTIVE_ALONE"))
	require.NoError(t, err)
	require.Greater(t, leads.Number("term"), candidate.Number("term"))
	require.GreaterOrEqual(t, leads.Number("lsn"), candidate.Number("lsn"))
	require.NoError(t, active.Start())
	back, err := active.WaitEvent(limited(t), from, cluster.EventRole, becomes("STANDBY"))
	require.NoError(t, err)
	require.Equal(t, leads.Number("term"), back.Number("term"))
}
