// SPDX-License-Identifier: Apache-2.0

package throttle

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// work waits for d on the synctest clock.
func work(d time.Duration) { <-time.After(d) }

// Without limits, Did returns immediately and ignores the context.
func TestPacerWithoutLimits(t *testing.T) {
	require.Nil(t, New(Limits{}))
	require.Nil(t, New(Limits{Percent: 100}))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, New(Limits{}).Did(ctx, 1<<30))
}

// With 25 percent, work takes four times as long.
func TestPercentLimit(t *testing.T) {
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
func TestRateLimit(t *testing.T) {
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

// Time that is spent waiting for the rate limit requires no pause.
func TestRateAndPercentLimit(t *testing.T) {
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

// A pause ends when the context is canceled or its deadline has passed.
func TestPauseEndsWithContext(t *testing.T) {
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
