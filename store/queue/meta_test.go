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

	// Checkpoints between sets and removals do not change the result.
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

// fill replaces nil values with empty values, so that entries are comparable.
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

// A change of a versioned entry is applied only to the expected version, together with the rest of its transaction
// (INV-24).
func TestSwapMeta(t *testing.T) {
	d := newDriver(t)
	d.apply(nil, func(b *txn.Builder) { b.CreateQueue("q", txn.Config{}, "default") })
	swap := func(expected uint64, value string, messages ...int) txn.Result {
		return d.apply(nil, func(b *txn.Builder) {
			for _, n := range messages {
				publish(b, 1, n, 10)
			}
			b.SwapMeta("a", expected, []byte(value))
		})
	}
	get := func() VersionedMeta {
		entry, ok := d.s.Meta("a")
		require.True(t, ok)
		v, ok := ParseVersioned(entry)
		require.True(t, ok)
		return v
	}
	require.Equal(t, txn.ErrMetaChanged, swap(1, "missing").Code, "a change of another version was applied")
	first := swap(0, "one")
	require.Equal(t, txn.OK, first.Code)
	require.Equal(t, VersionedMeta{Version: first.LSN, Value: []byte("one")}, get())
	require.Equal(t, txn.ErrMetaChanged, swap(0, "exists").Code)
	swap(first.LSN, "two", 2)
	d.reload()
	last := swap(get().Version, "three", 1)
	require.Equal(t, txn.OK, last.Code)
	require.Equal(t, VersionedMeta{Version: last.LSN, Sequence: 3, Value: []byte("three")}, get())
	before := d.s.Digest()
	late := swap(first.LSN, "late", 1)
	require.Equal(t, txn.ErrMetaChanged, late.Code, "a late proposal was applied")
	require.Equal(t, 1, late.Op)
	require.NotEqual(t, before, d.s.Digest(), "the refusal is part of the digest")
	require.Equal(t, uint64(3), d.s.queues.get(1).messages, "the publish of a refused transaction was applied")
	require.Equal(t, "three", string(get().Value))

	d.apply(nil, func(b *txn.Builder) { b.PutMeta("a", []byte("short")) })
	require.Equal(t, txn.ErrMetaChanged, swap(0, "unversioned").Code)
	d.apply(nil, func(b *txn.Builder) { b.DeleteMeta("a") })
	d.reload()
	require.Equal(t, txn.ErrMetaChanged, swap(last.LSN, "deleted", 1).Code)
	require.Equal(t, txn.OK, swap(0, "again").Code)
}
