// SPDX-License-Identifier: Apache-2.0

package throttle

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A latency is in the correct slot, and the slot's width is at most an eighth of it.
func TestSlots(t *testing.T) {
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

// node simulates commits at a rate, which take longer while work runs.
type node struct {
	g *Governor
	// alone is the latency without work; disturbed is added at full speed.
	alone, disturbed time.Duration
	tell             *Governor // governor that receives the commit time, like on a standby
}

// commits simulates count commits, two per millisecond, with work at its current fraction or without work.
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
		if d := n.g.CommitTime(); n.tell != nil {
			n.tell.Report(d)
		}
	}
}

// worker returns the governor of the working node.
func (n *node) worker() *Governor {
	if n.tell != nil {
		return n.tell
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

// Work runs at full speed without commits, and with commits that it does not disturb. Otherwise it gets a fraction of
// the time, so that commits stay close to their undisturbed latency, both locally and with a reported commit time.
func TestGovernor(t *testing.T) {
	for name, told := range map[string]bool{"of this node": false, "told": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &node{g: NewGovernor(), alone: time.Millisecond}
				if told {
					n.tell = NewGovernor()
				}
				n.commits(4000, false)
				base := n.worker().Status().Baseline
				require.InDelta(t, 1.25, base.Seconds()*1000, 0.2)

				n.whileWorking(t, 4000) // to find its fraction
				require.Greater(t, n.whileWorking(t, 2000), 0.95, "nothing is disturbed")

				n.disturbed = 4 * time.Millisecond
				n.whileWorking(t, 4000)
				share := n.whileWorking(t, 8000)
				require.Greater(t, share, 0.07)
				require.Less(t, share, 0.3, "commits would take twice as long")
				now := n.worker().Status().Baseline
				require.InDelta(t, base.Seconds(), now.Seconds(), base.Seconds()/4,
					"disturbed commits are not part of the baseline")

				work(10 * time.Second)
				New(Limits{Governor: n.worker()}).Unhindered() // still has a window with the earlier commits
				work(2 * windowLongest)
				require.True(t, New(Limits{Governor: n.worker()}).Unhindered(), "no commit waits")
			})
		})
	}
}

// Commits that are slow regardless of the work leave it a fraction of the time, and become the new baseline, so that
// the fraction rises.
func TestGovernorNeverStarves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{g: NewGovernor(), alone: time.Millisecond}
		n.commits(4000, false)
		n.alone = 20 * time.Millisecond
		require.Greater(t, n.whileWorking(t, 4000), 0.04)
		n.whileWorking(t, 20_000)
		require.Greater(t, n.whileWorking(t, 4000), 0.9)
	})
}

// Configured limits are upper bounds, and full speed uses no governor.
func TestGovernorLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Limits{Governor: NewGovernor(), Percent: 25})
		work(windowLongest) // until the absence of commits is detected
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

// Work that starts during commits without a baseline starts slowly.
func TestGovernorStartsSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGovernor()
		for range 100 {
			g.Committed(time.Millisecond)
		}
		p := New(Limits{Governor: g})
		require.False(t, p.Unhindered())
		st := g.Status()
		require.InDelta(t, 0.05, st.Share, 0.001)
		require.Equal(t, Unknown, st.Reason)
	})
}

// Work that starts during commits with a baseline begins with the smallest fraction. The fraction doubles with each
// window that is not slower; after slow commits, only up to the last tolerated value.
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
		require.InDelta(t, 0.05, begin(), 0.001)
		for _, want := range []float64{0.1, 0.2, 0.4, 0.8} {
			window(time.Millisecond)
			require.InDelta(t, want, begin(), 0.001)
			require.Equal(t, Rising, g.Status().Reason)
		}
		window(2 * time.Millisecond)
		cut := begin()
		require.Equal(t, SlowCommits, g.Status().Reason)
		require.Less(t, cut, 0.7)

		for range 20 { // without work
			window(time.Millisecond)
		}
		require.InDelta(t, 0.05, begin(), 0.001)
		for range 4 {
			window(time.Millisecond)
			begin()
		}
		require.InDelta(t, cut, begin(), 0.001, "doubled up to where commits were slow")
		window(time.Millisecond)
		require.InDelta(t, cut*9/8, begin(), 0.01, "and carefully from there on")
		for range 20 {
			window(time.Millisecond)
			begin()
		}
		require.Equal(t, Undisturbed, g.Status().Reason)
	})
}

// A standby that was just started works with a reduced fraction until it can receive commit times. The first ones,
// which its work may have increased, are not a baseline.
func TestGovernorOfStandbyThatStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGovernor()
		p := New(Limits{Governor: g})
		require.False(t, p.Unhindered())
		require.Equal(t, Unknown, g.Status().Reason)
		work(200 * time.Millisecond)
		p.Unhindered()
		g.Report(20 * time.Millisecond)
		require.InDelta(t, 0.05, g.Status().Share, 0.001)
		require.Zero(t, g.Status().Baseline)
		for range baselineWindows {
			p.Unhindered()
			g.Report(time.Millisecond)
		}
		require.Equal(t, time.Millisecond, g.Status().Baseline)

		idle := NewGovernor()
		p = New(Limits{Governor: idle})
		p.Unhindered()
		work(windowLongest)
		require.True(t, p.Unhindered(), "no commits come")
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
		require.NoError(t, p.rest(t.Context())) // recordPause for longest
		require.Greater(t, g.Status().Share, 0.09)
		p.Unhindered()
		require.Greater(t, g.Status().Share, 0.09)
		require.Equal(t, Rising, g.Status().Reason)
	})
}
