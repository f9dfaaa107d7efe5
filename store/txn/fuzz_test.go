// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"bytes"
	"slices"
	"testing"

	"github.com/google/uuid"
)

func FuzzDecodeMessage(f *testing.F) {
	for _, a := range []*Attributes{nil, {Subject: "s"}, everyAttribute()} {
		for _, props := range [][]Property{nil, {{"a", "1"}, {"b", ""}}} {
			rec, err := AppendMessage(nil, 99, a, props, []byte("a body"))
			if err != nil {
				f.Fatal(err)
			}
			f.Add(rec)
		}
	}
	f.Fuzz(func(t *testing.T, rec []byte) {
		m, err := DecodeMessage(rec)
		if err != nil {
			return
		}
		var props []Property
		for k, v := range m.Properties {
			props = append(props, Property{string(k), string(v)})
		}
		if len(props) != m.PropertyCount() {
			t.Fatalf("%d properties of %d", len(props), m.PropertyCount())
		}
		if len(m.Body) > MaxBodyBytes {
			return
		}
		a := m.Attributes()
		for i := range a.Values { // the decoder accepts a key that is a property and a value
			if slices.ContainsFunc(props, func(p Property) bool { return p.Key == a.Values[i].Key }) {
				return
			}
		}
		again, err := AppendMessage(nil, m.TimestampMS, &a, props, m.Body)
		if err != nil {
			t.Fatalf("encode a decoded message: %v", err)
		}
		second, err := DecodeMessage(again)
		if err != nil || !bytes.Equal(second.Body, m.Body) || second.TimestampMS != m.TimestampMS ||
			!bytes.Equal(second.attributes, m.attributes) {
			t.Fatalf("%v: %+v became %+v", err, m, second)
		}
	})
}

func FuzzReader(f *testing.F) {
	seed := func(p *Producer, fill func(b *Builder)) {
		var b Builder
		b.Begin(nil, 77, p)
		fill(&b)
		payload, err := b.Finish()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(payload)
	}
	seed(nil, func(b *Builder) { b.CreateQueue("q", Config{MaxMessages: 9}, "s", "t") })
	seed(nil, func(b *Builder) { b.CreateQueueWith("q", Config{MaxBytes: 9}, FieldMaxBytes|FieldTTL) })
	seed(nil, func(b *Builder) { b.CreateQueueWith("q", Config{}, PlainFields) })
	seed(nil, func(b *Builder) { b.AlterQueueWith(1, Config{TTL: 9}, FieldTTL|FieldDelay, FieldTTL|FieldDelay) })
	seed(nil, func(b *Builder) {
		b.PutPolicy("orders.*", QueuePolicy{Priority: 10, Defaults: Config{TTL: 9}, Limits: Config{MaxBytes: 1 << 30}})
	})
	seed(nil, func(b *Builder) { b.DeletePolicy("orders.*") })
	seed(nil, func(b *Builder) { b.CreateSubscription(1, "u", StartLatest) })
	seed(nil, func(b *Builder) {
		b.CreateSubscriptionWith(1, "u", StartLatest, SubscriptionOptions{Filter: "size > 3"})
	})
	seed(nil, func(b *Builder) { b.CreateSubscriptionAt(1, "u", 300, SubscriptionOptions{}) })
	seed(nil, func(b *Builder) {
		b.CreateSubscriptionWith(1, "u", StartLatest, SubscriptionOptions{
			Own: FieldMaxDeliveries | FieldDeadLetter, Policy: Config{MaxDeliveries: 3},
		})
	})
	seed(nil, func(b *Builder) {
		b.AlterSubscription(1, 2, SubscriptionChange{
			Filter: true, Fields: PolicyFields, Options: SubscriptionOptions{
				Filter: "size > 3", Own: FieldRedeliveryDelay, Policy: Config{RedeliveryDelay: 1000},
			},
		})
	})
	seed(nil, func(b *Builder) { b.CreateSubscriptionAt(1, "u", 1, SubscriptionOptions{Filter: "size > 3"}) })
	for _, fill := range someMoves() {
		seed(nil, fill)
	}
	seed(nil, func(b *Builder) { b.DeleteQueue(1, true) })
	seed(nil, func(b *Builder) { b.Pause(1, 0, Pause{Publish: true, By: "ann", Reason: "maintenance"}) })
	seed(nil, func(b *Builder) { b.Resume(1, 2, false, true) })
	seed(nil, func(b *Builder) { b.DeleteTemporary(1, 30_000) })
	seed(nil, func(b *Builder) { b.PutMeta("k", []byte("value")); b.DeleteMeta("l") })
	seed(nil, func(b *Builder) { b.SwapMeta("k", 0, nil); b.SwapMeta("l", 70_000, []byte("value")) })
	seed(&Producer{ID: []byte("p"), Epoch: 1, Sequence: 2}, func(b *Builder) {
		b.BeginPublish(1)
		b.Message(1, []Property{{"k", "v"}}, []byte("body"))
		b.Message(1, nil, nil)
		b.EndPublish()
		b.Ack(1, 2, Range{9, 10}, Range{1, 1})
		b.Release(1, 2, Range{3, 3})
	})
	seed(nil, func(b *Builder) { b.AlterQueue(1, Config{MaxDeliveries: 3, DeadLetter: 2}, AllFields) })
	seed(nil, func(b *Builder) {
		rec, err := AppendMessage(nil, 1, everyAttribute(), nil, []byte("x"))
		if err != nil {
			f.Fatal(err)
		}
		b.BeginMove(1, 2, 3)
		b.Move(4, rec)
		b.Move(9, rec)
		b.EndMove()
		b.BeginMove(1, 2, NoQueue)
		b.Move(5, nil)
		b.EndMove()
	})
	seed(nil, func(b *Builder) {
		b.Due(Due{TimeMS: 9, Queue: 3, Sequence: 7, Kind: DueDeliver}, Due{TimeMS: 4, Queue: 1, Sequence: 1, Kind: DueTTL})
	})
	seed(nil, func(b *Builder) {
		b.Seek(1, 2, 9)
		b.Trim(1, 300, &Config{RetentionAge: 1, RetentionBytes: 2, RetentionMessages: 300})
	})
	var inner Builder
	inner.Begin(nil, 5, nil)
	inner.BeginPublish(1)
	inner.Message(1, nil, []byte("body"))
	inner.EndPublish()
	inner.Take(1, 2, Range{9, 10})
	prepared, err := inner.Finish()
	if err != nil {
		f.Fatal(err)
	}
	seed(nil, func(b *Builder) { b.Prepare("xid-1 \u00fc", prepared) })
	seed(nil, func(b *Builder) { b.CommitPrepared("xid-1", ByOperator, 0) })
	seed(nil, func(b *Builder) { b.RollbackPrepared("xid-1", ByTimeout, 77) })
	seed(nil, func(b *Builder) {
		b.SetForwards(1, []Forward{{Target: 2}, {Target: 3, Move: true, Filter: "priority > 4"}})
	})
	seed(nil, func(b *Builder) {
		b.ChangeAccess(300, 0xdeadbeef, []AccessChange{
			{Kind: 'r', Name: []byte("a"), Value: []byte("v")}, {Kind: 'q', Name: []byte("b"), Remove: true},
		})
	})
	seed(nil, func(b *Builder) {
		b.BeginPublish(1)
		b.Message(1, nil, []byte("a"))
		b.Message(1, nil, []byte("b"))
		b.EndPublish()
		b.Forward(1, 2, false, nil)
		b.Forward(1, 3, true, []int{1})
	})
	for _, c := range siteChanges() {
		seed(nil, func(b *Builder) { b.Site(c) })
	}
	f.Add(AppendSite(nil, someSite(), prepared))
	seed(nil, func(b *Builder) { b.Fleet(FleetChange{Action: FleetJoin, ID: uuid.Max, Pair: "a", Epoch: 300}) })
	seed(nil, func(b *Builder) { b.Fleet(FleetChange{Action: FleetLeave}) })
	seed(nil, func(b *Builder) { b.OwnQueue("q", 1) })
	seed(nil, func(b *Builder) { b.OwnQueue("q", 300); b.CreateQueue("q", Config{}, "s") })
	f.Fuzz(func(t *testing.T, payload []byte) {
		var r Reader
		var b Builder
		if !copyTxn(&r, &b, payload) {
			return
		}
		checkEnvelope(t, &r)
		again, err := b.Finish()
		if err != nil {
			// The reader accepts combinations of operations that the builder and the state machine reject.
			return
		}
		var r2 Reader
		var b2 Builder
		if !copyTxn(&r2, &b2, again) {
			t.Fatalf("the encoding does not decode: %x", again)
		}
		third, err := b2.Finish()
		if err != nil || !bytes.Equal(again, third) {
			t.Fatalf("%v: %x became %x", err, again, third)
		}
	})
}

// checkEnvelope verifies that the envelope of a transaction survives a round trip.
func checkEnvelope(t *testing.T, r *Reader) {
	t.Helper()
	if r.Site() == nil {
		return
	}
	var again Reader
	if err := again.Reset(AppendSite(nil, r.Site(), r.Transaction())); err != nil || *again.Site() != *r.Site() ||
		!bytes.Equal(again.Transaction(), r.Transaction()) {
		t.Fatalf("%v: envelope %+v became %+v", err, r.Site(), again.Site())
	}
}

// copyTxn decodes payload and builds the same transaction. It returns false if payload is malformed.
func copyTxn(r *Reader, b *Builder, payload []byte) bool {
	if r.Reset(payload) != nil {
		return false
	}
	var producer *Producer
	if p, ok := r.Producer(); ok {
		producer = &p
	}
	b.Begin(nil, r.TimeMS(), producer)
	for range r.Ops() {
		o, err := r.Next()
		if err != nil {
			return false
		}
		if o.Code == OpPublish && o.CheckRecords() != nil {
			return false
		}
		if o.Code == OpMove || o.Code == OpImport {
			if _, err := o.CheckMoves(); err != nil {
				return false
			}
		}
		if o.Code == OpPrepare && !copyInner(o.Raw) {
			return false
		}
		copyOp(b, o)
	}
	_, err := r.Next()
	return err != nil && r.left == 0 && len(r.rest) == 0
}

// copyInner reports whether a transaction can be prepared. If so, building it and WithTimestamp must succeed.
func copyInner(payload []byte) bool {
	var r, again Reader
	var b Builder
	if Inner(&r, payload) != nil || !copyTxn(&r, &b, payload) {
		return false
	}
	stamped := WithTimestamp(payload, 12_345)
	if len(stamped) != len(payload) || Inner(&again, stamped) != nil {
		panic("WithTimestamp changed the encoding")
	}
	for range again.Ops() {
		op, err := again.Next()
		if err != nil {
			panic(err)
		}
		for rec := range op.Records {
			if RecordPublishedMS(rec) != 12_345 {
				panic("message without the timestamp")
			}
		}
	}
	return true
}

func copyMoveOp(b *Builder, o *Op) {
	switch o.Code {
	case OpFence:
		var ids []uint64
		for q := range o.Moved {
			ids = append(ids, q.Source)
		}
		b.Fence(o.Number, string(o.Name), ids)
	case OpImportBegin:
		b.ImportBegin(o.Number, string(o.Name), slices.Collect(o.Moved))
	case OpImport:
		b.BeginImport(o.Queue, o.Number, o.Sequence)
		for sequence, rec := range o.Moves {
			b.Import(sequence, rec)
		}
		b.EndImport()
	case OpImportState:
		b.ImportState(o.Queue, o.Number, o.Name, slices.Collect(o.StatePairs), o.Last)
	case OpUnfence:
		b.Unfence(o.Number)
	case OpDropMoved:
		b.DropMoved(o.Number)
	case OpTakeMoved:
		b.TakeMoved(o.Number)
	case OpCancelImport:
		b.CancelImport(o.Number)
	case OpForgetMove:
		b.ForgetMove(o.Number)
	}
}

func copyOp(b *Builder, o *Op) {
	switch o.Code {
	case OpCreateQueue:
		var names []string
		for n := range o.Subscriptions {
			names = append(names, string(n))
		}
		b.CreateQueueWith(string(o.Name), *o.Config, o.Own(), names...)
	case OpAlterQueue:
		b.AlterQueueWith(o.Queue, *o.Config, o.Mask, o.Own())
	case OpPolicy:
		if p, ok := o.Policy(); ok {
			b.PutPolicy(string(o.Name), p)
		} else {
			b.DeletePolicy(string(o.Name))
		}
	case OpDeleteQueue:
		if o.Temporary != 0 {
			b.DeleteTemporary(o.Queue, o.Temporary)
			break
		}
		b.DeleteQueue(o.Queue, o.IfEmpty)
	case OpPurge:
		b.Purge(o.Queue, o.Sub)
	case OpPause:
		if p, resume := o.Pause(); resume {
			b.Resume(o.Queue, o.Sub, p.Publish, p.Deliver)
		} else {
			b.Pause(o.Queue, o.Sub, p)
		}
	case OpAlterSubscription:
		b.AlterSubscription(o.Queue, o.Sub, o.SubscriptionChange())
	case OpCreateSubscription, OpCreateSubscriptionWith:
		if o.Start == StartSequence {
			b.CreateSubscriptionAt(o.Queue, string(o.Name), o.Sequence, o.SubscriptionOptions())
		} else {
			b.CreateSubscriptionWith(o.Queue, string(o.Name), o.Start, o.SubscriptionOptions())
		}
	case OpDeleteSubscription:
		b.DeleteSubscription(o.Queue, o.Sub)
	case OpPublish:
		b.BeginPublish(o.Queue)
		for rec := range o.Records {
			b.Record(rec)
		}
		b.EndPublish()
	case OpMove:
		b.BeginMove(o.Queue, o.Sub, o.Target)
		for sequence, rec := range o.Moves {
			b.Move(sequence, rec)
		}
		b.EndMove()
	case OpTake:
		b.Take(o.Queue, o.Sub, slices.Collect(o.Ranges)...)
	case OpPrepare:
		b.Prepare(string(o.Name), o.Raw)
	case OpCommitPrepared:
		b.CommitPrepared(string(o.Name), o.By, o.Number)
	case OpRollbackPrepared:
		b.RollbackPrepared(string(o.Name), o.By, o.Number)
	case OpForward:
		var indexes []int
		for i := range o.Forwarded(0) {
			indexes = append(indexes, i)
		}
		b.Forward(o.Queue, o.Target, o.Move, indexes)
	case OpSetForwards:
		forwards, _ := DecodeForwards(o.Raw)
		b.SetForwards(o.Queue, forwards)
	case OpAck:
		b.Ack(o.Queue, o.Sub, slices.Collect(o.Ranges)...)
	case OpRelease:
		b.Release(o.Queue, o.Sub, slices.Collect(o.Ranges)...)
	case OpDue:
		b.Due(slices.Collect(o.Dues)...)
	case OpSeek:
		if o.Sub == RetentionSub {
			b.Trim(o.Queue, o.Sequence, o.Config)
		} else {
			b.Seek(o.Queue, o.Sub, o.Sequence)
		}
	case OpAccess:
		b.ChangeAccess(o.Number, o.Requested, slices.Collect(o.AccessChanges))
	case OpSite:
		b.Site(o.SiteChange())
	case OpFleet:
		b.Fleet(o.FleetChange())
	case OpOwn:
		b.OwnQueue(string(o.Name), o.Number)
	case OpFence, OpImportBegin, OpImport, OpImportState, OpUnfence, OpDropMoved, OpTakeMoved, OpCancelImport,
		OpForgetMove:
		copyMoveOp(b, o)
	case OpPutMeta:
		b.PutMeta(string(o.Name), o.Raw)
	case OpSwapMeta:
		b.SwapMeta(string(o.Name), o.Number, o.Raw)
	case OpDeleteMeta:
		b.DeleteMeta(string(o.Name))
	}
}
