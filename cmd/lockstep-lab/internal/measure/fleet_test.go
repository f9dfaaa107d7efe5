// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
)

// The derived throughput is the sum of the messages per CPU second of the nodes of each pair.
func TestFleetDerive(t *testing.T) {
	alone := FleetResult{Setup: "pair", Pairs: 1, Messages: 1000, Processes: []bench.Usage{
		{Name: "client", CPU: 0.5},
		{Name: "pair-1/a", CPU: 0.75},
		{Name: "pair-1/b", CPU: 0.25},
	}}
	require.NoError(t, alone.derive(1000))
	require.InDelta(t, 1000, alone.Derived, 1e-9)
	require.InDelta(t, 500, alone.ClientCPU, 1e-9)
	alone.CompareFleet(&alone)
	require.InDelta(t, 1, alone.Ratio, 1e-9)
	require.Zero(t, alone.Goal)

	fleet := FleetResult{Setup: "fleet", Pairs: 3, Messages: 3000, Processes: []bench.Usage{
		{Name: "client", CPU: 3},
		{Name: "pair-1/a", CPU: 1, System: 0.25},
		{Name: "pair-1/b", CPU: 1},
		{Name: "pair-2/a", CPU: 1},
		{Name: "pair-3/b", CPU: 0.5},
	}}
	require.NoError(t, fleet.derive(1000))
	require.Equal(t, []PairCPU{
		{Pair: "pair-1", Messages: 1000, CPU: 2, PerMessage: 2000, SystemPerMessage: 250},
		{Pair: "pair-2", Messages: 1000, CPU: 1, PerMessage: 1000},
		{Pair: "pair-3", Messages: 1000, CPU: 0.5, PerMessage: 500},
	}, fleet.PairCPU)
	require.InDelta(t, 1000, fleet.ClientCPU, 1e-9)
	fleet.CompareFleet(&alone)
	require.InDelta(t, 3.5, fleet.Ratio, 1e-9)
	require.InDelta(t, 2.8, fleet.Goal, 1e-9)

	fleet.Processes = fleet.Processes[:4]
	require.ErrorIs(t, fleet.derive(1000), errNoCPUTime)
}

func TestMedianFleet(t *testing.T) {
	m := MedianFleet([]FleetResult{
		{Round: 1, Ratio: 2.9, Derived: 1},
		{Round: 2, Ratio: 2.5, Derived: 2},
		{Round: 3, Ratio: 2.7, Derived: 3},
	})
	require.Equal(t, FleetResult{Round: 3, Ratio: 2.7, Derived: 3, Median: true, RatioMin: 2.5, RatioMax: 2.9}, m)
	m = MedianFleet([]FleetResult{{Round: 1, Ratio: 1, Derived: 9}, {Round: 2, Ratio: 1, Derived: 3}})
	require.Equal(t, 2, m.Round)
}
