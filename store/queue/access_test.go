// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

func (d *driver) access(p *txn.Producer, expected uint64, changes ...txn.AccessChange) txn.Result {
	d.t.Helper()
	return d.apply(p, func(b *txn.Builder) { b.ChangeAccess(expected, 0, changes) })
}

func set(name, value string) txn.AccessChange {
	return txn.AccessChange{Kind: 'r', Name: []byte(name), Value: []byte(value)}
}

func unset(name string) txn.AccessChange {
	return txn.AccessChange{Kind: 'r', Name: []byte(name), Remove: true}
}

func (d *driver) entries() string {
	version, entries := d.s.Access()
	s := fmt.Sprint(version)
	for _, e := range entries {
		s += fmt.Sprintf(" %c/%s=%s", e.Kind, e.Name, e.Value)
	}
	return s
}

// A change is applied only to the expected version of the table (INV-20).
func TestAccess(t *testing.T) {
	d := newDriver(t)
	require.Equal(t, "0", d.entries())
	d.reload()
	require.Equal(t, txn.OK, d.access(nil, 0, set("b", "1"), set("a", "2")).Code)
	require.Equal(t, []uint64{AccessQueue}, d.s.TakeTouched(nil), "reported once")
	require.Empty(t, d.s.TakeTouched(nil))
	require.Equal(t, "1 r/a=2 r/b=1", d.entries())

	before := d.s.Digest()
	stale := d.access(nil, 0, set("a", "lost update"))
	require.Equal(t, txn.ErrAccessChanged, stale.Code, "a change for another version of the table was applied")
	require.Equal(t, 0, stale.Op)
	require.Equal(t, "1 r/a=2 r/b=1", d.entries())
	require.NotEqual(t, before, d.s.Digest())

	// A retry returns the original result, regardless of later changes to the table (INV-10).
	first := d.access(origin("p", 1, 1), 1, unset("a"), unset("none"))
	require.Equal(t, uint64(1), first.Ops[0].Changed)
	require.Equal(t, txn.OK, d.access(nil, first.LSN, set("a", "3")).Code)
	again := d.access(origin("p", 1, 1), 1, unset("a"), unset("none"))
	require.True(t, again.Duplicate)
	require.Equal(t, first.Ops, again.Ops)
	require.Equal(t, "4 r/a=3 r/b=1", d.entries())

	// Checkpoints between sets and removals do not change the result.
	d.reload()
	require.Equal(t, "4 r/a=3 r/b=1", d.entries())
	d.access(nil, 4, unset("a"))
	d.reload()
	d.access(nil, d.s.AccessVersion(), set("a", "5"))
	d.access(nil, d.s.AccessVersion(), unset("a"))
	d.reload()
	d.access(nil, d.s.AccessVersion(), unset("b"))
	d.access(nil, d.s.AccessVersion(), set("b", "6"))
	d.reload()
	require.Equal(t, fmt.Sprintf("%d r/b=6", d.lsn), d.entries())
	d.access(nil, d.lsn, unset("b"))
	d.reload()
	require.Equal(t, fmt.Sprint(d.lsn), d.entries(), "an empty table keeps its version")
}

func TestAccessLimits(t *testing.T) {
	d := newDriver(t)
	limits := defaultLimits()
	limits.access = 2
	d.s.setLimits(limits)
	require.Equal(t, txn.OK, d.access(nil, 0, set("a", ""), set("b", "")).Code)
	require.Equal(t, txn.ErrTooManyAccess, d.access(nil, 1, set("c", "")).Code)
	require.Equal(t, txn.OK, d.access(nil, 1, set("a", "again")).Code, "an existing entry can be set again")
	require.Equal(t, txn.OK, d.access(nil, 3, set("c", ""), unset("a")).Code, "an entry can replace a removed one")

	for name, c := range map[string]txn.AccessChange{
		"no name": set("", ""), "long name": set(string(make([]byte, 256)), ""),
		"long value": set("a", string(make([]byte, 4097))),
	} {
		var b txn.Builder
		b.Begin(nil, 0, nil)
		b.ChangeAccess(0, 0, []txn.AccessChange{c})
		_, err := b.Finish()
		require.Error(t, err, name)
	}
	var b txn.Builder
	b.Begin(nil, 0, nil)
	b.ChangeAccess(0, 0, []txn.AccessChange{set("a", "1"), unset("a")})
	_, err := b.Finish()
	require.ErrorIs(t, err, txn.ErrMalformed)
	require.Contains(t, err.Error(), "duplicate change")
}

// The loader rejects keys and values that a state never writes.
func TestLoadAccess(t *testing.T) {
	for name, entries := range map[string][]KV{
		"entries without a version": {{[]byte("zra"), []byte{1, 'v'}}},
		"version 0":                 {{[]byte("z"), []byte{1, 0}}},
		"no name":                   {{[]byte("z"), []byte{1, 5}}, {[]byte("zr"), []byte{1}}},
		"long value":                {{[]byte("z"), []byte{1, 5}}, {[]byte("zra"), make([]byte, 4098)}},
		"same entry twice":          {{[]byte("z"), []byte{1, 5}}, {[]byte("zra"), []byte{1}}, {[]byte("zra"), []byte{1}}},
	} {
		l := NewLoader()
		err := l.Put([]byte{keyState}, New().appendState(nil))
		for _, e := range entries {
			if len(e.Value) > 1000 {
				e.Value[0] = 1
			}
			if err == nil {
				err = l.Put(e.Key, e.Value)
			}
		}
		if err == nil {
			_, err = l.Finish(9)
		}
		require.ErrorIs(t, err, ErrCorrupt, name)
	}
	l := NewLoader()
	require.NoError(t, l.Put([]byte{keyState}, New().appendState(nil)))
	require.ErrorIs(t, l.Put([]byte("z"), []byte{2, 1}), txn.ErrNewerVersion)
	require.Greater(t, uint64(AccessQueue), uint64(math.MaxUint64>>1), "larger than any queue ID")
}
