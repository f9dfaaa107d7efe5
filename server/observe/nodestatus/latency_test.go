// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The upper bound of the bucket for a duration exceeds the duration by at most one eighth.
func TestLatencyBuckets(t *testing.T) {
	for us := int64(0); us < 1<<latencyBits; us += us/7 + 1 {
		d := time.Duration(us) * time.Microsecond
		b := latencyBucket(d)
		require.Greater(t, latencyUpTo(b), d)
		require.LessOrEqual(t, latencyUpTo(b), d+max(d/8, 0)+time.Microsecond, "%v", d)
		if b > 0 {
			require.LessOrEqual(t, latencyUpTo(b-1), d, "%v is in the first bucket that ends above it", d)
		}
	}
	require.Equal(t, latencyBuckets-1, latencyBucket(1<<62), "longer durations are in the last bucket")
	require.Equal(t, 0, latencyBucket(-time.Second), "negative: the clock was set back")
}

// Observe counts durations in buckets and does not allocate memory.
func TestLatencies(t *testing.T) {
	var l Latencies
	require.Empty(t, l.Buckets())
	for range 3 {
		l.Observe(time.Millisecond)
	}
	l.Observe(time.Second)
	got := l.Buckets()
	require.Len(t, got, 2)
	require.Equal(t, uint64(3), got[0].Count)
	require.InDelta(t, 1.0, got[0].UpTo.Seconds()*1000, 0.125)
	require.Equal(t, uint64(1), got[1].Count)
	require.Zero(t, testing.AllocsPerRun(10, func() { l.Observe(time.Millisecond) }))
}
