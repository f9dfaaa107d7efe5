// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

const (
	// gapFactor is how many times the longest recent gap a silence must be to mean something.
	gapFactor = 4
	// A gap is remembered for between gapPeriods-1 and gapPeriods periods.
	gapPeriod  = 30 * time.Second
	gapPeriods = 10
	// learningTime is how long a detector listens before it waits for less than its limit.
	learningTime = 3 * time.Second
	// Shares of the timeouts that are waited for at least, in percent. A process that is stopped for 100 ms, by whatever,
	// is not missed by the active, and far from being replaced. Of two healthy nodes that cannot hear each other, the
	// active is to act first.
	standbyFloor, activeFloor = 30, 25
	// loggedGap is the shortest silence that is logged.
	loggedGap = 100 * time.Millisecond
	// flowBytes in a step show that the other end is sending a large message, which is heard of when all of it is there.
	flowBytes = 1 << 10
)

// silence measures how long the other end has been quiet, in steps of a ticker. A step counts no more than twice its
// nominal length: when this process was itself stopped for a while, it must not blame the other end.
type silence struct {
	quiet time.Duration
	last  time.Time
}

// step returns the silence so far. heard tells whether anything came since the last step.
func (s *silence) step(now time.Time, nominal time.Duration, heard bool) time.Duration {
	if heard || s.last.IsZero() {
		s.quiet = 0
	} else {
		s.quiet += min(now.Sub(s.last), 2*nominal)
	}
	s.last = now
	return s.quiet
}

// detector suspects the other end when it has been quiet for longer than it ever is. What it allows for is several
// times the longest gap between messages of the last minutes, but no less than a floor and no more than a limit, which
// also holds until it has listened for a while.
//
// It is a relative of the accrual failure detector (Hayashibara, Défago, Yared, Katayama: The φ Accrual Failure
// Detector, SRDS 2004), which fits a distribution to the gaps. The longest gap takes its place, since what makes
// heartbeats late on a busy machine is rare and long: a distribution that fits the many short gaps says that it cannot
// happen.
type detector struct {
	silence
	log          *zap.Logger
	floor, limit time.Duration
	fresh        bool                      // nothing was heard since it began
	listening    time.Duration             // for how long the other end was heard, up to learningTime
	period       time.Time                 // when the present period began
	gaps         [gapPeriods]time.Duration // the longest of each period, the present one first
}

// newDetector makes a detector. With fixed it waits for the limit.
func newDetector(log *zap.Logger, limit time.Duration, floorPercent int, fixed bool) *detector {
	floor := limit * time.Duration(floorPercent) / 100
	if fixed {
		floor = limit
	}
	return &detector{log: log, floor: floor, limit: limit, fresh: true}
}

// tick is how often a detector wants a step.
func (d *detector) tick() time.Duration { return max(d.floor/20, time.Millisecond) }

// step takes one step of tick's length, and returns an error when the other end has been quiet for too long.
func (d *detector) step(now time.Time, heard bool) error {
	before, since := d.quiet, d.last
	quiet := d.silence.step(now, d.tick(), heard)
	switch {
	case !heard:
	case d.fresh:
		d.fresh = false // before that there was no connection to hear anything over
	default:
		gap := before + min(now.Sub(since), 2*d.tick())
		d.logGap(gap)
		d.remember(now, gap)
	}
	allowed := d.allowed()
	if quiet < allowed {
		return nil
	}
	d.quiet = 0
	return fmt.Errorf("%w for %v (the longest gap lately was %v)", ErrSilent,
		quiet.Round(time.Millisecond), slices.Max(d.gaps[:]).Round(time.Millisecond))
}

// logGap logs a silence that ended before the timeout: at warn level if it took half of the timeout.
func (d *detector) logGap(gap time.Duration) {
	if gap < loggedGap {
		return
	}
	level := zapcore.DebugLevel
	if gap >= d.limit/2 {
		level = zapcore.WarnLevel
	}
	d.log.Log(level, "other node was silent", zap.Duration("for", gap), zap.Duration("timeout", d.limit))
}

// restart forgets what other connections were like. A silence goes on.
func (d *detector) restart() {
	d.fresh, d.listening, d.period, d.gaps = true, 0, time.Time{}, [gapPeriods]time.Duration{}
}

// remember takes note of a gap that has ended.
func (d *detector) remember(now time.Time, gap time.Duration) {
	if d.period.IsZero() {
		d.period = now
	}
	for now.Sub(d.period) >= gapPeriod {
		d.period = d.period.Add(gapPeriod)
		copy(d.gaps[1:], d.gaps[:])
		d.gaps[0] = 0
	}
	d.gaps[0] = max(d.gaps[0], gap)
	d.listening = min(d.listening+gap, learningTime)
}

// allowed is for how long the other end may be quiet now.
func (d *detector) allowed() time.Duration {
	if d.listening < learningTime {
		return d.limit
	}
	return min(max(d.floor, gapFactor*slices.Max(d.gaps[:])), d.limit)
}
