// SPDX-License-Identifier: Apache-2.0

package member

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockstep-mq/lockstep/fleet"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/tier"
)

var errCommit = errors.New("commit failed")

// A new pair joins, creates queues, and returns the owner of queues of other pairs.
func TestJoin(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	a := newMember(t, etcd, "a")
	joined := query.Fleet(a.store)
	require.Equal(t, "a", joined.Pair)
	require.LessOrEqual(t, joined.MaxEpoch, a.m.Directory().Status().Counter, "the directory would appear to be older")
	a.place("*", "a")
	require.NoError(t, a.create("q"))
	epoch, ok := query.OwnershipEpoch(a.store, "q")
	require.True(t, ok)
	require.Greater(t, epoch, joined.JoinEpoch)
	a.check()

	b := newMember(t, etcd, "b")
	require.Equal(t, joined.ID, query.Fleet(b.store).ID)
	var owner *apierror.NotOwnerError
	require.ErrorAs(t, b.create("q"), &owner)
	want := apierror.NotOwnerError{Queue: "q", Pair: "a", Addresses: []string{"a1:1", "a2:1"}, Epoch: epoch}
	require.Equal(t, want, *owner)
	b.await("the copy contains the queue", func() bool { return errors.As(b.m.NotFound("q"), &owner) })
	require.Equal(t, want, *owner)
	require.ErrorIs(t, b.m.NotFound("missing"), txn.ErrQueueNotFound)
	require.ErrorIs(t, a.m.NotFound("q"), txn.ErrQueueNotFound, "the owner has deleted it in the meantime")

	require.ErrorAs(t, b.create("new"), &owner, "the rule applies to all pairs")
	require.Equal(t, "a", owner.Pair)
	_, ok = query.OwnershipEpoch(b.store, "new")
	require.False(t, ok)
}

// The queues that a pair has when it joins are assigned to it, under the epoch of the join.
func TestJoinWithQueues(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	a := newMember(t, etcd, "a")
	a.place("*", "a")
	for i := range 3 {
		require.NoError(t, a.create(fmt.Sprint("a", i)))
	}
	require.NoError(t, a.m.Leave(t.Context()), "the last pair")
	require.False(t, query.Fleet(a.store).Member())
	require.Error(t, a.create("a3"), "the pair does not create queues before it joins again")
	a.restart()
	a.awaitJoined()
	st := query.Fleet(a.store)
	require.Equal(t, st.MaxEpoch, st.JoinEpoch)
	for i := range 3 {
		epoch, _ := query.OwnershipEpoch(a.store, fmt.Sprint("a", i))
		require.Equal(t, st.JoinEpoch, epoch)
	}
	a.check()
	require.NoError(t, a.create("a3"))
	a.check()
}

// A member that restarts, or becomes active again, does not join again.
func TestRestart(t *testing.T) {
	t.Parallel()
	a := newMember(t, startEtcd(t), "a")
	require.NoError(t, a.create("q"))
	before := query.Fleet(a.store)
	a.restart()
	require.NoError(t, a.create("q2"), "waits until the pair is registered")
	a.awaitJoined()
	require.Equal(t, before.JoinEpoch, query.Fleet(a.store).JoinEpoch)
	a.deactivate()
	require.ErrorIs(t, a.create("q3"), errInactive)
	a.activate()
	require.NoError(t, a.create("q3"))
	require.ErrorIs(t, a.create("q3"), txn.ErrQueueExists)
	a.check()
}

// Concurrent creations of a name are executed one after another, and one of them creates the queue.
func TestConcurrentCreations(t *testing.T) {
	t.Parallel()
	a := newMember(t, startEtcd(t), "a")
	var running, created, others atomic.Int32
	var creations sync.WaitGroup
	for range 8 {
		creations.Go(func() {
			err := a.m.Create(t.Context(), a.primary, "q", "", func(epoch uint64) error {
				if running.Add(1) > 1 {
					t.Error("concurrent creations")
				}
				defer running.Add(-1)
				for range 5 { // time for a creation that does not wait
					if err := a.create(fmt.Sprint("other", others.Add(1))); err != nil {
						t.Error(err)
					}
				}
				return a.commit("q")(epoch)
			})
			if err == nil {
				created.Add(1)
			} else if !errors.Is(err, txn.ErrQueueExists) {
				t.Error(err)
			}
		})
	}
	creations.Wait()
	require.EqualValues(t, 1, created.Load())
	a.check()
}

// A creation that waits for another one ends with its context, and the number of creations is limited.
func TestWaitingCreations(t *testing.T) {
	t.Parallel()
	c := newCreations()
	require.NoError(t, c.begin(t.Context(), "q"))
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan error)
	go func() { waiting <- c.begin(ctx, "q") }()
	require.Eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.total == 2
	}, bound, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-waiting, context.Canceled)
	require.True(t, c.inProgress("q"))
	c.end("q")
	require.False(t, c.inProgress("q"))

	for i := range maxCreations {
		require.NoError(t, c.begin(t.Context(), fmt.Sprint(i)))
	}
	require.ErrorIs(t, c.begin(t.Context(), "one more"), fleet.ErrUnavailable)
	excluded := make(chan func())
	go func() {
		release, err := c.exclude(t.Context())
		if err != nil {
			t.Error(err)
		}
		excluded <- release
	}()
	for i := range maxCreations {
		c.end(fmt.Sprint(i))
	}
	release := <-excluded
	go func() { waiting <- c.begin(t.Context(), "q") }()
	require.Eventually(t, func() bool { return c.inProgress("q") }, bound, time.Millisecond)
	require.Empty(t, waiting)
	release()
	require.NoError(t, <-waiting)
	c.end("q")
	require.Empty(t, c.byName)
	require.Zero(t, c.total)
}

// The name of a queue is released after its deletion, and after a failed creation. An entry of a creation with an
// unknown outcome remains.
func TestReleases(t *testing.T) {
	t.Parallel()
	a := newMember(t, startEtcd(t), "a")
	require.NoError(t, a.create("q"))
	a.await("assigned", func() bool { return a.entry("q") > 0 })
	a.remove("q")
	a.await("released", func() bool { return a.entry("q") == 0 })

	fail := func(name string, err error) error {
		return a.m.Create(t.Context(), a.primary, name, "", func(epoch uint64) error {
			a.await("assigned", func() bool { return a.entry(name) == epoch })
			return err
		})
	}
	require.ErrorIs(t, fail("failed", errCommit), errCommit)
	a.await("released", func() bool { return a.entry("failed") == 0 })
	require.ErrorIs(t, fail("unknown", replication.ErrOutcomeUnknown), replication.ErrOutcomeUnknown)
	a.m.Deleted("other", 1) // a release after that of "unknown", if there were one
	a.await("released", func() bool {
		a.m.releases.mu.Lock()
		defer a.m.releases.mu.Unlock()
		return len(a.m.releases.list) == 0
	})
	require.Positive(t, a.entry("unknown"))
	a.check() // by Reconcile

	// A queue that was created again has another epoch, so a delayed release has no effect.
	require.NoError(t, a.create("q"))
	first, _ := query.OwnershipEpoch(a.store, "q")
	a.remove("q")
	require.NoError(t, a.create("q"))
	a.m.Deleted("q", first)
	a.check()
	require.Positive(t, a.entry("q"))
}

// A creation belongs to one term. Its entry remains while it may be committed, and is deleted later.
func TestRoleChangeDuringCreation(t *testing.T) {
	t.Parallel()
	a := newMember(t, startEtcd(t), "a")
	assigned, proceed, created := make(chan uint64), make(chan struct{}), make(chan error)
	old, commit := a.primary, a.commit("q")
	go func() {
		created <- a.m.Create(t.Context(), old, "q", "", func(epoch uint64) error {
			assigned <- epoch
			<-proceed
			return commit(epoch)
		})
	}()
	epoch := <-assigned
	a.deactivate()
	require.ErrorIs(t, a.m.Create(t.Context(), old, "q2", "", func(uint64) error {
		t.Error("committed on a node that is not active")
		return nil
	}), errInactive)
	a.activate()
	require.ErrorIs(t, a.m.Create(t.Context(), old, "q2", "", a.commit("q2")), errInactive, "the term of old has ended")
	require.NoError(t, a.create("other"))
	a.await("reconciled", func() bool { return a.entry("other") > 0 && !a.m.Status().Reconciled.IsZero() })
	require.Equal(t, epoch, a.entry("q"), "the creation is in progress")
	close(proceed)
	require.ErrorIs(t, <-created, replication.ErrNotActive)
	_, exists := query.OwnershipEpoch(a.store, "q")
	require.False(t, exists)
	a.check()
	require.Zero(t, a.entry("q"))
	require.NoError(t, a.create("q"))
	a.check()
}

// Without etcd, existing queues are found, unknown queues and creations are unavailable, and names of queues that are
// deleted in the meantime are released later.
func TestOutage(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	a, b := newMember(t, etcd, "a"), newMember(t, etcd, "b")
	a.place("b*", "b")
	a.place("a*", "a")
	require.NoError(t, a.create("a1"))
	require.NoError(t, b.create("b1"))
	a.await("assigned", func() bool { return errors.Is(a.m.NotFound("b1"), apierror.ErrNotOwner) })
	etcd.outage(t, func() {
		a.awaitStatus("unavailable", func(_ *Status, p Problems) bool { return p.Unavailable != "" })
		require.ErrorIs(t, a.m.NotFound("b1"), apierror.ErrNotOwner)
		require.ErrorIs(t, a.m.NotFound("missing"), fleet.ErrUnavailable)
		require.ErrorIs(t, a.m.NotFound("a1"), fleet.ErrUnavailable, "it may have been moved in the meantime")
		ctx, cancel := context.WithCancel(t.Context())
		created := make(chan error)
		go func() {
			created <- a.m.Create(ctx, a.primary, "a2", "", func(uint64) error {
				t.Error("committed without an assignment")
				return nil
			})
		}()
		a.await("waiting", func() bool { return a.m.creations.inProgress("a2") })
		cancel()
		require.ErrorIs(t, <-created, fleet.ErrUnavailable)
		a.remove("a1")
	})
	a.check()
	require.NoError(t, a.create("a2"))
	a.check()
	b.check()
	a.awaitStatus("no problems", func(s *Status, p Problems) bool { return s.Err == nil && p == Problems{} })
}

// A pair that becomes active while etcd does not respond creates queues when etcd responds again.
func TestRoleChangeDuringOutage(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	a := newMember(t, etcd, "a")
	require.NoError(t, a.create("q"))
	etcd.outage(t, func() {
		a.awaitStatus("unavailable", func(_ *Status, p Problems) bool { return p.Unavailable != "" })
		a.deactivate()
		a.activate()
	})
	require.Eventually(t, func() bool { return a.create("q2") == nil }, bound, 5*time.Millisecond)
	a.awaitJoined()
	a.check()
}

// An owner that is not in the directory has no addresses, and clients must retry.
func TestOwnerWithoutAddresses(t *testing.T) {
	require.ErrorIs(t, notOwner("q", fleet.Owner{Pair: "b", Epoch: 1}), fleet.ErrUnavailable)
	require.ErrorIs(t, notOwner("q", fleet.Owner{Pair: "b", Epoch: 1, Addresses: []string{"b:1"}}), apierror.ErrNotOwner)
}

// A queue that has moved to another pair since the queues were listed is no conflict.
func TestOutdatedConflict(t *testing.T) {
	t.Parallel()
	a := newMember(t, startEtcd(t), "a")
	require.NoError(t, a.create("q"))
	require.NoError(t, a.create("moved"))
	epoch, _ := query.OwnershipEpoch(a.store, "q")
	old, _ := query.OwnershipEpoch(a.store, "moved")
	a.remove("moved")
	conflict := fleet.Conflict{Queue: "q", Epoch: epoch, Pair: "b", PairEpoch: epoch + 9}
	a.m.record(a.primary, &fleet.Report{Conflicts: []fleet.Conflict{
		{Queue: "moved", Epoch: old, Pair: "b", PairEpoch: old + 9},
		conflict,
		{Queue: "q", Epoch: epoch - 1, Pair: "b", PairEpoch: epoch},
	}})
	require.Equal(t, []fleet.Conflict{conflict}, a.m.Status().Conflicts)
}

// Clients at other pairs receive the current addresses of the owner.
func TestChangedAddresses(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	a := newMember(t, etcd, "a")
	a.place("*", "a")
	require.NoError(t, a.create("q"))
	b := newMember(t, etcd, "b")
	a.suffix.Store("9")
	b.await("the new addresses", func() bool {
		owner, is := errors.AsType[*apierror.NotOwnerError](b.m.NotFound("q"))
		return is && slices.Equal([]string{"a1:19", "a2:19"}, owner.Addresses)
	})
}

// In a lost directory, no queues are created until all pairs have rebuilt it.
func TestLostDirectory(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	a, b := newMember(t, etcd, "a"), newMember(t, etcd, "b")
	a.place("a*", "a")
	a.place("b*", "b")
	require.NoError(t, a.create("a1"))
	require.NoError(t, b.create("b1"))
	_, err := a.client.Delete(t.Context(), "/test", clientv3.WithPrefix())
	require.NoError(t, err)
	for _, p := range []*pair{a, b} {
		p.awaitStatus("lost", func(_ *Status, problems Problems) bool { return problems.Lost != "" })
		require.ErrorIs(t, p.create("a2"), fleet.ErrLost)
		require.ErrorIs(t, p.m.NotFound("a2"), fleet.ErrLost)
	}
	report, err := a.m.Rebuild(t.Context(), []string{"a", "b"})
	require.NoError(t, err)
	require.Equal(t, []string{"b"}, report.Waiting)
	a.awaitStatus("rebuilding", func(s *Status, problems Problems) bool {
		return problems.Lost != "" && errors.Is(s.Directory.Problem, fleet.ErrRebuilding)
	})
	report, err = b.m.Rebuild(t.Context(), []string{"a", "b"})
	require.NoError(t, err)
	require.Empty(t, report.Waiting)
	a.awaitJoined()
	b.awaitJoined()
	a.place("*", "a")
	require.NoError(t, a.create("a2"))
	a.check()
	b.check()
}

// A pair that another pair has deleted from the directory does not add itself again.
func TestNotRegistered(t *testing.T) {
	t.Parallel()
	a := newMember(t, startEtcd(t), "a")
	require.NoError(t, a.create("q"))
	_, err := a.client.Delete(t.Context(), "/test/pairs/a")
	require.NoError(t, err)
	a.deactivate()
	a.activate()
	a.awaitStatus("lost", func(_ *Status, problems Problems) bool { return problems.Lost != "" })
	require.ErrorIs(t, a.create("q2"), fleet.ErrUnavailable)
	_, err = a.m.Rebuild(t.Context(), []string{"a"})
	require.NoError(t, err)
	a.awaitJoined()
	require.NoError(t, a.create("q2"))
	a.check()
}

// A pair with a queue of another pair does not join until the queue is deleted.
func TestConflict(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	a := newMember(t, etcd, "a")
	a.place("*", "a")
	require.NoError(t, a.create("q"))
	b := newPair(t, etcd, "b")
	b.awaitJoined()
	require.NoError(t, b.m.Leave(t.Context()))
	b.stopRun()
	require.NoError(t, b.commit("q")(0), "created while the pair is not a member")
	b.restart()
	b.awaitStatus("conflict", func(s *Status, problems Problems) bool {
		var conflict *fleet.ConflictError
		return problems.Conflict != "" && errors.As(s.Err, &conflict) && conflict.Conflicts[0].Queue == "q"
	})
	require.False(t, query.Fleet(b.store).Member())
	require.Error(t, b.create("other"))
	a.await("still assigned", func() bool { return a.entry("q") > 0 })
	b.remove("q")
	b.awaitJoined()
}

// A pair with the name of another pair does not join.
func TestSameName(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	a := newMember(t, etcd, "a")
	require.NoError(t, a.create("q"))
	other := newPair(t, etcd, "a")
	other.awaitStatus("conflict", func(s *Status, problems Problems) bool {
		return problems.Conflict != "" && errors.Is(s.Err, fleet.ErrPairExists)
	})
	require.False(t, query.Fleet(other.store).Member())
	require.ErrorIs(t, other.create("q2"), fleet.ErrUnavailable)
	a.check()
}

// A member with another name in the settings reports it, and creates no queues.
func TestOtherName(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	a := newMember(t, etcd, "a")
	require.NoError(t, a.create("q"))
	a.name = "b"
	a.restart()
	a.awaitStatus("mismatch", func(_ *Status, problems Problems) bool { return problems.Mismatch != "" })
	a.await("an error", func() bool { return a.m.Status().Err != nil })
	require.ErrorIs(t, a.create("q2"), fleet.ErrOtherName)
	require.ErrorIs(t, a.create("q2"), fleet.ErrUnavailable)
	_, err := a.m.Rebuild(t.Context(), []string{"a"})
	require.ErrorIs(t, err, fleet.ErrOtherName)
	require.ErrorIs(t, a.m.Leave(t.Context()), fleet.ErrOtherName)
	a.await("the copy contains the queue", func() bool { return errors.Is(a.m.NotFound("q"), txn.ErrQueueNotFound) })
	a.name = "a"
	a.restart()
	a.awaitJoined()
	require.NoError(t, a.create("q2"))
	a.check()
}

// Without fleet.pair, a pair creates queues as before. If it is still a member, the store rejects them (INV-27).
func TestRemovedSetting(t *testing.T) {
	t.Parallel()
	a := newMember(t, startEtcd(t), "a")
	var none *Manager
	require.ErrorIs(t, none.NotFound("q"), txn.ErrQueueNotFound)
	none.Activate(a.primary)
	none.Deactivate()
	none.Deleted("q", 1)
	none.Run(t.Context())
	require.Nil(t, none.Directory())
	require.ErrorIs(t, none.Create(t.Context(), a.primary, "q", "", a.commit("q")), txn.ErrNotOwned)
	require.NoError(t, a.m.Leave(t.Context()))
	require.NoError(t, none.Create(t.Context(), a.primary, "q", "", a.commit("q")))
}

// A pair without queues leaves the fleet, and joins again after a restart, with a higher epoch.
func TestLeave(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	a, b := newMember(t, etcd, "a"), newMember(t, etcd, "b")
	a.place("*", "b")
	require.NoError(t, b.create("q"))
	require.ErrorIs(t, b.m.Leave(t.Context()), fleet.ErrOwnsQueues)
	require.NoError(t, b.create("q2"), "still a member")
	b.check()
	before := query.Fleet(b.store)
	b.remove("q")
	b.remove("q2")
	require.NoError(t, b.m.Leave(t.Context()))
	require.False(t, query.Fleet(b.store).Member())
	require.ErrorIs(t, b.m.Leave(t.Context()), fleet.ErrNotMember)
	b.awaitStatus("left", func(_ *Status, problems Problems) bool { return problems.Mismatch != "" })
	signal(b.m.due)
	require.ErrorIs(t, b.create("q"), fleet.ErrUnavailable)
	a.await("removed", func() bool { return len(a.m.Directory().Pairs()) == 1 })
	require.ErrorIs(t, a.create("q"), fleet.ErrUnavailable, "no pair matches the rule")

	b.deactivate()
	b.activate()
	b.awaitStatus("left", func(_ *Status, problems Problems) bool { return problems.Mismatch != "" })
	signal(b.m.due)
	require.ErrorIs(t, b.create("q"), fleet.ErrUnavailable)
	require.False(t, query.Fleet(b.store).Member(), "a failover does not revert the departure")
	require.Len(t, a.m.Directory().Pairs(), 1)

	b.restart()
	b.awaitJoined()
	after := query.Fleet(b.store)
	require.Equal(t, before.ID, after.ID)
	require.Greater(t, after.JoinEpoch, before.MaxEpoch)
	require.NoError(t, b.create("q"))
	b.check()
}

// If Leave is interrupted after the directory was changed, the pair remains a member without a registration, and does
// not register again: after a failover, and after a restart. Leave can be called again, or Rebuild to remain.
func TestLeaveInterrupted(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	a, b := newMember(t, etcd, "a"), newMember(t, etcd, "b")
	interrupt := func(again func()) {
		_, d, err := b.m.active()
		require.NoError(t, err)
		require.NoError(t, d.Leave(t.Context(), b.m.queues(b.primary)))
		again()
		b.awaitStatus("not registered", func(s *Status, problems Problems) bool {
			return s.Log.Member() && !s.Left && errors.Is(s.Err, errNotRegistered) && problems.Lost != ""
		})
		require.ErrorIs(t, b.create("q"), fleet.ErrUnavailable)
		a.await("removed", func() bool { return len(a.m.Directory().Pairs()) == 1 })
	}
	interrupt(func() {
		b.deactivate()
		b.activate()
	})
	_, err := b.m.Rebuild(t.Context(), []string{"a", "b"})
	require.NoError(t, err)
	b.awaitJoined()
	a.await("joined", func() bool { return len(a.m.Directory().Pairs()) == 2 })
	interrupt(b.restart)
	require.NoError(t, b.m.Leave(t.Context()))
	require.False(t, query.Fleet(b.store).Member())
	b.deactivate()
	b.activate()
	b.awaitStatus("left", func(s *Status, problems Problems) bool { return s.Left && problems.Mismatch != "" })
	require.Len(t, a.m.Directory().Pairs(), 1)
}

// A node that becomes the active after the membership has ended in the log does not join again. The previous active
// has crashed before it has reported the result.
func TestLeaveAndFailover(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	a, b := newMember(t, etcd, "a"), newMember(t, etcd, "b")
	_, d, err := b.m.active()
	require.NoError(t, err)
	require.NoError(t, d.Leave(t.Context(), b.m.queues(b.primary)))
	b.m.Deactivate()
	require.NoError(t, b.m.commit(t.Context(), b.primary, txn.FleetChange{Action: txn.FleetLeave}))
	b.primary.Stop()
	b.activate()
	b.awaitStatus("left", func(s *Status, problems Problems) bool { return s.Left && problems.Mismatch != "" })
	signal(b.m.due)
	require.ErrorIs(t, b.create("q"), fleet.ErrUnavailable)
	require.False(t, query.Fleet(b.store).Member())
	a.await("removed", func() bool { return len(a.m.Directory().Pairs()) == 1 })
}

// While the pair is a replica of another site, it changes nothing in the directory.
func TestReplicaSite(t *testing.T) {
	t.Parallel()
	a := newMember(t, startEtcd(t), "a")
	require.NoError(t, a.create("q"))
	a.await("assigned", func() bool { return a.entry("q") > 0 })
	payload, err := txn.Build(time.Now(), func(b *txn.Builder) {
		b.Site(txn.SiteChange{Action: txn.SiteFollow, Lineage: a.id, Epoch: 1})
	})
	require.NoError(t, err)
	r, err := a.primary.CommitSite(t.Context(), payload)
	require.NoError(t, err)
	require.NoError(t, r.Err())
	require.Zero(t, a.m.pairState().Term)
	require.False(t, a.m.Status().Active)
	require.ErrorIs(t, a.create("q2"), errInactive)
	require.Positive(t, a.entry("q"))
}

// Creations, deletions, role changes and Reconcile run concurrently. In the end, the directory contains exactly the
// queues of both pairs, and each queue exists at one pair.
func TestRandom(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	a, b := newMember(t, etcd, "a"), newMember(t, etcd, "b")
	pairs := []*pair{a, b}
	for seed := range uint64(tier.Count(2, 30)) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		for _, p := range pairs {
			randomRound(p, rnd.Uint64())
		}
		for _, p := range pairs {
			p.awaitJoined()
		}
		a.place(fmt.Sprint("last change ", seed), "a")
		for _, p := range pairs {
			p.await("the copy contains all creations", func() bool { return len(p.m.Directory().Rules()) == int(seed)+1 })
			p.check()
		}
		queues := func(p *pair) []fleet.Placement { return p.m.Directory().Queues("", 1<<20) }
		a.await("both copies are current", func() bool { return slices.Equal(queues(a), queues(b)) })
		for _, q := range queues(a) {
			_, atA := query.OwnershipEpoch(a.store, q.Queue)
			_, atB := query.OwnershipEpoch(b.store, q.Queue)
			require.NotEqual(t, atA, atB, "seed %d: queue %s", seed, q.Queue)
		}
	}
}

func randomRound(p *pair, seed uint64) {
	p.t.Helper()
	var workers sync.WaitGroup
	for w := range uint64(4) {
		rnd := rand.New(rand.NewPCG(seed, w))
		primary := p.primary
		workers.Go(func() {
			for range 15 {
				name := fmt.Sprint("q", rnd.IntN(6))
				info, err := query.QueueByName(p.store, name)
				switch {
				case rnd.IntN(8) == 0:
					signal(p.m.due)
				case err == nil && rnd.IntN(2) == 0:
					err := p.commitVia(primary, func(b *txn.Builder) { b.DeleteQueue(info.ID, false) })
					if err == nil {
						p.m.Deleted(name, info.Epoch)
					}
				default: // all errors are possible
					_ = p.m.Create(p.t.Context(), primary, name, "", p.commitFor(primary, name))
				}
			}
		})
	}
	if seed%2 == 0 {
		p.deactivate()
		p.activate()
	}
	workers.Wait()
}
