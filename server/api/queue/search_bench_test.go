// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/delivery/filter"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// BenchmarkSearch searches messages of 512 bytes in pages. One operation is one message.
func BenchmarkSearch(b *testing.B) {
	const messages, perTxn = 200_000, 100
	s, err := store.Open(store.Options{
		FS: vfs.OS(), Dir: b.TempDir(), Sync: wal.SyncOff, MemoryBudget: store.MinMemoryBudget,
	})
	require.NoError(b, err)
	defer func() { require.NoError(b, s.Close()) }()
	commit := func(fill func(*txn.Builder)) {
		var build txn.Builder
		build.Begin(wal.BeginFrame(nil), 1, nil)
		fill(&build)
		frames, err := build.Finish()
		require.NoError(b, err)
		frames, end := wal.EndFrame(frames, 0, s.End(), 1, wal.KindTxn)
		require.NoError(b, s.Append(frames, end))
		require.NoError(b, s.Sync())
		require.NoError(b, s.Apply(end.LSN, nil))
	}
	commit(func(build *txn.Builder) { build.CreateQueue("q", txn.Config{}, "default") })
	text := strings.Repeat("x", 380)
	for i := range messages / perTxn {
		commit(func(build *txn.Builder) {
			build.BeginPublish(1)
			for j := range perTxn {
				build.Message(1, txn.Properties(map[string]string{"kind": "order", "region": "eu"}),
					fmt.Appendf(nil, `{"customer": {"id": "%08d"}, "total": 12, "text": "%s"}`, i*perTxn+j, text))
			}
			build.EndPublish()
		})
	}
	_, err = s.Checkpoint(b.Context())
	require.NoError(b, err)
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
