// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// preferring makes a the active of {a, b}, with b connected and preferred.
func preferring(t *testing.T, set Settings) *rig {
	t.Helper()
	r := activePair(t, set)
	r.liveB(true)
	return r
}

// liveB feeds liveness keys of both nodes, with b's preference.
func (r *rig) liveB(preferred bool) []Effect {
	r.t.Helper()
	b := testNodes[1]
	b.Preferred = preferred
	o := Observation{Reachable: true, LiveKnown: true, Live: []Live{{Node: testNodes[0]}, {Node: b}}}
	return r.step(Observed{Observation: o, LeaseUntil: r.now + 3*time.Second})
}

// When the preferred node has been in sync for the delay, it receives the role by an ordinary handover.
func TestFailback(t *testing.T) {
	r := preferring(t, Settings{FailbackDelay: time.Minute})
	at, ok := r.s.Deadline()
	require.True(t, ok)
	require.Equal(t, time.Minute, at)
	requireNo[BeginDrain](t, r.after(59*time.Second))
	drain := effect[BeginDrain](t, r.after(time.Second))
	swap := effect[SwapRecord](t, r.step(DrainEnded{Drain: drain.Drain}))
	require.Equal(t, testNodes[1].ID, swap.Next.Active)
	require.Len(t, swap.Next.InSync, 2)
	require.Equal(t, []string{"stop-active", "fence", "start-follower"}, kinds(r.won()))
	requireNo[BeginDrain](t, r.after(time.Hour))
}

// Failback does not happen if it is disabled, or both nodes are preferred.
func TestNoFailback(t *testing.T) {
	for name, set := range map[string]Settings{
		"off": {}, "both are preferred": {FailbackDelay: time.Minute, Preferred: true},
	} {
		t.Run(name, func(t *testing.T) {
			requireNo[BeginDrain](t, preferring(t, set).after(time.Hour))
		})
	}
	r := activePair(t, Settings{FailbackDelay: time.Minute})
	r.liveB(false)
	requireNo[BeginDrain](t, r.after(time.Hour))
}

// The failback delay restarts after each of these conditions ends.
func TestFailbackDelayRestarts(t *testing.T) {
	record := func(r *rig, change func(*Record)) {
		rec := r.s.rec.Clone()
		rec.Config, rec.OpID = rec.Config+1, rec.OpID+"+"
		change(&rec)
		r.seeRecord(rec, r.s.rev+1)
	}
	for name, c := range map[string]struct{ from, to func(r *rig) }{
		"the standby is disconnected": {
			func(r *rig) { r.report(StandbyLost{Node: testNodes[1].ID, Cause: LostReset}) },
			func(r *rig) {
				r.won()
				r.report(StandbyConnected{Member: memberOf(1)})
				r.report(StandbyCaughtUp{Member: memberOf(1)})
				r.report(StandbySynced{Member: memberOf(1), Requirement: r.s.act.sent.Requirement})
				r.won()
			},
		},
		"the standby is disconnected briefly": {
			func(r *rig) {
				r.observe(false, 0, 1) // so that the standby is not dropped
				r.report(StandbyLost{Node: testNodes[1].ID, Cause: LostReset})
			},
			func(r *rig) {
				r.report(StandbyConnected{Member: memberOf(1)})
				r.step(Loaded{Record: r.s.rec, Revision: r.s.rev})
				r.liveB(true)
			},
		},
		"the pair is paused": {
			func(r *rig) { record(r, func(rec *Record) { rec.Paused = &Pause{} }) },
			func(r *rig) { record(r, func(rec *Record) { rec.Paused = nil }) },
		},
		"a maintenance plan runs": {
			func(r *rig) { r.step(FailbackBlocked{Reason: "plan 7 runs"}) },
			func(r *rig) { r.step(FailbackBlocked{}) },
		},
		"the standby has another configuration": {
			func(r *rig) { r.liveB(false) },
			func(r *rig) { r.liveB(true) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := preferring(t, Settings{FailbackDelay: time.Minute})
			r.after(50 * time.Second)
			c.from(r)
			require.Equal(t, never, r.s.act.transferAt)
			requireNo[BeginDrain](t, r.after(10*time.Millisecond))
			c.to(r)
			require.Equal(t, RoleActive, r.s.Role(), r.s.Reason())
			requireNo[BeginDrain](t, r.after(59*time.Second))
			effect[BeginDrain](t, r.after(time.Second))
		})
	}
}

// A handover that fails restarts the delay.
func TestFailbackFails(t *testing.T) {
	r := preferring(t, Settings{FailbackDelay: time.Minute})
	r.observe(false, 0, 1)
	r.liveB(true)
	r.s.reachable = false
	requireNo[BeginDrain](t, r.after(time.Minute))
	r.liveB(true)
	requireNo[BeginDrain](t, r.after(59*time.Second))
	drain := effect[BeginDrain](t, r.after(time.Second))
	effects := r.step(DrainEnded{Drain: drain.Drain, Err: errors.New("too slow")})
	effect[Resume](t, effects)
	require.Contains(t, effect[Warn](t, effects).Text, "preferred node")
	requireNo[BeginDrain](t, r.after(59*time.Second))
	effect[BeginDrain](t, r.after(time.Second))
}

// After every role change, the full delay applies.
func TestFailbackAfterATakeover(t *testing.T) {
	r := standbyPair(t, Settings{FailbackDelay: time.Minute})
	r.liveB(true)
	r.after(time.Hour)
	r.report(FollowerLost{Cause: LostRefused})
	r.won()
	r.report(ActiveReady{})
	r.after(time.Hour)
	r.report(StandbyConnected{Member: memberOf(1)})
	r.report(StandbyCaughtUp{Member: memberOf(1)})
	r.report(StandbySynced{Member: memberOf(1), Requirement: r.s.act.sent.Requirement})
	r.won()
	r.liveB(true)
	requireNo[BeginDrain](t, r.after(59*time.Second))
	effect[BeginDrain](t, r.after(time.Second))
}
