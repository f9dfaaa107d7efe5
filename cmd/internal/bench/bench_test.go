// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMedian(t *testing.T) {
	m := Median([]Result{{Round: 1, Rate: 30}, {Round: 2, Rate: 10}, {Round: 3, Rate: 20}})
	require.True(t, m.Median)
	require.Equal(t, 3, m.Round)
	require.InDelta(t, 10, m.RateMin, 0)
	require.InDelta(t, 30, m.RateMax, 0)
}

func TestLatencies(t *testing.T) {
	h := NewHistogram()
	for i := range 1000 {
		Record(h, time.Duration(i+1)*time.Millisecond)
	}
	Record(h, time.Hour)
	Record(h, 0)
	r := Result{SizeBytes: 1000}
	r.Duration(2*time.Second, 1000, h)
	require.InDelta(t, 500, r.P50, 2)
	require.InDelta(t, 990, r.P99, 2)
	require.InDelta(t, 300_000, r.Max, 300)
	require.InDelta(t, 500, r.Rate, 0)
	require.InDelta(t, 0.5, r.MB, 0)
}
