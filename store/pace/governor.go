// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// A window of commits ends after windowTime if there were windowCommits, and after windowLongest with any number.
	windowTime    = 50 * time.Millisecond
	windowCommits = 16
	windowLongest = time.Second
	// newsAge is how long what the active has told holds: without commits it tells nothing.
	newsAge = 3 * time.Second
	// quietAfter is how long after the last piece of work commits are as they are without any.
	quietAfter = 500 * time.Millisecond
	// workedLately is how long after the last piece of work a window of commits still was beside it.
	workedLately = 2 * windowTime
	// learned is how many windows make a baseline that can be relied upon.
	learned = 4
	// quietWeight and workWeight are how much of a window is taken into the baseline, one part in so many: while
	// nothing disturbs commits, and while work goes on that may.
	quietWeight = 16
	workWeight  = 64

	// Commits may take tolerated percent of the baseline, or toleratedLeast longer, if that is more.
	tolerated      = 150
	toleratedLeast = 200 * time.Microsecond
	// fullShare is the time of one processor, in thousandths. No work gets less than leastShare, so that it ends.
	fullShare  = 1000
	leastShare = 50
	// unknownShare is what work gets on a node that has just been started and may not yet have been told of commits.
	unknownShare = 125
)

// Governor lets the work in the background of one node go on as fast as commits allow: at full speed while there are
// none, and while they take no longer than without the work; otherwise for a smaller share of the time, and never less
// than a twentieth. It is told how long commits take, by this node while it is active, or by the active.
//
// It compares with what commits took while nothing went on here, and, since that can change meanwhile, with what they
// take while work has its smallest share. All its methods may be called from any goroutine. A nil Governor lets
// everything go on at full speed.
type Governor struct {
	counts [slots]atomic.Uint32 // commits of this node by their time, of all windows

	mu     sync.Mutex    // guards what follows
	before [slots]uint32 // counts when the window began
	began  time.Time     // of the window
	latest time.Duration // of the last window; 0: no commit
	fresh  bool          // CommitTime has not told latest
	toldAt time.Time     // when the active told latest; zero: this node measures

	baseline time.Duration
	windows  int       // that baseline is of, up to learned
	share    int       // of work, in thousandths
	steady   int       // share up to which it is doubled: what commits bore when it was cut last
	reason   Reason    // of share
	worked   time.Time // when work went on last, or is to go on after its pause
	made     time.Time // since when this watches
}

// Reason says why work has the share of the time that it has.
type Reason string

// The reasons.
const (
	// NoWork: none has gone on for half a second.
	NoWork Reason = "no-work"
	// NoCommits that could wait for the work: it has all of the time.
	NoCommits Reason = "no-commits"
	// Unknown: it is not known yet whether there are commits, or what they take without the work.
	Unknown Reason = "unknown"
	// Rising: commits take no longer than they may, and the share rises.
	Rising Reason = "rising"
	// Undisturbed: commits take no longer than they may although the work has all of the time.
	Undisturbed Reason = "undisturbed"
	// SlowCommits: they took longer than they may, and the share fell.
	SlowCommits Reason = "slow-commits"
)

// Reasons are all of them.
func Reasons() []Reason {
	return []Reason{NoWork, NoCommits, Unknown, Rising, Undisturbed, SlowCommits}
}

// Status of a Governor.
type Status struct {
	// Share of the time that work gets at present, from 0 to 1, and why. Limits of the work may make it less.
	Share  float64
	Reason Reason
	// Latest is what commits took in the last window, 0 if there were none, Baseline what they take while nothing
	// disturbs them, 0 while that is not known: nine of ten took no longer.
	Latest, Baseline time.Duration
}

// NewGovernor makes one that knows of no commits.
func NewGovernor() *Governor { return &Governor{share: fullShare, steady: fullShare, made: time.Now()} }

const (
	// A slot of times is an eighth of a power of two wide, from 1 µs on.
	slotBits = 3
	slots    = 28 << slotBits
)

// slotOf is the slot of a time.
func slotOf(d time.Duration) int {
	us := uint64(max(d.Microseconds(), 1))
	power := bits.Len64(us) - 1
	fraction := us << (63 - power) >> (63 - slotBits) & (1<<slotBits - 1)
	return min(power<<slotBits|int(fraction), slots-1)
}

// slotEnd is the longest time of a slot.
func slotEnd(slot int) time.Duration {
	power, fraction := slot>>slotBits, slot&(1<<slotBits-1)
	return time.Duration((fraction+1+1<<slotBits)<<power) * time.Microsecond >> slotBits
}

// Committed notes how long a commit of this node took. It is called for each and does not wait.
func (g *Governor) Committed(d time.Duration) {
	if g != nil {
		g.counts[slotOf(d)].Add(1)
	}
}

// CommitTime is how long commits of this node take at present: nine of ten took no longer. 0 if there were none since
// it was called, or too few. It is to be called often, by the active: that is how it learns what commits take while
// nothing disturbs them.
func (g *Governor) CommitTime() time.Duration {
	if g == nil {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.look(time.Now())
	if !g.fresh || !g.toldAt.IsZero() {
		return 0
	}
	g.fresh = false
	return g.latest
}

// Told notes what CommitTime is on the active.
func (g *Governor) Told(d time.Duration) {
	if g == nil || d <= 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	g.toldAt = now
	g.windowEnded(now, d)
}

// Status tells what share of the time work gets at present, and why.
func (g *Governor) Status() Status {
	if g == nil {
		return Status{Share: 1, Reason: NoCommits}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	st := Status{Share: float64(g.share) / fullShare, Reason: g.reason, Latest: g.latest, Baseline: g.baseline}
	if now.Sub(g.worked) >= quietAfter {
		st.Share, st.Reason = 1, NoWork
	}
	if !g.toldAt.IsZero() && now.Sub(g.toldAt) >= newsAge {
		st.Latest = 0 // what the active told is old
	}
	return st
}

// look ends the window if it is time. mu is held.
func (g *Governor) look(now time.Time) {
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
	case total == 0 && !g.toldAt.IsZero() && now.Sub(g.toldAt) < newsAge:
		return // the other node is active
	case total == 0 && age >= windowLongest:
		g.toldAt, g.latest, g.began = time.Time{}, 0, now
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
	g.before, g.began, g.toldAt = counts, now, time.Time{}
	g.windowEnded(now, slotEnd(slot))
}

// windowEnded learns from a window and decides for what follows. mu is held.
func (g *Governor) windowEnded(now time.Time, took time.Duration) {
	g.latest, g.fresh = took, true
	working := now.Sub(g.worked) < quietAfter
	weight := time.Duration(quietWeight)
	switch {
	case g.windows < learned && working && g.share > leastShare:
		g.share, g.reason = leastShare, Unknown
		return // commits of this window were beside more work: they are no baseline
	case g.windows < learned: // the mean of the first ones
		weight = time.Duration(g.windows + 1)
		g.windows++
	case working && g.share > leastShare && took >= g.baseline:
		weight = 0 // it may be the work
	case working:
		weight = workWeight
	}
	if weight > 0 {
		g.baseline += (took - g.baseline) / weight
	}
	if now.Sub(g.worked) >= workedLately {
		return // the window tells nothing about this share
	}
	limit := max(g.baseline*tolerated/100, g.baseline+toleratedLeast)
	switch {
	case g.windows < learned:
		g.share, g.reason = leastShare, Unknown
	case took > limit:
		cut := min(max(int(limit*100/took), 50), 90)
		g.share, g.reason = max(leastShare, g.share*cut/100), SlowCommits
		g.steady = g.share
	default:
		g.rise()
	}
}

// rise makes the share larger, since commits took no longer than they may: twice as large until it was cut, or until
// it is what it was cut to, and from there on by an eighth. mu is held.
func (g *Governor) rise() {
	step := max(g.share/8, leastShare/2)
	if g.share < g.steady {
		step = max(step, min(g.share, g.steady-g.share))
	}
	g.share, g.reason = min(fullShare, g.share+step), Rising
	if g.share == fullShare {
		g.steady, g.reason = fullShare, Undisturbed
	}
}

// shareOf is the share of the time that a piece of work gets now, in thousandths.
func (g *Governor) shareOf(now time.Time) int {
	if g == nil {
		return fullShare
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	begins := now.Sub(g.worked) >= quietAfter
	g.look(now)
	if now.After(g.worked) {
		g.worked = now
	}
	switch {
	case g.latest == 0 && g.windows == 0 && now.Sub(g.made) < windowLongest:
		g.share, g.reason = unknownShare, Unknown // a standby has to connect to be told
	case g.latest == 0 || !g.toldAt.IsZero() && now.Sub(g.toldAt) >= newsAge:
		g.share, g.reason = fullShare, NoCommits
	case begins:
		g.share, g.reason = leastShare, Rising
		if g.windows < learned {
			g.reason = Unknown
		}
	}
	return g.share
}

// pauses notes until when a piece of work pauses: it still goes on, and its next piece does not begin anew.
func (g *Governor) pauses(until time.Time) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if until.After(g.worked) {
		g.worked = until
	}
}
