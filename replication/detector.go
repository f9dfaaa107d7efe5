// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"fmt"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

const (
	detectorSteps = 50
	// loggedGap is the minimum silence that is logged.
	loggedGap = 100 * time.Millisecond
	// flowBytes is the number of bytes received per step that proves that the other end is alive.
	flowBytes = 1 << 10
)

// silence measures the time without an event, such as a message or an ack, in ticker steps. A step counts for at most
// twice its nominal length, which limits the effect of a suspension of this process.
type silence struct {
	quiet time.Duration
	last  time.Time
}

func (s *silence) step(now time.Time, nominal time.Duration, received bool) time.Duration {
	if received || s.last.IsZero() {
		s.quiet = 0
	} else {
		s.quiet += min(now.Sub(s.last), 2*nominal)
	}
	s.last = now
	return s.quiet
}

// detector reports the other end as lost after a fixed timeout (docs/decisions/0025).
type detector struct {
	silence
	log     *zap.Logger
	timeout time.Duration
	fresh   bool // nothing was received over the current connection
}

func newDetector(log *zap.Logger, timeout time.Duration) *detector {
	return &detector{log: log, timeout: timeout, fresh: true}
}

func (d *detector) tick() time.Duration { return max(d.timeout/detectorSteps, time.Millisecond) }

func (d *detector) step(now time.Time, received bool) error {
	if received {
		if gap := d.quiet + min(now.Sub(d.last), 2*d.tick()); !d.fresh && gap >= loggedGap {
			d.logGap(gap)
		}
		d.fresh = false
	}
	quiet := d.silence.step(now, d.tick(), received)
	if quiet < d.timeout {
		return nil
	}
	d.quiet = 0
	return fmt.Errorf("%w for %v", ErrSilent, quiet.Round(time.Millisecond))
}

// restart marks the beginning of a new connection. The silence before its first message counts, but is not logged.
func (d *detector) restart() { d.fresh = true }

func (d *detector) logGap(gap time.Duration) {
	level := zapcore.DebugLevel
	if gap >= d.timeout/2 {
		level = zapcore.WarnLevel
	}
	d.log.Log(level, "other node was silent", zap.Duration("for", gap), zap.Duration("timeout", d.timeout))
}
