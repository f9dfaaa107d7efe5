// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A delayed watch reports a missing record after this node has created the first one. Only a read determines whether
// the record is lost.
func TestLateWatchAtFirstStart(t *testing.T) {
	missing := Observed{Observation: Observation{Reachable: true, Missing: true, LiveKnown: true}}
	r := newRig(t, Settings{})
	id := usedIdentity()
	id = Identity{Node: id.Node, Store: id.Store, Incarnation: 1, Generation: id.Generation}
	r.step(Started{Identity: id})
	r.observe(true, 0)
	swap := effect[SwapRecord](t, r.step(Loaded{Err: ErrNoRecord}))
	r.won()
	effects := r.step(missing)
	require.NotContains(t, r.s.Reason(), "is missing")
	effect[LoadRecord](t, effects)
	r.step(Loaded{Record: swap.Next, Revision: r.s.rev})
	require.NotContains(t, r.s.Reason(), "is missing")

	effect[LoadRecord](t, r.step(missing))
	r.step(Loaded{Err: ErrNoRecord})
	require.Contains(t, r.s.problem, "is missing")
}
