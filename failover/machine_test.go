// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

// rig drives the machine of node a. The other node is b.
type rig struct {
	t   *testing.T
	s   State
	now time.Duration
	// read is the coordinator's state at the start.
	read Loaded
	// features are the features of both nodes.
	features Features
	// changes are the role changes and dropped standbys that the Runner would log, with their codes.
	changes []string
}

func memberOf(i int) Member {
	return Member{Node: testNodes[i].ID, Store: testStores[i], Incarnation: 1}
}

// usedIdentity returns the identity of a's store after it has participated in the pair.
func usedIdentity() Identity {
	return Identity{
		Node: testNodes[0].ID, Store: testStores[0], Incarnation: 1, PairID: testPair, Fence: Fence{Config: 4, Term: 2},
		End: lsn.Position{Term: 2, LSN: 10, Chain: 1},
	}
}

// recordWith returns a record of config 5, term 2.
func recordWith(active int, inSync ...int) Record {
	r := Record{
		Version: RecordVersion, PairID: testPair, Config: 5, Term: 2, Active: testNodes[active].ID, MinInSync: 1,
		OpID:  "earlier",
		Nodes: slices.Clone(testNodes[:]),
	}
	for _, i := range inSync {
		r.InSync = append(r.InSync, memberOf(i))
	}
	return r
}

func newRig(t *testing.T, set Settings) *rig {
	t.Helper()
	return &rig{t: t, s: NewState(set, testNodes[0], "p", testPair)}
}

func (r *rig) step(ev Event) []Effect {
	r.t.Helper()
	before := Status{Role: r.s.Role(), Self: r.s.self}
	if r.s.known {
		rec := r.s.rec.Clone()
		before.Record = &rec
	}
	s, effects := Step(r.s, r.now, ev)
	r.s = s
	if code, ok := r.s.dropped(before); ok {
		r.changes = append(r.changes, "dropped "+string(code))
	}
	if role := r.s.Role(); role != before.Role {
		r.changes = append(r.changes, role.String()+" "+string(r.s.roleCode(before)))
	}
	return effects
}

// after advances the time by d and feeds a tick.
func (r *rig) after(d time.Duration) []Effect {
	r.t.Helper()
	r.now += d
	return r.step(Ticked{})
}

func (r *rig) report(ev DataEvent) []Effect {
	r.t.Helper()
	return r.step(Reported{Epoch: r.s.epoch, Event: ev})
}

// observe feeds the coordinator's reachability, with a lease of 3 s.
func (r *rig) observe(reachable bool, live ...int) []Effect {
	r.t.Helper()
	o := Observation{Reachable: reachable, LiveKnown: true}
	for _, i := range live {
		n := testNodes[i]
		n.Features = r.features
		o.Live = append(o.Live, Live{Node: n})
	}
	lease := r.s.leaseUntil
	if reachable {
		lease = r.now + 3*time.Second
	}
	return r.step(Observed{Observation: o, LeaseUntil: lease})
}

// seeRecord feeds a record from the watch.
func (r *rig) seeRecord(rec Record, rev Revision) []Effect {
	r.t.Helper()
	o := Observation{Record: &rec, Revision: rev, Reachable: true, Live: r.s.live, LiveKnown: r.s.liveKnown}
	return r.step(Observed{Observation: o, LeaseUntil: r.s.leaseUntil})
}

// start starts the node and loads a record at revision 100.
func (r *rig) start(id Identity, rec Record, live ...int) []Effect {
	r.t.Helper()
	require.Equal(r.t, []Effect{LoadRecord{}}, r.step(Started{Identity: id}))
	require.Equal(r.t, RoleRecovering, r.s.Role())
	r.observe(true, live...)
	r.read = Loaded{Record: rec, Revision: 100}
	return r.handshake(r.step(r.read))
}

// handshake feeds the response of b if a has queried b. The log of b is not longer than that of a. If a then reads
// the coordinator's state again, handshake feeds the unchanged state.
func (r *rig) handshake(effects []Effect) []Effect {
	r.t.Helper()
	all := slices.Clone(effects)
	for _, e := range effects {
		switch e := e.(type) {
		case Handshake:
			done := HandshakeDone{Address: e.Address, Peer: Peer{Node: testNodes[1].ID, Store: testStores[1], Process: "b"}}
			all = append(all, r.handshake(r.step(done))...)
		case LoadRecord:
			all = append(all, r.step(r.read)...)
		}
	}
	return all
}

// won feeds the success of the last swap.
func (r *rig) won() []Effect {
	r.t.Helper()
	require.NotEmpty(r.t, r.s.swapping)
	return r.step(Swapped{OpID: r.s.swapping, Revision: r.s.rev + 1})
}

func effect[E Effect](t *testing.T, effects []Effect) E {
	t.Helper()
	for _, e := range effects {
		if e, ok := e.(E); ok {
			return e
		}
	}
	var none E
	require.FailNow(t, "effect is missing", "%T in %+v", none, effects)
	return none
}

func requireNo[E Effect](t *testing.T, effects []Effect) {
	t.Helper()
	for _, e := range effects {
		_, ok := e.(E)
		require.False(t, ok, "unexpected %+v", e)
	}
}

// kinds returns the names of the effects on the role, the fence and the record, in order.
func kinds(effects []Effect) []string {
	var out []string
	for _, e := range effects {
		switch e.(type) {
		case StopFollower:
			out = append(out, "stop-follower")
		case SetFence:
			out = append(out, "fence")
		case SwapRecord:
			out = append(out, "swap")
		case StartActive:
			out = append(out, "start-active")
		case StopActive:
			out = append(out, "stop-active")
		case StartFollower:
			out = append(out, "start-follower")
		case JoinPair:
			out = append(out, "join")
		}
	}
	return out
}

// activePair makes a the active of {a, b}, with b connected.
func activePair(t *testing.T, set Settings) *rig {
	t.Helper()
	r := newRig(t, set)
	r.start(usedIdentity(), recordWith(0, 0, 1), 0, 1)
	r.won()
	r.report(ActiveReady{})
	r.report(StandbyConnected{Member: memberOf(1)})
	r.report(StandbyCaughtUp{Member: memberOf(1)})
	require.Equal(t, RoleActive, r.s.Role(), r.s.Reason())
	return r
}

// standbyPair makes a the connected standby of b.
func standbyPair(t *testing.T, set Settings) *rig {
	t.Helper()
	r := newRig(t, set)
	r.start(usedIdentity(), recordWith(1, 0, 1), 0, 1)
	r.report(FollowerConnected{Config: 5, Term: 2})
	require.Equal(t, RoleStandby, r.s.Role())
	return r
}

// With the standby and the coordinator reachable, the active acknowledges transactions that the standby has acked.
func TestAckBothReachable(t *testing.T) {
	r := activePair(t, Settings{})
	require.True(t, r.s.act.sent.Serve)
	require.True(t, r.s.act.sent.Deliver)
	require.True(t, r.s.act.sent.RequireStandby)
	require.Equal(t, memberOf(1), r.s.act.sent.Standby)
}

// While the coordinator is unreachable, the active continues to acknowledge, without a time limit.
func TestAckWithoutCoordinator(t *testing.T) {
	r := activePair(t, Settings{})
	require.Empty(t, r.observe(false, 0, 1))
	for range 20 {
		require.Empty(t, r.after(time.Second))
	}
	require.Equal(t, RoleActive, r.s.Role())
	require.True(t, r.s.act.sent.Serve)
	require.Contains(t, r.s.Reason(), "are suspended")
}

// If the standby is lost, the active blocks, removes it by a swap, and then acknowledges alone (INV-3).
func TestAckStandbyLost(t *testing.T) {
	r := activePair(t, Settings{})
	effects := r.report(StandbyLost{Node: testNodes[1].ID, Cause: LostSilence})
	swap := effect[SwapRecord](t, effects)
	require.Equal(t, []Member{memberOf(0)}, swap.Next.InSync)
	require.Equal(t, r.s.rec.Term, swap.Next.Term)
	require.Equal(t, r.s.rec.Config+1, swap.Next.Config)
	require.Equal(t, RoleBlocked, r.s.Role())
	require.True(t, r.s.act.sent.RequireStandby, "no ack alone before the swap")

	effects = r.won()
	cfg := effect[ConfigureActive](t, effects).Config
	require.False(t, cfg.RequireStandby)
	require.True(t, cfg.Serve)
	require.Equal(t, swap.Next.Config, cfg.Config)
	require.Equal(t, RoleActiveAlone, r.s.Role())
	require.Equal(t, r.s.rec.Fence(), effect[SetFence](t, effects).Fence)
}

// If the standby is lost with min_in_sync=2, the active rejects writes until the standby returns.
func TestAckStandbyLostMinInSync2(t *testing.T) {
	r := activePair(t, Settings{MinInSync: 2})
	r.report(StandbyLost{Node: testNodes[1].ID, Cause: LostSilence})
	cfg := effect[ConfigureActive](t, r.won()).Config
	require.False(t, cfg.Serve)
	require.True(t, cfg.RequireStandby)
	require.Equal(t, Member{}, cfg.Standby)
	require.Contains(t, cfg.Reason, "min_in_sync")
	require.Equal(t, RoleBlocked, r.s.Role())

	r.report(StandbyConnected{Member: memberOf(1)})
	cfg = effect[ConfigureActive](t, r.report(StandbyCaughtUp{Member: memberOf(1)})).Config
	require.Equal(t, memberOf(1), cfg.Standby)
	r.report(StandbySynced{Member: memberOf(1), Requirement: cfg.Requirement})
	cfg = effect[ConfigureActive](t, r.won()).Config
	require.True(t, cfg.Serve)
	require.Equal(t, RoleActive, r.s.Role())
}

// Without the standby and the coordinator, the active blocks, then rejects writes, and stops deliveries before its
// lease can expire.
func TestAckWithoutStandbyAndCoordinator(t *testing.T) {
	r := activePair(t, Settings{})
	r.observe(false, 0, 1) // lease until +3 s
	requireNo[SwapRecord](t, r.report(StandbyLost{Node: testNodes[1].ID, Cause: LostSilence}))
	require.Equal(t, RoleBlocked, r.s.Role())
	require.True(t, r.s.act.sent.Serve, "transactions still wait for the standby")
	require.True(t, r.s.act.sent.RequireStandby)

	cfg := effect[ConfigureActive](t, r.after(time.Second)).Config
	require.False(t, cfg.Serve)
	require.True(t, cfg.Deliver)
	at, ok := r.s.Deadline()
	require.True(t, ok)
	require.LessOrEqual(t, at, 2500*time.Millisecond)
	r.step(Loaded{Err: ErrUnreachable})
	cfg = effect[ConfigureActive](t, r.after(1500*time.Millisecond)).Config
	require.False(t, cfg.Deliver, "the lease expires in half a second")
	require.True(t, cfg.RequireStandby)

	// The standby returns first: its acks suffice.
	cfg = effect[ConfigureActive](t, r.report(StandbyConnected{Member: memberOf(1)})).Config
	require.True(t, cfg.Serve)
	require.True(t, cfg.Deliver)
	require.True(t, cfg.RequireStandby)
}

// An active that is alone in sync continues while the coordinator is unreachable.
func TestAckAloneWithoutCoordinator(t *testing.T) {
	r := newRig(t, Settings{})
	r.start(usedIdentity(), recordWith(0, 0), 0)
	r.won()
	r.report(ActiveReady{})
	require.Empty(t, r.observe(false, 0))
	require.Empty(t, r.after(time.Minute))
	require.Equal(t, RoleActiveAlone, r.s.Role())
	require.True(t, r.s.act.sent.Serve)
	require.False(t, r.s.act.sent.RequireStandby)
}

// After a restart, an active that was alone in sync waits for the coordinator.
func TestAloneWaitsForCoordinatorAfterRestart(t *testing.T) {
	r := newRig(t, Settings{})
	r.step(Started{Identity: usedIdentity()})
	r.observe(false)
	require.Empty(t, r.step(Loaded{Err: ErrUnreachable}))
	require.Equal(t, []Effect{LoadRecord{}}, r.after(time.Second))
	require.Equal(t, RoleRecovering, r.s.Role())
	require.Contains(t, r.s.Reason(), "coordinator")
	require.Equal(t, []string{"fence", "swap"}, kinds(r.step(Loaded{Record: recordWith(0, 0), Revision: 9})))
	effects := r.won()
	require.Equal(t, uint64(3), effect[StartActive](t, effects).Spec.Term, "a term is never used twice")
}
