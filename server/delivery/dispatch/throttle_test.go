// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func ofBytes(messages, bytes int) []Message {
	out := make([]Message, messages)
	for i := range out {
		out[i].Record = make([]byte, bytes)
	}
	return out
}

// All dispatchers together use the configured CPU fraction, in equal parts. This applies to large and to small
// turns.
func TestThrottleShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const share, dispatchers = 0.25, 20
		p := newThrottle(func() bool { return true }, share)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var cost [dispatchers]time.Duration
		var running sync.WaitGroup
		for i := range cost {
			turn := ofBytes(batchCPUMessages>>(i%3), 200)
			running.Go(func() {
				for ctx.Err() == nil {
					cost[i] += batchCost + time.Duration(len(turn))*messageCost +
						time.Duration(len(turn)*200)*kibCost/1024
					p.wait(ctx, turn, 0)
				}
			})
		}
		running.Wait()
		least, most, all := cost[0], cost[0], time.Duration(0)
		for _, c := range cost {
			least, most, all = min(least, c), max(most, c), all+c
		}
		require.InEpsilon(t, share*20, all.Seconds(), 0.05)
		require.Greater(t, least.Seconds()/most.Seconds(), 0.9)
	})
}

// Deliveries keep up with the publish rate, regardless of the configured fraction.
func TestThrottleKeepsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const perSecond, dispatchers = 100_000, 7
		p := newThrottle(func() bool { return true }, 0.02)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var running sync.WaitGroup
		running.Go(func() {
			for every := time.NewTicker(time.Millisecond); ctx.Err() == nil; <-every.C {
				p.publish(perSecond/1000, perSecond/1000*200)
			}
		})
		var delivered [dispatchers]int
		for i := range delivered {
			running.Go(func() {
				for ctx.Err() == nil {
					delivered[i] += batchCPUMessages
					p.wait(ctx, ofBytes(batchCPUMessages, 200), 0)
				}
			})
		}
		running.Wait()
		all := 0
		for _, n := range delivered {
			all += n
			require.InEpsilon(t, delivered[0], n, 0.1)
		}
		require.InEpsilon(t, perSecond*20, all, 0.1)
	})
}

// A dispatcher with few messages does not wait for busy dispatchers.
func TestThrottleSmallTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newThrottle(func() bool { return true }, 0.1)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		for range 50 {
			running.Go(func() {
				for ctx.Err() == nil {
					p.wait(ctx, ofBytes(batchCPUMessages, 200), 0)
				}
			})
		}
		<-time.After(time.Second) // simulated time
		begin := time.Now()
		p.wait(ctx, ofBytes(1, 200), 0)
		little := time.Since(begin)
		p.wait(ctx, ofBytes(batchCPUMessages, 200), 0)
		much := time.Since(begin) - little
		require.Less(t, little, much/10)
		cancel() // all waiting dispatchers return
		running.Wait()
	})
}

// No dispatcher waits while no other work needs the CPU. A waiting dispatcher continues when this is detected.
func TestThrottleIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var busy atomic.Bool
		p := newThrottle(busy.Load, 0.001)
		begin := time.Now()
		for range 1000 {
			p.wait(t.Context(), ofBytes(batchCPUMessages, 200), 0)
		}
		require.Zero(t, time.Since(begin))
		busy.Store(true)
		var waiting sync.WaitGroup
		for range 10 {
			waiting.Go(func() { p.wait(t.Context(), ofBytes(batchCPUMessages, 200), 0) })
		}
		synctest.Wait()
		require.Zero(t, time.Since(begin))
		busy.Store(false)
		require.False(t, p.isBusy())
		waiting.Wait()
		require.Zero(t, time.Since(begin), "no dispatcher waited for its timeout")
	})
}

// Without Busy, dispatchers do not wait.
func TestThrottleWithoutBusy(t *testing.T) {
	p := newThrottle(nil, 0)
	p.wait(t.Context(), ofBytes(batchCPUMessages, 200), 0)
	require.False(t, p.isBusy())
}
