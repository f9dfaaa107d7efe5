// SPDX-License-Identifier: Apache-2.0

//go:build unix

package timing

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/test/simpair"
)

// faultCase is a temporary fault.
type faultCase struct {
	name  string
	begin func(p *pair, active, standby *simpair.Node)
	end   func(p *pair, active, standby *simpair.Node)
	// after is the shortest duration of the fault that changes the in-sync set; 0 if the fault always changes it.
	after time.Duration
	// takeover is set if the standby then takes over.
	takeover bool
	// pause returns the limit for the interval without a response to a publish.
	pause func(lasts time.Duration) time.Duration
}

func faultCases() []faultCase {
	const tolerance = 20 * time.Millisecond
	upTo := func(limit time.Duration) func(time.Duration) time.Duration {
		return func(lasts time.Duration) time.Duration { return min(lasts, limit) + tolerance }
	}
	heal := func(p *pair, _, _ *simpair.Node) { p.w.Net.Heal() }
	restartStandby := func(p *pair, _, standby *simpair.Node) { p.restart(standby) }
	return []faultCase{
		{
			name: "cut", after: dropAfter, pause: upTo(dropAfter), end: heal,
			begin: func(p *pair, _, _ *simpair.Node) { p.cut(true) },
		},
		{
			name: "link to the standby cut", after: takeoverAfter, takeover: true, pause: upTo(takeoverAfter), end: heal,
			begin: func(p *pair, active, standby *simpair.Node) { p.cutFrom(active, standby) },
		},
		{
			name: "link to the active cut", after: dropAfter, pause: upTo(dropAfter), end: heal,
			begin: func(p *pair, active, standby *simpair.Node) { p.cutFrom(standby, active) },
		},
		{
			name: "active frozen", after: dropAfter, end: heal,
			begin: func(p *pair, active, _ *simpair.Node) { p.freeze(active, true) },
			pause: func(lasts time.Duration) time.Duration { return lasts + tolerance },
		},
		{
			name: "standby frozen", after: dropAfter, pause: upTo(dropAfter), end: heal,
			begin: func(p *pair, _, standby *simpair.Node) { p.freeze(standby, true) },
		},
		{
			name: "standby stopped", pause: upTo(0), end: restartStandby,
			begin: func(p *pair, _, standby *simpair.Node) { require.NoError(p.t, standby.Stop()) },
		},
		{
			name: "standby killed", pause: upTo(0), end: restartStandby,
			begin: func(_ *pair, _, standby *simpair.Node) { standby.Kill() },
		},
		{
			name: "active killed", takeover: true, pause: upTo(0),
			begin: func(_ *pair, active, _ *simpair.Node) { active.Kill() },
			end:   func(p *pair, active, _ *simpair.Node) { p.restart(active) },
		},
	}
}

// A fault changes the roles and the in-sync set exactly as often as necessary, in an idle pair and under load. Clients
// receive no errors, and publishers wait no longer than documented. The pair is in sync within 20 ms after the fault
// ends.
func TestFaults(t *testing.T) {
	for _, c := range faultCases() {
		for _, lasts := range []time.Duration{200 * time.Millisecond, 1400 * time.Millisecond, 4 * time.Second} {
			for _, idle := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s for %v, idle=%v", c.name, lasts, idle), func(t *testing.T) {
					run(t, func(t *testing.T, p *pair) { c.inject(t, p, lasts, idle) })
				})
			}
		}
	}
}

func (c *faultCase) inject(t *testing.T, p *pair, lasts time.Duration, idle bool) {
	t.Helper()
	var l *load
	if !idle {
		l = p.load()
	}
	active, standby := p.inSync()
	want, from := p.fence(), time.Now()
	if lasts > c.after {
		want.Config += 2 // the in-sync set shrinks to one node, and grows to both again
		if c.takeover {
			want.Term++
		}
	}
	c.begin(p, active, standby)
	sleep(lasts)
	c.end(p, active, standby)
	ended := time.Now()
	p.inSync()
	require.LessOrEqual(t, time.Since(ended), 20*time.Millisecond)
	if !idle {
		l.more()
		require.LessOrEqual(t, l.pause(from, time.Now()), c.pause(lasts))
		l.end()
	}
	sleep(3 * time.Second)
	require.Equal(t, want, p.fence())
}
