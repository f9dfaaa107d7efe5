// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// BenchmarkReadBacklog reads a backlog from pages, in sequence order and in priority order. The messages have ten
// alternating priorities.
func BenchmarkReadBacklog(b *testing.B) {
	const batches, batch = 100, 1000
	s, err := store.Open(store.Options{Dir: b.TempDir()})
	require.NoError(b, err)
	defer func() { _ = s.Close() }()
	n := &node{s: s, term: 1}
	commit := func(build func(*txn.Builder)) {
		var t txn.Builder
		t.Begin(nil, 1, nil)
		build(&t)
		payload, err := t.Finish()
		require.NoError(b, err)
		require.NoError(b, n.appendTxn(payload))
		n.raw = nil
		require.NoError(b, s.Apply(s.End().LSN, func(uint64, *txn.Result) {}))
	}
	commit(func(t *txn.Builder) { t.CreateQueue("q", txn.Config{Priorities: 1}, "default") })
	for range batches {
		commit(func(t *txn.Builder) {
			t.BeginPublish(1)
			for i := range batch {
				rec, err := txn.AppendMessage(nil, 1, &txn.Attributes{Priority: new(uint8(i % 10))}, nil, make([]byte, 512))
				require.NoError(b, err)
				t.Record(rec)
			}
			t.EndPublish()
		})
	}
	_, err = s.Checkpoint(b.Context())
	require.NoError(b, err)
	for name, lanes := range map[string]bool{"order": false, "priority": true} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				req := store.ReadRequest{Queue: 1, Sub: 1, From: 1, MaxMessages: 1000, MaxBytes: 256 << 10}
				if lanes {
					req.Lanes = new(store.Lanes)
				}
				for read := 0; read < batches*batch; {
					got, next, err := s.Read(b.Context(), req, nil)
					require.NoError(b, err)
					require.NotEmpty(b, got)
					read += len(got)
					req.From = next
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batches*batch), "ns/message")
		})
	}
}
