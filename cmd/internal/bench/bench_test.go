// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestStore(t *testing.T) {
	var results []Result
	err := Store(t.Context(), StoreOptions{
		EmbeddedOptions: EmbeddedOptions{Dir: t.TempDir(), SizeBytes: 100, Batch: 7, Sync: "off"}, Messages: 501,
		Bursts: 2, Warm: true, Far: true,
	}, func(r Result) error {
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
	bursts := []Result{{Rate: 90}, {Rate: 110}, {Rate: 5}, {Rate: 5}, {Rate: 80}, {Rate: 80}, {Rate: 70}, {Rate: 90}}
	ratio, ok := Trend(bursts)
	require.True(t, ok)
	require.InDelta(t, 0.8, ratio, 1e-9)
	_, ok = Trend(bursts[:3])
	require.False(t, ok)
}

func TestMedian(t *testing.T) {
	m := Median([]Result{{Round: 1, Rate: 30}, {Round: 2, Rate: 10}, {Round: 3, Rate: 20}})
	require.True(t, m.Median)
	require.Equal(t, 3, m.Round)
	require.InDelta(t, 10, m.RateMin, 0)
	require.InDelta(t, 30, m.RateMax, 0)
}

func TestLatencies(t *testing.T) {
	h := newHistogram()
	for i := range 1000 {
		record(h, time.Duration(i+1)*time.Millisecond)
	}
	record(h, time.Hour)
	record(h, 0)
	r := Result{SizeBytes: 1000}
	r.took(2*time.Second, 1000, h)
	require.InDelta(t, 500, r.P50, 2)
	require.InDelta(t, 990, r.P99, 2)
	require.InDelta(t, 300_000, r.Max, 300)
	require.InDelta(t, 500, r.Rate, 0)
	require.InDelta(t, 0.5, r.MB, 0)
}
