// SPDX-License-Identifier: Apache-2.0

package replication_test

import (
	"context"
	"encoding/binary"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
)

func TestSteadyReplication(t *testing.T) {
	overBoth(t, func(t *testing.T, w *world) {
		a, b := w.node("a"), w.node("b", func(n *node) { n.options.PageSize = 8192 })
		a.lead(1, 1, nil)
		b.follow(a)
		a.createQueue()
		a.sync(b)
		a.publish(a.queueID, 2000, 200, 32)
		requireEqual(a, b)
		require.Len(t, b.messages(), 2000)
		await[replication.FollowerRequired](b, nil)
		await[replication.ActiveReady](a, nil)
	})
}

func TestCommitLatencyIsSentToStandby(t *testing.T) {
	overBoth(t, func(t *testing.T, w *world) {
		a, b := w.node("a"), w.node("b")
		a.lead(1, 1, nil)
		b.follow(a)
		a.createQueue()
		a.sync(b)
		commits := b.store.Governor().Status().Baseline
		require.Zero(t, commits)
		require.Eventually(t, func() bool {
			for range 100 {
				a.store.Governor().Committed(10 * time.Millisecond)
			}
			commits := b.store.Governor().Status().Baseline
			return commits > 0
		}, 20*time.Second, 5*time.Millisecond)
		commits = b.store.Governor().Status().Baseline
		require.InDelta(t, 10, commits.Seconds()*1000, 1.3)
	})
}

// When a commit that requires the standby returns, the record is durable on the standby (INV-2).
func TestAcknowledgedRecordsAreOnBothNodes(t *testing.T) {
	synctest.Test(t, testAcknowledgedRecordsAreOnBothNodes)
}

func testAcknowledgedRecordsAreOnBothNodes(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	a.lead(1, 1, nil)
	b.follow(a)
	a.createQueue()
	a.sync(b)
	for i := range uint64(200) {
		r, err := a.primary.Commit(t.Context(), payload(a.queueID, "p", i+1, []byte("x")))
		require.NoError(t, err)
		require.GreaterOrEqual(t, b.store.Durable().LSN, r.LSN)
		require.GreaterOrEqual(t, a.store.Durable().LSN, r.LSN)
	}
}

func TestLargeTransactionIsSentInFragments(t *testing.T) {
	overBoth(t, func(t *testing.T, w *world) {
		a, b := w.node("a"), w.node("b")
		a.lead(1, 1, nil)
		b.follow(a)
		a.createQueue()
		a.sync(b)
		body := make([]byte, 5<<20)
		for i := range body {
			body[i] = byte(i * 7)
		}
		r, err := a.primary.Commit(t.Context(), payload(a.queueID, "", 0, body))
		require.NoError(t, err)
		require.NoError(t, r.Err())
		requireEqual(a, b)
		require.Equal(t, body, b.messages()[0])
	})
}

func TestTooLargeTransaction(t *testing.T) { synctest.Test(t, testTooLargeTransaction) }

func testTooLargeTransaction(t *testing.T) {
	w := newWorld(t)
	a := w.node("a", func(n *node) { n.tuning.MaxTxnBytes = 1000 })
	a.lead(1, 1, nil)
	_, err := a.primary.Commit(t.Context(), make([]byte, 1001))
	require.ErrorIs(t, err, replication.ErrTooLarge)
}

func TestCatchUpFromTheLog(t *testing.T) {
	overBoth(t, func(t *testing.T, w *world) {
		small := func(n *node) {
			n.tuning = replication.Tuning{WindowBytes: 64 << 10, TailBytes: 32 << 10, BatchBytes: 16 << 10}
		}
		a, b := w.node("a", small), w.node("b", small)
		a.lead(1, 1, nil)
		a.createQueue()
		a.publish(a.queueID, 3000, 1000, 16)
		stop := make(chan struct{})
		var most int
		var watch sync.WaitGroup
		watch.Go(func() {
			for {
				if st := a.primary.Status().Standby; st != nil {
					most = max(most, st.InFlightBytes)
				}
				select {
				case <-stop:
					return
				case <-time.After(100 * time.Microsecond):
				}
			}
		})
		b.follow(a)
		a.publish(a.queueID, 2000, 500, 16) // during catch-up
		a.sync(b)
		a.publish(a.queueID, 500, 500, 16)
		close(stop)
		watch.Wait()
		requireEqual(a, b)
		require.Len(t, b.messages(), 5500)
		require.LessOrEqual(t, most, 64<<10+16<<10+2000, "bytes in flight")
	})
}

// An idle standby receives the commit LSN without waiting for a heartbeat.
func TestCommitLSNReachesAnIdleStandby(t *testing.T) {
	overBoth(t, func(t *testing.T, w *world) {
		slow := func(n *node) {
			n.tuning = replication.Tuning{
				Heartbeat: time.Hour, StandbyTimeout: 2 * time.Hour,
				ActiveTimeout: 3 * time.Hour,
			}
		}
		a, b := w.node("a", slow), w.node("b", slow)
		a.lead(1, 1, nil)
		b.follow(a)
		a.createQueue()
		a.sync(b)
		for range 5 {
			r, err := a.primary.Commit(t.Context(), payload(a.queueID, "", 0, []byte("x")))
			require.NoError(t, err)
			require.Eventually(t, func() bool { return b.store.Applied().LSN >= r.LSN }, waitLimit, time.Millisecond)
			require.Eventually(t, func() bool { // the active receives the applied LSN
				st := a.primary.Status().Standby
				return st != nil && st.AppliedLSN >= r.LSN
			}, waitLimit, time.Millisecond)
		}
	})
}

// Outcomes arrive in commit order, and each caller's transactions commit in call order.
func TestAsyncOrder(t *testing.T) { synctest.Test(t, testAsyncOrder) }

func testAsyncOrder(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	a.lead(1, 1, nil)
	b.follow(a)
	a.createQueue()
	a.sync(b)
	const callers, each = 8, 500
	var last uint64 // owned by the applier's goroutine
	seqs := make([][]uint64, callers)
	var pending, callersDone sync.WaitGroup
	pending.Add(callers * each)
	for c := range callers {
		callersDone.Go(func() {
			for i := range uint64(each) {
				body := binary.LittleEndian.AppendUint64(nil, i)
				err := a.primary.Submit(t.Context(), payload(a.queueID, "", 0, body), func(r *txn.Result, err error) {
					defer pending.Done()
					if err != nil || r.LSN <= last {
						t.Errorf("caller %d: %+v after LSN %d: %v", c, r, last, err)
						return
					}
					last = r.LSN
					seqs[c] = append(seqs[c], r.Ops[0].FirstSequence)
				})
				if err != nil {
					t.Errorf("submit: %v", err)
					pending.Done()
				}
			}
		})
	}
	callersDone.Wait()
	pending.Wait()
	bodies := a.messages()
	for c := range callers {
		require.Len(t, seqs[c], each)
		for i, seq := range seqs[c] {
			require.EqualValues(t, i, binary.LittleEndian.Uint64(bodies[seq-1]))
			if i > 0 {
				require.Greater(t, seq, seqs[c][i-1])
			}
		}
	}
	requireEqual(a, b)
}

// Concurrent transactions are synced in batches.
func TestConcurrentTransactionsAreBatched(t *testing.T) {
	synctest.Test(t, testConcurrentTransactionsAreBatched)
}

func testConcurrentTransactionsAreBatched(t *testing.T) {
	w := newWorld(t)
	a := w.node("a", func(n *node) { n.tuning.CommitDelay = 2 * time.Millisecond })
	a.lead(1, 1, nil)
	a.createQueue()
	var done sync.WaitGroup
	before := a.fault.Count(faultfs.OpSync)
	done.Add(2000)
	for range 2000 {
		require.NoError(t, a.primary.Submit(t.Context(), payload(a.queueID, "", 0, []byte("x")),
			func(*txn.Result, error) { done.Done() }))
	}
	done.Wait()
	require.Less(t, a.fault.Count(faultfs.OpSync)-before, uint64(400))
}

// Submit waits for space while the queue is full.
func TestBackpressure(t *testing.T) { synctest.Test(t, testBackpressure) }

func testBackpressure(t *testing.T) {
	w := newWorld(t)
	a := w.node("a", func(n *node) { n.tuning.QueueBytes = 100 << 10 })
	b := w.node("b")
	a.lead(1, 1, b) // required and not connected: nothing commits
	var answered sync.WaitGroup
	accepted := 0
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		answered.Add(1)
		err := a.primary.Submit(ctx, payload(1, "", 0, make([]byte, 1000)),
			func(*txn.Result, error) { answered.Done() })
		cancel()
		if err != nil {
			require.ErrorIs(t, err, context.DeadlineExceeded)
			answered.Done()
			break
		}
		accepted++
		require.Less(t, accepted, 100)
	}
	require.Greater(t, accepted, 50)
	a.configure(func(c *replication.PrimaryConfig) { c.RequireStandby = false })
	answered.Wait()
	_, err := a.primary.Commit(t.Context(), payload(1, "", 0, make([]byte, 200<<10)))
	require.NoError(t, err, "a transaction larger than the queue is accepted if the queue is empty")
}

func TestStopFailsPendingTransactions(t *testing.T) {
	synctest.Test(t, testStopFailsPendingTransactions)
}

func testStopFailsPendingTransactions(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	a.lead(1, 1, b)
	const n = 50
	errs := make(chan error, n)
	for range n {
		require.NoError(t, a.primary.Submit(t.Context(), payload(1, "", 0, []byte("x")),
			func(_ *txn.Result, err error) { errs <- err }))
	}
	end := a.store.End()
	require.Eventually(t, func() bool { end = a.store.End(); return end.LSN == n+1 }, waitLimit, time.Millisecond)
	a.primary.Stop()
	for range n {
		err := <-errs
		require.ErrorIs(t, err, replication.ErrOutcomeUnknown)
		require.NotErrorIs(t, err, replication.ErrNotActive, "it was logged: it may still be committed")
	}
	_, err := a.primary.Commit(t.Context(), payload(1, "", 0, nil))
	require.ErrorIs(t, err, replication.ErrNotActive)
	require.Equal(t, end, a.store.End())
	require.Zero(t, a.store.Applied().LSN, "never committed, so never applied (INV-5)")
	require.ErrorIs(t, a.primary.Replicate(t.Context(), nil), replication.ErrNotActive)
}

func TestCommitContextEnds(t *testing.T) { synctest.Test(t, testCommitContextEnds) }

func testCommitContextEnds(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	a.lead(1, 1, b)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := a.primary.Commit(ctx, payload(1, "", 0, nil))
	require.ErrorIs(t, err, replication.ErrOutcomeUnknown)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// Serve=false fails all pending transactions with an unknown outcome; they may still commit later.
func TestBlockedFailsPendingTransactions(t *testing.T) {
	synctest.Test(t, testBlockedFailsPendingTransactions)
}

func testBlockedFailsPendingTransactions(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	a.lead(1, 1, nil)
	b.follow(a)
	a.createQueue()
	a.sync(b)
	w.net.Cut("a")
	errs := make(chan error, 1)
	go func() {
		_, err := a.primary.Commit(context.Background(), payload(a.queueID, "p", 1, []byte("first")))
		errs <- err
	}()
	require.Eventually(t, func() bool { return a.store.Durable().LSN > a.store.Applied().LSN }, waitLimit,
		time.Millisecond)
	const unknownActive = "it is not known which node is active"
	a.configure(func(c *replication.PrimaryConfig) { c.Serve, c.Reason = false, unknownActive })
	require.ErrorIs(t, <-errs, replication.ErrOutcomeUnknown)
	_, err := a.primary.Commit(t.Context(), payload(a.queueID, "p", 2, nil))
	require.ErrorIs(t, err, replication.ErrBlocked)
	require.Contains(t, err.Error(), unknownActive)
	// The commit LSN does not advance even without the standby requirement.
	commit := a.primary.CommitLSN()
	a.configure(func(c *replication.PrimaryConfig) { c.RequireStandby = false })
	require.Equal(t, commit, a.primary.CommitLSN())
	a.configure(func(c *replication.PrimaryConfig) { c.Serve = true })
	r, err := a.primary.Commit(t.Context(), payload(a.queueID, "p", 1, []byte("first")))
	require.NoError(t, err)
	require.True(t, r.Duplicate, "the first attempt was committed (INV-10)")
	w.net.Heal("a")
}

// StartPrimary rejects a used term and a lower configuration.
func TestStartRefused(t *testing.T) { synctest.Test(t, testStartRefused) }

func testStartRefused(t *testing.T) {
	w := newWorld(t)
	a := w.node("a")
	a.lead(3, 5, nil)
	a.createQueue()
	a.stop()
	start := func(config, term uint64) error {
		p, err := replication.StartPrimary(replication.PrimaryOptions{
			Store: a.store, Term: term, Config: replication.PrimaryConfig{Config: config, Serve: true},
		})
		if err == nil {
			p.Stop()
		}
		return err
	}
	require.ErrorIs(t, start(3, 5), replication.ErrTermUsed)
	require.ErrorIs(t, start(2, 9), replication.ErrFence)
	require.ErrorIs(t, start(4, 5), replication.ErrTermUsed)
	require.NoError(t, start(4, 6))
}

// When Drain returns, both nodes have applied the same log. Transactions are held until Resume.
func TestDrain(t *testing.T) {
	overBoth(t, func(t *testing.T, w *world) {
		a, b := w.node("a"), w.node("b")
		a.lead(1, 1, nil)
		b.follow(a)
		a.createQueue()
		a.sync(b)
		ctx, cancel := context.WithCancel(t.Context())
		var load sync.WaitGroup
		for range 8 {
			load.Go(func() {
				for ctx.Err() == nil {
					_, err := a.primary.Commit(t.Context(), payload(a.queueID, "", 0, make([]byte, 100)))
					if err != nil {
						t.Errorf("commit: %v", err)
						return
					}
					pause(100 * time.Microsecond)
				}
			})
		}
		require.Eventually(t, func() bool { return a.store.Applied().LSN > 500 }, waitLimit, time.Millisecond)
		end, err := a.primary.Drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, end, a.store.End())
		require.Equal(t, end, b.store.Applied())
		require.Equal(t, end, b.store.Durable())
		a.primary.Resume()
		require.Eventually(t, func() bool { return a.store.Applied().LSN > end.LSN+100 }, waitLimit, time.Millisecond)
		cancel()
		load.Wait()
		requireEqual(a, b)
	})
}

// Drain does not succeed without a standby. Held transactions continue after Resume and fail after Stop.
func TestDrainNeedsStandby(t *testing.T) { synctest.Test(t, testDrainNeedsStandby) }

func testDrainNeedsStandby(t *testing.T) {
	w := newWorld(t)
	a := w.node("a")
	a.lead(1, 1, nil)
	a.createQueue()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	_, err := a.primary.Drain(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	waiting := make(chan error)
	go func() {
		_, err := a.primary.Commit(context.Background(), payload(a.queueID, "", 0, nil))
		waiting <- err
	}()
	a.primary.Resume()
	require.NoError(t, <-waiting)
	_, err = a.primary.Drain(ctx)
	require.Error(t, err)
	go func() {
		_, err := a.primary.Commit(context.Background(), payload(a.queueID, "", 0, nil))
		waiting <- err
	}()
	a.primary.Stop()
	require.ErrorIs(t, <-waiting, replication.ErrNotActive, "the transaction was held and not logged")
}

func TestSubmitAllocations(t *testing.T) { synctest.Test(t, testSubmitAllocations) }

func testSubmitAllocations(t *testing.T) {
	w := newWorld(t)
	a := w.node("a")
	a.lead(1, 1, nil)
	a.createQueue()
	raw := payload(a.queueID, "", 0, make([]byte, 100))
	var done sync.WaitGroup
	finish := func(*txn.Result, error) { done.Done() }
	const n = 5000
	allocs := testing.AllocsPerRun(3, func() {
		done.Add(n)
		for range n {
			if err := a.primary.Submit(t.Context(), raw, finish); err != nil {
				t.Error(err)
			}
		}
		done.Wait()
	})
	t.Logf("%.2f allocations per transaction, apply included", allocs/n)
	require.Less(t, allocs/n, 8.0)
}
