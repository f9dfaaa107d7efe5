// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

// TestDetector: how long a silence lasts until it is reported, after different pasts.
func TestDetector(t *testing.T) {
	const limit, beat = time.Second, 40 * time.Millisecond
	steady := func(d *detecting) { d.beats(beat, 20*time.Second) }
	for _, c := range []struct {
		name     string
		fixed    bool
		past     func(d *detecting)
		from, to time.Duration
	}{
		{"nothing was ever heard", false, func(*detecting) {}, limit, 1050 * time.Millisecond},
		{"for two seconds only", false, func(d *detecting) { d.beats(beat, 2*time.Second) }, limit, 1050 * time.Millisecond},
		{"always in time", false, steady, 250 * time.Millisecond, 280 * time.Millisecond},
		{"always in time, but fixed", true, steady, limit, 1100 * time.Millisecond},
		{"once late", false, func(d *detecting) {
			steady(d)
			d.beats(120*time.Millisecond, time.Millisecond)
			steady(d)
		}, 480 * time.Millisecond, 600 * time.Millisecond},
		{"once very late", false, func(d *detecting) {
			d.beats(beat, 3*time.Second)
			d.beats(700*time.Millisecond, time.Millisecond)
			steady(d)
		}, limit, 1050 * time.Millisecond},
		{"late six minutes ago", false, func(d *detecting) {
			d.beats(beat, 3*time.Second)
			d.beats(700*time.Millisecond, time.Millisecond)
			d.beats(beat, 6*time.Minute)
		}, 250 * time.Millisecond, 280 * time.Millisecond},
		{"late four minutes ago", false, func(d *detecting) {
			d.beats(beat, 3*time.Second)
			d.beats(700*time.Millisecond, time.Millisecond)
			d.beats(beat, 4*time.Minute)
		}, limit, 1050 * time.Millisecond},
		{"over another connection", false, func(d *detecting) {
			steady(d)
			d.restart()
			d.beats(beat, time.Second)
		}, limit, 1050 * time.Millisecond},
		{"this process was stopped for an hour", false, func(d *detecting) {
			steady(d)
			d.now = d.now.Add(time.Hour)
			d.beats(beat, beat)
		}, 250 * time.Millisecond, 280 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := &detecting{detector: newDetector(zap.NewNop(), limit, activeFloor, c.fixed), t: t, now: time.Unix(0, 0)}
			c.past(d)
			silence := d.silent()
			require.GreaterOrEqual(t, silence, c.from)
			require.LessOrEqual(t, silence, c.to)
		})
	}
}

// TestDetectorForgivesStops: neither end is missed for being stopped for 100 ms, whenever that comes, nor a detector
// that is itself late suspects the other end.
func TestDetectorForgivesStops(t *testing.T) {
	for _, end := range []struct {
		limit   time.Duration
		percent int
	}{{DefaultActiveTimeout, activeFloor}, {DefaultStandbyTimeout, standbyFloor}} {
		d := &detecting{detector: newDetector(zap.NewNop(), end.limit, end.percent, false), t: t, now: time.Unix(0, 0)}
		d.beats(DefaultHeartbeat, 10*time.Second)
		d.beats(DefaultHeartbeat+100*time.Millisecond, time.Millisecond)
		d.beats(DefaultHeartbeat, 10*time.Second)
		for range 100 {
			d.now = d.now.Add(5 * time.Second) // nothing was heard meanwhile, since nothing was read
			require.NoError(t, d.step(d.now, false))
			d.beats(DefaultHeartbeat, time.Second)
		}
	}
}

// detecting drives a detector through simulated time.
type detecting struct {
	*detector
	t   *testing.T
	now time.Time
}

// beats has a message come every so often, for a time, and the detector find nothing.
func (d *detecting) beats(every, total time.Duration) {
	d.t.Helper()
	for end := d.now.Add(total); d.now.Before(end); {
		for next := d.now.Add(every); d.now.Before(next); {
			d.now = d.now.Add(d.tick())
			require.NoError(d.t, d.step(d.now, !d.now.Before(next)))
		}
	}
}

// silent returns how long nothing comes until the detector says so.
func (d *detecting) silent() time.Duration {
	began := d.now
	for range 1_000_000 {
		d.now = d.now.Add(d.tick())
		if err := d.step(d.now, false); err != nil {
			require.ErrorIs(d.t, err, ErrSilent)
			return d.now.Sub(began)
		}
	}
	require.Fail(d.t, "never")
	return 0
}
