// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// A silence as long as the timeout is reported, regardless of earlier gaps.
func TestDetector(t *testing.T) {
	steady := func(d *detecting) { d.beats(DefaultHeartbeat, 20*time.Second) }
	for _, c := range []struct {
		name string
		past func(d *detecting)
	}{
		{"nothing was received", func(*detecting) {}},
		{"always in time", steady},
		{"one late message before", func(d *detecting) {
			steady(d)
			d.beats(500*time.Millisecond, time.Millisecond)
			steady(d)
		}},
		{"after a reconnect", func(d *detecting) {
			steady(d)
			d.restart()
			d.beats(DefaultHeartbeat, time.Second)
		}},
		{"this process was stopped for an hour", func(d *detecting) {
			steady(d)
			d.now = d.now.Add(time.Hour)
			d.beats(DefaultHeartbeat, DefaultHeartbeat)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, timeout := range []time.Duration{DefaultActiveTimeout, DefaultStandbyTimeout} {
				d, _ := newDetecting(t, timeout)
				c.past(d)
				silence := d.silent()
				require.GreaterOrEqual(t, silence, timeout)
				require.LessOrEqual(t, silence, timeout+d.tick())
			}
		})
	}
}

// A process that was suspended does not report the other end as lost.
func TestDetectorIgnoresOwnStops(t *testing.T) {
	d, _ := newDetecting(t, DefaultStandbyTimeout)
	d.beats(DefaultHeartbeat, 10*time.Second)
	for range 100 {
		d.now = d.now.Add(5 * time.Second) // nothing was received because nothing was read
		require.NoError(t, d.step(d.now, false))
		d.beats(DefaultHeartbeat, time.Second)
	}
}

// A gap of at least half the timeout is logged as a warning. A shorter gap of at least 100 ms is logged at debug
// level. The time before a connection is not logged.
func TestDetectorLogsGaps(t *testing.T) {
	d, logs := newDetecting(t, 600*time.Millisecond)
	d.beats(350*time.Millisecond, time.Millisecond)
	d.beats(DefaultHeartbeat, time.Second)
	require.Zero(t, logs.Len())
	d.beats(200*time.Millisecond, time.Millisecond)
	d.beats(350*time.Millisecond, time.Millisecond)
	var levels []zapcore.Level
	for _, e := range logs.All() {
		levels = append(levels, e.Level)
	}
	require.Equal(t, []zapcore.Level{zapcore.DebugLevel, zapcore.WarnLevel}, levels)
	d.restart()
	d.beats(350*time.Millisecond, time.Millisecond)
	require.Equal(t, 2, logs.Len())
}

// detecting runs a detector in simulated time.
type detecting struct {
	*detector
	t   *testing.T
	now time.Time
}

func newDetecting(t *testing.T, timeout time.Duration) (*detecting, *observer.ObservedLogs) {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	return &detecting{detector: newDetector(zap.New(core), timeout), t: t, now: time.Unix(0, 0)}, logs
}

// beats delivers messages at intervals for a duration. The detector must not report an error.
func (d *detecting) beats(every, total time.Duration) {
	d.t.Helper()
	for end := d.now.Add(total); d.now.Before(end); {
		for next := d.now.Add(every); d.now.Before(next); {
			d.now = d.now.Add(d.tick())
			require.NoError(d.t, d.step(d.now, !d.now.Before(next)))
		}
	}
}

// silent returns the duration of silence after which the detector reports an error.
func (d *detecting) silent() time.Duration {
	began := d.now
	for range 1_000_000 {
		d.now = d.now.Add(d.tick())
		if err := d.step(d.now, false); err != nil {
			require.ErrorIs(d.t, err, ErrSilent)
			return d.now.Sub(began)
		}
	}
	require.Fail(d.t, "no error")
	return 0
}
