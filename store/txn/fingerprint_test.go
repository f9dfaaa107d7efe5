// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"testing"

	"github.com/stretchr/testify/require"
)

// The fingerprint of a request does not depend on the time, the producer's sequence or the queue ID. Different requests
// have different fingerprints.
func TestFingerprint(t *testing.T) {
	table := crc32.MakeTable(crc32.Castagnoli)
	of := func(timeMS int64, queue uint64, bodies ...string) uint32 {
		var b Builder
		b.Begin(nil, timeMS, &Producer{ID: []byte("p"), Sequence: uint64(timeMS)})
		b.BeginPublish(queue)
		for _, body := range bodies {
			b.Message(timeMS, []Property{{Key: "k", Value: "v"}}, []byte(body))
		}
		b.EndPublish()
		b.Ack(queue, 1, Range{First: 1, Last: uint64(len(bodies))})
		encoded, err := b.Finish()
		require.NoError(t, err)
		sum, err := Fingerprint(encoded, table)
		require.NoError(t, err)
		return sum
	}
	seen := map[uint32]string{}
	for _, bodies := range [][]string{{"a"}, {"b"}, {"a", ""}, {"", "a"}, {"ab", "c"}, {"a", "bc"}, {"abc"}} {
		sum := of(1, 2, bodies...)
		require.Equal(t, sum, of(1_800_000_000_000, 1<<40, bodies...))
		require.Empty(t, seen[sum])
		seen[sum] = fmt.Sprint(bodies)
	}
	_, err := Fingerprint([]byte("malformed"), table)
	require.Error(t, err)
}

func BenchmarkFingerprint(b *testing.B) {
	for _, bytes := range []int{100, 1000} {
		b.Run(fmt.Sprint(bytes), func(b *testing.B) {
			var t Builder
			t.Begin(nil, 1, nil)
			t.BeginPublish(1)
			for range 100 {
				t.Message(1, nil, make([]byte, bytes))
			}
			t.EndPublish()
			encoded, err := t.Finish()
			require.NoError(b, err)
			var r Reader
			require.NoError(b, r.Reset(encoded))
			op, err := r.Next()
			require.NoError(b, err)
			table := crc32.MakeTable(crc32.Castagnoli)
			b.ReportAllocs()
			for b.Loop() {
				op.Fingerprint(0, table)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100, "ns/message")
		})
	}
}

// Times computed by the active do not change the fingerprint; all other fields do.
func TestFingerprintWithoutTimes(t *testing.T) {
	table := crc32.MakeTable(crc32.Castagnoli)
	of := func(a *Attributes) uint32 {
		t.Helper()
		rec, err := AppendMessage(nil, 5, a, []Property{{"k", "v"}}, []byte("body"))
		require.NoError(t, err)
		o := Op{Code: OpPublish, Count: 1, Raw: rec}
		return o.Fingerprint(0, table)
	}
	seen := map[uint32]bool{}
	for _, make := range []func() *Attributes{
		func() *Attributes { return new(Attributes) },
		func() *Attributes { return &Attributes{Subject: "s"} },
		func() *Attributes { return &Attributes{Subject: "s", Priority: new(uint8)} },
		func() *Attributes {
			a := everyAttribute()
			a.DeliverAtMS, a.ExpiresAtMS = 0, 0
			return a
		},
		func() *Attributes {
			return &Attributes{Values: []TypedProperty{{"k2", Value{Kind: ValueBytes, Bytes: bytes.Repeat([]byte("x"), 118)}}}}
		},
	} {
		want := of(make())
		require.False(t, seen[want])
		seen[want] = true
		for _, times := range [][2]int64{{1, 0}, {0, 1}, {1_700_000_000_000, 5}, {MaxTimeMS, MaxTimeMS}} {
			a := make()
			a.DeliverAtMS, a.ExpiresAtMS = times[0], times[1]
			require.Equal(t, want, of(a))
		}
	}
}
