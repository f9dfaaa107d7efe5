// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The work of a single goroutine limits larger machines, and the processors of the busier node limit smaller ones.
func TestSizing(t *testing.T) {
	sizes := sizing([]Section{
		{Node: "active", Function: "read", Goroutines: 5, CPU: 6, Ceiling: 5e6 / 6},
		{Node: "active", Function: runtimeSection, CPU: 2},
		{Node: "standby", Function: "receive", Goroutines: 1, CPU: 0.5, Ceiling: 2e6},
		{Node: "standby", Function: "pages", Goroutines: 1, CPU: 0.25, Ceiling: 4e6},
	})
	require.Equal(t, Size{Processors: 2, ByProcessors: 250_000, BySerial: 2e6, Limit: "active"}, sizes[0])
	require.Equal(t, Size{Processors: 16, ByProcessors: 2e6, BySerial: 2e6, Limit: "active"}, sizes[3])
	require.Equal(t, Size{Processors: 64, ByProcessors: 8e6, BySerial: 2e6, Limit: "receive"}, sizes[5])
	require.InDelta(t, 2e6, sizes[5].Rate(), 0)
	require.Len(t, sizes, 6)

	busy := sizing([]Section{
		{Node: "active", Function: "read", Goroutines: 1, CPU: 1, Ceiling: 1e6},
		{Node: "standby", Function: "receive", Goroutines: 2, CPU: 4, Ceiling: 5e5},
	})
	require.Equal(t, "standby", busy[0].Limit)
	require.InDelta(t, 500_000, busy[0].ByProcessors, 0)
	require.Empty(t, sizing(nil))
}
