// SPDX-License-Identifier: Apache-2.0

//go:build unix

package timing

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/simpair"
)

// A node keeps its role and stays in sync although its network traffic stops 30 times for 200 ms. A publish takes at
// most as long as a stop and six round trips.
func TestShortNetworkStalls(t *testing.T) {
	for _, stalled := range []pb.Role{pb.Role_ROLE_ACTIVE, pb.Role_ROLE_STANDBY} {
		t.Run(stalled.String(), func(t *testing.T) {
			run(t, func(t *testing.T, p *pair) {
				const stall = 200 * time.Millisecond
				l := p.load()
				before := p.fence()
				for i := range 30 {
					n, standby := p.inSync()
					if stalled == pb.Role_ROLE_STANDBY {
						n = standby
					}
					from := time.Now()
					p.freeze(n, true)
					sleep(stall)
					p.freeze(n, false)
					to := time.Now()
					sleep(time.Duration(100+7*i) * time.Millisecond) // varies the phase of the heartbeats
					require.Equal(t, before, p.fence())
					require.LessOrEqual(t, l.slowest(from, to), stall+6*roundTrip)
				}
				l.end()
			})
		})
	}
}

// If the link between the nodes is cut and both reach the coordinator, the active drops the standby before the standby
// takes over, and continues. After the link is restored, the pair is in sync again.
func TestLinkCutDropsStandby(t *testing.T) {
	run(t, func(t *testing.T, p *pair) {
		w, l := p.work(), p.load()
		for i := range 4 {
			active, standby := p.inSync()
			l.more()
			sleep(time.Duration(i) * heartbeat / 4)
			before, from := p.fence(), time.Now()
			p.cut(true)
			active.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
			took := time.Since(from)
			l.more()
			pause := l.pause(from, time.Now())
			t.Logf("dropped after %v, publish outage %v", took, pause)
			require.InDelta(t, dropAfter, took, float64(dropAfter/10))
			require.InDelta(t, dropAfter, pause, float64(dropAfter/10))
			sleep(takeoverAfter)
			require.Equal(t, before.Term, p.fence().Term, "the standby took over")
			require.NotContains(t, []pb.Role{pb.Role_ROLE_ACTIVE, pb.Role_ROLE_ACTIVE_ALONE}, standby.Role())
			p.cut(false)
			p.inSync()
		}
		l.end()
		p.verify(w)
	})
}

// Disk syncs of 300 ms affect only the duration of publishes.
func TestSlowSyncs(t *testing.T) {
	for _, slow := range []pb.Role{pb.Role_ROLE_ACTIVE, pb.Role_ROLE_STANDBY} {
		t.Run(slow.String(), func(t *testing.T) {
			run(t, func(t *testing.T, p *pair) {
				const stall = 300 * time.Millisecond
				l := p.load()
				before := p.fence()
				for i := range 10 {
					n, standby := p.inSync()
					if slow == pb.Role_ROLE_STANDBY {
						n = standby
					}
					stalled, end := p.stallSyncs(n)
					from := time.Now()
					sleep(stall)
					end()
					require.Positive(t, stalled())
					l.more()
					sleep(time.Duration(7*i) * time.Millisecond) // varies the phase of the heartbeats
					require.Equal(t, before, p.fence())
					require.InDelta(t, stall, l.slowest(from.Add(-stall), from.Add(stall)), float64(6*roundTrip))
				}
				l.end()
			})
		})
	}
}

// A silence that ends a detector step and a heartbeat before the timeout has no effect. If a silence ends a detector
// step and a round trip after the timeout, the standby is dropped, or takes over.
func TestSilenceTimeouts(t *testing.T) {
	for _, c := range []struct {
		name    string
		timeout time.Duration
		silent  func(p *pair, active, standby *simpair.Node)
		changes failover.Fence // of the cluster record
	}{
		{
			"standby", dropAfter, func(p *pair, active, standby *simpair.Node) { p.cutFrom(standby, active) },
			failover.Fence{Config: 2}, // the in-sync set shrinks to one node, and grows to both again
		},
		{
			"active", takeoverAfter, func(p *pair, active, standby *simpair.Node) { p.cutFrom(active, standby) },
			failover.Fence{Config: 2, Term: 1},
		},
	} {
		for _, longer := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, longer=%v", c.name, longer), func(t *testing.T) {
				run(t, func(t *testing.T, p *pair) {
					active, standby := p.inSync()
					want := p.fence()
					lasts := c.timeout - c.timeout/50 - heartbeat
					if longer {
						lasts = c.timeout + c.timeout/50 + roundTrip
						want.Config += c.changes.Config
						want.Term += c.changes.Term
					}
					c.silent(p, active, standby)
					sleep(lasts)
					p.w.Net.Heal()
					sleep(2 * time.Second)
					p.inSync()
					require.Equal(t, want, p.fence())
				})
			})
		}
	}
}

// An active without a standby is restarted. The other node rejoins in sync and does not take over, although it found
// no active in the meantime.
func TestRestartAlone(t *testing.T) {
	run(t, func(t *testing.T, p *pair) {
		active, standby := p.inSync()
		p.cut(true)
		active.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
		before := p.fence()
		require.NoError(t, active.Stop())
		p.cut(false)
		sleep(time.Minute) // longer than a node waits for the previous active after its start
		active = p.restart(active)
		p.inSync()
		sleep(2 * time.Second)
		require.Equal(t, before.Term+1, p.fence().Term, "the standby took over")
		require.Equal(t, pb.Role_ROLE_ACTIVE, active.Role())
		require.Equal(t, pb.Role_ROLE_STANDBY, standby.Role())
	})
}

// If records from the active to its standby are lost, and then the active is killed, no message that only the active
// had was acknowledged (INV-2).
func TestAcksWaitForTheStandby(t *testing.T) {
	for _, delay := range []time.Duration{5, 50, 110, 170, 300, 600, 1400} {
		delay *= time.Millisecond
		t.Run(fmt.Sprint(delay), func(t *testing.T) {
			run(t, func(t *testing.T, p *pair) {
				w, l := p.work(), p.load()
				active, standby := p.inSync()
				l.more()
				cut := w.History().Now()
				p.cut(true)
				sleep(delay)
				require.Equal(t, pb.Role_ROLE_ACTIVE, active.Role())
				require.Greater(t, p.status(active).GetStore().GetLogEnd().GetLsn(),
					p.status(standby).GetStore().GetLogEnd().GetLsn(), "the standby must not have all records of the active")
				// An acknowledgement that the active sent before the cut arrives at its client one latency later.
				_, alone := w.History().AckedAfter(cut+roundTrip, standby.Ready.Advertise)
				require.False(t, alone, "the active acknowledged a message without the standby")
				killed := time.Now()
				active.Kill()
				p.w.Net.ResetLink(active.Host(), standby.Host())
				p.cut(false)
				standby.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
				took := time.Since(killed)
				t.Logf("takeover after %v", took)
				require.LessOrEqual(t, took, 10*time.Millisecond)
				p.restart(active)
				l.more()
				l.stop()
				p.verify(w)
			})
		})
	}
}
