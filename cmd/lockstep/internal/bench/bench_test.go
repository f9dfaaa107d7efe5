package bench

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestStore(t *testing.T) {
	var results []Result
	err := Store(t.Context(), StoreOptions{Dir: t.TempDir(), SizeBytes: 100, Messages: 1001, Bursts: 2, Batch: 7, Sync: "off"}, func(r Result) error {
		results = append(results, r)
		return nil
	})
	require.NoError(t, err)
	require.Len(t, results, 4)
	for i, r := range results {
		require.Equal(t, []string{"write", "read"}[i%2], r.Phase)
		require.Equal(t, []int{500, 501}[i/2], r.Messages)
		require.Positive(t, r.Rate)
		require.LessOrEqual(t, r.P50, r.Max)
		require.Positive(t, r.RSS)
	}
	require.Error(t, Store(t.Context(), StoreOptions{Dir: t.TempDir(), Sync: "sometimes"}, nil))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, Store(ctx, StoreOptions{Dir: t.TempDir(), Messages: 1, Bursts: 1, Batch: 1, Sync: "off"}, nil), context.Canceled)
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
