// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"fmt"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

const (
	// detectorSteps is how many steps a detector takes in its timeout.
	detectorSteps = 50
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

// detector reports the other end as lost when it was silent for the timeout. The timeout is fixed: one that follows the
// longest gap of the last minutes dropped healthy nodes (docs/decisions/0025).
type detector struct {
	silence
	log     *zap.Logger
	timeout time.Duration
	fresh   bool // nothing was received since it began or over the present connection
}

func newDetector(log *zap.Logger, timeout time.Duration) *detector {
	return &detector{log: log, timeout: timeout, fresh: true}
}

// tick is the nominal length of a step.
func (d *detector) tick() time.Duration { return max(d.timeout/detectorSteps, time.Millisecond) }

// step takes one step of tick's length, and returns ErrSilent when the silence has reached the timeout.
func (d *detector) step(now time.Time, heard bool) error {
	if heard {
		if gap := d.quiet + min(now.Sub(d.last), 2*d.tick()); !d.fresh && gap >= loggedGap {
			d.logGap(gap)
		}
		d.fresh = false
	}
	quiet := d.silence.step(now, d.tick(), heard)
	if quiet < d.timeout {
		return nil
	}
	d.quiet = 0
	return fmt.Errorf("%w for %v", ErrSilent, quiet.Round(time.Millisecond))
}

// restart makes the detector ignore the gap before the first message of a new connection. A silence continues.
func (d *detector) restart() { d.fresh = true }

// logGap logs a silence that ended before the timeout: as a warning if it took half of the timeout.
func (d *detector) logGap(gap time.Duration) {
	level := zapcore.DebugLevel
	if gap >= d.timeout/2 {
		level = zapcore.WarnLevel
	}
	d.log.Log(level, "other node was silent", zap.Duration("for", gap), zap.Duration("timeout", d.timeout))
}
