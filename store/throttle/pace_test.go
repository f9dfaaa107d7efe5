// SPDX-License-Identifier: Apache-2.0

package throttle

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// work takes time d, by the clock of synctest.
func work(d time.Duration) { <-time.After(d) }

func TestNoLimits(t *testing.T) {
	require.Nil(t, New(Limits{}))
	require.Nil(t, New(Limits{Percent: 100}))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, New(Limits{}).Did(ctx, 1<<30))
}

// Work in steps of a millisecond takes four times as long with a quarter of the time.
func TestShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Limits{Percent: 25})
		began := time.Now()
		for range 1000 {
			work(time.Millisecond)
			require.NoError(t, p.Did(t.Context(), 1<<20))
		}
		require.Equal(t, 4*time.Second, time.Since(began))
	})
}

// The rate limit applies to small and large steps.
func TestRate(t *testing.T) {
	for _, piece := range []int{1000, 100_000, 10_000_000} {
		synctest.Test(t, func(t *testing.T) {
			p := New(Limits{BytesPerSecond: 1_000_000})
			began := time.Now()
			for range 10_000_000 / piece {
				require.NoError(t, p.Did(t.Context(), piece))
			}
			require.InDelta(t, 10, time.Since(began).Seconds(), 0.1)
		})
	}
}

// Waiting for the rate limit does not count as work that requires a pause.
func TestBoth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Limits{BytesPerSecond: 1_000_000, Percent: 10})
		began := time.Now()
		for range 100 {
			work(5 * time.Millisecond)
			require.NoError(t, p.Did(t.Context(), 100_000))
		}
		require.InDelta(t, 10, time.Since(began).Seconds(), 0.1)
	})
}

// A waiting call returns as soon as the context ends, even with a deadline.
func TestEnd(t *testing.T) {
	for name, l := range map[string]Limits{"share": {Percent: 1}, "rate": {BytesPerSecond: 1000}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(500*time.Millisecond, cancel)
				began := time.Now()
				p := New(l)
				work(100 * time.Millisecond)
				require.ErrorIs(t, p.Did(ctx, 1<<20), context.Canceled)
				require.Equal(t, 500*time.Millisecond, time.Since(began))

				ctx, cancel = context.WithTimeout(t.Context(), 500*time.Millisecond)
				defer cancel()
				began = time.Now()
				p = New(l)
				work(100 * time.Millisecond)
				require.ErrorIs(t, p.Did(ctx, 1<<20), context.DeadlineExceeded)
				require.Equal(t, 500*time.Millisecond, time.Since(began))
			})
		})
	}
}
