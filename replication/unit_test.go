// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/identity"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/wal"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// frames returns a batch of n records after prev.
func frames(prev lsn.Position, term uint64, n, payload int) batch {
	b := batch{prev: prev, end: prev}
	for range n {
		b.frames, b.end = wal.AppendFrame(b.frames, b.end, term, wal.KindTxn, make([]byte, payload))
	}
	return b
}

func TestTailKeepsUnloggedBatches(t *testing.T) {
	tl := newTail(1000, lsn.Position{})
	var at lsn.Position
	for range 10 {
		b := frames(at, 1, 3, 100)
		tl.publish(b)
		at = b.end
	}
	got, ok, err := tl.after(0, 1<<20, nil)
	require.NoError(t, err)
	require.True(t, ok)
	require.Len(t, got, 10, "nothing is logged, so nothing may be dropped")

	tl.appended(15)
	_, ok, err = tl.after(0, 1<<20, nil)
	require.NoError(t, err)
	require.False(t, ok, "dropped after it was logged")
	got, ok, err = tl.after(15, 1<<20, nil)
	require.NoError(t, err)
	require.True(t, ok)
	require.Len(t, got, 5)

	tl.appended(30)
	got, ok, err = tl.after(27, 1<<20, nil)
	require.NoError(t, err)
	require.True(t, ok, "the newest batch stays")
	require.Len(t, got, 1)
	got, ok, err = tl.after(30, 1<<20, nil)
	require.NoError(t, err)
	require.True(t, ok)
	require.Empty(t, got)
}

// A batch larger than the whole tail is dropped only when it is logged and everything up to it is applied. A batch of
// normal size stays.
func TestTailReleasesOversizedBatch(t *testing.T) {
	tl := newTail(1000, lsn.Position{})
	small := frames(lsn.Position{}, 1, 1, 10)
	tl.publish(small)
	tl.appended(1)
	tl.release(1)
	require.Equal(t, len(small.frames), tl.bytes, "records within the limit are kept")
	large := frames(small.end, 1, 1, 5000)
	tl.publish(large)
	tl.release(2)
	_, ok, err := tl.after(1, 1<<20, nil)
	require.NoError(t, err)
	require.True(t, ok, "it is not in the log")
	tl.appended(2)
	tl.release(1)
	_, ok, err = tl.after(1, 1<<20, nil)
	require.NoError(t, err)
	require.True(t, ok, "it is not applied")
	tl.release(2)
	require.Zero(t, tl.bytes)
	_, ok, err = tl.after(1, 1<<20, nil)
	require.NoError(t, err)
	require.False(t, ok, "it is read from the log")
	behind, ok := tl.behind(2)
	require.True(t, ok)
	require.Zero(t, behind)
	next := frames(large.end, 1, 1, 10)
	tl.publish(next)
	got, ok, err := tl.after(2, 1<<20, nil)
	require.NoError(t, err)
	require.True(t, ok)
	require.Len(t, got, 1)
}

func TestTailBeginsInTheMiddleOfABatch(t *testing.T) {
	tl := newTail(1<<20, lsn.Position{})
	b := frames(lsn.Position{}, 1, 5, 50)
	tl.publish(b)
	for n := range uint64(5) {
		got, ok, err := tl.after(n, 1, nil)
		require.NoError(t, err)
		require.True(t, ok)
		require.Len(t, got, 1)
		require.Equal(t, n, got[0].prev.LSN)
		end, err := verifyFrames(got[0].frames, got[0].prev)
		require.NoError(t, err)
		require.Equal(t, b.end, end)
	}
	behind, ok := tl.behind(0)
	require.True(t, ok)
	require.Equal(t, len(b.frames), behind)
}

func TestTailLimit(t *testing.T) {
	tl := newTail(1<<20, lsn.Position{})
	var at lsn.Position
	for range 10 {
		b := frames(at, 1, 1, 100)
		tl.publish(b)
		at = b.end
	}
	got, _, err := tl.after(0, 3*len(got0(t, tl)), nil)
	require.NoError(t, err)
	require.Len(t, got, 3)
	got, _, err = tl.after(0, 1, nil)
	require.NoError(t, err)
	require.Len(t, got, 1, "a single batch is always sent")
}

func got0(t *testing.T, tl *tail) []byte {
	got, _, err := tl.after(0, 1, nil)
	require.NoError(t, err)
	return got[0].frames
}

func TestJoinCopiesOnlySmallBatches(t *testing.T) {
	small, large := frames(lsn.Position{}, 1, 1, 100), frames(lsn.Position{}, 1, 1, 2*joinBytes)
	n, out := join([]batch{small, small, large})
	require.Equal(t, 2, n)
	require.Len(t, out, 2*len(small.frames))
	n, out = join([]batch{large, small})
	require.Equal(t, 1, n)
	require.Same(t, &large.frames[0], &out[0])
}

// addTo adds a transaction for the committer.
func addTo(ctx context.Context, q *queue, payload []byte, done Done) error {
	return q.add(ctx, wal.KindTxn, []Item{{Payload: payload, Done: done}}, 1)
}

// The committer is woken by the first transaction, and again when a batch is full.
func TestQueueWakesTheCommitter(t *testing.T) {
	q := newQueue(1, 1000, lsn.Position{})
	woken := func(bytes int) bool {
		require.NoError(t, addTo(t.Context(), q, make([]byte, bytes), func(*txn.Result, error) {}))
		select {
		case <-q.wake:
			return true
		default:
			return false
		}
	}
	require.True(t, woken(0))
	require.False(t, woken(0), "the committer was woken before")
	require.True(t, woken(1000), "the batch is full")
	q.take(nil)
	require.True(t, woken(0))
}

func TestQueueCompletesEachOnce(t *testing.T) {
	q := newQueue(7, 300, lsn.Position{Term: 6, LSN: 10, Chain: 99})
	var got []int
	for i := range 10 {
		require.NoError(t, addTo(t.Context(), q, make([]byte, 64), func(*txn.Result, error) { got = append(got, i) }))
	}
	batches := q.take(nil)
	require.Greater(t, len(batches), 1, "a batch is closed when it is large enough")
	at := batches[0].prev
	for _, b := range batches {
		require.Equal(t, at, b.prev)
		var err error
		at, err = verifyFrames(b.frames, b.prev)
		require.NoError(t, err)
		require.Equal(t, b.end, at)
	}
	require.EqualValues(t, 20, at.LSN)

	done, free := q.complete(9) // of an earlier term
	require.Nil(t, done)
	require.Zero(t, free)
	freed := int64(0)
	for n := uint64(11); n <= 15; n++ {
		done, free := q.complete(n)
		done(nil, nil)
		freed += free
	}
	require.Equal(t, []int{0, 1, 2, 3, 4}, got)

	require.NoError(t, addTo(t.Context(), q, nil, func(*txn.Result, error) { got = append(got, 100) }))
	refuse := errors.New("no")
	logged, unlogged, free := q.block(refuse)
	require.Len(t, logged, 5)
	require.Len(t, unlogged, 1)
	freed += free
	require.ErrorIs(t, addTo(t.Context(), q, nil, nil), refuse)
	q.unblock()
	for n := uint64(16); n <= 20; n++ {
		done, free := q.complete(n)
		require.Nil(t, done, "completed by block")
		freed += free
	}
	require.EqualValues(t, 11, freed, "all space is released once")
}

func TestQueueHold(t *testing.T) {
	q := newQueue(1, 1000, lsn.Position{})
	q.hold()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := addTo(ctx, q, nil, nil)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, ErrBlocked)

	added := make(chan error)
	go func() { added <- addTo(context.Background(), q, nil, nil) }()
	require.Empty(t, q.take(nil))
	q.resume()
	require.NoError(t, <-added)
	require.Len(t, q.take(nil), 1)
}

func TestSilenceIgnoresOwnStop(t *testing.T) {
	var s silence
	now := time.Unix(1000, 0)
	step := 10 * time.Millisecond
	require.Zero(t, s.step(now, step, false))
	now = now.Add(step)
	require.Equal(t, step, s.step(now, step, false))
	now = now.Add(time.Hour) // this process was suspended
	require.Equal(t, 3*step, s.step(now, step, false))
	now = now.Add(step)
	require.Zero(t, s.step(now, step, true))
}

// An error converted to a gRPC status and back is the same error.
func TestErrorsAsStatus(t *testing.T) {
	for _, c := range statusCodes {
		require.ErrorIs(t, fromStatus(toStatus(c.err)), c.err)
	}
	require.NoError(t, fromStatus(toStatus(nil)))
	require.Equal(t, LostReset, causeOf(fromStatus(toStatus(ErrReplaced))))
	require.Equal(t, LostRejected, causeOf(fromStatus(toStatus(ErrNotActive))))
}

func TestEventQueueOrderAndClose(t *testing.T) {
	var got []Event
	all := make(chan struct{})
	q := startEventQueue(func(e Event) {
		got = append(got, e)
		if len(got) == 100 {
			close(all)
		}
	})
	for i := range uint64(100) {
		q.post(FollowerConnected{Config: i})
	}
	<-all
	q.close()
	for i := range uint64(100) {
		require.Equal(t, FollowerConnected{Config: i}, got[i])
	}
	q.post(ActiveReady{})
	require.Len(t, got, 100)
}

func FuzzVerifyFrames(f *testing.F) {
	b := frames(lsn.Position{Term: 1, LSN: 3, Chain: 7}, 2, 3, 20)
	f.Add(b.frames, uint64(1), uint64(3), uint32(7))
	f.Add([]byte{}, uint64(0), uint64(0), uint32(0))
	f.Fuzz(func(t *testing.T, raw []byte, term, n uint64, chain uint32) {
		prev := lsn.Position{Term: term, LSN: n, Chain: chain}
		end, err := verifyFrames(raw, prev)
		if err == nil && len(raw) > 0 {
			require.Greater(t, end.LSN, prev.LSN)
		}
	})
}

// When the applier fails, the outcome of queued transactions is unknown: the committer may still log them.
func TestAppliersFailureLeavesOutcomesUnknown(t *testing.T) {
	synctest.Test(t, testAppliersFailureLeavesOutcomesUnknown)
}

func testAppliersFailureLeavesOutcomesUnknown(t *testing.T) {
	st, err := store.Open(store.Options{FS: memfs.New(), Dir: "/data"})
	require.NoError(t, err)
	defer func() { require.NoError(t, st.Close()) }()
	p, err := StartPrimary(PrimaryOptions{
		Store: st, Term: 1, Config: PrimaryConfig{Config: 1, Serve: true},
		Tuning: Tuning{CommitDelay: 200 * time.Millisecond},
	})
	require.NoError(t, err)
	defer p.Stop()
	ends := func(n uint64) func() bool { return func() bool { return st.End().LSN == n } }
	require.Eventually(t, ends(1), time.Minute, time.Millisecond, "the term-start record")
	complete := make(chan error, 1)
	require.NoError(t, p.Submit(t.Context(), []byte("x"), func(_ *txn.Result, err error) { complete <- err }))
	p.fail(errors.New("apply")) // the committer waits for more transactions
	require.ErrorIs(t, <-complete, ErrOutcomeUnknown)
	require.Eventually(t, ends(2), time.Minute, time.Millisecond, "it is still logged")
}

// A standby rejects an active below its fence, and persists a higher fence before it accepts messages with that
// fence (INV-1).
func TestAdmit(t *testing.T) {
	fs := memfs.New()
	s, err := store.Open(store.Options{FS: fs, Dir: "/s", BootID: "boot"})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	f := &Follower{o: FollowerOptions{Store: s}}
	require.NoError(t, f.admit(3, 2))
	require.NoError(t, f.admit(3, 2))
	for _, lower := range [][2]uint64{{2, 2}, {2, 9}, {3, 1}, {0, 0}} {
		require.ErrorIs(t, f.admit(lower[0], lower[1]), ErrStale, "config %d term %d", lower[0], lower[1])
	}
	require.NoError(t, f.admit(4, 1))
	require.Equal(t, identity.Fence{Config: 4, Term: 1}, s.Identity().Fence)
}

// A standby does not apply durable records that the active has not committed (INV-5).
func TestStandbyAppliesCommittedRecords(t *testing.T) {
	synctest.Test(t, testStandbyAppliesCommittedRecords)
}

func testStandbyAppliesCommittedRecords(t *testing.T) {
	s, err := store.Open(store.Options{FS: memfs.New(), Dir: "/s", BootID: "boot"})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	var build txn.Builder
	for i := range 3 {
		build.Begin(nil, 1, nil)
		build.CreateQueue([]string{"a", "b", "c"}[i], txn.Config{}, "default")
		payload, err := build.Finish()
		require.NoError(t, err)
		frame, end := wal.AppendFrame(nil, s.End(), 1, wal.KindTxn, payload)
		require.NoError(t, s.Append(frame, end))
	}
	require.NoError(t, s.Sync())
	l := &link{
		f: &Follower{o: FollowerOptions{Store: s}}, applyWake: make(chan struct{}, 1),
		heartbeatWake: make(chan struct{}, 1),
	}
	l.durable.Store(s.Durable().LSN)
	l.commit.Store(2)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.apply(ctx) }()
	signal(l.applyWake)
	require.Eventually(t, func() bool { return l.applied.Load() >= 2 }, time.Minute, time.Millisecond)
	cancel()
	require.NoError(t, <-done)
	require.Equal(t, uint64(2), s.Applied().LSN, "applied and not committed")
}

// The handshake of a store that may have lost records has no log end, so that the peer does not hand over the role
// to that node (INV-6).
func TestHandshakeOmitsLogEndAfterPossibleLoss(t *testing.T) {
	synctest.Test(t, testHandshakeOmitsLogEndAfterPossibleLoss)
}

func testHandshakeOmitsLogEndAfterPossibleLoss(t *testing.T) {
	st, err := store.Open(store.Options{FS: memfs.New(), Dir: "/data"})
	require.NoError(t, err)
	defer func() { require.NoError(t, st.Close()) }()
	p, err := StartPrimary(PrimaryOptions{Store: st, Term: 1, Config: PrimaryConfig{Config: 1, Serve: true}})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return st.End().LSN == 1 }, time.Minute, time.Millisecond,
		"the term-start record")
	p.Stop()
	require.Equal(t, st.End(), Self(st, "p", "a:1").End)
	require.NoError(t, st.MarkLoss())
	require.True(t, Self(st, "p", "a:1").End.IsZero())
	require.NoError(t, st.ClearLoss())
	require.Equal(t, st.End(), Self(st, "p", "a:1").End)
}
