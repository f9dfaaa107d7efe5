// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/rewrite"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// Retained messages stay in the page file although all subscriptions have acknowledged them, and survive a restart.
// After a trim, the pages of the removed messages are free, and page.db can shrink.
func TestRetentionFreesPages(t *testing.T) {
	const n, size = 20_000, 500
	mem := memfs.New()
	o := options(mem)
	s := openNode(t, o)
	retained := txn.Config{RetentionMessages: n / 10}
	s.commit(func(b *txn.Builder) { b.CreateQueue("log", retained, "a") })
	for from := 0; from < n; from += 1000 {
		s.commit(func(b *txn.Builder) {
			b.BeginPublish(1)
			for i := range 1000 {
				b.Message(int64(from+i), nil, make([]byte, size))
			}
			b.EndPublish()
		})
	}
	s.commit(func(b *txn.Builder) { b.Ack(1, 1, txn.Range{First: 1, Last: n}) })
	_, err := s.s.Checkpoint(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.s.Close())
	s = openNode(t, o)
	full, err := s.s.Stats()
	require.NoError(t, err)
	require.Equal(t, uint64(n), full.Messages)
	q, ok := query.ExpiryOf(s.s, 1)
	require.True(t, ok)
	require.Equal(t, []uint64{1}, query.ExpiryQueues(s.s))
	require.Equal(t, []uint64{1, n - n/10 + 1}, []uint64{q.Retained, q.RetainFrom})

	s.commit(func(b *txn.Builder) { b.Trim(1, q.RetainFrom, &retained) })
	_, err = s.s.Checkpoint(t.Context())
	require.NoError(t, err)
	after, err := s.s.Stats()
	require.NoError(t, err)
	require.Equal(t, uint64(n/10), after.Messages)
	require.Less(t, after.PagesUsed, full.PagesUsed/5, "nine tenths of the messages are removed")
	r, err := s.s.Maintenance().Shrink(t.Context(), rewrite.ShrinkOptions{})
	require.NoError(t, err)
	require.Less(t, r.FileBytesAfter, r.FileBytesBefore/5)
	t.Logf("%d messages of %d bytes retained: %d pages; %d retained: %d pages; page.db %d → %d bytes", n, size,
		full.PagesUsed, n/10, after.PagesUsed, r.FileBytesBefore, r.FileBytesAfter)
	s.check()
}

// FirstSince finds the first message at or after a time. The messages are in pages and in memory, and their
// sequences have gaps.
func TestFirstSince(t *testing.T) {
	n := 300_000
	if testing.Short() {
		n = 30_000
	}
	s := openNode(t, options(memfs.New()))
	s.commit(func(b *txn.Builder) { b.CreateQueue("log", txn.Config{}, "a") })
	for from := 0; from < n; from += 10_000 {
		s.commit(func(b *txn.Builder) {
			b.BeginPublish(1)
			for i := range 10_000 {
				b.Message(1000+int64(from+i)/4, nil, nil) // four per millisecond
			}
			b.EndPublish()
		})
		if from == n/2 {
			_, err := s.s.Checkpoint(t.Context())
			require.NoError(t, err)
		}
	}
	s.commit(func(b *txn.Builder) {
		b.Ack(1, 1, txn.Range{First: 101, Last: 4000}, txn.Range{First: uint64(n) - 50, Last: uint64(n) - 10})
	})
	alive := func(seq int) bool { return seq <= 100 || seq > 4000 && seq < n-50 || seq > n-10 && seq <= n }
	rng := rand.New(rand.NewPCG(3, 4))
	began := time.Now()
	for range 200 {
		since := 990 + rng.Int64N(int64(n)/4+30)
		want := max(int(since-1000)*4+1, 1)
		for want <= n && !alive(want) {
			want++
		}
		seq, ms, ok, err := query.FirstSince(t.Context(), s.s, 1, 1, since)
		require.NoError(t, err)
		require.Equal(t, min(want, n+1), int(seq), "since %d", since)
		require.Equal(t, want <= n, ok)
		if ok {
			require.Equal(t, 1000+int64(seq-1)/4, ms)
		}
	}
	t.Logf("%d messages: %s for each lookup", n, time.Since(began)/200)
	_, _, _, err := query.FirstSince(t.Context(), s.s, 7, 1, 0)
	require.ErrorIs(t, err, store.ErrNoQueue)
}

// A retention that is removed and set again between two checkpoints survives a restart.
func TestRetentionSetAgainBetweenCheckpoints(t *testing.T) {
	mem := memfs.New()
	o := options(mem)
	s := openNode(t, o)
	retained := txn.Config{RetentionMessages: 100}
	publish := func() {
		s.commit(func(b *txn.Builder) {
			b.BeginPublish(1)
			for i := range 200 {
				b.Message(int64(i), nil, []byte("body"))
			}
			b.EndPublish()
		})
	}
	checkpoint := func() {
		_, err := s.s.Checkpoint(t.Context())
		require.NoError(t, err)
	}
	s.commit(func(b *txn.Builder) { b.CreateQueue("log", retained, "a") })
	publish()
	s.commit(func(b *txn.Builder) { b.Ack(1, 1, txn.Range{First: 1, Last: 150}) })
	s.commit(func(b *txn.Builder) { b.Trim(1, 70, &retained) })
	checkpoint()
	s.commit(func(b *txn.Builder) { b.AlterQueue(1, txn.Config{}, txn.Retention) })
	s.commit(func(b *txn.Builder) { b.AlterQueue(1, retained, txn.Retention) })
	checkpoint()
	digest, err := digestOf(t.Context(), s.s)
	require.NoError(t, err)
	require.NoError(t, s.s.Close())
	s = openNode(t, o)
	again, err := digestOf(t.Context(), s.s)
	require.NoError(t, err)
	require.Equal(t, digest, again)
}
