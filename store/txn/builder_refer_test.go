// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/crc"
)

// Referenced bodies inserted into the encoding of a transaction result in the encoding with copied bodies.
func TestReferencedBodies(t *testing.T) {
	for _, sizes := range [][]int{{15_000}, {4095, 4096}, {0, 20_000, 1, 70_000}} {
		build := func(b *Builder, at int, refs *[]Ref) []byte {
			b.Begin(bytes.Repeat([]byte{'x'}, at), 5, &Producer{ID: []byte("p"), Epoch: 1, Sequence: 1})
			b.Refer(refs)
			for op := range 2 {
				b.BeginPublish(uint64(op) + 1)
				for i, n := range sizes {
					var a *Attributes
					if i%2 == 1 {
						a = &Attributes{Subject: "s"}
					}
					b.MessageWith(7, a, []Property{{"k", "v"}}, bytes.Repeat([]byte{byte(i + op)}, n))
				}
				b.EndPublish()
			}
			b.Ack(1, 1, Range{First: 1, Last: 1})
			buf, err := b.Finish()
			require.NoError(t, err)
			return buf[at:]
		}
		var b Builder
		plain := build(&b, 0, nil)
		var refs []Ref
		short := build(&b, 10, &refs)
		require.NotEmpty(t, refs)
		var got []byte
		at := 0
		for _, r := range refs {
			require.GreaterOrEqual(t, len(r.Data), ReferBytes)
			require.Equal(t, crc.Of(r.Data), r.Sum)
			got = append(append(got, short[at:r.At-10]...), r.Data...)
			at = r.At - 10
		}
		require.Equal(t, plain, append(got, short[at:]...))
	}
}

// Referenced bodies count toward the size limit of a transaction.
func TestReferencedBodiesTooLarge(t *testing.T) {
	var b Builder
	var refs []Ref
	body := make([]byte, MaxTransactionBytes/3)
	b.Begin(nil, 1, nil)
	b.Refer(&refs)
	b.BeginPublish(1)
	for range 3 {
		b.Message(1, nil, body)
	}
	b.EndPublish()
	_, err := b.Finish()
	require.ErrorIs(t, err, ErrTooLarge)
}
