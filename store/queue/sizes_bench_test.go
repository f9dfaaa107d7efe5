// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// BenchmarkExactBytes publishes messages of 100 to 163 bytes and acknowledges them, 100 at a time. It covers queues
// with average and with exact byte counts, with a backlog, and in random order. An op is one message.
func BenchmarkExactBytes(b *testing.B) {
	for _, c := range []struct {
		name   string
		config txn.Config
		equal  bool
	}{
		{"plain", txn.Config{}, false},
		{"average", txn.Config{MaxBytes: 1 << 40}, false},
		{"exact-equal", txn.Config{MaxBytes: 1 << 40, ExactBytes: 1}, true},
		{"exact", txn.Config{MaxBytes: 1 << 40, ExactBytes: 1}, false},
	} {
		for _, random := range []bool{false, true} {
			name := c.name + "/in-order"
			if random {
				name = c.name + "/random"
			}
			b.Run(name, func(b *testing.B) { benchmarkBytes(b, c.config, c.equal, random) })
		}
	}
}

func benchmarkBytes(b *testing.B, config txn.Config, equal, random bool) {
	const batch, backlog = 100, 100_000
	d := newDriver(b)
	q := d.queue("q", config, "default")
	rng := rand.New(rand.NewPCG(1, 2))
	var tb txn.Builder
	encode := func(fill func()) []byte {
		tb.Begin(nil, 0, nil)
		fill()
		payload, err := tb.Finish()
		require.NoError(b, err)
		return payload
	}
	published := encode(func() {
		tb.BeginPublish(q.id)
		for i := range batch {
			size := 100 + i%64
			if equal {
				size = 132
			}
			tb.Message(0, nil, make([]byte, size))
		}
		tb.EndPublish()
	})
	var alive []uint64
	publish := func() {
		d.lsn++
		first := d.s.Apply(d.lsn, published).Ops[0].FirstSequence
		if !random {
			return
		}
		for i := range uint64(batch) {
			alive = append(alive, first+i)
		}
	}
	if random {
		for range backlog / batch {
			publish()
		}
		for _, run := range d.s.Collect(0, true).Tails {
			d.s.Flushed(run.Queue, run.Last())
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; n += batch {
		publish()
		ranges := []txn.Range{{First: q.nextSeq - batch, Last: q.nextSeq - 1}}
		if random {
			ranges = ranges[:0]
			for range batch {
				k := rng.IntN(len(alive))
				ranges = append(ranges, txn.Range{First: alive[k], Last: alive[k]})
				alive[k] = alive[len(alive)-1]
				alive = alive[:len(alive)-1]
			}
		}
		d.lsn++
		d.s.Apply(d.lsn, encode(func() { tb.Ack(q.id, 1, ranges...) }))
	}
}
