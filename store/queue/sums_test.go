// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"bytes"
	"hash/crc32"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/crc"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// A state with known payload checksums is equal to one that computes them, and returns messages with the correct
// checksums.
func TestChecksumsAreReused(t *testing.T) {
	given, computes := New(), New()
	next, lsn := uint64(0), uint64(0)
	apply := func(fill func(b *txn.Builder)) {
		next++
		lsn++
		var b txn.Builder
		b.Begin(nil, 1_700_000_000_000+int64(lsn), &txn.Producer{ID: []byte("p"), Epoch: 1, Sequence: next})
		fill(&b)
		payload, err := b.Finish()
		require.NoError(t, err)
		one := given.ApplyWith(lsn, payload, txn.Checksum{Known: true, Sum: crc.Of(payload)})
		other := computes.Apply(lsn, payload)
		require.NoError(t, one.Err())
		require.Equal(t, other, one)
	}
	apply(func(b *txn.Builder) { b.CreateQueue("q", txn.Config{}, "default") })
	apply(func(b *txn.Builder) { b.CreateQueue("other", txn.Config{}, "default") })
	for i, sizes := range [][]int{{15_000}, {10}, {4096}, {15_000, 9_000, 20_000}, {15_000, 10}, {70_000}, {5000, 5000}} {
		for _, attributes := range []*txn.Attributes{nil, {Subject: "s"}, {Subject: "s", ExpiresAtMS: 1_900_000_000_000}} {
			for _, forwarded := range []bool{false, true} {
				apply(func(b *txn.Builder) {
					b.BeginPublish(1)
					for k, n := range sizes {
						b.MessageWith(int64(i), attributes, nil, bytes.Repeat([]byte{byte(7 * (k + i))}, n))
					}
					b.EndPublish()
					if forwarded {
						b.Forward(1, 2, false, nil)
					}
				})
				p := txn.Producer{ID: []byte("p"), Epoch: 1, Sequence: next}
				require.Equal(t, computes.Fingerprint(p), given.Fingerprint(p))
				require.Equal(t, computes.Digest(), given.Digest(), "%v %v", sizes, forwarded)
				for id := range uint64(2) {
					require.Equal(t, computes.Queue(id+1).digest, given.Queue(id+1).digest)
				}
			}
		}
	}
	known := 0
	for _, tail := range given.Collect(0, true).Tails {
		for i, record := range tail.Records {
			sum := tail.Sum(i)
			if sum == 0 {
				continue
			}
			known++
			require.Equal(t, crc32.Checksum(record, crc32.MakeTable(crc32.Castagnoli)), sum)
		}
	}
	require.Equal(t, 10*6, known, "large messages in batches of large messages only")
}
