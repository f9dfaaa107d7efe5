// SPDX-License-Identifier: Apache-2.0

//go:build unix

package timing

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// TestStalls: a node whose network traffic stops for 100 ms, again and again, keeps its role, and its partner keeps it
// in sync: with the pair just in sync, and after the nodes know each other. Clients wait for those 100 ms.
func TestStalls(t *testing.T) {
	for _, stalled := range []pb.Role{pb.Role_ROLE_ACTIVE, pb.Role_ROLE_STANDBY} {
		t.Run(stalled.String(), func(t *testing.T) {
			run(t, func(t *testing.T, p *pair) {
				const stall = 100 * time.Millisecond
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
					sleep(time.Duration(100+7*i) * time.Millisecond) // another phase of the heartbeats
					require.Equal(t, before, p.fence())
					require.LessOrEqual(t, l.slowest(from, to), stall+6*roundTrip)
				}
				l.end()
			})
		})
	}
}

// TestCut: when the nodes cannot hear each other and both reach the coordinator, the active drops the standby before
// the standby would take over, and continues. When the link heals, the standby is in sync again.
func TestCut(t *testing.T) {
	for _, c := range []struct {
		name  string
		after time.Duration
		ready func(p *pair)
	}{
		{"just in sync", firstDropAfter, func(p *pair) { p.inSync() }},
		{"acquainted", dropAfter, func(p *pair) { p.acquainted() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			run(t, func(t *testing.T, p *pair) {
				w, l := p.work(), p.load()
				for i := range 4 {
					c.ready(p)
					active, standby := p.inSync()
					l.more()
					sleep(time.Duration(i) * heartbeat / 4)
					before, from := p.fence(), time.Now()
					p.cut(true)
					active.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
					took := time.Since(from)
					l.more()
					pause := l.pause(from, time.Now())
					t.Logf("dropped after %v, publishers were without an answer for %v", took, pause)
					require.InDelta(t, c.after, took, float64(c.after/10))
					require.InDelta(t, c.after, pause, float64(c.after/10))
					sleep(2 * time.Second) // more than the standby waits
					require.Equal(t, before.Term, p.fence().Term, "the standby took over")
					require.NotContains(t, []pb.Role{pb.Role_ROLE_ACTIVE, pb.Role_ROLE_ACTIVE_ALONE}, standby.Role())
					p.cut(false)
					p.inSync()
				}
				l.end()
				p.verify(w)
			})
		})
	}
}

// TestRestartAlone: an active that ran alone is started again. Its standby, which found no process in the meantime, is
// in sync again, and does not take over.
func TestRestartAlone(t *testing.T) {
	run(t, func(t *testing.T, p *pair) {
		active, standby := p.acquainted()
		p.cut(true)
		active.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
		before := p.fence()
		require.NoError(t, active.Stop())
		p.cut(false)
		sleep(time.Minute) // more than a node leaves the role to the previous active after its start
		active = p.restart(active)
		p.inSync()
		sleep(2 * time.Second)
		require.Equal(t, before.Term+1, p.fence().Term, "the standby took over")
		require.Equal(t, pb.Role_ROLE_ACTIVE, active.Role())
		require.Equal(t, pb.Role_ROLE_STANDBY, standby.Role())
	})
}

// TestAcksWaitForTheStandby: what the active sends to its standby is lost on the way, and then the active is killed.
// Nothing that only it had was acknowledged (INV-2).
func TestAcksWaitForTheStandby(t *testing.T) {
	for _, delay := range []time.Duration{5, 20, 50, 80, 110, 140, 170} {
		delay *= time.Millisecond
		t.Run(fmt.Sprint(delay), func(t *testing.T) {
			run(t, func(t *testing.T, p *pair) {
				w, l := p.work(), p.load()
				active, standby := p.acquainted()
				l.more()
				cut := w.History().Now()
				p.cut(true)
				sleep(delay)
				require.Equal(t, pb.Role_ROLE_ACTIVE, active.Role())
				require.Greater(t, p.status(active).GetStore().GetLogEnd().GetLsn(),
					p.status(standby).GetStore().GetLogEnd().GetLsn(), "the standby has all that the active has")
				// An acknowledgement that the active sent before the cut takes one latency to its client.
				_, alone := w.History().AckedAfter(cut+roundTrip, standby.Ready.Advertise)
				require.False(t, alone, "acknowledged without the standby")
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
