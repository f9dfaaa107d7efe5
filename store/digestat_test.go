// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/pager"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// Two stores that apply the same log in steps of different sizes have the same digest at an LSN.
func TestDigestAt(t *testing.T) {
	a, b := openNode(t, options(memfs.New())), openNode(t, options(memfs.New()))
	const records = 400
	at := uint64(257)
	var wg sync.WaitGroup
	digests := make([]checkpoint.Digest, 2)
	for i, n := range []*node{a, b} {
		payloads := [][]byte{encode(t, nil, func(b *txn.Builder) { b.CreateQueue("q", txn.Config{}, "s") })}
		for k := range records {
			payloads = append(payloads, encode(t, nil, func(b *txn.Builder) {
				b.PutMeta(fmt.Sprintf("k%d", k%7), fmt.Append(nil, k))
				b.BeginPublish(1)
				b.Message(1, nil, fmt.Appendf(nil, "message %d", k))
				b.EndPublish()
			}))
		}
		for _, p := range payloads {
			require.NoError(t, n.appendTxn(p))
		}
		wg.Go(func() {
			var err error
			if digests[i], err = digestAt(t.Context(), n.s, at, time.Minute); err != nil {
				t.Error(err)
			}
		})
		require.Eventually(t, func() bool { return n.s.Holds() == 1 }, time.Minute, time.Millisecond)
		step := uint64(1 + i*99) // one record per call, or all records in a few calls
		wg.Go(func() {
			for upTo := step; ; upTo += step {
				if err := n.s.Apply(min(upTo, records+1), nil); err != nil {
					t.Error(err)
				}
				if upTo > records {
					return
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, at, digests[0].Position.LSN)
	require.Equal(t, digests[0], digests[1])
	require.Equal(t, uint64(256), digests[0].Messages)
	require.Equal(t, uint64(records+1), a.s.Applied().LSN, "applying continued")

	_, err := digestAt(t.Context(), a.s, at, time.Second)
	require.ErrorIs(t, err, store.ErrPast)
	_, err = digestAt(t.Context(), a.s, records+50, 10*time.Millisecond)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	last, err := digestAt(t.Context(), a.s, records+1, time.Second)
	require.NoError(t, err, "current digests")
	require.Equal(t, uint64(records), last.Messages)
	a.commit(func(b *txn.Builder) { b.DeleteMeta("k1") })
	a.check()
	b.check()
}

// A wait for an LSN fails when a snapshot with a higher LSN is installed. Apply does not block afterwards.
func TestDigestWaitEndsAtSnapshot(t *testing.T) {
	source, _ := filled(t, options(memfs.New()))
	target := openNode(t, options(memfs.New()))
	waited := make(chan error, 1)
	go func() {
		_, err := target.s.QueueDigestsAt(t.Context(), 5, time.Hour)
		waited <- err
	}()
	require.Eventually(t, func() bool { return target.s.Holds() == 1 }, time.Minute, time.Millisecond)
	require.NoError(t, receive(t, source.s, target.s).Commit())
	require.Greater(t, target.s.Applied().LSN, uint64(5))
	within(t, "QueueDigestsAt", func() { require.ErrorIs(t, <-waited, pager.ErrReplaced) })
	within(t, "Apply", func() { target.commit(func(b *txn.Builder) { b.PutMeta("k", []byte("v")) }) })
}

// Metadata entries survive a restart, whether the checkpoint contains them or only the log.
func TestMetaSurvivesRestart(t *testing.T) {
	o := options(memfs.New())
	n := openNode(t, o)
	changed, cancel := query.WatchMeta(n.s)
	defer cancel()
	n.commit(func(b *txn.Builder) { b.PutMeta("maintenance/a", []byte("1")) })
	<-changed
	_, err := n.s.Checkpoint(t.Context())
	require.NoError(t, err)
	n.commit(func(b *txn.Builder) { b.PutMeta("maintenance/b", []byte("2")) })
	n.commit(func(b *txn.Builder) { b.PutMeta("other", nil) })
	before, err := digestOf(t.Context(), n.s)
	require.NoError(t, err)
	require.NoError(t, n.s.Close())

	n = openNode(t, o)
	n.applyAll()
	v, ok := query.Meta(n.s, "maintenance/a")
	require.True(t, ok)
	require.Equal(t, "1", string(v))
	entries := query.MetaPrefix(n.s, "maintenance/")
	require.Len(t, entries, 2)
	require.Equal(t, "2", string(entries[1].Value))
	after, err := digestOf(t.Context(), n.s)
	require.NoError(t, err)
	require.Equal(t, before.Content, after.Content)
	_, ok = query.Meta(n.s, "none")
	require.False(t, ok)
	n.check()
}
