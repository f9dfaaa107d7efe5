// SPDX-License-Identifier: Apache-2.0

package throttle

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// The end of a latency's slot exceeds the latency by at most an eighth.
func TestLatencySlots(t *testing.T) {
	for us := int64(1); us < 200_000_000; us += 1 + us/50 {
		d := time.Duration(us) * time.Microsecond
		slot := slotOf(d)
		require.Greater(t, slotEnd(slot), d)
		require.LessOrEqual(t, slotEnd(slot), d+d/8+time.Microsecond, d)
		require.LessOrEqual(t, slot, slotOf(d+time.Microsecond))
	}
	require.Equal(t, 0, slotOf(0))
	require.Equal(t, slots-1, slotOf(time.Hour))
}

// node simulates a steady rate of commits, which take longer while work runs.
type node struct {
	g *Governor
	// alone is the latency without work; disturbed is the latency that work at full speed adds.
	alone, disturbed time.Duration
	standby          *Governor // receives the commit time of g; if not nil, work runs on the standby
}

// commits simulates count commits, two per millisecond, without or with work at its current fraction of the time.
func (n *node) commits(count int, working bool) {
	for i := range count {
		took := n.alone
		if working {
			took += time.Duration(n.worker().Status().Share * float64(n.disturbed))
		}
		if i%5 == 0 {
			took += took / 4
		}
		n.g.Committed(took)
		work(500 * time.Microsecond)
		if d := n.g.CommitTime(); n.standby != nil {
			n.standby.Report(d)
		}
	}
}

// worker returns the governor of the working node.
func (n *node) worker() *Governor {
	if n.standby != nil {
		return n.standby
	}
	return n.g
}

// whileWorking runs work during count commits, and returns its mean fraction of the time.
func (n *node) whileWorking(t *testing.T, count int) float64 {
	var worked atomic.Int64
	stop := make(chan struct{})
	done := make(chan struct{})
	began := time.Now()
	go func() {
		defer close(done)
		p := New(Limits{Governor: n.worker()})
		for {
			select {
			case <-stop:
				return
			default:
			}
			work(time.Millisecond)
			worked.Add(int64(time.Millisecond))
			if p.Did(t.Context(), 1<<20) != nil {
				return
			}
		}
	}()
	n.commits(count, true)
	share := float64(worked.Load()) / float64(time.Since(began))
	close(stop)
	<-done
	return share
}

// Work runs at full speed without commits. With commits, it gets the maximum fraction of the time if it does not slow
// them down, otherwise the minimum fraction, on an active and on a standby with a reported commit time.
func TestGovernor(t *testing.T) {
	for name, standby := range map[string]bool{"active": false, "standby": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &node{g: NewGovernor(), alone: time.Millisecond}
				if standby {
					n.standby = NewGovernor()
				}
				n.commits(4000, false)
				base := n.worker().Status().Baseline
				require.InDelta(t, 1.25, base.Seconds()*1000, 0.2)

				n.whileWorking(t, 4000) // until the fraction is stable
				require.InDelta(t, 0.6, n.whileWorking(t, 2000), 0.02, "commits are not slower")

				n.disturbed = 4 * time.Millisecond
				n.whileWorking(t, 4000)
				share := n.whileWorking(t, 8000)
				require.InDelta(t, 0.3, share, 0.02, "a higher fraction doubles the commit time")
				require.LessOrEqual(t, n.worker().Status().Baseline, base, "slower commits are not part of the baseline")

				work(10 * time.Second)
				New(Limits{Governor: n.worker()}).Unhindered() // still has a window with the earlier commits
				work(2 * windowLongest)
				require.True(t, New(Limits{Governor: n.worker()}).Unhindered(), "no commits")
			})
		})
	}
}

// If commits become slower regardless of the work, the work still gets the minimum fraction. After a time without work,
// the slower commits are the new baseline.
func TestGovernorAdaptsToSlowCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{g: NewGovernor(), alone: time.Millisecond}
		n.commits(4000, false)
		n.alone = 20 * time.Millisecond
		require.InDelta(t, 0.3, n.whileWorking(t, 4000), 0.02)
		n.commits(20_000, false)
		n.whileWorking(t, 4000)
		require.InDelta(t, 0.6, n.whileWorking(t, 4000), 0.02)
	})
}

// Configured limits are upper bounds. A nil Governor does not limit work.
func TestGovernorLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Limits{Governor: NewGovernor(), Percent: 25})
		work(windowLongest) // until the governor detects that there are no commits
		require.False(t, p.Unhindered())
		require.NoError(t, p.rest(t.Context()))
		began := time.Now()
		for range 1000 {
			work(2 * time.Millisecond)
			require.NoError(t, p.Did(t.Context(), 0))
		}
		require.Equal(t, 8*time.Second, time.Since(began))
		var none *Governor
		none.Committed(time.Second)
		none.Report(time.Second)
		require.Zero(t, none.CommitTime())
		require.True(t, New(Limits{Governor: none}).Unhindered())
	})
}

// Without a baseline, work that starts during commits gets the smallest fraction.
func TestGovernorWithoutBaseline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGovernor()
		for range 100 {
			g.Committed(time.Millisecond)
		}
		p := New(Limits{Governor: g})
		require.False(t, p.Unhindered())
		st := g.Status()
		require.InDelta(t, 0.3, st.Share, 0.001)
		require.Equal(t, Unknown, st.Reason)
	})
}

// With a baseline, work that starts during commits begins with the minimum fraction. The fraction increases by an
// eighth after each window that is not slower, up to the maximum.
func TestGovernorSlowStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGovernor()
		window := func(d time.Duration) {
			for range 100 {
				g.Committed(d)
			}
			work(windowTime)
			g.CommitTime()
		}
		begin := func() float64 {
			New(Limits{Governor: g}).Unhindered()
			return g.Status().Share
		}
		for range baselineWindows {
			window(time.Millisecond)
		}
		require.Equal(t, NoWork, g.Status().Reason)
		require.InDelta(t, 0.3, begin(), 0.001)
		for _, want := range []float64{0.337, 0.379, 0.426, 0.479, 0.538} {
			window(time.Millisecond)
			require.InDelta(t, want, begin(), 0.001)
			require.Equal(t, Rising, g.Status().Reason)
		}
		for range 2 {
			window(time.Millisecond)
			require.InDelta(t, 0.6, begin(), 0.01)
		}
		require.Equal(t, Undisturbed, g.Status().Reason)
		window(2 * time.Millisecond)
		cut := begin()
		require.Equal(t, SlowCommits, g.Status().Reason)
		require.Less(t, cut, 0.5)

		for range 20 { // without work
			window(time.Millisecond)
		}
		require.InDelta(t, 0.3, begin(), 0.001)
	})
}

// After a start, a standby works with the minimum fraction until it has received commit times. Commit times
// during work are not a baseline, since the work may have increased them.
func TestGovernorOfStartingStandby(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGovernor()
		p := New(Limits{Governor: g})
		require.False(t, p.Unhindered())
		require.Equal(t, Unknown, g.Status().Reason)
		work(200 * time.Millisecond)
		p.Unhindered()
		g.Report(20 * time.Millisecond)
		require.InDelta(t, 0.3, g.Status().Share, 0.001)
		require.Zero(t, g.Status().Baseline)
		work(quietAfter)
		for range baselineWindows {
			g.Report(time.Millisecond)
		}
		require.Equal(t, time.Millisecond, g.Status().Baseline)

		idle := NewGovernor()
		p = New(Limits{Governor: idle})
		p.Unhindered()
		work(windowLongest)
		require.True(t, p.Unhindered(), "no commits")
		require.Equal(t, NoCommits, idle.Status().Reason)
	})
}

// Work with pauses longer than quietAfter keeps its fraction.
func TestGovernorLongPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGovernor()
		for range baselineWindows {
			g.Report(time.Millisecond)
		}
		p := New(Limits{Governor: g})
		p.Unhindered()
		g.Report(time.Millisecond)
		work(300 * time.Millisecond)
		require.NoError(t, p.rest(t.Context())) // the longest pause
		require.Greater(t, g.Status().Share, 0.3)
		p.Unhindered()
		require.Greater(t, g.Status().Share, 0.3)
		require.Equal(t, Rising, g.Status().Reason)
	})
}
