// SPDX-License-Identifier: Apache-2.0

package replication_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/store/identity"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
)

// logFrames appends records to a node's log directly, as left by a primary killed right after the append.
func (n *node) logFrames(term uint64, payloads ...[]byte) {
	t := n.w.t
	t.Helper()
	frames, end := frameAll(n.store.End(), term, payloads)
	require.NoError(t, n.store.Append(frames, end))
	require.NoError(t, n.store.Sync())
}

// Records that exist only on the old active are truncated, saved to a file, and never delivered (INV-5).
func TestTruncatedTailIsSaved(t *testing.T) {
	overBoth(t, func(t *testing.T, w *world) {
		a, b := w.node("a"), w.node("b")
		a.lead(1, 1, nil)
		b.follow(a)
		a.createQueue()
		a.sync(b)
		a.publish(a.queueID, 100, 50, 4)
		requireEqual(a, b)
		common := a.store.End()
		b.stop()
		a.stop()
		a.logFrames(1, payload(1, "p", 1, []byte("never committed")), payload(1, "p", 2, []byte("nor this")))

		b.lead(10, 2, nil)
		b.publish(a.queueID, 50, 50, 4)
		f := a.follow(b)
		requireEqual(a, b)
		require.True(t, f.Status().Connected)
		p, ok := a.store.PositionOf(common.LSN + 1)
		require.True(t, ok)
		require.EqualValues(t, 2, p.Term)
		require.Len(t, a.messages(), 150)
		names, err := a.disk.ReadDir("/data")
		require.NoError(t, err)
		require.True(t, containsPrefix(names, "cut-"), "the tail is saved in a file: %v", names)
	})
}

func containsPrefix(names []string, prefix string) bool {
	for _, name := range names {
		if strings.HasPrefix(filepath.Base(name), prefix) {
			return true
		}
	}
	return false
}

// Applied records are not truncated; the node installs a snapshot instead.
func TestDivergenceBelowAppliedTakesASnapshot(t *testing.T) {
	overBoth(t, func(t *testing.T, w *world) {
		a, b := w.node("a"), w.node("b")
		a.lead(1, 1, nil)
		b.follow(a)
		a.createQueue()
		a.sync(b)
		requireEqual(a, b)
		b.stop()
		a.configure(func(c *replication.PrimaryConfig) { c.RequireStandby = false })
		a.publish(a.queueID, 30, 50, 4) // applied on a alone
		a.stop()
		after := b.store.End().LSN
		b.lead(20, 2, nil) // as after `pair adopt --without-other`
		b.publish(a.queueID, 10, 50, 4)
		a.followDiscarded(b, after)
		await[replication.SnapshotInstalled](a, nil)
		requireEqual(a, b)
		require.Len(t, a.messages(), 10)
		c := await[replication.StandbyConnected](b, func(e replication.StandbyConnected) bool { return e.Snapshot })
		require.Equal(t, a.member().Node, c.Member.Node)
	})
}

// breakingDialer breaks a connection after some snapshot chunks, and records the offsets at which transfers begin.
type breakingDialer struct {
	replication.Dialer
	chunks  int
	mu      sync.Mutex
	offsets []uint64
}

func (d *breakingDialer) Dial(ctx context.Context, address string) (replication.Conn, error) {
	c, err := d.Dialer.Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	return &breakingConn{c, d}, nil
}

type breakingConn struct {
	replication.Conn
	d *breakingDialer
}

func (c *breakingConn) FetchSnapshot(
	ctx context.Context, req replication.SnapshotRequest,
) (replication.SnapshotStream, error) {
	c.d.mu.Lock()
	c.d.offsets = append(c.d.offsets, req.ResumeOffset)
	c.d.mu.Unlock()
	s, err := c.Conn.FetchSnapshot(ctx, req)
	if err != nil {
		return nil, err
	}
	return &breakingStream{s, c.d.chunks}, nil
}

type breakingStream struct {
	replication.SnapshotStream
	left int
}

func (s *breakingStream) Recv() (*replication.SnapshotChunk, error) {
	if s.left--; s.left < 0 {
		return nil, errors.New("connection broke")
	}
	return s.SnapshotStream.Recv()
}

// A snapshot transfer that breaks repeatedly under load resumes at its offset, although the active has deleted the log.
func TestBrokenSnapshotTransferResumes(t *testing.T) {
	overBoth(t, func(t *testing.T, w *world) {
		small := func(n *node) {
			smallLog(n)
			n.tuning.SnapshotChunkBytes = 32 << 10
		}
		a, b := w.node("a", small), w.node("b", small)
		a.lead(1, 1, nil)
		a.createQueue()
		a.publish(a.queueID, 1500, 1000, 16)
		for a.store.FirstLSN() < 1000 {
			a.publish(a.queueID, 100, 100, 4)
			_, err := a.store.Checkpoint(t.Context())
			require.NoError(t, err)
		}

		ctx, cancel := context.WithCancel(t.Context())
		var load sync.WaitGroup
		load.Go(func() {
			for ctx.Err() == nil {
				if _, err := a.primary.Commit(t.Context(), payload(a.queueID, "", 0, make([]byte, 200))); err != nil {
					t.Errorf("commit: %v", err)
					return
				}
				pause(100 * time.Microsecond)
			}
		})
		d := &breakingDialer{Dialer: w.dialer(), chunks: 8}
		b.followVia(d, a.address)
		await[replication.SnapshotInstalled](b, nil)
		a.sync(b)
		cancel()
		load.Wait()
		requireEqual(a, b)
		d.mu.Lock()
		defer d.mu.Unlock()
		require.Greater(t, len(d.offsets), 3)
		require.Zero(t, d.offsets[0])
		for i := 1; i < len(d.offsets); i++ {
			require.Greater(t, d.offsets[i], d.offsets[i-1], "each transfer resumes where the last one ended")
		}
	})
}

// A standby that obeys a newer term does not acknowledge records of a stale active (INV-1).
func TestFencedActiveGetsNoAck(t *testing.T) {
	overBoth(t, func(t *testing.T, w *world) {
		a, b := w.node("a"), w.node("b")
		a.lead(1, 1, nil)
		b.follow(a)
		a.createQueue()
		a.sync(b)
		requireEqual(a, b)
		commit := a.primary.CommitLSN()
		// b begins a takeover: it raises the term within the configuration that it has received from a.
		require.Eventually(t, func() bool { return b.store.Identity().Fence.Config == a.config }, waitLimit,
			time.Millisecond)
		id := b.store.Identity()
		require.NoError(t, b.store.SetFence(identity.Fence{Config: id.Fence.Config, Term: id.Fence.Term + 1}))
		errs := make(chan error, 1)
		require.NoError(t, a.primary.Submit(t.Context(), payload(a.queueID, "p", 1, nil),
			func(_ *txn.Result, err error) { errs <- err }))
		await(a, lostStandby(replication.LostAhead))
		await(b, lost(replication.LostRejected))
		end := b.store.End()
		require.Equal(t, commit, a.primary.CommitLSN())
		require.Equal(t, commit, end.LSN, "the record was refused")
		// The active wins: a higher configuration passes the fence, and the record is committed.
		a.configure(func(*replication.PrimaryConfig) {})
		require.NoError(t, <-errs)
		require.GreaterOrEqual(t, b.store.Durable().LSN, commit+1)
		require.Equal(t, a.config, b.store.Identity().Fence.Config, "persisted")
	})
}

// A follower that obeys a newer configuration rejects an older one.
func TestStaleActiveIsRefused(t *testing.T) { synctest.Test(t, testStaleActiveIsRefused) }

func testStaleActiveIsRefused(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	a.lead(1, 1, nil)
	a.createQueue()
	require.NoError(t, b.store.SetFence(identity.Fence{Config: 5, Term: 1}))
	b.follow(a)
	await(b, lost(replication.LostRejected))
	await(a, lostStandby(replication.LostAhead))
	require.True(t, b.store.End().IsZero())
	a.leadAgainAt(5)
	requireEqual(a, b)
}

// leadAgainAt configures the primary with the given config number.
func (n *node) leadAgainAt(config uint64) {
	n.mu.Lock()
	n.config = config - 1
	n.mu.Unlock()
	n.configure(func(*replication.PrimaryConfig) {})
}

// After the loss of the standby, nothing is acknowledged until failover has removed it from in_sync (INV-2, INV-3).
func TestStandbyLoss(t *testing.T) {
	overBoth(t, func(t *testing.T, w *world) {
		a, b := w.node("a"), w.node("b")
		a.lead(1, 1, nil)
		b.follow(a)
		a.createQueue()
		a.sync(b)
		a.publish(a.queueID, 100, 50, 4)
		b.stop() // a crash from the perspective of a
		await(a, lostStandby(replication.LostReset))
		errs := make(chan error, 10)
		for i := range 10 {
			require.NoError(t, a.primary.Submit(t.Context(), payload(a.queueID, "p", uint64(i+1), nil),
				func(_ *txn.Result, err error) { errs <- err }))
		}
		require.Eventually(t, func() bool { return a.store.Durable().LSN >= a.primary.CommitLSN()+10 }, waitLimit,
			time.Millisecond)
		require.Empty(t, errs)
		require.Equal(t, a.primary.CommitLSN(), a.store.Applied().LSN)
		a.configure(func(c *replication.PrimaryConfig) { c.RequireStandby = false })
		for range 10 {
			require.NoError(t, <-errs)
		}
		// The standby reconnects and is added to in_sync again.
		a.clearEvents()
		b.follow(a)
		a.sync(b)
		a.publish(a.queueID, 100, 50, 4)
		requireEqual(a, b)
	})
}

// A silent standby is dropped within the timeout. A required standby that never connected is reported.
func TestSilentStandby(t *testing.T) { synctest.Test(t, testSilentStandby) }

func testSilentStandby(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	a.tuning.StandbyTimeout, b.tuning.StandbyTimeout = 200*time.Millisecond, 200*time.Millisecond
	a.lead(1, 1, b)
	e := await(a, lostStandby(replication.LostSilence))
	require.Equal(t, b.member(), e.Member)
	b.follow(a)
	await[replication.StandbySynced](a, nil)
	a.clearEvents()
	start := time.Now()
	w.net.Cut("a")
	e = await(a, lostStandby(replication.LostSilence))
	require.Equal(t, b.member(), e.Member)
	requireTook(t, start, 200*time.Millisecond, 206*time.Millisecond) // two steps of the detector
	require.ErrorIs(t, e.Err, replication.ErrSilent)
	w.net.Heal("a")
	await[replication.StandbyCaughtUp](a, nil)
}

// A follower detects a refused connection immediately and silence after the timeout. A reset followed by a reconnect
// is not reported.
func TestFailureDetection(t *testing.T) {
	t.Run("killed", func(t *testing.T) {
		overBoth(t, func(t *testing.T, w *world) {
			a, b := w.node("a"), w.node("b")
			b.tuning.ActiveTimeout = time.Hour // so that only the refusal is detected
			a.lead(1, 1, nil)
			b.follow(a)
			await[replication.FollowerConnected](b, nil)
			pause(time.Second)
			start := time.Now()
			a.close()
			e := await(b, lost(replication.LostRefused))
			require.ErrorIs(t, e.Err, replication.ErrRefused)
			require.Zero(t, time.Since(start))
		})
	})
	simulated(t, "silent", func(t *testing.T) {
		w := newWorld(t)
		a, b := w.node("a"), w.node("b")
		b.tuning.ActiveTimeout = 200 * time.Millisecond
		a.lead(1, 1, nil)
		b.follow(a)
		await[replication.FollowerConnected](b, nil)
		w.net.Cut("a")
		start := time.Now()
		e := await(b, lost(replication.LostSilence))
		requireTook(t, start, 200*time.Millisecond, 205*time.Millisecond) // two steps of the detector
		require.ErrorIs(t, e.Err, replication.ErrSilent)
		for _, e := range b.seen() {
			if e, ok := e.(replication.FollowerLost); ok {
				require.Equal(t, replication.LostSilence, e.Cause)
			}
		}
		b.clearEvents()
		w.net.Heal("a")
		await[replication.FollowerConnected](b, nil)
	})
	simulated(t, "reset", func(t *testing.T) {
		w := newWorld(t)
		a, b := w.node("a"), w.node("b")
		a.lead(1, 1, nil)
		b.follow(a)
		await[replication.FollowerConnected](b, nil)
		b.clearEvents()
		w.net.Reset("a")
		await(b, lost(replication.LostReset))
		await[replication.FollowerConnected](b, nil)
		for _, e := range b.seen() {
			if e, ok := e.(replication.FollowerLost); ok {
				require.Equal(t, replication.LostReset, e.Cause)
			}
		}
	})
	t.Run("not active", func(t *testing.T) {
		overBoth(t, func(t *testing.T, w *world) {
			a, b := w.node("a"), w.node("b")
			b.follow(a)
			e := await(b, lost(replication.LostRejected))
			require.ErrorIs(t, e.Err, replication.ErrNotActive)
		})
	})
	t.Run("the active stops", func(t *testing.T) {
		overBoth(t, func(_ *testing.T, w *world) {
			a, b := w.node("a"), w.node("b")
			a.lead(1, 1, nil)
			b.follow(a)
			await[replication.FollowerConnected](b, nil)
			a.stop()
			await(b, lost(replication.LostRejected))
		})
	})
}

// A node with a stalled log write stops its heartbeats.
func TestStalledDisk(t *testing.T) {
	quick := func(n *node) {
		n.tuning.DiskStallTimeout, n.tuning.StandbyTimeout, n.tuning.ActiveTimeout = 100*time.Millisecond,
			200*time.Millisecond, 300*time.Millisecond
	}
	pair := func(t *testing.T) (a, b *node) {
		w := newWorld(t)
		a, b = w.node("a", quick), w.node("b", quick)
		a.lead(1, 1, nil)
		b.follow(a)
		a.createQueue()
		a.sync(b)
		return a, b
	}
	submit := func(a *node) {
		_ = a.primary.Submit(a.w.t.Context(), payload(a.queueID, "", 0, nil), func(*txn.Result, error) {})
	}
	simulated(t, "standby", func(t *testing.T) {
		a, b := pair(t)
		release := b.hold(faultfs.OpSync)
		defer release()
		submit(a)
		start := time.Now()
		await[replication.DiskStalled](b, nil)
		requireTook(t, start, 100*time.Millisecond, 104*time.Millisecond)
		await(a, lostStandby(replication.LostSilence)) // its last heartbeat was sent at 60 to 100 ms
		requireTook(t, start, 260*time.Millisecond, 306*time.Millisecond)
		release()
		await[replication.DiskRecovered](b, nil)
	})
	simulated(t, "active", func(t *testing.T) {
		a, b := pair(t)
		release := a.hold(faultfs.OpSync)
		defer release()
		submit(a)
		start := time.Now()
		await[replication.DiskStalled](a, nil)
		requireTook(t, start, 100*time.Millisecond, 120*time.Millisecond)
		await(b, lost(replication.LostSilence)) // its last heartbeat was sent at 60 to 100 ms
		requireTook(t, start, 360*time.Millisecond, 408*time.Millisecond)
		release()
		await[replication.DiskRecovered](a, nil)
	})
	simulated(t, "slow standby", func(t *testing.T) {
		a, b := pair(t)
		b.stop()
		b.tuning.DiskStallTimeout = time.Hour // it keeps sending heartbeats
		a.stop()
		a.tuning.AckTimeout = 300 * time.Millisecond
		a.lead(10, 2, b)
		b.follow(a)
		await[replication.StandbySynced](a, nil)
		release := b.hold(faultfs.OpSync)
		defer release()
		a.clearEvents()
		submit(a)
		start := time.Now()
		e := await[replication.StandbyLost](a, nil)
		requireTook(t, start, 300*time.Millisecond, 309*time.Millisecond)
		require.Equal(t, replication.LostSlow, e.Cause)
	})
}

// A failed sync ends the role (INV-7).
func TestFailedSync(t *testing.T) {
	broken := errors.New("disk is broken")
	fail := func(n *node) {
		n.fault.SetHook(func(op faultfs.Op) error {
			if op.Kind == faultfs.OpSync && strings.Contains(op.Name, "/log/") {
				return broken
			}
			return nil
		})
	}
	simulated(t, "active", func(t *testing.T) {
		w := newWorld(t)
		a := w.node("a")
		a.lead(1, 1, nil)
		a.createQueue()
		commit := a.primary.CommitLSN()
		fail(a)
		_, err := a.primary.Commit(t.Context(), payload(a.queueID, "", 0, nil))
		require.ErrorIs(t, err, replication.ErrOutcomeUnknown)
		e := await[replication.Failed](a, nil)
		require.ErrorIs(t, e.Err, broken)
		require.Equal(t, commit, a.primary.CommitLSN())
		_, err = a.primary.Commit(t.Context(), payload(a.queueID, "", 0, nil))
		require.ErrorIs(t, err, replication.ErrNotActive)
	})
	simulated(t, "standby", func(t *testing.T) {
		w := newWorld(t)
		a, b := w.node("a"), w.node("b")
		a.lead(1, 1, nil)
		b.follow(a)
		a.createQueue()
		a.sync(b)
		requireEqual(a, b)
		commit := a.primary.CommitLSN()
		fail(b)
		require.NoError(t, a.primary.Submit(t.Context(), payload(a.queueID, "", 0, nil), func(*txn.Result, error) {}))
		e := await[replication.Failed](b, nil)
		require.ErrorIs(t, e.Err, broken)
		await[replication.StandbyLost](a, nil)
		require.Equal(t, commit, a.primary.CommitLSN(), "committed without the standby")
	})
}

// Nothing is appended or acknowledged after Stop (INV-4).
func TestFollowerStopIsFinal(t *testing.T) { synctest.Test(t, testFollowerStopIsFinal) }

func testFollowerStopIsFinal(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a", func(n *node) { n.tuning.QueueBytes = 64 << 10 }), w.node("b")
	a.lead(1, 1, nil)
	a.createQueue()
	for round := range 5 {
		b.follow(a)
		await[replication.FollowerConnected](b, nil)
		var flood atomic.Bool
		flood.Store(true)
		var g sync.WaitGroup
		g.Go(func() {
			for i := 0; flood.Load(); i++ {
				if i%32 == 31 {
					pause(10 * time.Microsecond) // lets simulated time advance
				}
				_ = a.primary.Submit(t.Context(), payload(a.queueID, "", 0, make([]byte, 500)),
					func(*txn.Result, error) {})
			}
		})
		at := b.store.End().LSN
		require.Eventually(t, func() bool { return b.store.End().LSN > at+20 }, waitLimit, 100*time.Microsecond)
		b.stop()
		end := b.store.End()
		if st := a.primary.Status().Standby; st != nil {
			require.LessOrEqual(t, st.Durable.LSN, b.store.Durable().LSN, "round %d", round)
		}
		at = a.store.End().LSN
		require.Eventually(t, func() bool { return a.store.End().LSN > at+20 }, waitLimit, 100*time.Microsecond)
		require.Equal(t, end, b.store.End())
		flood.Store(false)
		g.Wait()
		b.clearEvents()
	}
	b.follow(a)
	requireEqual(a, b)
}
