// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"testing"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	"github.com/stretchr/testify/require"
)

func collect(results *[]bench.Result) func(bench.Result) error {
	return func(r bench.Result) error {
		*results = append(*results, r)
		return nil
	}
}

func TestQueues(t *testing.T) {
	var results []bench.Result
	err := Queues(t.Context(), QueuesOptions{
		EmbeddedOptions: EmbeddedOptions{Dir: t.TempDir(), SizeBytes: 50, Batch: 10, Sync: "off"}, Queues: 1500,
		Messages: 2000, Slices: 2,
	}, collect(&results))
	require.NoError(t, err)
	require.Len(t, results, 5)
	for i, phase := range []string{"create", "one each", "one queue", "round robin", "start"} {
		require.Equal(t, phase, results[i].Phase)
	}
	require.Equal(t, 2*2000, results[3].Messages)
	require.Positive(t, results[3].Ratio)
	require.Positive(t, results[4].StartMS)
	require.Greater(t, results[4].QueueBytes, 50.0, "a queue has at least its name in memory")
}

func TestGrowth(t *testing.T) {
	var results []bench.Result
	err := Growth(t.Context(), GrowthOptions{
		EmbeddedOptions: EmbeddedOptions{Dir: t.TempDir(), SizeBytes: 50, Batch: 10, Sync: "off"},
		Levels:          []int{100, 2000}, Messages: 50, Acks: 50, Slices: 3,
	}, collect(&results))
	require.NoError(t, err)
	require.Len(t, results, 4)
	require.Equal(t, []string{"publish", "publish", "ack random", "ack random"},
		[]string{results[0].Phase, results[1].Phase, results[2].Phase, results[3].Phase})
	require.Equal(t, 2000, results[1].Stored)
	require.Equal(t, 150, results[1].Messages)
	require.Equal(t, 99, results[2].Messages, "each message is acknowledged once, and the slices have the same length")
	require.Equal(t, 150, results[3].Messages)
	require.Positive(t, results[3].Ratio)
}

func TestRandomOrder(t *testing.T) {
	order := randomOrder(1000, 1000)
	seen := map[uint64]bool{}
	for _, v := range order {
		require.False(t, seen[v])
		require.True(t, v >= 1 && v <= 1000)
		seen[v] = true
	}
	require.Len(t, randomOrder(1_000_000, 10), 10)
}
