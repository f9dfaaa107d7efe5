// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

// INV-13: an active that lacks records its standby knows to be committed does not stay active.
func TestStandbyAhead(t *testing.T) {
	t.Run("in sync: it gets the role", func(t *testing.T) {
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
	t.Run("not in sync: the active stops serving until that node comes without it", func(t *testing.T) {
		r := newRig(t, Settings{})
		r.start(usedIdentity(), recordWith(0, 0), 0)
		r.won()
		r.report(ActiveReady{})
		effects := r.report(StandbyAhead{Member: memberOf(1), End: lsn.Position{Term: 2, LSN: 30}, Committed: 30})
		requireNo[SwapRecord](t, effects)
		require.False(t, effect[ConfigureActive](t, effects).Config.Serve)
		require.Equal(t, RoleBlocked, r.s.Role())
		require.Contains(t, r.s.Reason(), "histories differ")
		r.report(StandbyConnected{Member: Member{Node: testNodes[1].ID, Store: uuid.New(), Incarnation: 1}})
		require.True(t, r.s.act.sent.Serve)
	})
}

// The status of a node that is not in sync and has more committed records than the active suggests no action that
// would lose one of the two histories.
func TestActiveBehind(t *testing.T) {
	r := newRig(t, Settings{})
	r.start(usedIdentity(), recordWith(1, 1), 0, 1)
	r.report(FollowerLost{Cause: LostBehind})
	require.Contains(t, r.s.Reason(), "When histories differ")
	require.NotContains(t, r.s.Reason(), "--force")
	require.Contains(t, r.s.ahead(), "missing on")
}

// An in-sync standby that learns of commits beyond its log was restored from an older copy and must not take over.
func TestLacks(t *testing.T) {
	for _, tt := range []struct {
		name  string
		lacks FollowerIncomplete
		took  bool
	}{
		{"in the configuration that names it", FollowerIncomplete{Config: 5, Common: 4, Committed: 9}, true},
		{"the active reports that it had acknowledged more", FollowerIncomplete{}, true},
		{"before it was named in sync", FollowerIncomplete{Config: 4, Common: 4, Committed: 9}, false},
		{"in a configuration that it does not know", FollowerIncomplete{Config: 6, Common: 4, Committed: 9}, false},
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

// A process takes no part while another one runs under its identity.
func TestDuplicate(t *testing.T) {
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
	t.Run("at this node's own address: it no longer runs", func(t *testing.T) {
		_, effects := begin(t, Live{Node: testNodes[0], Process: "other"})
		effect[Announce](t, effects)
		effect[SwapRecord](t, effects)
	})
	t.Run("gone", func(t *testing.T) {
		r, effects := begin(t, stale)
		require.Equal(t, "a:2", effect[Handshake](t, effects).Address)
		requireNo[Announce](t, effects)
		requireNo[SwapRecord](t, effects)
		effects = r.step(HandshakeDone{Address: "a:2", Gone: true, Err: ErrGone})
		effect[Announce](t, effects)
		effect[LoadRecord](t, effects) // to read the committed position of the other process
		effect[SwapRecord](t, r.step(Loaded{Record: recordWith(0, 0), Revision: 100}))
	})
	t.Run("runs, and is gone later", func(t *testing.T) {
		r, _ := begin(t, stale)
		effects := r.step(HandshakeDone{Address: "a:2", Peer: Peer{Node: testNodes[0].ID, Process: "other"}})
		requireNo[SwapRecord](t, effects)
		require.Contains(t, r.s.Reason(), "duplicate node identity")
		require.Equal(t, stale, *r.s.duplicate())
		requireNo[SwapRecord](t, r.observe(true))
		require.Equal(t, []Effect{Handshake{Address: "a:2"}}, r.after(duplicateRetention),
			"so that the other node detects it, too")
		r.step(HandshakeDone{Address: "a:2", Gone: true, Err: ErrGone})
		require.Equal(t, []Effect{Handshake{Address: "a:2"}}, r.after(time.Hour), "what that one acknowledged is not here")
	})
	t.Run("runs, and was started again", func(t *testing.T) {
		r, _ := begin(t, stale)
		requireNo[SwapRecord](t, r.handshake(r.step(HandshakeDone{
			Address: "a:2",
			Peer:    Peer{Node: testNodes[0].ID, Process: "the next"},
		})))
		require.Contains(t, r.s.Reason(), "duplicate node identity")
	})
	t.Run("does not respond: its lease decides", func(t *testing.T) {
		r, _ := begin(t, stale)
		requireNo[SwapRecord](t, r.step(HandshakeDone{Address: "a:2", Err: ErrUnreachable}))
		effect[LoadRecord](t, r.observe(true))
		effect[MarkLoss](t, r.step(Loaded{
			Record: recordWith(0, 0), Revision: 100,
			Mark: Mark{Pair: testPair, By: 2, Term: 2, LSN: 11},
		}))
	})
	t.Run("the running one is notified", func(t *testing.T) {
		r := activePair(t, Settings{})
		r.step(DuplicateReported{Live: stale})
		require.Equal(t, stale, *r.s.duplicate())
		r.after(duplicateRetention)
		require.Nil(t, r.s.duplicate())
		r.step(Observed{Observation: Observation{Reachable: true, Duplicate: &Duplicate{Live: stale, Stale: true}}})
		require.Nil(t, r.s.duplicate(), "perhaps a run before this one, which was killed")
		r.step(Observed{Observation: Observation{Reachable: true, Duplicate: &Duplicate{Live: stale}}})
		require.Equal(t, stale, *r.s.duplicate())
	})
}
