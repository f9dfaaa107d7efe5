// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/wal"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// After a log is replayed in several pieces, the store has all messages. Messages of an earlier piece that are not
// yet in pages do not change when a later piece is read.
func TestReplayOfLongLog(t *testing.T) {
	mem := memfs.New()
	first := openNode(t, options(mem))
	first.commit(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{}, "default") })
	id := queueInfos(t, first.s)[0].ID
	body := func(i int) []byte { return fmt.Appendf(make([]byte, 0, 8<<10), "%08000d", i) }
	const messages = 600 // 4.8 MB
	for i := range messages {
		first.commit(func(b *txn.Builder) {
			b.BeginPublish(id)
			b.Message(1, nil, body(i))
			b.EndPublish()
		})
	}

	second := openNode(t, options(mem.CrashClone(nil)))
	require.Zero(t, second.s.Applied().LSN, "test requires that no checkpoint is written")
	second.applyAll()
	from := uint64(1)
	for i := 0; i < messages; {
		got, next, err := second.s.Read(context.Background(),
			store.ReadRequest{Queue: id, From: from, MaxMessages: 100}, nil)
		require.NoError(t, err)
		require.NotEmpty(t, got)
		for _, d := range got {
			m, err := txn.DecodeMessage(d.Record)
			require.NoError(t, err, "message %d", i)
			require.Equal(t, string(body(i)), string(m.Body), "message %d", i)
			i++
		}
		from = next
	}
	want, err := digestOf(context.Background(), first.s)
	require.NoError(t, err)
	got, err := digestOf(context.Background(), second.s)
	require.NoError(t, err)
	require.Equal(t, want.Content, got.Content)
	second.check()
}

// Apply reads records from the log, in pieces, if they were appended before the store was opened. If a piece ends
// within a batch that was appended later and is still in memory, Apply continues with the rest of this batch.
func TestReplayEndsInBatch(t *testing.T) {
	mem := memfs.New()
	first := openNode(t, options(mem))
	first.commit(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{}, "default") })
	id := queueInfos(t, first.s)[0].ID
	publish := func(i int) []byte {
		return encode(t, nil, func(b *txn.Builder) {
			b.BeginPublish(id)
			b.Message(1, nil, fmt.Appendf(nil, "%08000d", i))
			b.EndPublish()
		})
	}
	for i := range 80 {
		require.NoError(t, first.appendTxn(publish(i)))
	}

	second := openNode(t, options(mem.CrashClone(nil)))
	var batch []byte
	end := second.s.End()
	for i := range 100 {
		batch, end = wal.AppendFrame(batch, end, second.term, wal.KindTxn, publish(80+i))
	}
	require.NoError(t, second.s.Append(batch, end))
	require.NoError(t, second.s.Sync())
	applied := 0
	require.NoError(t, second.s.Apply(end.LSN, func(uint64, *txn.Result) {
		applied++
		require.LessOrEqual(t, applied, 181)
	}))
	require.Equal(t, end, second.s.Applied())
	q, err := query.QueueByName(second.s, "q")
	require.NoError(t, err)
	require.Equal(t, uint64(180), q.Messages)
	second.check()
}
