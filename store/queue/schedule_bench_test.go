// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"runtime"
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

// The time for which a checkpoint blocks transactions does not depend on the number of schedule changes.
func TestCheckpointDoesNotCopySchedule(t *testing.T) {
	d := newDriver(t)
	q := d.queue("q", txn.Config{}, "s")
	allocated := func(entries int) uint64 {
		for i := range entries {
			d.s.schedule.add(txn.Due{TimeMS: 1, Queue: q.id, Sequence: uint64(i + 1), Kind: txn.DueExpire})
			d.s.schedule.remove(txn.Due{TimeMS: 2, Queue: q.id, Sequence: uint64(i + 1), Kind: txn.DueExpire})
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		batch := d.s.Collect(0, true)
		runtime.ReadMemStats(&after)
		puts := 0
		for range batch.Schedule.Puts {
			puts++
		}
		require.Equal(t, entries, puts)
		d.s.ScheduleWritten()
		return after.TotalAlloc - before.TotalAlloc
	}
	few := allocated(10)
	require.Less(t, allocated(100_000), few+100_000, "one byte for each entry would be more")
}
