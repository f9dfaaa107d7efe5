// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// FuzzApply applies arbitrary records to two states, one of which is reloaded from the tree after each step. The states
// must remain equal and valid.
func FuzzApply(f *testing.F) {
	seed := func(p *txn.Producer, fill func(b *txn.Builder)) []byte {
		var b txn.Builder
		b.Begin(nil, 0, p)
		fill(&b)
		payload, err := b.Finish()
		if err != nil {
			f.Fatal(err)
		}
		return append(binary.LittleEndian.AppendUint16(nil, uint16(len(payload))), payload...)
	}
	create := seed(nil, func(b *txn.Builder) { b.CreateQueue("q", txn.Config{}, "a", "b") })
	some := seed(origin("p", 1, 1), func(b *txn.Builder) { publish(b, 1, 70, 1) })
	f.Add(append(create, some...))
	f.Add(append(append(append([]byte{}, create...), some...), seed(nil, func(b *txn.Builder) {
		b.Ack(1, 1, txn.Range{First: 1, Last: 60}, txn.Range{First: 62, Last: 65})
		b.Release(1, 2, txn.Range{First: 3, Last: 9})
	})...))
	f.Add(append(append(append([]byte{}, create...), some...),
		seed(nil, func(b *txn.Builder) { b.DeleteSubscription(1, 2) })...))
	f.Add(append(append(append([]byte{}, create...), some...), seed(nil, func(b *txn.Builder) { b.Purge(1, 0) })...))
	f.Add(append(append(append([]byte{}, create...), seed(nil, func(b *txn.Builder) {
		b.PutMeta("k", []byte("v"))
		b.DeleteMeta("k")
		b.PutMeta("k", []byte("w"))
		b.SwapMeta("l", 0, []byte("x"))
	})...), seed(nil, func(b *txn.Builder) { b.DeleteMeta("k") })...))
	f.Add(slices.Concat(
		seed(nil, func(b *txn.Builder) { b.ChangeAccess(0, 7, []txn.AccessChange{set("a", "1"), set("b", "2")}) }),
		seed(nil, func(b *txn.Builder) { b.ChangeAccess(0, 7, []txn.AccessChange{unset("a")}) }),
		seed(nil, func(b *txn.Builder) { b.ChangeAccess(1, 7, []txn.AccessChange{unset("a"), set("b", "3")}) })))
	take := func(b *txn.Builder) {
		b.Take(1, 1, txn.Range{First: 2, Last: 9})
		publish(b, 1, 1, 1)
	}
	f.Add(slices.Concat(create, some, seed(nil, take),
		seed(nil, func(b *txn.Builder) { b.Prepare("a", encode(f, take)) }),
		seed(nil, func(b *txn.Builder) { b.Prepare("b", encode(f, one)) }),
		seed(nil, func(b *txn.Builder) { b.CommitPrepared("a", txn.ByCoordinator, 0) }),
		seed(nil, func(b *txn.Builder) { b.RollbackPrepared("b", txn.ByOperator, 5) }),
		seed(nil, func(b *txn.Builder) { b.CommitPrepared("b", txn.ByCoordinator, 0) })))
	f.Add(append(append(append([]byte{}, create...), seed(nil, func(b *txn.Builder) {
		b.BeginPublish(1)
		b.MessageWith(1, &txn.Attributes{DeliverAtMS: 5, ExpiresAtMS: 0x8000}, nil, nil)
		b.MessageWith(-9, &txn.Attributes{DeliverAtMS: 1}, nil, nil)
		b.EndPublish()
	})...), seed(nil, func(b *txn.Builder) {
		b.Due(txn.Due{TimeMS: 0, Queue: 1, Sequence: 1, Kind: txn.DueDeliver})
	})...))
	ranked := func(b *txn.Builder) {
		b.BeginPublish(1)
		for _, priority := range []uint8{4, 4, 9, 0, 4} {
			b.MessageWith(1, &txn.Attributes{Priority: &priority, Group: "g"}, nil, nil)
		}
		b.EndPublish()
	}
	f.Add(slices.Concat(
		seed(nil, func(b *txn.Builder) { b.CreateQueue("q", txn.Config{Priorities: 1}, "a") }), seed(nil, ranked),
		seed(nil, func(b *txn.Builder) { b.Ack(1, 1, txn.Range{First: 1, Last: 5}) }), seed(nil, ranked),
		seed(nil, func(b *txn.Builder) { b.AlterQueue(1, txn.Config{}, txn.FieldPriorities) })))
	f.Add(slices.Concat(create, seed(nil, join(5)), seed(nil, ownNew("r", 300)), seed(nil, own("q", 301)), some,
		seed(nil, leave), seed(nil, join(400))))
	f.Add(slices.Concat(create, some, seed(nil, join(5)), seed(nil, fence(6, 1)), some, seed(nil, unfence(6)), some,
		seed(nil, fence(7, 1)), seed(nil, dropMoved(7)), some))
	f.Add(slices.Concat(seed(nil, join(5)),
		seed(nil, func(b *txn.Builder) { b.ImportBegin(6, "pair-2", []txn.ImportQueue{{Name: "q", Source: 9}}) }),
		seed(nil, func(b *txn.Builder) { b.ImportState(1, 6, nil, []txn.StatePair{importedPair(1, 1, 0)}, false) }),
		seed(nil, func(b *txn.Builder) { b.ImportState(1, 6, []byte{keyQueue}, nil, true) }),
		seed(nil, takeMoved(6)), seed(nil, cancelImport(7)), seed(nil, forgetMove(7)), some))
	site := func(c txn.SiteChange) []byte { return seed(nil, func(b *txn.Builder) { b.Site(c) }) }
	envelope := func(n uint64, record []byte) []byte {
		payload := txn.AppendSite(nil, &txn.Site{Lineage: lineage, Epoch: 1, Upstream: position(n), Logical: n}, record[2:])
		return append(binary.LittleEndian.AppendUint16(nil, uint16(len(payload))), payload...)
	}
	follow := site(txn.SiteChange{Action: txn.SiteFollow, Lineage: lineage, Epoch: 1, Upstream: position(7), Logical: 7})
	stop := site(txn.SiteChange{Action: txn.SiteStop, Expected: 1})
	promote := site(txn.SiteChange{Action: txn.SitePromote, Expected: 1, Epoch: 2})
	cancel := site(txn.SiteChange{Action: txn.SiteCancel, Expected: 1, Upstream: position(9)})
	f.Add(slices.Concat(create, follow, some, envelope(8, some), envelope(8, some), envelope(9, stop), envelope(11, some),
		promote, some, follow))
	f.Add(slices.Concat(site(txn.SiteChange{Action: txn.SiteStart, Lineage: lineage}), create, stop, some,
		site(txn.SiteChange{Action: txn.SiteResume, Expected: 1}), some, envelope(8, some)))
	f.Add(slices.Concat(create, follow, envelope(9, stop), cancel, promote, envelope(10, stop), promote))
	f.Fuzz(func(t *testing.T, log []byte) {
		a, b := &driver{t: t, s: New()}, &driver{t: t, s: New()}
		a.s.limits.importChunks, b.s.limits.importChunks = 1000, 1000
		for len(log) >= 2 && a.lsn < 50 {
			n := min(int(binary.LittleEndian.Uint16(log)), len(log)-2)
			payload := log[2 : 2+n]
			log = log[2+n:]
			a.lsn++
			b.lsn++
			ra, rb := a.s.Apply(a.lsn, payload), b.s.Apply(b.lsn, payload)
			if ra.Code != rb.Code || len(ra.Ops) != len(rb.Ops) || a.s.Digest() != b.s.Digest() {
				t.Fatalf("%+v and %+v", ra, rb)
			}
			if p := a.s.Check(); len(p) > 0 {
				t.Fatal(p)
			}
			same(t, allOf(a.s), allOf(b.s), "the states are equal")
			b.reload()
		}
	})
}

func importedPair(nextSeq uint64, nextSub uint32, live uint64) txn.StatePair {
	x := importedQueue{name: "q", nextSeq: nextSeq, nextSub: nextSub, live: live}
	return txn.StatePair{Key: []byte{keyQueue}, Value: x.appendValue(nil)}
}

// FuzzImportState imports arbitrary pairs into a queue with messages, in two states, one of which is reloaded after
// each step. The states must remain equal and valid.
func FuzzImportState(f *testing.F) {
	encoded := func(pairs []txn.StatePair) (all []byte) {
		for _, p := range pairs {
			all = append(append(all, byte(len(p.Key))), p.Key...)
			all = binary.LittleEndian.AppendUint16(all, uint16(len(p.Value)))
			all = append(all, p.Value...)
		}
		return all
	}
	source := movedSource(f)
	good := exported(f, source.s, source.s.Queue(1), nil, nil)
	f.Add(encoded(good), false)
	f.Add(encoded(good), true)
	f.Add(encoded([]txn.StatePair{importedPair(1<<40, 1, 0)}), false)
	f.Fuzz(func(t *testing.T, data []byte, messages bool) {
		a := newTarget(t)
		b := newTarget(t)
		both := func(build func(b *txn.Builder)) txn.Code {
			ra, rb := a.apply(nil, build), b.apply(nil, build)
			if ra.Code != rb.Code || a.s.Digest() != b.s.Digest() {
				t.Fatalf("%+v and %+v", ra, rb)
			}
			for _, d := range []*driver{a, b} {
				if p := d.s.Check(); len(p) > 0 {
					t.Fatal(p)
				}
			}
			same(t, allOf(a.s), allOf(b.s), "the states are equal")
			b.reload()
			return ra.Code
		}
		a.s.limits.importChunks, b.s.limits.importChunks = 1000, 1000
		both(begin(9, importQueueOf(source.s.Queue(1))))
		if messages {
			both(messagesFrom(tailRecord, source.s.Queue(1), 2, 9, 1, 10_000))
		}
		var after []byte
		for len(data) > 0 {
			k := min(int(data[0]), len(data)-1, txn.MaxStateKeyBytes)
			key := data[1 : 1+k]
			data = data[1+k:]
			if len(data) < 2 || k == 0 {
				break
			}
			n := min(int(binary.LittleEndian.Uint16(data)), len(data)-2)
			pair := txn.StatePair{Key: key, Value: data[2 : 2+n]}
			data = data[2+n:]
			if both(func(b *txn.Builder) { b.ImportState(2, 9, after, []txn.StatePair{pair}, false) }) == txn.OK {
				after = key
			}
		}
		both(func(b *txn.Builder) { b.ImportState(2, 9, after, nil, true) })
		if both(takeMoved(9)) != txn.OK {
			both(cancelImport(9))
			return
		}
		both(func(b *txn.Builder) { publish(b, 2, 3, 1) })
		both(func(b *txn.Builder) { b.Purge(2, 0) })
		both(func(b *txn.Builder) { b.DeleteQueue(2, false) })
	})
}

// movedSource returns a pair with a queue with most kinds of state.
func movedSource(t testing.TB) *driver {
	t.Helper()
	d := newDriver(t)
	d.do(join(5))
	q := d.owned("q", 6, txn.Config{Priorities: 1, MaxBytes: 1 << 40, ExactBytes: 1, DedupWindow: 1000})
	d.do(func(b *txn.Builder) {
		b.BeginPublish(q.id)
		for i := range 200 {
			priority := uint8(i % 3)
			b.MessageWith(0, &txn.Attributes{Priority: &priority, DeliverAtMS: int64(i % 2 * 50)}, nil, make([]byte, i%5))
		}
		b.EndPublish()
	})
	d.ack(q, 1, 1, 70)
	d.ack(q, 1, 90, 95)
	d.do(func(b *txn.Builder) { b.Release(q.id, 1, txn.Range{First: 80, Last: 85}) })
	d.do(func(b *txn.Builder) { b.Pause(q.id, 1, txn.Pause{Deliver: true}) })
	return d
}

// FuzzLoader loads arbitrary keys and values. The Loader must reject them or return a valid state.
func FuzzLoader(f *testing.F) {
	d := everyKind(f)
	var all []byte
	for k, v := range d.s.All {
		all = append(all, byte(len(k)))
		all = append(all, k...)
		all = binary.LittleEndian.AppendUint16(all, uint16(len(v)))
		all = append(all, v...)
	}
	f.Add(all)
	f.Fuzz(func(t *testing.T, data []byte) {
		l := NewLoader()
		l.maxChunks = 1000
		for len(data) > 0 {
			k := min(int(data[0]), len(data)-1)
			key := data[1 : 1+k]
			data = data[1+k:]
			if len(data) < 2 {
				break
			}
			n := min(int(binary.LittleEndian.Uint16(data)), len(data)-2)
			if l.Put(key, data[2:2+n]) != nil {
				return
			}
			data = data[2+n:]
		}
		if s, err := l.Finish(100); err == nil {
			use(t, s)
		}
	})
}
