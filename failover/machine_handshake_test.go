// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

// INV-13: an active on which committed records of its standby are missing does not continue.
func TestStandbyAhead(t *testing.T) {
	t.Run("an in-sync standby receives the role", func(t *testing.T) {
		r := newRig(t, Settings{})
		r.start(usedIdentity(), recordWith(0, 0, 1), 0, 1)
		r.won()
		r.report(ActiveReady{})
		swap := effect[SwapRecord](t, r.report(StandbyAhead{
			Member: memberOf(1), End: lsn.Position{Term: 2, LSN: 30},
			Committed: 30,
		}))
		require.Equal(t, testNodes[1].ID, swap.Next.Active)
		require.Equal(t, []Member{memberOf(1)}, swap.Next.InSync)
		require.Equal(t, []string{"stop-active", "fence", "start-follower"}, kinds(r.won()))
	})
	t.Run("the active does not serve until the other node connects without these records", func(t *testing.T) {
		r := newRig(t, Settings{})
		r.start(usedIdentity(), recordWith(0, 0), 0)
		r.won()
		r.report(ActiveReady{})
		effects := r.report(StandbyAhead{Member: memberOf(1), End: lsn.Position{Term: 2, LSN: 30}, Committed: 30})
		requireNo[SwapRecord](t, effects)
		require.False(t, effect[ConfigureActive](t, effects).Config.Serve)
		require.Equal(t, RoleBlocked, r.s.Role())
		require.Contains(t, r.s.Reason(), "histories differ")
		effects = r.report(StandbyLost{Node: testNodes[1].ID, Cause: LostAhead})
		requireNo[ConfigureActive](t, effects)
		require.Equal(t, RoleBlocked, r.s.Role(), "after a disconnect")
		r.report(StandbyConnected{Member: Member{Node: testNodes[1].ID, Store: uuid.New(), Incarnation: 1}})
		require.True(t, r.s.act.sent.Serve)
	})
	t.Run("after a restart, the active serves until the other node connects again", func(t *testing.T) {
		r := newRig(t, Settings{})
		r.start(usedIdentity(), recordWith(0, 0), 0)
		r.won()
		r.report(ActiveReady{})
		require.True(t, r.s.act.sent.Serve)
		r.report(StandbyAhead{Member: memberOf(1), End: lsn.Position{Term: 2, LSN: 30}, Committed: 30})
		require.False(t, r.s.act.sent.Serve)
	})
}

// If the active lacks committed records of a node that is not in sync, the status of that node does not suggest a
// forced failover: it would lose one of the two histories.
func TestActiveBehind(t *testing.T) {
	r := newRig(t, Settings{})
	r.start(usedIdentity(), recordWith(1, 1), 0, 1)
	r.report(FollowerLost{Cause: LostBehind})
	require.Contains(t, r.s.Reason(), "histories differ\"")
	require.NotContains(t, r.s.Reason(), "--force")
	require.Contains(t, r.s.ahead(), "missing on")
}

// If the active has committed more than the log of an in-sync standby contains, the standby was restored from an older
// copy, and does not take over.
func TestStandbyIsIncomplete(t *testing.T) {
	for _, tt := range []struct {
		name  string
		lacks FollowerIncomplete
		took  bool
	}{
		{"in the configuration that lists it in sync", FollowerIncomplete{Config: 5, Common: 4, Committed: 9}, true},
		{"acknowledged records are missing", FollowerIncomplete{}, true},
		{"before it was listed in sync", FollowerIncomplete{Config: 4, Common: 4, Committed: 9}, false},
		{"in an unknown configuration", FollowerIncomplete{Config: 6, Common: 4, Committed: 9}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, Settings{})
			r.start(usedIdentity(), recordWith(1, 0, 1), 0, 1)
			effects := r.report(tt.lacks)
			if !tt.took {
				requireNo[MarkLoss](t, effects)
				requireNo[SwapRecord](t, effects)
				return
			}
			effect[MarkLoss](t, effects)
			effect[StopFollower](t, effects)
			require.Equal(t, []Member{memberOf(1)}, effect[SwapRecord](t, effects).Next.InSync)
			require.Contains(t, r.s.Reason(), "older copy")
		})
	}
}

// A process does not participate while another process with its identity is running.
func TestDuplicateProcess(t *testing.T) {
	elsewhere := testNodes[0]
	elsewhere.Address = "a:2"
	stale := Live{Node: elsewhere, Process: "other"}
	begin := func(t *testing.T, l Live) (*rig, []Effect) {
		t.Helper()
		r := newRig(t, Settings{})
		effects := r.step(Started{Identity: usedIdentity()})
		effects = append(effects, r.step(Observed{Observation: Observation{
			Reachable: true, LiveKnown: true,
			Live: []Live{l},
		}})...)
		r.read = Loaded{Record: recordWith(0, 0), Revision: 100}
		return r, append(effects, r.step(r.read)...)
	}
	t.Run("a process at this node's own address has terminated", func(t *testing.T) {
		_, effects := begin(t, Live{Node: testNodes[0], Process: "other"})
		effect[Announce](t, effects)
		effect[SwapRecord](t, effects)
	})
	t.Run("the other process has terminated", func(t *testing.T) {
		r, effects := begin(t, stale)
		require.Equal(t, "a:2", effect[Handshake](t, effects).Address)
		requireNo[Announce](t, effects)
		requireNo[SwapRecord](t, effects)
		effects = r.step(HandshakeDone{Address: "a:2", Gone: true, Err: ErrGone})
		effect[Announce](t, effects)
		effect[LoadRecord](t, effects) // to read the committed position of the other process
		effect[SwapRecord](t, r.step(Loaded{Record: recordWith(0, 0), Revision: 100}))
	})
	t.Run("the other process is running, and terminates later", func(t *testing.T) {
		r, _ := begin(t, stale)
		effects := r.step(HandshakeDone{Address: "a:2", Peer: Peer{Node: testNodes[0].ID, Process: "other"}})
		requireNo[SwapRecord](t, effects)
		require.Equal(t, "a:2", r.s.proc.copyOf)
		require.Equal(t, r.s.proc.superseded, r.s.Reason())
		require.Equal(t, stale, *r.s.duplicate())
		requireNo[SwapRecord](t, r.observe(true))
		require.Equal(t, []Effect{Handshake{Address: "a:2"}}, r.after(duplicateRetention),
			"the other node must detect the duplicate, too")
		r.step(HandshakeDone{Address: "a:2", Gone: true, Err: ErrGone})
		require.Equal(t, []Effect{Handshake{Address: "a:2"}}, r.after(time.Hour),
			"records acknowledged by the other process are missing here")
	})
	t.Run("the other process is running after a restart", func(t *testing.T) {
		r, _ := begin(t, stale)
		requireNo[SwapRecord](t, r.handshake(r.step(HandshakeDone{
			Address: "a:2",
			Peer:    Peer{Node: testNodes[0].ID, Process: "the next"},
		})))
		require.Equal(t, "a:2", r.s.proc.copyOf)
		require.Equal(t, r.s.proc.superseded, r.s.Reason())
	})
	t.Run("the other process does not respond until its lease expires", func(t *testing.T) {
		r, _ := begin(t, stale)
		requireNo[SwapRecord](t, r.step(HandshakeDone{Address: "a:2", Err: ErrUnreachable}))
		effect[LoadRecord](t, r.observe(true))
		effect[MarkLoss](t, r.step(Loaded{
			Record: recordWith(0, 0), Revision: 100,
			Mark: Mark{Pair: testPair, By: 2, Term: 2, LSN: 11},
		}))
	})
	t.Run("the running process reports the duplicate", func(t *testing.T) {
		r := activePair(t, Settings{})
		r.step(DuplicateReported{Live: stale})
		require.Equal(t, stale, *r.s.duplicate())
		r.after(duplicateRetention)
		require.Nil(t, r.s.duplicate())
		r.step(Observed{Observation: Observation{Reachable: true, Duplicate: &Duplicate{Live: stale, Stale: true}}})
		require.Nil(t, r.s.duplicate(), "possibly an earlier process that was killed")
		r.step(Observed{Observation: Observation{Reachable: true, Duplicate: &Duplicate{Live: stale}}})
		require.Equal(t, stale, *r.s.duplicate())
	})
}
