// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// BenchmarkExpire applies transactions that expire 256 messages each; an op is one message.
func BenchmarkExpire(b *testing.B) {
	const batch = 256
	for name, kind := range map[string]txn.DueKind{"message": txn.DueExpire, "queue": txn.DueTTL} {
		b.Run(name, func(b *testing.B) {
			d := newDriver(b)
			q := d.queue("q", txn.Config{TTL: 1}, "s")
			d.publish(q, b.N)
			d.s.Collect(0, true)
			var payloads [][]byte
			for first := 1; first <= b.N; first += batch {
				entries := make([]txn.Due, 0, batch)
				for seq := first; seq <= min(first+batch-1, b.N); seq++ {
					entries = append(entries, txn.Due{TimeMS: 1, Queue: q.id, Sequence: uint64(seq), Kind: kind})
				}
				var t txn.Builder
				t.Begin(nil, 5, nil)
				t.Due(entries...)
				payload, err := t.Finish()
				require.NoError(b, err)
				payloads = append(payloads, payload)
			}
			b.ReportAllocs()
			b.ResetTimer()
			for _, p := range payloads {
				d.lsn++
				d.s.Apply(d.lsn, p)
			}
			require.Zero(b, q.Messages())
		})
	}
}
