// SPDX-License-Identifier: Apache-2.0

package format

import (
	"bytes"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"path"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/identity"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// Paths of the scenario's files.
const (
	nodeDir     = "/node"
	backupDir   = "/backup"
	archiveDir  = "/archive"
	snapshotDir = "/snapshot"
)

// scenario writes every kind of file, with every operation and every kind of value. Identities and times are fixed, so
// that the output is deterministic.
func scenario(t *testing.T) *memfs.FS {
	t.Helper()
	mem := memfs.New()
	synctest.Test(t, func(t *testing.T) {
		uuid.SetRand(rand.NewChaCha8([32]byte{1}))
		defer uuid.SetRand(nil)
		w := openWriter(t, mem, nodeDir, 2048)
		archiver, err := backup.StartArchiver(w.s, backup.ArchiveOptions{FS: mem, Dir: archiveDir, Interval: time.Hour})
		require.NoError(t, err)
		w.history()
		_, err = w.s.Checkpoint(t.Context())
		require.NoError(t, err)
		_, err = backup.Run(t.Context(), w.s, backup.Options{FS: mem, Path: backupDir, Software: "format test"})
		require.NoError(t, err)
		w.snapshot()
		w.afterCheckpoint()
		require.NoError(t, archiver.Flush(t.Context()))
		w.truncate()
		require.NoError(t, archiver.Close())
		require.NoError(t, w.s.Close())
	})
	return mem
}

// writer writes a store through a minimal committer.
type writer struct {
	t    *testing.T
	mem  *memfs.FS
	s    *store.Store
	term uint64
	time int64
}

func openWriter(t *testing.T, mem *memfs.FS, dir string, pageSize int) *writer {
	t.Helper()
	fsys := faultfs.New(mem)
	fsys.SetHook(func(op faultfs.Op) error { // copy the intent of a truncation, which exists only briefly
		if op.Kind == faultfs.OpRemove && path.Base(op.Name) == "cut.intent" {
			intent, err := vfs.ReadFile(mem, op.Name, 1<<20)
			return errors.Join(err, vfs.WriteFileAtomic(mem, dir+"/cut.intent.seen", intent))
		}
		return nil
	})
	s, err := store.Open(store.Options{
		FS: fsys, Dir: dir, PageSize: pageSize, SegmentBytes: 256 << 10, BootID: "boot-1",
		CheckpointInterval: 1000 * time.Hour, CheckpointBytes: 1 << 40,
	})
	require.NoError(t, err)
	require.NoError(t, s.JoinPair(uuid.UUID{0xaa, 15: 0xbb}))
	require.NoError(t, s.SetFence(identity.Fence{Config: 3, Term: 2}))
	return &writer{t: t, mem: mem, s: s, term: 1, time: 1_700_000_000_000}
}

// record appends a record as a separate block, and waits until the store is idle.
func (w *writer) record(kind wal.Kind, payload []byte) {
	w.t.Helper()
	frames, end := wal.AppendFrame(nil, w.s.End(), w.term, kind, payload)
	require.NoError(w.t, w.s.Append(frames, end))
	require.NoError(w.t, w.s.Sync())
	synctest.Wait()
}

// commit appends and applies a transaction, and returns its result.
func (w *writer) commit(p *txn.Producer, build func(b *txn.Builder)) txn.Result {
	w.t.Helper()
	w.record(wal.KindTxn, w.encode(p, build))
	return w.apply()
}

func (w *writer) encode(p *txn.Producer, build func(b *txn.Builder)) []byte {
	w.t.Helper()
	w.time++
	var b txn.Builder
	b.Begin(nil, w.time, p)
	build(&b)
	payload, err := b.Finish()
	require.NoError(w.t, err)
	return payload
}

func (w *writer) apply() (last txn.Result) {
	w.t.Helper()
	require.NoError(w.t, w.s.Apply(w.s.End().LSN, func(_ uint64, r *txn.Result) {
		if r != nil {
			last = *r
		}
	}))
	synctest.Wait()
	return last
}

func (w *writer) beginTerm(term uint64) {
	w.t.Helper()
	w.term = term
	id := w.s.Identity().NodeID
	w.record(wal.KindTermStart, id[:])
	w.apply()
}

// publish returns a function that adds a publish of messages to a transaction.
func publish(queue uint64, bodies ...string) func(b *txn.Builder) {
	return func(b *txn.Builder) {
		b.BeginPublish(queue)
		for _, body := range bodies {
			b.Message(1_600_000_000_000, nil, []byte(body))
		}
		b.EndPublish()
	}
}

// history writes the contents of the checkpoint. Queue IDs start at 1.
func (w *writer) history() {
	w.beginTerm(1)
	w.commit(nil, func(b *txn.Builder) {
		b.CreateQueue("orders", txn.Config{MaxMessages: 1000, MaxBytes: 1 << 30}, "billing", "shipping")
	})
	w.commit(nil, func(b *txn.Builder) { b.CreateQueue("acks", txn.Config{}, "default") })
	w.commit(nil, func(b *txn.Builder) { b.CreateQueue("deleted", txn.Config{}) })
	w.commit(nil, func(b *txn.Builder) { b.AlterQueue(1, txn.Config{MaxMessages: 2000}, txn.PlainFields) })
	w.commit(nil, func(b *txn.Builder) { b.CreateSubscription(1, "audit", txn.StartEarliest) })
	w.commit(nil, func(b *txn.Builder) { b.CreateSubscription(1, "late", txn.StartLatest) })
	w.commit(nil, func(b *txn.Builder) {
		b.CreateSubscriptionWith(1, "large", txn.StartLatest, txn.SubscriptionOptions{Filter: "size > 1000"})
	})
	w.commit(nil, func(b *txn.Builder) {
		b.CreateSubscriptionWith(1, "strict", txn.StartLatest, txn.SubscriptionOptions{
			Own: txn.FieldMaxDeliveries | txn.FieldRedeliveryDelay, Policy: txn.Config{MaxDeliveries: 3},
		})
	})
	w.commit(nil, func(b *txn.Builder) {
		b.AlterSubscription(1, 6, txn.SubscriptionChange{
			Filter: true, Fields: txn.FieldMaxDeliveries | txn.FieldDeadLetter, Options: txn.SubscriptionOptions{
				Filter: "size > 1", Own: txn.FieldDeadLetter, Policy: txn.Config{DeadLetter: 2},
			},
		})
	})
	w.commit(nil, func(b *txn.Builder) { b.DeleteSubscription(1, 2) })

	w.beginTerm(2)
	p := txn.Producer{ID: []byte("producer-1"), Epoch: 7, Sequence: 1}
	w.commit(&p, func(b *txn.Builder) {
		b.BeginPublish(1)
		props := txn.Properties(map[string]string{"content-type": "text/plain", "k": ""})
		b.Message(1_600_000_000_001, props, []byte("first"))
		b.Message(1_600_000_000_002, nil, nil)
		b.EndPublish()
	})
	p.Sequence = 2
	w.commit(&p, func(b *txn.Builder) { // several operations in one transaction
		publish(1, "second", "third")(b)
		publish(2, "one")(b)
		b.Ack(1, 1, txn.Range{First: 1, Last: 1})
	})
	w.commit(nil, func(b *txn.Builder) { b.Ack(1, 1, txn.Range{First: 4, Last: 4}, txn.Range{First: 2, Last: 2}) })
	p.Sequence = 4
	require.ErrorIs(w.t, new(w.commit(&p, publish(99, "refused"))).Err(), txn.ErrQueueNotFound)
	w.commit(nil, publish(1, string(bytes.Repeat([]byte("large "), 1000))))
	w.commit(nil, func(b *txn.Builder) { b.Release(1, 1, txn.Range{First: 3, Last: 3}, txn.Range{First: 5, Last: 5}) })
	w.commit(nil, func(b *txn.Builder) { b.Release(1, 1, txn.Range{First: 3, Last: 3}) })
	w.commit(nil, publish(3, "goes with its queue"))
	w.commit(nil, func(b *txn.Builder) { b.Purge(3, 0) })
	w.commit(nil, func(b *txn.Builder) { b.DeleteQueue(3, true) })

	// Acknowledgements in two chunks of 4096 sequences: one partial, one complete.
	w.commit(nil, publish(2, make([]string, 8300)...))
	w.commit(nil, func(b *txn.Builder) { b.Ack(2, 1, txn.Range{First: 3, Last: 8200}) })

	w.commit(nil, func(b *txn.Builder) { b.PutMeta("settings/a", bytes.Repeat([]byte("value "), 400)) })
	w.commit(nil, func(b *txn.Builder) { b.PutMeta("settings/b", bytes.Repeat([]byte("value "), 400)) })
	w.commit(nil, func(b *txn.Builder) { b.PutMeta("settings/empty", nil) })
	w.commit(nil, func(b *txn.Builder) { b.DeleteMeta("settings/b") })
	w.commit(nil, func(b *txn.Builder) { b.PutMeta("settings/c", bytes.Repeat([]byte("more "), 600)) })
	w.commit(nil, described)
	w.deadLetters()
	w.prepared()
	w.forwards()
	w.priorities()
	w.scheduled()
	w.access()
	w.shared()
	w.fleet()
}

// shared publishes messages that share an extent of two pages.
func (w *writer) shared() {
	made := w.commit(nil, func(b *txn.Builder) { b.CreateQueue("shared", txn.Config{}, "default") })
	id := made.Ops[0].ID
	bodies := make([]string, 7)
	for i := range bodies {
		bodies[i] = string(packedBody(id, uint64(i)+1, 512))
	}
	w.commit(nil, publish(id, bodies...))
}

// access changes the access table twice.
func (w *writer) access() {
	made := w.commit(nil, func(b *txn.Builder) {
		b.ChangeAccess(0, 0x0a0b0c0d, []txn.AccessChange{
			{Kind: 'r', Name: []byte("a rule"), Value: []byte("who may do what")},
			{Kind: 'q', Name: []byte("orders.*"), Value: nil},
			{Kind: 't', Name: []byte("gone"), Value: []byte("a token")},
		})
	})
	w.commit(nil, func(b *txn.Builder) {
		b.ChangeAccess(made.LSN, 0, []txn.AccessChange{{Kind: 't', Name: []byte("gone"), Remove: true}})
	})
}

// forwards creates a queue with every configuration field, and configures forwards on it.
func (w *writer) forwards() {
	var all txn.Config
	v := reflect.ValueOf(&all).Elem()
	for i := range v.NumField() {
		v.Field(i).SetUint(1)
	}
	all.DeadLetter = 2
	all.MaxMessages, all.MaxBytes, all.RetentionBytes = 1000, 1<<20, 1<<20
	w.commit(nil, func(b *txn.Builder) { b.CreateQueue("everything", all, "default") })
	w.commit(nil, func(b *txn.Builder) {
		b.SetForwards(5, []txn.Forward{{Target: 4}, {Target: 2, Move: true, Filter: "size > 3"}})
	})
	w.commit(nil, func(b *txn.Builder) {
		publish(5, "one", "three")(b)
		b.Forward(5, 4, false, nil)
		b.Forward(5, 2, true, []int{1})
	})
	w.commit(nil, func(b *txn.Builder) { b.Seek(5, 1, 2) })
	w.commit(nil, func(b *txn.Builder) { b.Trim(5, 2, &all) })
	w.commit(nil, publish(5, "the sizes", "of these", "differ"))
	w.commit(nil, func(b *txn.Builder) {
		b.Pause(5, 0, txn.Pause{Publish: true, Deliver: true, By: "operator", Reason: "maintenance"})
	})
	w.commit(nil, func(b *txn.Builder) { b.Resume(5, 0, true, false) })
	w.commit(nil, func(b *txn.Builder) { b.Pause(5, 1, txn.Pause{Deliver: true}) })
	w.messageIDs()
	w.schedules()
	w.policies()
	w.sites()
}

// messageIDs publishes duplicates to a queue with a dedup window.
func (w *writer) messageIDs() {
	window := txn.Config{DedupWindow: 60_000, DedupMax: 1000}
	w.commit(nil, func(b *txn.Builder) { b.AlterQueue(5, window, txn.FieldDedupWindow|txn.FieldDedupMax) })
	w.commit(nil, func(b *txn.Builder) { b.Resume(5, 0, true, true) })
	w.commit(&txn.Producer{ID: []byte("ids"), Epoch: 1, Sequence: 1}, func(b *txn.Builder) {
		b.BeginPublish(5)
		for _, id := range []string{"order 1", "order 2", "order 1"} {
			b.MessageWith(w.time, &txn.Attributes{MessageID: id}, nil, []byte("body"))
		}
		b.EndPublish()
	})
}

func (w *writer) schedules() {
	created := w.commit(nil, func(b *txn.Builder) { b.SwapMeta("schedule/a", 0, []byte("first")) })
	w.commit(nil, func(b *txn.Builder) {
		publish(2, "an occurrence")(b)
		b.SwapMeta("schedule/a", created.LSN, []byte("second"))
	})
}

func (w *writer) policies() {
	w.commit(nil, func(b *txn.Builder) {
		b.PutPolicy("orders.*", txn.QueuePolicy{
			Priority: 10, Defaults: txn.Config{MaxDeliveries: 5, DeadLetter: 2}, Limits: txn.Config{MaxBytes: 1 << 30},
		})
	})
	w.commit(nil, func(b *txn.Builder) { b.PutPolicy("gone", txn.QueuePolicy{Limits: txn.Config{TTL: 60_000}}) })
	w.commit(nil, func(b *txn.Builder) { b.DeletePolicy("gone") })
	w.commit(nil, func(b *txn.Builder) { b.AlterQueueWith(5, txn.Config{}, txn.FieldDelay, txn.FieldDelay) })
}

// fleet makes the pair a member of a fleet, raises the epoch of a queue, and creates a queue.
func (w *writer) fleet() {
	join := txn.FleetChange{Action: txn.FleetJoin, ID: uuid.UUID{0xee, 15: 0xff}, Pair: "pair-1", Epoch: 3}
	w.commit(nil, func(b *txn.Builder) { b.Fleet(join) })
	w.commit(nil, func(b *txn.Builder) { b.Fleet(txn.FleetChange{Action: txn.FleetLeave}) })
	join.Epoch = 300
	w.commit(nil, func(b *txn.Builder) { b.Fleet(join) })
	r := w.commit(nil, func(b *txn.Builder) { b.OwnQueue("owned", 301); b.CreateQueue("owned", txn.Config{}, "all") })
	w.commit(nil, func(b *txn.Builder) { b.OwnQueue("owned", 302) })
	w.moves(r.Ops[0].ID)
}

// moves moves queues to and from another pair. Afterwards, one queue is fenced, one import is in progress, one import
// was taken, and one was canceled.
func (w *writer) moves(owned uint64) {
	commit := func(build func(b *txn.Builder)) txn.Result {
		r := w.commit(nil, build)
		require.NoError(w.t, r.Err())
		return r
	}
	commit(func(b *txn.Builder) { b.Fence(310, "pair-2", []uint64{owned}) })
	commit(func(b *txn.Builder) { b.Unfence(310) })
	r := commit(func(b *txn.Builder) { b.OwnQueue("left", 311); b.CreateQueue("left", txn.Config{}) })
	commit(func(b *txn.Builder) { b.Fence(312, "pair-2", []uint64{r.Ops[0].ID}) })
	commit(func(b *txn.Builder) { b.DropMoved(312) })
	w.imports(320, true, txn.ImportQueue{Name: "in/a", Source: 3},
		txn.ImportQueue{Name: "in/b", Source: 9, Prioritized: true})
	commit(func(b *txn.Builder) { b.TakeMoved(320) })
	w.imports(321, false, txn.ImportQueue{Name: "in/c", Source: 12})
	commit(func(b *txn.Builder) { b.CancelImport(322) })
	commit(func(b *txn.Builder) { b.ForgetMove(322) })
	commit(func(b *txn.Builder) { b.CancelImport(323) })
	commit(func(b *txn.Builder) { b.Fence(324, "pair-2", []uint64{owned}) })
}

// imports imports queues with messages. Without complete, the import ends after the first part of the state.
func (w *writer) imports(epoch uint64, complete bool, queues ...txn.ImportQueue) {
	commit := func(build func(b *txn.Builder)) txn.Result {
		r := w.commit(nil, build)
		require.NoError(w.t, r.Err())
		return r
	}
	first := commit(func(b *txn.Builder) { b.ImportBegin(epoch, "pair-2", queues) }).Ops[0].ID
	for i, q := range queues {
		id, name, config := first+uint64(i), q.Name, txn.Config{TTL: 60_000}
		if q.Prioritized {
			config.Priorities = 1
		}
		rec, err := txn.AppendMessage(nil, w.time, nil, nil, []byte("moved"))
		require.NoError(w.t, err)
		commit(func(b *txn.Builder) {
			b.BeginImport(id, epoch, 1)
			b.Import(5, rec)
			b.Import(7, rec)
			b.EndImport()
		})
		value := append([]byte{1, byte(len(name))}, name...)
		value = txn.AppendOwnConfig(value, config, config.Fields())
		value = append(value, 8, 2, 2, 0, 0) // next sequence, next subscription, live messages, dropped, expired
		pairs := []txn.StatePair{{Key: []byte("q"), Value: value}}
		acked := make([]byte, 512)
		acked[0] = 1 << 6
		if complete {
			pairs = append(pairs, txn.StatePair{Key: []byte("s\x00\x00\x00\x01"), Value: []byte("\x01\x03all\x01\x05")},
				txn.StatePair{Key: []byte("a\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00"), Value: acked})
		}
		var after []byte
		for _, p := range pairs {
			commit(func(b *txn.Builder) { b.ImportState(id, epoch, after, []txn.StatePair{p}, false) })
			after = p.Key
		}
		if complete {
			commit(func(b *txn.Builder) { b.ImportState(id, epoch, after, nil, true) })
		}
	}
}

// sites applies transactions as a replica, and then promotes the store to a primary.
func (w *writer) sites() {
	lineage := uuid.UUID{0xcc, 15: 0xdd}
	upstream := lsn.Position{Term: 3, LSN: 900, Chain: 0x01020304}
	w.commit(nil, func(b *txn.Builder) {
		b.Site(txn.SiteChange{
			Action: txn.SiteFollow, Lineage: lineage, Epoch: 1, Upstream: upstream, Logical: 2000, Stopped: true, LossyEpoch: 1,
		})
	})
	envelope := func(p *txn.Producer, build func(b *txn.Builder)) {
		upstream.LSN, upstream.Chain = upstream.LSN+1, upstream.Chain<<1
		w.record(wal.KindTxn, txn.AppendSite(nil, &txn.Site{
			Lineage: lineage, Epoch: 1, Upstream: upstream, Logical: upstream.LSN + 1100,
		}, w.encode(p, build)))
		require.Equal(w.t, txn.OK, w.apply().Code)
	}
	envelope(nil, func(b *txn.Builder) { b.Site(txn.SiteChange{Action: txn.SiteResume, Expected: 1}) })
	envelope(&txn.Producer{ID: []byte("site"), Epoch: 1, Sequence: 1}, publish(2, "at the primary"))
	w.commit(nil, func(b *txn.Builder) {
		b.Site(txn.SiteChange{Action: txn.SiteCancel, Expected: 1, Upstream: upstream})
	})
	envelope(nil, func(b *txn.Builder) { b.Site(txn.SiteChange{Action: txn.SiteStop, Expected: 1}) })
	w.commit(nil, func(b *txn.Builder) {
		b.Site(txn.SiteChange{Action: txn.SitePromote, Expected: 1, Epoch: 2, Lossy: true})
	})
	w.commit(nil, func(b *txn.Builder) {
		b.Site(txn.SiteChange{Action: txn.SiteStart, Expected: 2, Lineage: lineage}) // rejected
	})
}

// prepared prepares three transactions and decides two of them.
func (w *writer) prepared() {
	prepare := func(xid string, sequence uint64) {
		inner := w.encode(nil, func(b *txn.Builder) {
			publish(1, "prepared")(b)
			b.Take(2, 1, txn.Range{First: sequence, Last: sequence})
		})
		w.commit(nil, func(b *txn.Builder) { b.Prepare(xid, inner) })
	}
	w.commit(nil, func(b *txn.Builder) { b.Take(2, 1, txn.Range{First: 8201, Last: 8202}) })
	prepare("bank/17", 8203)
	prepare("bank/18", 8204)
	prepare("bank/19", 8205)
	w.commit(nil, func(b *txn.Builder) { b.CommitPrepared("bank/17", txn.ByCoordinator, 0) })
	w.commit(nil, func(b *txn.Builder) { b.RollbackPrepared("bank/18", txn.ByTimeout, w.s.End().LSN-2) })
}

// priorities fills a queue with priorities. One chunk contains two priorities.
func (w *writer) priorities() {
	w.commit(nil, func(b *txn.Builder) { b.CreateQueue("urgent", txn.Config{Priorities: 1}, "default") })
	w.commit(nil, func(b *txn.Builder) {
		b.BeginPublish(6)
		for _, priority := range []uint8{4, 9, 4} {
			rec, err := txn.AppendMessage(nil, 1_600_000_000_007, &txn.Attributes{Priority: &priority}, nil, nil)
			require.NoError(w.t, err)
			b.Record(rec)
		}
		b.EndPublish()
	})
}

// scheduled publishes messages with a delay or an expiry, and processes the messages that are due.
func (w *writer) scheduled() {
	made := w.commit(nil, func(b *txn.Builder) { b.CreateQueue("timed", txn.Config{}, "default") })
	id := made.Ops[0].ID
	w.commit(nil, func(b *txn.Builder) {
		b.BeginPublish(id)
		for i := range int64(70) {
			a := &txn.Attributes{DeliverAtMS: w.time + 1 + i/69*5000}
			if i == 5 {
				a.ExpiresAtMS = w.time + 2
			}
			b.MessageWith(w.time, a, nil, nil)
		}
		b.EndPublish()
	})
	at := w.time
	w.commit(nil, func(b *txn.Builder) {
		b.Due(
			txn.Due{TimeMS: at, Queue: id, Sequence: 1, Kind: txn.DueDeliver},
			txn.Due{TimeMS: at + 1, Queue: id, Sequence: 6, Kind: txn.DueExpire},
		)
	})
}

// deadLetters moves messages to a dead-letter queue, and drops one.
func (w *writer) deadLetters() {
	w.commit(nil, func(b *txn.Builder) {
		b.CreateQueue("poison", txn.Config{MaxDeliveries: 3, DeadLetter: 2}, "default")
	})
	w.commit(nil, func(b *txn.Builder) {
		b.AlterQueue(4, txn.Config{MaxDeliveries: 5}, txn.FieldMaxDeliveries)
	})
	w.commit(nil, publish(4, "one", "two", "three"))
	w.commit(nil, func(b *txn.Builder) {
		b.BeginMove(4, 1, 2)
		for _, sequence := range []uint64{1, 3} {
			rec, err := txn.AppendMessage(nil, 1_600_000_000_005, &txn.Attributes{DeadLetter: &txn.DeadLetter{
				Queue: "poison", Subscription: "default", Sequence: sequence, Reason: txn.DeadMaxDeliveries, Deliveries: 5,
				MovedMS: 1_600_000_000_006,
			}}, nil, []byte("moved"))
			require.NoError(w.t, err)
			b.Move(sequence, rec)
		}
		b.EndMove()
		b.BeginMove(4, 1, txn.NoQueue)
		b.Move(2, nil)
		b.EndMove()
	})
}

// described publishes one message with all attributes, and one with a single attribute.
func described(b *txn.Builder) {
	b.BeginPublish(1)
	b.MessageWith(1_600_000_000_003, &txn.Attributes{
		MessageID: "m-1", CorrelationID: "c-1", ReplyTo: "answers", ContentType: "application/json", Subject: "order",
		Group: "customer-7", Priority: new(uint8(7)), ExpiresAtMS: 1_900_000_000_000, DeliverAtMS: 1_600_000_000_004,
		Values: []txn.TypedProperty{
			{Key: "amount", Value: txn.Value{Kind: txn.ValueDouble, Bits: math.Float64bits(12.5)}},
			{Key: "blob", Value: txn.Value{Kind: txn.ValueBytes, Bytes: []byte{0, 255}}},
			{Key: "count", Value: txn.Value{Kind: txn.ValueInt64, Bits: math.MaxUint64}},
			{Key: "paid", Value: txn.Value{Kind: txn.ValueBool, Bits: 1}},
		},
	}, txn.Properties(map[string]string{"k": "v"}), []byte("{}"))
	b.MessageWith(1_600_000_000_004, &txn.Attributes{Subject: "order"}, nil, nil)
	b.EndPublish()
}

// afterCheckpoint writes data that only the log and the archive contain.
func (w *writer) afterCheckpoint() {
	w.commit(nil, publish(1, "after the checkpoint"))
	w.commit(nil, func(b *txn.Builder) { b.Ack(1, 3, txn.Range{First: 1, Last: 2}) })
}

// truncate appends uncommitted records, and truncates them.
func (w *writer) truncate() {
	end := w.s.End()
	w.record(wal.KindTxn, w.encode(nil, publish(1, "cut")))
	w.record(wal.KindTxn, w.encode(nil, publish(1, "cut as well")))
	_, err := w.s.TruncateTail(end, false)
	require.NoError(w.t, err)
	synctest.Wait()
}

// snapshot stores the pieces that another node would receive in a snapshot.
func (w *writer) snapshot() {
	sn, err := w.s.OpenSnapshot()
	require.NoError(w.t, err)
	defer sn.Close()
	for next := uint64(0); ; {
		at, data, err := sn.ReadNext(next, 64<<10, nil)
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(w.t, err)
		next = at + uint64(len(data))
		write(w.t, w.mem, pieceFile(at), data)
	}
}
