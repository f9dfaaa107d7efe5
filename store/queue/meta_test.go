// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

func TestMeta(t *testing.T) {
	d := newDriver(t)
	put := func(key, value string) txn.Result {
		return d.apply(nil, func(b *txn.Builder) { b.PutMeta(key, []byte(value)) })
	}
	remove := func(key string) txn.Result {
		return d.apply(nil, func(b *txn.Builder) { b.DeleteMeta(key) })
	}
	get := func(key string) string {
		v, ok := d.s.Meta(key)
		if !ok {
			return "none"
		}
		return string(v)
	}
	require.Equal(t, "none", get("a"))
	require.Zero(t, remove("a").Ops[0].Changed)
	require.Empty(t, d.s.TakeTouched(nil))

	before := d.s.Digest()
	require.Equal(t, uint64(1), put("a", "1").Ops[0].Changed)
	require.NotEqual(t, before, d.s.Digest())
	put("a", "2")
	put("b/1", "")
	put("b/0", "x")
	require.Equal(t, []uint64{MetaQueue}, d.s.TakeTouched(nil), "reported once")
	require.Empty(t, d.s.TakeTouched(nil))
	require.Equal(t, "2", get("a"))
	require.Equal(t, []MetaEntry{{"b/0", []byte("x")}, {"b/1", []byte("")}}, fill(d.s.MetaPrefix("b/")))

	// Every order of sets, removals and checkpoints has the same result.
	d.reload()
	require.Equal(t, uint64(1), remove("a").Ops[0].Changed)
	d.reload()
	require.Equal(t, "none", get("a"))
	put("a", "3")
	remove("a")
	d.reload()
	require.Equal(t, "none", get("a"))
	put("a", "4")
	d.reload()
	remove("a")
	put("a", "5")
	d.reload()
	require.Equal(t, "5", get("a"))
	require.Len(t, d.s.MetaPrefix(""), 3)
}

// fill makes empty values comparable.
func fill(entries []MetaEntry) []MetaEntry {
	for i := range entries {
		if entries[i].Value == nil {
			entries[i].Value = []byte{}
		}
	}
	return entries
}

func TestMetaLimit(t *testing.T) {
	d := newDriver(t)
	limits := defaultLimits()
	limits.meta = 3
	d.s.setLimits(limits)
	put := func(keys ...string) txn.Code {
		return d.apply(nil, func(b *txn.Builder) {
			for _, k := range keys {
				b.PutMeta(k, []byte("v"))
			}
		}).Code
	}
	require.Equal(t, txn.OK, put("a", "b"))
	require.Equal(t, txn.ErrTooManyMeta, put("c", "d"))
	require.Len(t, d.s.MetaPrefix(""), 2, "a refused transaction changes nothing")
	require.Equal(t, txn.OK, put("c"))
	require.Equal(t, txn.OK, put("a"), "an existing entry can be set again")
	require.Equal(t, txn.ErrTooManyMeta, put("d"))
	d.apply(nil, func(b *txn.Builder) { b.DeleteMeta("b") })
	require.Equal(t, txn.OK, put("d"))

	big := New()
	for i := range MaxMeta + 1 {
		var b txn.Builder
		b.Begin(nil, 0, nil)
		b.PutMeta(fmt.Sprint(i), nil)
		payload, err := b.Finish()
		require.NoError(t, err)
		r := big.Apply(uint64(i+1), payload)
		require.Equal(t, i == MaxMeta, r.Code == txn.ErrTooManyMeta)
	}
}
