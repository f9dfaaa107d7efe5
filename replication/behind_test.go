// SPDX-License-Identifier: Apache-2.0

package replication_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/wal"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// quickRetry shortens the retry interval of a standby.
func quickRetry(n *node) { n.tuning.BehindRetry = 5 * time.Millisecond }

// image returns a snapshot of the node's disk.
func (n *node) image() *memfs.FS {
	n.w.t.Helper()
	require.NoError(n.w.t, n.store.Sync())
	return n.disk.CrashClone(nil)
}

// sealedImage waits until the log states that all records are committed, and returns a snapshot of the node's disk.
func (n *node) sealedImage() (image *memfs.FS) {
	n.w.t.Helper()
	require.Eventually(n.w.t, func() bool {
		image = n.image()
		o := n.options
		o.FS = image.CrashClone(nil)
		st, err := store.Open(o)
		require.NoError(n.w.t, err)
		defer func() { _ = st.Close() }()
		return st.Committed() == n.store.End().LSN
	}, waitLimit, 20*time.Millisecond)
	return image
}

// rollBack restarts the node with an older image of its disk, or with the state after a power failure.
func (n *node) rollBack(image *memfs.FS) {
	n.w.t.Helper()
	n.close()
	n.stop()
	_ = n.store.Close()
	n.disk = image
	n.open()
	n.listen()
	n.clearEvents()
}

// oldActive is a dialer to an active of release 0.1.0, which does not support the Committed field.
type oldActive struct{ replication.Dialer }

func (d oldActive) Dial(ctx context.Context, address string) (replication.Conn, error) {
	c, err := d.Dialer.Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	return oldConn{c}, nil
}

type oldConn struct{ replication.Conn }

func (c oldConn) Replicate(ctx context.Context) (replication.ActiveStream, error) {
	s, err := c.Conn.Replicate(ctx)
	return oldStream{s}, err
}

func (c oldConn) FetchSnapshot(
	ctx context.Context, req replication.SnapshotRequest,
) (replication.SnapshotStream, error) {
	req.Committed = lsn.Position{}
	return c.Conn.FetchSnapshot(ctx, req)
}

type oldStream struct{ replication.ActiveStream }

func (s oldStream) Send(m *replication.StandbyMessage) error {
	if m.Hello != nil {
		hello := *m.Hello
		hello.Committed = lsn.Position{}
		m = &replication.StandbyMessage{
			Config: m.Config, Term: m.Term, Hello: &hello, Durable: m.Durable,
			AppliedLSN: m.AppliedLSN,
		}
	}
	return s.ActiveStream.Send(m)
}

// behindPair returns an in-sync pair. Restoring old on node a loses the last 50 of 100 acknowledged messages.
func behindPair(w *world, change ...func(*node)) (a, b *node, old, oldOfB *memfs.FS) {
	w.t.Helper()
	change = append(change, quickRetry)
	a, b = w.node("a", change...), w.node("b", change...)
	a.lead(1, 1, nil)
	b.follow(a)
	a.createQueue()
	a.sync(b)
	a.publish(a.queueID, 50, 50, 4)
	old, oldOfB = a.image(), b.image()
	a.publish(a.queueID, 50, 50, 4)
	requireEqual(a, b)
	require.Equal(w.t, b.store.End().LSN, b.store.Committed())
	return a, b, old, oldOfB
}

// requireUntouched asserts that no record of b was truncated or replaced.
func requireUntouched(b *node, end lsn.Position) {
	b.w.t.Helper()
	require.Equal(b.w.t, end, b.store.End())
	require.Equal(b.w.t, end.LSN, b.store.Committed())
	names, err := b.disk.ReadDir("/data")
	require.NoError(b.w.t, err)
	require.False(b.w.t, containsPrefix(names, "cut-"))
	for _, e := range b.seen() {
		switch e.(type) {
		case replication.SnapshotInstalled, replication.FollowerConnected, replication.Failed:
			require.Failf(b.w.t, "followed", "%T %+v", e, e)
		}
	}
}

// An active restored from an older copy lacks records that its standby knows to be committed. Nothing is truncated
// and both sides report it. When the standby becomes active, nothing is lost (INV-13).
func TestRolledBackActive(t *testing.T) {
	for name, c := range map[string]struct {
		// restarted: the standby restarts as well and has applied nothing. Without INV-13, its log would be truncated. If
		// it does not restart, its log would be replaced by a snapshot.
		restarted bool
		// writes is the number of transactions that the active commits alone before the standby connects.
		writes int
		// old: the active runs release 0.1.0.
		old bool
	}{
		"both restarted":                                         {restarted: true},
		"the standby keeps running":                              {},
		"the active has written more":                            {restarted: true, writes: 200},
		"the active has written more, the standby keeps running": {writes: 200},
		"old release, both restarted":                            {restarted: true, old: true},
		"old release, the standby keeps running":                 {old: true},
		"old release, more written":                              {restarted: true, writes: 200, old: true},
		"old release, more written, the standby keeps running":   {writes: 200, old: true},
	} {
		t.Run(name, func(t *testing.T) {
			overBoth(t, func(t *testing.T, w *world) {
				a, b, old, _ := behindPair(w)
				b.stop()
				if c.restarted {
					b.rollBack(b.sealedImage())
				}
				a.rollBack(old)
				end, committed := b.store.End(), b.store.Committed()
				if c.writes == 0 {
					a.lead(10, 2, b)
				} else {
					a.lead(10, 2, nil)
					a.publish(1, c.writes, 50, 4)
				}
				// The active reports its log end, which advances when the term-start record is written.
				require.Eventually(t, func() bool { return a.store.End().Term == 2 }, waitLimit, time.Millisecond)
				b.clearEvents()
				d := w.dialer()
				if c.old {
					d = oldActive{d}
				}
				b.followVia(d, a.address)
				if !c.old {
					ahead := await[replication.StandbyAhead](a, nil)
					require.Equal(t, replication.StandbyAhead{Member: b.member(), End: end, Committed: committed},
						ahead)
				}
				e := await(b, lost(replication.LostBehind))
				require.ErrorIs(t, e.Err, replication.ErrBehind)
				require.Contains(t, e.Err.Error(), fmt.Sprint(committed))
				if !c.old {
					require.Contains(t, e.Err.Error(), "committed records")
					require.Contains(t, e.Err.Error(), a.store.End().String())
				}
				requireUntouched(b, end)
				if c.writes > 0 {
					return // both have unique records: the operator decides
				}
				b.stop()
				a.stop()
				b.lead(20, 3, nil)
				a.follow(b)
				requireEqual(a, b)
				require.Len(t, a.messages(), 100)
			})
		})
	}
}

// A standby that a rolled-back active has rejected redials once per BehindRetry, and reports the loss once.
func TestRolledBackActiveIsRedialedSlowly(t *testing.T) {
	synctest.Test(t, testRolledBackActiveIsRedialedSlowly)
}

func testRolledBackActiveIsRedialedSlowly(t *testing.T) {
	w := newWorld(t)
	a, b, old, _ := behindPair(w)
	b.stop()
	a.rollBack(old)
	a.lead(10, 2, b)
	b.tuning.BehindRetry = 300 * time.Millisecond
	b.follow(a)
	await(b, lost(replication.LostBehind))
	hellos := func() (n int) {
		for _, e := range a.seen() {
			if _, ok := e.(replication.StandbyAhead); ok {
				n++
			}
		}
		return n
	}
	pause(2*b.tuning.BehindRetry - time.Millisecond)
	require.Equal(t, 2, hellos())
	pause(2 * time.Millisecond)
	require.Equal(t, 3, hellos())
	pause(200 * b.tuning.BehindRetry)
	require.Equal(t, 203, hellos())
	n := 0
	for _, e := range b.seen() {
		if _, ok := e.(replication.FollowerLost); ok {
			n++
		}
	}
	require.Equal(t, 1, n, "the standby reports it once")
}

// A standby that started from a snapshot rejects an active restored from a copy older than the snapshot.
func TestRolledBackActiveWithoutCommonRecord(t *testing.T) {
	for _, release := range []string{"this", "old"} {
		simulated(t, release, func(t *testing.T) {
			w := newWorld(t)
			a, b := w.node("a", smallLog, quickRetry), w.node("b", smallLog, quickRetry)
			a.lead(1, 1, nil)
			a.createQueue()
			trim := func() {
				t.Helper()
				for from := a.store.FirstLSN(); a.store.FirstLSN() == from; {
					a.publish(a.queueID, 100, 4000, 16)
					_, err := a.store.Checkpoint(t.Context())
					require.NoError(t, err)
				}
			}
			trim()
			old := a.image()
			trim()
			b.follow(a)
			await[replication.SnapshotInstalled](b, nil)
			requireEqual(a, b)
			b.stop()
			a.rollBack(old)
			end := b.store.End()
			a.lead(10, 2, b)
			b.clearEvents()
			d := w.dialer()
			if release == "old" {
				d = oldActive{d}
			}
			b.followVia(d, a.address)
			e := await(b, lost(replication.LostBehind))
			require.ErrorIs(t, e.Err, replication.ErrBehind)
			requireUntouched(b, end)
		})
	}
}

// A forced failover discards only the records after its position: the standby rejects an active that lacks earlier
// committed records.
func TestRolledBackForcedActive(t *testing.T) { synctest.Test(t, testRolledBackForcedActive) }

func testRolledBackForcedActive(t *testing.T) {
	w := newWorld(t)
	a, b, _, old := behindPair(w)
	b.stop()
	a.stop()
	after := b.store.End().LSN
	a.lead(20, 2, nil)
	a.publish(a.queueID, 10, 50, 1) // acknowledged alone; discarded when b is forced to be active with term 3
	a.stop()
	end := a.store.End()
	b.rollBack(old)
	require.Less(t, b.store.End().LSN, after)
	b.lead(30, 4, nil)
	a.clearEvents()
	f := replication.StartFollower(replication.FollowerOptions{
		Store: a.store, Dialer: w.dialer(), Address: b.address, Events: a.event, Tuning: a.tuning,
		DiscardedRange: replication.DiscardedRange{Term: 3, After: after},
	})
	defer f.Stop()
	e := await(a, lost(replication.LostBehind))
	require.ErrorIs(t, e.Err, replication.ErrBehind)
	require.Contains(t, e.Err.Error(), fmt.Sprint(after))
	require.Equal(t, end, a.store.End())
}

// The snapshot for a corrupt standby is rejected if it lacks committed records.
func TestRolledBackActiveOfCorruptStandby(t *testing.T) {
	synctest.Test(t, testRolledBackActiveOfCorruptStandby)
}

func testRolledBackActiveOfCorruptStandby(t *testing.T) {
	w := newWorld(t)
	a, b, old, _ := behindPair(w)
	b.stop()
	a.rollBack(old)
	a.lead(10, 2, b)
	end := b.store.End()
	b.clearEvents()
	f := b.follow(a)
	f.Resync(errors.New("a page is corrupt"))
	require.Eventually(t, func() bool {
		for _, e := range b.seen() {
			if e, ok := e.(replication.FollowerLost); ok && e.Cause == replication.LostBehind {
				return true
			}
		}
		return false
	}, waitLimit, time.Millisecond)
	requireUntouched(b, end)
}

// An active is rolled back after the standby has lost its connection. A resync rejects the snapshot of this active,
// although the active had all committed records at the last hello.
func TestRolledBackActiveAtResync(t *testing.T) { synctest.Test(t, testRolledBackActiveAtResync) }

func testRolledBackActiveAtResync(t *testing.T) {
	w := newWorld(t)
	a, b, old, _ := behindPair(w)
	a.close()
	await(b, lost(replication.LostRefused))
	b.follower.Resync(errors.New("a page is corrupt"))
	a.rollBack(old)
	end := b.store.End()
	b.clearEvents()
	a.lead(10, 2, b)
	await(b, lost(replication.LostBehind))
	requireUntouched(b, end)
}

// An active of release 0.1.0 cannot report whether it has the records that its checkpoint lacks. The standby waits
// for a newer checkpoint.
func TestCorruptStandbyOfAnOldActive(t *testing.T) { synctest.Test(t, testCorruptStandbyOfAnOldActive) }

func testCorruptStandbyOfAnOldActive(t *testing.T) {
	w := newWorld(t)
	a, b, _, _ := behindPair(w)
	b.stop()
	a.stop()
	require.NoError(t, a.store.Close())
	a.rollBack(a.disk)
	a.lead(10, 2, nil)
	a.publish(1, 10, 50, 1)
	b.follow(a)
	requireEqual(a, b) // also creates a checkpoint
	a.publish(1, 10, 50, 1)
	require.Eventually(t, func() bool { return b.store.Committed() == a.store.End().LSN }, waitLimit, time.Millisecond)
	b.stop()
	b.clearEvents()
	f := b.followVia(oldActive{w.dialer()}, a.address)
	f.Resync(errors.New("a page is corrupt"))
	await[replication.FollowerLost](b, nil)
	for _, e := range b.seen() {
		if e, ok := e.(replication.FollowerLost); ok {
			require.NotEqual(t, replication.LostBehind, e.Cause, "%v", e.Err)
		}
	}
	_, err := a.store.Checkpoint(t.Context())
	require.NoError(t, err)
	await[replication.SnapshotInstalled](b, nil)
	require.Eventually(t, func() bool { return b.store.End() == a.store.End() }, waitLimit, time.Millisecond)
}

// A standby of an old release sends no committed position and is accepted as before.
func TestStandbyOfAnOldRelease(t *testing.T) { synctest.Test(t, testStandbyOfAnOldRelease) }

func testStandbyOfAnOldRelease(t *testing.T) {
	w := newWorld(t)
	a, b, old, _ := behindPair(w)
	b.stop()
	a.rollBack(old)
	a.lead(10, 2, nil)
	m, err := w.handshake(b, a).Recv()
	require.NoError(t, err)
	require.NotNil(t, m.HelloResponse)
	require.False(t, m.HelloResponse.HoldsCommitted)
	require.True(t, m.HelloResponse.SnapshotRequired)
	shared, ok := a.store.PositionOf(1)
	require.True(t, ok)
	_, err = w.handshake(b, a, func(m *replication.StandbyMessage) { m.Hello.Committed = b.store.End() }).Recv()
	require.ErrorIs(t, err, replication.ErrBehind)
	_, err = w.handshake(b, a, func(m *replication.StandbyMessage) { m.Hello.Committed = shared }).Recv()
	require.NoError(t, err, "its records are not reported as missing")
}

// After ClearLoss, a standby still rejects an active that lacks records that the standby knows to be committed.
func TestClearedLossKeepsCommittedRecords(t *testing.T) {
	synctest.Test(t, testClearedLossKeepsCommittedRecords)
}

func testClearedLossKeepsCommittedRecords(t *testing.T) {
	w := newWorld(t)
	a, b, old, _ := behindPair(w, func(n *node) { n.options.Sync = wal.SyncInterval })
	b.stop()
	require.NoError(t, b.store.Sync())
	b.options.BootID = "another"
	b.rollBack(b.disk)
	require.NoError(t, b.store.ClearLoss())
	end := b.store.End()
	a.rollBack(old)
	a.lead(10, 2, nil)
	b.follow(a)
	await(b, lost(replication.LostBehind))
	requireUntouched(b, end)
}

// An active was restored from an older copy, continued alone, and was rejected by its standby. After a forced failover
// to the standby, the records that the old active acknowledged alone are saved in a file (INV-13).
func TestForcedAfterHistoriesDiffer(t *testing.T) {
	for name, c := range map[string]struct {
		writes    int
		restarted bool
	}{
		"the log ends before the other one": {10, false}, "the log ends after the other one": {200, false},
		"before, restarted": {10, true}, "after, restarted": {200, true},
	} {
		t.Run(name, func(t *testing.T) {
			overBoth(t, func(t *testing.T, w *world) {
				a, b, old, _ := behindPair(w)
				b.stop()
				a.rollBack(old)
				a.lead(10, 2, nil)
				a.publish(1, c.writes, 50, 4)
				b.follow(a)
				await(b, lost(replication.LostBehind))
				b.stop()
				a.stop()
				after := b.store.Committed()
				b.lead(20, 3, nil)
				if c.restarted {
					a.rollBack(a.sealedImage())
				}
				discarded := replication.DiscardedRange{Term: 3, After: after}
				a.clearEvents()
				f := replication.StartFollower(replication.FollowerOptions{
					Store: a.store, Dialer: w.dialer(), Address: b.address, Events: a.event, Tuning: a.tuning,
					DiscardedRange: discarded,
				})
				defer f.Stop()
				require.Eventually(t, func() bool { return a.store.Applied() == b.store.Applied() }, waitLimit,
					time.Millisecond)
				requireEqual(a, b)
				require.Len(t, a.messages(), 100)
				_, _, bodies := a.kept()
				require.Equal(t, c.writes, bodies)
			})
		})
	}
}

// A standby restored from an older copy detects that the pair has committed records that its log lacks.
func TestRolledBackStandbyReportsIncomplete(t *testing.T) {
	for _, required := range []bool{true, false} {
		simulated(t, fmt.Sprintf("its acks are required: %t", required), func(t *testing.T) {
			w := newWorld(t)
			a, b := w.node("a"), w.node("b")
			a.lead(1, 1, nil)
			b.follow(a)
			a.createQueue()
			a.sync(b)
			b.clearEvents() // events from before the standby was in sync do not count
			a.publish(a.queueID, 10, 10, 1)
			image, had := b.image(), b.store.End().LSN
			a.publish(a.queueID, 10, 10, 1)
			for _, e := range b.seen() {
				_, is := e.(replication.FollowerIncomplete)
				require.False(t, is, "%+v", e)
			}
			b.rollBack(image)
			if !required {
				a.configure(func(c *replication.PrimaryConfig) { c.RequireStandby = false })
			}
			b.follow(a)
			e := await[replication.FollowerIncomplete](b, nil)
			if required {
				require.Zero(t, e) // refused
				return
			}
			require.LessOrEqual(t, e.Common, had)
			require.Greater(t, e.Committed, e.Common)
			require.NotZero(t, e.Config)
		})
	}
}
