// SPDX-License-Identifier: Apache-2.0

package throttle

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// A window of commits ends when it is at least windowTime long and contains windowCommits commits, or after
	// windowLongest.
	windowTime    = 50 * time.Millisecond
	windowCommits = 16
	windowLongest = time.Second
	// reportMaxAge is the maximum age of a commit time reported by the active. Without commits the active reports none.
	reportMaxAge = 3 * time.Second
	// quietAfter is the delay after the last work before commits count as undisturbed.
	quietAfter = 500 * time.Millisecond
	// workedLately is the time after work in which a window of commits changes the fraction.
	workedLately = 2 * windowTime
	// baselineWindows is the number of windows that a reliable baseline requires.
	baselineWindows = 4
	// quietWeight and workWeight are the inverse weights of a window in the baseline, without and with work.
	quietWeight = 16
	workWeight  = 64

	// Commits may take tolerated percent of the baseline, or minTolerated longer than the baseline. The larger limit
	// applies.
	tolerated    = 150
	minTolerated = 200 * time.Microsecond
	// fullFraction is the whole time, in thousandths. While there are commits, a Governor permits minFraction to
	// maxFraction.
	fullFraction = 1000
	minFraction  = 300
	maxFraction  = 600
)

// Governor adapts the speed of a node's background work to the commit latency. Work runs at full speed while there
// are no commits. Otherwise it gets 30 % to 60 % of the time, starting with 30 %. The fraction rises while the work
// does not slow down commits, and is reduced when it does. All methods are safe for concurrent use. A nil Governor does
// not limit work.
type Governor struct {
	counts [slots]atomic.Uint32 // commits of this node by latency, over all windows

	mu         sync.Mutex    // guards the fields below
	before     [slots]uint32 // counts at the start of the window
	began      time.Time
	latest     time.Duration // latency of the last window; 0: no commit
	fresh      bool          // CommitTime has not returned latest yet
	reportedAt time.Time     // when the active reported latest; zero: this node measures

	baseline  time.Duration
	windows   int // in baseline, up to baselineWindows
	fraction  int // of the time for work, in thousandths
	reason    Reason
	worked    time.Time // end of the last work, or of its pause
	createdAt time.Time
}

// Reason is the reason for the current fraction of the time.
type Reason string

// Reasons for the fraction.
const (
	// NoWork means that no work has run for half a second.
	NoWork Reason = "no-work"
	// NoCommits means that there are no commits that work could delay.
	NoCommits Reason = "no-commits"
	// Unknown means that it is not known yet whether there are commits, or how long they take without the work.
	Unknown Reason = "unknown"
	// Rising means that the commit latency is tolerable, and the fraction rises.
	Rising      Reason = "rising"
	Undisturbed Reason = "undisturbed"
	// SlowCommits means that the commit latency was too high, and the fraction was reduced.
	SlowCommits Reason = "slow-commits"
)

// Reasons returns all reasons.
func Reasons() []Reason {
	return []Reason{NoWork, NoCommits, Unknown, Rising, Undisturbed, SlowCommits}
}

// Status is the status of a Governor.
type Status struct {
	// Share is the current fraction of the time for work, at most 1. Limits.Percent can reduce it further.
	Share  float64
	Reason Reason
	// Latest is the 90th percentile of the commit latency in the last window, or 0 without commits. Baseline is the
	// average of this percentile without disturbing work, or 0 if unknown.
	Latest, Baseline time.Duration
}

// NewGovernor returns a Governor without any commit data.
func NewGovernor() *Governor {
	return &Governor{fraction: fullFraction, createdAt: time.Now()}
}

const (
	// Each doubling of the latency, starting at 1 µs, is divided into eight slots.
	slotBits = 3
	slots    = 28 << slotBits
)

func slotOf(d time.Duration) int {
	us := uint64(max(d.Microseconds(), 1))
	power := bits.Len64(us) - 1
	fraction := us << (63 - power) >> (63 - slotBits) & (1<<slotBits - 1)
	return min(power<<slotBits|int(fraction), slots-1)
}

func slotEnd(slot int) time.Duration {
	power, fraction := slot>>slotBits, slot&(1<<slotBits-1)
	return time.Duration((fraction+1+1<<slotBits)<<power) * time.Microsecond >> slotBits
}

// Committed records the latency of a commit of this node. It must be called for each commit and does not block.
func (g *Governor) Committed(d time.Duration) {
	if g != nil {
		g.counts[slotOf(d)].Add(1)
	}
}

// CommitTime returns the 90th percentile of this node's commit latency in the last window, or 0 if no window of this
// node has ended since the last call. The active must call it often.
func (g *Governor) CommitTime() time.Duration {
	if g == nil {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.evaluate(time.Now())
	if !g.fresh || !g.reportedAt.IsZero() {
		return 0
	}
	g.fresh = false
	return g.latest
}

// Report records the CommitTime reported by the active.
func (g *Governor) Report(d time.Duration) {
	if g == nil || d <= 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	g.reportedAt = now
	g.windowEnded(now, d)
}

// Status returns the current fraction of the time for work, and its reason.
func (g *Governor) Status() Status {
	if g == nil {
		return Status{Share: 1, Reason: NoCommits}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	st := Status{Share: float64(g.fraction) / fullFraction, Reason: g.reason, Latest: g.latest, Baseline: g.baseline}
	if now.Sub(g.worked) >= quietAfter {
		st.Share, st.Reason = 1, NoWork
	}
	if !g.reportedAt.IsZero() && now.Sub(g.reportedAt) >= reportMaxAge {
		st.Latest = 0 // outdated
	}
	return st
}

// evaluate ends the window if it is due. The caller must hold mu.
func (g *Governor) evaluate(now time.Time) {
	age := now.Sub(g.began)
	if age < windowTime {
		return
	}
	total := uint32(0)
	var counts [slots]uint32
	for i := range counts {
		counts[i] = g.counts[i].Load()
		total += counts[i] - g.before[i]
	}
	switch {
	case total == 0 && !g.reportedAt.IsZero() && now.Sub(g.reportedAt) < reportMaxAge:
		return // the other node is active
	case total == 0 && age >= windowLongest:
		g.reportedAt, g.latest, g.began = time.Time{}, 0, now
		return
	case total < windowCommits && age < windowLongest:
		return
	}
	above, slot := total/10, slots-1
	for ; slot > 0; slot-- {
		n := counts[slot] - g.before[slot]
		if n > above {
			break
		}
		above -= n
	}
	g.before, g.began, g.reportedAt = counts, now, time.Time{}
	g.windowEnded(now, slotEnd(slot))
}

// windowEnded updates the baseline from a window and adapts the fraction. The caller must hold mu.
func (g *Governor) windowEnded(now time.Time, took time.Duration) {
	g.latest, g.fresh = took, true
	working := now.Sub(g.worked) < quietAfter
	weight := time.Duration(quietWeight)
	switch {
	case g.windows < baselineWindows && working:
		g.fraction, g.reason = minFraction, Unknown
		return // work may have increased the latency
	case g.windows < baselineWindows: // the mean of the first windows
		weight = time.Duration(g.windows + 1)
		g.windows++
	case working && took >= g.baseline:
		weight = 0 // the work may be the cause
	case working:
		weight = workWeight
	}
	if weight > 0 {
		g.baseline += (took - g.baseline) / weight
	}
	if now.Sub(g.worked) >= workedLately {
		return // the window does not depend on the current fraction
	}
	limit := max(g.baseline*tolerated/100, g.baseline+minTolerated)
	switch {
	case took > limit:
		percent := min(max(int(limit*100/took), 50), 90)
		g.fraction, g.reason = max(minFraction, min(maxFraction, g.fraction)*percent/100), SlowCommits
	default:
		g.fraction, g.reason = min(maxFraction, g.fraction+g.fraction/8), Rising
		if g.fraction == maxFraction {
			g.reason = Undisturbed
		}
	}
}

func (g *Governor) fractionAt(now time.Time) int {
	if g == nil {
		return fullFraction
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	begins := now.Sub(g.worked) >= quietAfter
	g.evaluate(now)
	if now.After(g.worked) {
		g.worked = now
	}
	switch {
	case g.latest == 0 && g.windows == 0 && now.Sub(g.createdAt) < windowLongest:
		g.fraction, g.reason = minFraction, Unknown // a standby must connect to receive the commit time
	case g.latest == 0 || !g.reportedAt.IsZero() && now.Sub(g.reportedAt) >= reportMaxAge:
		g.fraction, g.reason = fullFraction, NoCommits
	case begins:
		g.fraction, g.reason = minFraction, Rising
		if g.windows < baselineWindows {
			g.reason = Unknown
		}
	}
	return g.fraction
}

// recordPause records the end of a pause.
func (g *Governor) recordPause(until time.Time) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if until.After(g.worked) {
		g.worked = until
	}
}
