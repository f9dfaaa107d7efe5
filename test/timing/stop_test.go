// SPDX-License-Identifier: Apache-2.0

//go:build unix

package timing

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/simpair"
	"github.com/lockstep-mq/lockstep/test/tier"
)

// stopCase is a state of a pair in which a node is stopped.
type stopCase struct {
	name string
	// prepare sets up the state and returns the node to stop.
	prepare func(p *pair) *simpair.Node
	// pause is the limit for the interval without a response to a publisher; 0 if the interval lasts until the node is
	// back.
	pause time.Duration
	// within is the limit for the duration of the stop.
	within time.Duration
	// after undoes prepare.
	after func(p *pair)
}

func stopCases() []stopCase {
	pausing := func(p *pair, paused bool) {
		p.t.Helper()
		p.w.Eventually(func() bool {
			for _, n := range p.nodes {
				if r := n.Role(); r == pb.Role_ROLE_ACTIVE || r == pb.Role_ROLE_ACTIVE_ALONE {
					_, err := n.Admin().SetPaused(p.t.Context(), &pb.SetPausedRequest{Paused: paused, Reason: "test"})
					require.NoError(p.t, err)
					return true
				}
			}
			return false
		}, "a node should be active")
	}
	var stopped *simpair.Node
	return []stopCase{
		{
			name: "active", pause: 20 * time.Millisecond, within: 200 * time.Millisecond,
			prepare: func(p *pair) *simpair.Node { active, _ := p.inSync(); return active },
		},
		{
			name: "standby", pause: 20 * time.Millisecond, within: 200 * time.Millisecond,
			prepare: func(p *pair) *simpair.Node { _, standby := p.inSync(); return standby },
		},
		{
			name: "paused", within: time.Second,
			prepare: func(p *pair) *simpair.Node {
				active, _ := p.inSync()
				pausing(p, true)
				return active
			},
			after: func(p *pair) { pausing(p, false) },
		},
		{
			name: "without a standby", within: time.Second,
			prepare: func(p *pair) *simpair.Node {
				active, standby := p.inSync()
				standby.Kill()
				stopped = standby
				active.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
				return active
			},
			after: func(p *pair) { p.restart(stopped) },
		},
		{
			name: "without the coordinator", within: 10 * time.Second,
			prepare: func(p *pair) *simpair.Node {
				active, _ := p.inSync()
				p.stopCoordinatorResponses(true)
				sleep(5 * time.Second)
				return active
			},
			after: func(p *pair) { p.stopCoordinatorResponses(false) },
		},
		{
			name: "with an unresponsive standby", within: 10 * time.Second,
			prepare: func(p *pair) *simpair.Node {
				active, _ := p.inSync()
				p.cut(true)
				return active
			},
			after: func(p *pair) { p.cut(false) },
		},
	}
}

// A node stops within a limit while clients publish and consume, and no client receives an error. This holds for either
// node and in any state of the pair. With a standby in sync, publishers wait only briefly.
func TestStop(t *testing.T) {
	for _, c := range stopCases() {
		t.Run(c.name, func(t *testing.T) {
			run(t, func(t *testing.T, p *pair) {
				l := p.load()
				for range tier.Count(2, 3) {
					victim := c.prepare(p)
					if c.name != "with an unresponsive standby" {
						l.more()
					}
					from := time.Now()
					require.NoError(t, victim.Stop())
					to := time.Now()
					require.LessOrEqual(t, to.Sub(from), c.within, "the stop")
					if c.pause != 0 {
						l.more()
						require.LessOrEqual(t, l.pause(from, to), c.pause, "publish outage")
					}
					p.restart(victim)
					if c.after != nil {
						c.after(p)
					}
					p.inSync()
					l.more()
					t.Logf("stopped in %v, publish outage %v", to.Sub(from), l.pause(from, to))
				}
				l.end()
			})
		})
	}
}
