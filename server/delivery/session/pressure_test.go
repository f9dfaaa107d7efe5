// SPDX-License-Identifier: Apache-2.0

package session

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Busy returns true only while clients other than consumers commit and goroutines wait for a CPU.
func TestPressure(t *testing.T) {
	for _, c := range []struct {
		name                        string
		publishes, settles, waiting uint64 // for each sample
		want                        bool
	}{
		{"publishers and processors are busy", 1, 3, 2, true},
		{"publishers wait for the disk", 1, 0, 0, false},
		{"only consumers", 0, 5, 9, false},
		{"no client", 0, 0, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var committed uint64
			p := newPressure(func() uint64 { return committed })
			p.waiting = func() uint64 { return c.waiting }
			now := time.Now()
			for range 1000 {
				p.settling.Add(int64(c.settles))
				committed += c.settles + c.publishes
				p.sample(now)
				now = now.Add(sampleInterval)
			}
			require.Equal(t, c.want, p.is.Load())
			for range 2 * idleTime / sampleInterval { // all clients have left, and goroutines still wait
				p.waiting = func() uint64 { return 1 }
				p.sample(now)
				now = now.Add(sampleInterval)
			}
			require.False(t, p.is.Load())
		})
	}
}

// The Go runtime provides the number of goroutines that wait for a CPU.
func TestWaitingGoroutinesAreMeasured(t *testing.T) {
	p := newPressure(func() uint64 { return 0 })
	var stop atomic.Bool
	var running sync.WaitGroup
	defer running.Wait()
	defer stop.Store(true)
	for range 100 {
		running.Go(func() {
			for !stop.Load() {
				runtime.KeepAlive(p) // work for the goroutines
			}
		})
	}
	require.Eventually(t, func() bool { return p.waiting() > 0 }, time.Minute, time.Millisecond)
}
