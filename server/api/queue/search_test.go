// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/delivery/filter"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// searchStore opens a store with a queue of messages that are in pages and have 512 bytes each.
func searchStore(t testing.TB, fs vfs.FS, dir string, messages int) *store.Store {
	t.Helper()
	s, err := store.Open(store.Options{FS: fs, Dir: dir, Sync: wal.SyncOff, MemoryBudget: store.MinMemoryBudget})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	commit := func(fill func(*txn.Builder)) {
		var build txn.Builder
		build.Begin(wal.BeginFrame(nil), 1, nil)
		fill(&build)
		frames, err := build.Finish()
		require.NoError(t, err)
		frames, end := wal.EndFrame(frames, 0, s.End(), 1, wal.KindTxn)
		require.NoError(t, s.Append(frames, end))
		require.NoError(t, s.Sync())
		require.NoError(t, s.Apply(end.LSN, nil))
	}
	commit(func(build *txn.Builder) { build.CreateQueue("q", txn.Config{}, "default") })
	const perTxn = 100
	text := strings.Repeat("x", 380)
	for i := range messages / perTxn {
		commit(func(build *txn.Builder) {
			build.BeginPublish(1)
			for j := range perTxn {
				build.Message(1, txn.Properties(map[string]string{"kind": "order", "region": "eu"}),
					fmt.Appendf(nil, `{"customer": {"id": "%08d"}, "total": 12, "text": %q}`, i*perTxn+j+1, text))
			}
			build.EndPublish()
		})
	}
	_, err = s.Checkpoint(t.Context())
	require.NoError(t, err)
	return s
}

// A search step that exceeds its timeout ends before the end of its batch or window. The next step does not skip
// any message.
func TestSearchStepTimeout(t *testing.T) {
	const messages = 3000
	s := searchStore(t, memfs.New(), "/data", messages)
	for _, newest := range []bool{false, true} {
		q := search{service: &Service{store: s}, newest: newest, from: 1, before: messages + 1, window: 4096}
		q.read = store.ReadRequest{
			Queue: 1, Buffer: new(store.ReadBuffer), MaxBytes: 1 << 20, MaxMessages: txn.MaxPublishMessages,
		}
		q.stepTimeout = -1
		var err error
		q.filter, err = filter.CompileSearch(`body.customer.id.endsWith("7")`)
		require.NoError(t, err)
		var got []uint64
		steps := 0
		for ; !q.done(); steps++ {
			var found []store.Delivery
			if newest {
				found, _, _, err = q.descend(t.Context(), maxWindow)
			} else {
				found, _, err = q.ascend(t.Context(), maxWindow)
			}
			require.NoError(t, err)
			for _, m := range found {
				got = append(got, m.Sequence)
			}
		}
		require.GreaterOrEqual(t, steps, messages/checkEvery)
		require.Len(t, got, messages/10)
		for i, seq := range got {
			if newest {
				i = len(got) - 1 - i
			}
			require.Equal(t, uint64(7+10*i), seq)
		}
		require.Equal(t, uint64(messages), q.scanned)
	}
	q := search{service: &Service{store: s}, from: 1, before: messages + 1}
	q.read, q.filter = store.ReadRequest{Queue: 1, MaxBytes: 1 << 20}, new(filter.Filter)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err := q.ascend(ctx, 1)
	require.ErrorIs(t, err, context.Canceled)
}

// BenchmarkSearch searches messages of 512 bytes in pages. One operation is the evaluation of one message.
func BenchmarkSearch(b *testing.B) {
	const messages = 200_000
	s := searchStore(b, vfs.OS(), b.TempDir(), messages)
	for _, c := range []struct{ name, text string }{
		{"read only", ""},
		{"property", `properties.kind == "refund"`},
		{"body", `body.customer.id == "4711"`},
		{"CEL", `!has(properties.kind)`},
	} {
		for _, newest := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/newest=%t", c.name, newest), func(b *testing.B) {
				q := search{service: &Service{store: s}, newest: newest}
				q.read = store.ReadRequest{
					Queue: 1, Buffer: new(store.ReadBuffer), MaxBytes: 1 << 20, MaxMessages: txn.MaxPublishMessages,
				}
				q.stepTimeout, q.stepBegan = time.Hour, time.Now()
				var err error
				if c.text != "" {
					q.filter, err = filter.CompileSearch(c.text)
					require.NoError(b, err)
				}
				b.ReportAllocs()
				b.SetBytes(512)
				b.ResetTimer()
				for q.scanned < uint64(b.N) {
					if q.done() {
						q.from, q.before, q.window = 1, messages+1, firstWindow
					}
					if newest {
						_, _, _, err = q.descend(b.Context(), maxWindow)
					} else {
						_, _, err = q.ascend(b.Context(), txn.MaxPublishMessages)
					}
					require.NoError(b, err)
				}
			})
		}
	}
}
