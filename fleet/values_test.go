// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// The fast parser accepts all common values, and returns the same as the decoder of JSON for each value that it
// accepts.
func TestParseEntry(t *testing.T) {
	for _, v := range []entryValue{
		{Pair: "a", Epoch: 1},
		{Pair: "a", Epoch: 12, Term: 3},
		{Pair: "a", Epoch: 1, Group: "g"},
		{Pair: "a.b-c_d", Epoch: 1<<63 - 1, Term: 7, Group: "\u00e4{}"},
	} {
		got, ok := parseEntry([]byte(encode(v)))
		require.True(t, ok)
		require.Equal(t, v, got)
	}
	for _, v := range []entryValue{{Pair: "a", Epoch: math.MaxUint64}, {Pair: "a", Epoch: 1, Group: `"<`}} {
		_, ok := parseEntry([]byte(encode(v)))
		require.False(t, ok)
		got, err := decodeEntry([]byte(encode(v)))
		require.NoError(t, err)
		require.Equal(t, v, got)
	}
}

func FuzzParseEntry(f *testing.F) {
	f.Add(`{"pair":"a","epoch":1,"term":2,"group":"g"}`)
	f.Add(`{"pair":"a","epoch":01}`)
	f.Add(`{"pair":"a","epoch":1,"pair":"b"}`)
	f.Add(`{"pair":"a","epoch":1} `)
	f.Fuzz(func(t *testing.T, raw string) {
		got, ok := parseEntry([]byte(raw))
		if !ok {
			return
		}
		var want entryValue
		require.NoError(t, decode([]byte(raw), &want))
		require.Equal(t, want, got)
	})
}
