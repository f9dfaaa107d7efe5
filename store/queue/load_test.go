// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// everyKind returns a state with a key of every kind.
func everyKind(t testing.TB) *driver {
	t.Helper()
	d := plainKinds(t)
	q := d.s.QueueByName("q")
	d.do(func(b *txn.Builder) {
		b.CreateSubscriptionWith(q.id, "filtered", txn.StartEarliest, txn.SubscriptionOptions{Filter: "size > 3"})
	})
	for _, xid := range []string{"x", "y", "z"} {
		require.Equal(t, txn.OK, d.prepare(xid, func(b *txn.Builder) {
			publish(b, q.id, 2, 9)
			b.Ack(q.id, 2, txn.Range{First: 10 + d.lsn, Last: 10 + d.lsn})
		}))
	}
	require.Equal(t, txn.OK, d.commitPrepared("y").Code)
	d.do(join(5))
	d.do(own("q", 300))
	d.do(func(b *txn.Builder) { b.Site(txn.SiteChange{Action: txn.SiteStart, Lineage: lineage}) })
	return d
}

// plainKinds returns a state with a key of every kind that release 0.1.0 supports.
func plainKinds(t testing.TB) *driver {
	t.Helper()
	d := newDriver(t)
	q := d.queue("q", txn.Config{MaxBytes: 1 << 40}, "a", "b")
	d.publish(q, 9000)
	d.ack(q, 1, 1, 100)
	d.ack(q, 1, 200, 8500)
	d.ack(q, 2, 7, 7)
	d.do(func(b *txn.Builder) { b.Release(q.id, 2, txn.Range{First: 3, Last: 9}) })
	d.apply(origin("p", 1, 7), one)
	d.apply(origin("p", 1, 8), func(b *txn.Builder) { one(b); one(b) })
	d.do(func(b *txn.Builder) { b.PutMeta("settings", []byte("a value")); b.PutMeta("empty", nil) })
	d.apply(origin("r", 1, 7), func(b *txn.Builder) { one(b); publish(b, 99, 1, 1) })
	return d
}

// use calls the methods that a store calls on a loaded state.
func use(t testing.TB, s *State) {
	t.Helper()
	d := &driver{t: t, s: s, lsn: s.Applied()}
	want := allOf(s)
	d.reload()
	for q := range d.s.Queues {
		for sub := range q.Subs {
			sub.NextUnacked(1)
			sub.NextDeliverable(1)
		}
		q.NextAlive(1)
	}
	if len(allOf(d.s)) != len(want) {
		t.Fatal("a loaded state differs after it was written and loaded again")
	}
}

// TestCorruptTree changes single stored bytes. The loader must reject them or return a valid state.
func TestCorruptTree(t *testing.T) {
	var keys []KV
	for k, v := range everyKind(t).s.All {
		keys = append(keys, KV{Key: k, Value: v})
	}
	rng := rand.New(rand.NewPCG(1, 1))
	refused := 0
	for range 4000 {
		l := NewLoader()
		l.maxChunks = 1000
		which, missing := rng.IntN(len(keys)), rng.IntN(20) == 0
		var err error
		for i, kv := range keys {
			k, v := bytes.Clone(kv.Key), bytes.Clone(kv.Value)
			switch {
			case i != which:
			case missing:
				continue
			case len(v) == 0 || rng.IntN(4) == 0:
				k[rng.IntN(len(k))] ^= 1 << rng.IntN(8)
			default:
				v[rng.IntN(len(v))] ^= 1 << rng.IntN(8)
			}
			if err = l.Put(k, v); err != nil {
				break
			}
		}
		var s *State
		if err == nil {
			s, err = l.Finish(100)
		}
		if err == nil {
			use(t, s)
			continue
		}
		refused++
		if code := txn.OK; !bytes.Contains([]byte(err.Error()), []byte(ErrCorrupt.Error())) {
			require.ErrorAs(t, err, &code)
		}
	}
	require.Greater(t, refused, 1000)
}

func TestLoaderSkipsTheIndex(t *testing.T) {
	l := NewLoader()
	require.NoError(t, l.Put([]byte("i12345678"), []byte("whatever")))
	s, err := l.Finish(3)
	require.NoError(t, err)
	require.Equal(t, uint64(3), s.Applied())

	l = NewLoader()
	require.ErrorIs(t, l.Put([]byte("x"), nil), ErrCorrupt)
	require.ErrorIs(t, l.Put(nil, nil), ErrCorrupt)
	require.ErrorIs(t, l.Put([]byte("m"), []byte{9}), txn.ErrNewerVersion)
}

// The encoding and digests of version 1 for a fixed history must not change without a new version.
func TestFormatVersion1(t *testing.T) {
	h := sha256.New()
	for k, v := range plainKinds(t).s.All {
		h.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(k))))
		h.Write(k)
		h.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(v))))
		h.Write(v)
	}
	require.Equal(t, "ee6cfa1bfa548e79d7606634de401fd38215d35919ca3ef186603689ed41273e", hex.EncodeToString(h.Sum(nil)))
}
