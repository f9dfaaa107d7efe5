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
