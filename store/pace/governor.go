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
	// learned is how many windows make a baseline that can be relied upon.
	learned = 4
	// quietWeight and workWeight are how much of a window is taken into the baseline, one part in so many: while
	// nothing disturbs commits, and while work goes on that may.
	quietWeight = 16
	workWeight  = 64

	// Commits may take tolerated percent of the baseline, or toleratedLeast longer, if that is more.
	tolerated      = 150
	toleratedLeast = 200 * time.Microsecond
	// fullShare is the time of one processor, in thousandths. No work gets less than leastShare, so that it ends;
	// firstShare is what it begins with while there are commits.
	fullShare  = 1000
	leastShare = 50
	firstShare = 250
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
	worked   time.Time // when work went on last
}

// NewGovernor makes one that knows of no commits.
func NewGovernor() *Governor { return &Governor{share: fullShare} }

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

// Baseline is what commits take while nothing disturbs them, as far as is known, and Share the present share of the
// time that work gets, from 0 to 1.
func (g *Governor) Baseline() (commits time.Duration, share float64) {
	if g == nil {
		return 0, 1
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.baseline, float64(g.share) / fullShare
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
	if !working {
		return
	}
	limit := max(g.baseline*tolerated/100, g.baseline+toleratedLeast)
	switch {
	case g.windows < learned:
		g.share = leastShare
	case took <= limit:
		g.share = min(fullShare, g.share+max(g.share/8, leastShare/2))
	default:
		cut := min(max(int(limit*100/took), 50), 90)
		g.share = max(leastShare, g.share*cut/100)
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
	g.worked = now
	switch {
	case g.latest == 0 || !g.toldAt.IsZero() && now.Sub(g.toldAt) >= newsAge:
		g.share = fullShare // no commit waits for anything
	case begins && g.windows < learned:
		g.share = leastShare
	case begins:
		g.share = min(g.share, firstShare)
	}
	return g.share
}
