// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"testing"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	"github.com/stretchr/testify/require"
)

func TestStore(t *testing.T) {
	var results []bench.Result
	err := Store(t.Context(), StoreOptions{
		EmbeddedOptions: EmbeddedOptions{Dir: t.TempDir(), SizeBytes: 100, Batch: 7, Sync: "off"}, Messages: 501,
		Bursts: 2, Warm: true, Far: true,
	}, func(r bench.Result) error {
		results = append(results, r)
		return nil
	})
	require.NoError(t, err)
	require.Len(t, results, 6)
	for i, r := range results[:4] {
		require.Equal(t, []string{"write", "read"}[i%2], r.Phase)
		require.Equal(t, 501, r.Messages)
		require.Equal(t, i/2*501, r.Stored)
		require.Positive(t, r.Rate)
		require.LessOrEqual(t, r.P50, r.Max)
		require.Positive(t, r.RSS)
	}
	start, far := results[4], results[5]
	require.Equal(t, "start", start.Phase)
	require.Positive(t, start.StartMS)
	require.Equal(t, "read far", far.Phase)
	require.Equal(t, 1002, far.Messages)
	require.Positive(t, far.DiskReadMB)
	require.Positive(t, far.Ratio)
	require.Error(t, Store(t.Context(), StoreOptions{EmbeddedOptions: EmbeddedOptions{
		Dir:  t.TempDir(),
		Sync: "sometimes",
	}}, nil))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, Store(ctx, StoreOptions{
		EmbeddedOptions: EmbeddedOptions{Dir: t.TempDir(), Batch: 1, Sync: "off"}, Messages: 1, Bursts: 1,
	}, nil), context.Canceled)
}

func TestTrend(t *testing.T) {
	bursts := []bench.Result{{Rate: 90}, {Rate: 110}, {Rate: 5}, {Rate: 5}, {Rate: 80}, {Rate: 80}, {Rate: 70}, {Rate: 90}}
	ratio, ok := Trend(bursts)
	require.True(t, ok)
	require.InDelta(t, 0.8, ratio, 1e-9)
	_, ok = Trend(bursts[:3])
	require.False(t, ok)
}
