// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

func begin(epoch uint64, queues ...txn.ImportQueue) func(b *txn.Builder) {
	return func(b *txn.Builder) { b.ImportBegin(epoch, "pair-1", queues) }
}

func takeMoved(epoch uint64) func(b *txn.Builder) {
	return func(b *txn.Builder) { b.TakeMoved(epoch) }
}

func cancelImport(epoch uint64) func(b *txn.Builder) {
	return func(b *txn.Builder) { b.CancelImport(epoch) }
}

func forgetMove(epoch uint64) func(b *txn.Builder) {
	return func(b *txn.Builder) { b.ForgetMove(epoch) }
}

func importQueueOf(q *Queue) txn.ImportQueue {
	return txn.ImportQueue{Name: q.name, Source: q.id, Prioritized: q.lanes != nil}
}

// transfer is a move of queues between two drivers.
type transfer struct {
	from, to *driver
	epoch    uint64
	queues   []uint64 // numbers in from
	first    uint64   // number of the first queue in to
}

// newTarget returns a pair of the same fleet as member without the queue.
func newTarget(t testing.TB) *driver {
	t.Helper()
	d := newDriver(t)
	d.do(func(b *txn.Builder) {
		b.Fleet(txn.FleetChange{Action: txn.FleetJoin, ID: fleetID, Pair: "pair-2", Epoch: 4})
	})
	d.owned("first", 5, txn.Config{}) // so that the numbers of the queues differ
	return d
}

func beginTransfer(from, to *driver, epoch uint64, queues ...uint64) *transfer {
	list := make([]txn.ImportQueue, 0, len(queues))
	for _, id := range queues {
		list = append(list, importQueueOf(from.s.Queue(id)))
	}
	r := to.do(begin(epoch, list...))
	return &transfer{from: from, to: to, epoch: epoch, queues: queues, first: r.Ops[0].ID}
}

// messagesFrom returns an OpImport of at most n live messages of a queue, from a sequence on.
func messagesFrom(
	read func(q *Queue, seq uint64) []byte, q *Queue, target, epoch, from uint64, n int,
) func(*txn.Builder) {
	return func(b *txn.Builder) {
		b.BeginImport(target, epoch, from)
		for seq := q.NextAlive(from); seq < q.nextSeq && n > 0; seq = q.NextAlive(seq + 1) {
			b.Import(seq, read(q, seq))
			n--
		}
		b.EndImport()
	}
}

func tailRecord(q *Queue, seq uint64) []byte {
	rec, _ := q.TailRecord(seq)
	return rec
}

// messages imports the remaining messages of all queues, at most n in each operation.
func (x *transfer) messages(n int) {
	for i, id := range x.queues {
		source, target := x.from.s.Queue(id), x.first+uint64(i)
		for {
			next := x.to.s.Queue(target).nextSeq
			if source.NextAlive(next) >= source.nextSeq {
				break
			}
			x.to.do(messagesFrom(tailRecord, source, target, x.epoch, next, n))
		}
	}
}

// stateOps returns the operations that import the state of a queue after a key, each with at most n pairs.
func stateOps(pairs []txn.StatePair, after []byte, target, epoch uint64, n int) (ops []func(b *txn.Builder)) {
	for len(pairs) > 0 {
		k := 1
		for k < min(n, len(pairs)) && pairs[k].Key[0] == pairs[0].Key[0] {
			k++
		}
		some, before := pairs[:k], after
		ops = append(ops, func(b *txn.Builder) { b.ImportState(target, epoch, before, some, false) })
		after, pairs = some[k-1].Key, pairs[k:]
	}
	return append(ops, func(b *txn.Builder) { b.ImportState(target, epoch, after, nil, true) })
}

// exported returns the state of a queue after a key. kv is the tree of the pair.
func exported(t testing.TB, s *State, q *Queue, after []byte, kv map[string][]byte) []txn.StatePair {
	t.Helper()
	pairs := slices.Collect(s.ExportedState(q, after))
	r := ExportedIDs(q.id, after)
	ids := map[string]txn.StatePair{}
	for key := range kv {
		if key >= string(r.From) && key < string(r.To) {
			p, ok, err := s.ExportedID([]byte(key), kv[key])
			require.NoError(t, err)
			if ok {
				ids[string(p.Key)] = p
			}
		}
	}
	unwritten := q.ExportedUnwritten(after)
	require.LessOrEqual(t, len(unwritten), q.UnwrittenIDs())
	require.True(t, slices.IsSortedFunc(unwritten, func(a, b txn.StatePair) int { return bytes.Compare(a.Key, b.Key) }))
	for _, p := range unwritten {
		ids[string(p.Key)] = p
	}
	for _, key := range slices.Sorted(maps.Keys(ids)) {
		pairs = append(pairs, ids[key])
	}
	return pairs
}

// state imports the state of all queues, with n pairs in each operation.
func (x *transfer) state(n int) {
	for i, id := range x.queues {
		source, target := x.from.s.Queue(id), x.first+uint64(i)
		for _, op := range stateOps(exported(x.to.t, x.from.s, source, nil, nil), nil, target, x.epoch, n) {
			x.to.do(op)
		}
	}
}

// requireEqual verifies that the incoming queues and their sources have the same contents.
func (x *transfer) requireEqual() {
	t := x.to.t
	t.Helper()
	for i, id := range x.queues {
		source, target := x.from.s.Queue(id), x.to.s.Queue(x.first+uint64(i))
		requireEqualPairs(t, exported(t, x.from.s, source, nil, nil), exported(t, x.to.s, target, nil, nil))
		for seq := source.NextAlive(1); seq < source.nextSeq; seq = source.NextAlive(seq + 1) {
			if !bytes.Equal(tailRecord(source, seq), tailRecord(target, seq)) || tailRecord(target, seq) == nil ||
				source.Priority(seq) != target.Priority(seq) {
				require.FailNowf(t, "wrong message", "queue %s, sequence %d", source.name, seq)
			}
		}
		require.Equal(t, source.messages, target.messages)
	}
}

func requireEqualPairs(t testing.TB, want, got []txn.StatePair) {
	t.Helper()
	require.Len(t, got, len(want), "number of pairs")
	for i := range want {
		if !bytes.Equal(want[i].Key, got[i].Key) || !bytes.Equal(want[i].Value, got[i].Value) {
			require.FailNowf(t, "different state", "pair %d: %x = %x, should be %x = %x", i, got[i].Key, got[i].Value,
				want[i].Key, want[i].Value)
		}
	}
}

// A queue with every kind of state is moved with its messages.
func TestMoveOfEverything(t *testing.T) {
	from, to := newDriver(t), newTarget(t)
	from.do(join(5))
	dead := from.owned("dead", 6, txn.Config{})
	target := from.owned("target", 7, txn.Config{})
	q := from.owned("q", 8, txn.Config{
		DeadLetter: dead.id, MaxBytes: 1 << 40, ExactBytes: 1, RetentionMessages: 20_000, Priorities: 1,
		Overflow: txn.OverflowDeadLetterHead,
	})
	x := beginTransfer(from, to, 9, dead.id, target.id, q.id)
	from.do(func(b *txn.Builder) { b.SetForwards(q.id, []txn.Forward{{Target: target.id, Filter: "size > 3"}}) })
	from.do(func(b *txn.Builder) {
		b.CreateSubscriptionWith(q.id, "c", txn.StartLatest, txn.SubscriptionOptions{
			Filter: "size > 3", Own: txn.FieldDeadLetter | txn.FieldMaxDeliveries,
			Policy: txn.Config{DeadLetter: target.id, MaxDeliveries: 3},
		})
	})
	for i := range 9 {
		from.do(func(b *txn.Builder) {
			b.BeginPublish(q.id)
			for j := range 1500 {
				priority := uint8(4 + i%2*j%3)
				a := &txn.Attributes{Priority: &priority, DeliverAtMS: int64(j % 7 * 100)}
				b.MessageWith(0, a, nil, make([]byte, j%9))
			}
			b.EndPublish()
		})
		from.ack(q, 1, 1, uint64(i)*1300+1)
		from.ack(q, 2, 3, uint64(i)*1200+5)
		x.messages(1000)
		from.ack(q, 1, q.nextSeq-200, q.nextSeq-100)
	}
	from.do(func(b *txn.Builder) {
		var list []txn.Due
		for seq := uint64(9000); seq < 12_000; seq++ {
			if q.Delayed(seq) && seq%11 > 1 {
				list = append(list, txn.Due{TimeMS: 0, Queue: q.id, Sequence: seq, Kind: txn.DueDeliver})
			}
		}
		b.Due(list...)
	})
	from.do(func(b *txn.Builder) { b.Release(q.id, 2, txn.Range{First: 9900, Last: 9950}) })
	from.do(func(b *txn.Builder) { b.Pause(q.id, 2, txn.Pause{Deliver: true, By: "operator"}) })
	from.do(func(b *txn.Builder) { b.Pause(q.id, 0, txn.Pause{Publish: true}) })
	from.do(fence(9, dead.id, target.id, q.id))
	x.messages(700)
	x.state(3)
	x.requireEqual()
	require.Empty(t, to.s.Check())
	require.Nil(t, to.s.QueueByName("q"))
	bytes := to.s.Queue(x.first + 2).Bytes()
	require.Equal(t, q.Bytes(), bytes)

	digest := to.s.Digest()
	to.do(takeMoved(9))
	require.NotEqual(t, digest, to.s.Digest())
	require.Empty(t, to.s.Check())
	moved := to.s.QueueByName("q")
	require.Equal(t, x.first+2, moved.id)
	require.Equal(t, uint64(9), to.s.OwnershipEpoch(moved))
	require.Equal(t, x.first, moved.Config().DeadLetter)
	require.Equal(t, x.first+1, moved.SubByName("c").Config().DeadLetter)
	require.Equal(t, []txn.Forward{{Target: x.first + 1, Filter: "size > 3"}}, moved.Forwards())
	require.Equal(t, 3, moved.SubCount())
	require.Equal(t, q.Bytes(), moved.Bytes())
	require.Equal(t, uint32(1), moved.Sub(2).DeliveryCount(9950))
	require.Equal(t, q.DelayedMessages(), moved.DelayedMessages())
	for seq := uint64(1); seq < q.nextSeq; seq++ {
		if q.Dead(seq) != moved.Dead(seq) || q.Delayed(seq) != moved.Delayed(seq) ||
			q.Sub(1).Acked(seq) != moved.Sub(1).Acked(seq) {
			require.FailNowf(t, "different message", "sequence %d", seq)
		}
	}
	require.Equal(t, 1, to.s.PausedQueues())
	require.Len(t, to.s.Expiring(), 1)
	require.Contains(t, to.s.TakeTouched(nil), moved.id)
	to.rejected(txn.ErrQueueInUse, func(b *txn.Builder) { b.DeleteQueue(x.first, false) }, "the references were moved")
	to.do(func(b *txn.Builder) { b.Resume(moved.id, 0, true, true) })
	require.Equal(t, q.nextSeq, to.do(func(b *txn.Builder) { publish(b, moved.id, 1, 1) }).Ops[0].FirstSequence)
	to.reload()
	require.Empty(t, to.s.Check())
	require.Equal(t, MoveTaken, to.s.Moves()[0].State)
	from.do(dropMoved(9))
	to.do(forgetMove(9))
	require.Empty(t, to.s.Moves())
	to.reload()
	require.Empty(t, to.s.Moves())
}

// A retried import has no effect, and a gap is rejected.
func TestRepeatedImport(t *testing.T) {
	from, q := member(t, txn.Config{})
	to := newTarget(t)
	x := beginTransfer(from, to, 9, q.id)
	from.ack(q, 1, 1, 10)
	from.ack(q, 2, 1, 10)
	from.ack(q, 1, 30, 60)
	from.ack(q, 2, 30, 60)
	some := func(from uint64, n int) func(b *txn.Builder) { return messagesFrom(tailRecord, q, x.first, 9, from, n) }
	require.Equal(t, []txn.OpResult{{FirstSequence: 20, Changed: 9}}, to.do(some(1, 9)).Ops)
	require.Equal(t, []txn.OpResult{{FirstSequence: 20}}, to.do(some(1, 9)).Ops)
	require.Equal(t, []txn.OpResult{{FirstSequence: 64, Changed: 13}}, to.do(some(15, 18)).Ops)
	to.rejected(txn.ErrMoveChanged, some(65, 1), "a gap was accepted")
	to.rejected(txn.ErrMoveChanged, messagesFrom(tailRecord, q, x.first, 8, 64, 1), "another epoch")
	to.rejected(txn.ErrMoveChanged, messagesFrom(tailRecord, q, x.first+1, 9, 64, 1), "another queue")
	incoming := to.s.Queue(x.first)
	require.Equal(t, uint64(22), incoming.Messages())
	require.Equal(t, uint64(11), incoming.NextAlive(1))
	require.Equal(t, uint64(61), incoming.NextAlive(30))
	require.Empty(t, to.s.Check())
	x.messages(7)
	from.do(fence(9, q.id))
	x.state(100)
	x.requireEqual()
	to.do(takeMoved(9))
	require.Empty(t, to.s.Check())
}

// Large gaps between messages require little memory.
func TestImportOfGaps(t *testing.T) {
	from, q := member(t, txn.Config{})
	to := newTarget(t)
	x := beginTransfer(from, to, 9, q.id)
	incoming := to.s.Queue(x.first)
	rec := tailRecord(q, 1)
	add := func(sequences ...uint64) func(b *txn.Builder) {
		return func(b *txn.Builder) {
			b.BeginImport(x.first, 9, 1)
			for _, seq := range sequences {
				b.Import(seq, rec)
			}
			b.EndImport()
		}
	}
	far := uint64(1) << 61
	all := []uint64{far, far + 5, far + 4090, far + 5000, far + 30_000, far + 30_001, far + 500_000}
	to.do(add(all...))
	require.Equal(t, uint64(7), incoming.Messages())
	require.Less(t, len(incoming.tail.blocks), 130)
	require.Less(t, cap(incoming.tail.blocks[50].records), 1, "a block without messages requires no memory")
	require.Empty(t, to.s.Check())
	to.rejected(txn.ErrTooLarge, add(far+maxImportChunks*ChunkSize+ChunkSize), "the gap is too large")
	for _, seq := range all {
		got, ok := incoming.TailRecord(seq)
		require.True(t, ok)
		require.Equal(t, rec, got)
		require.Equal(t, seq, incoming.NextAlive(seq))
	}
	require.Equal(t, far+30_000, incoming.NextAlive(far+5001))

	var flushed []uint64
	for _, everything := range []bool{false, true} {
		b := to.s.Collect(2*cost(rec), everything)
		for i := range b.Tails {
			require.LessOrEqual(t, len(b.Tails[i].Records), MaxExtentSpan)
			for j, r := range b.Tails[i].Records {
				if r != nil {
					flushed = append(flushed, b.Tails[i].First+uint64(j))
				}
			}
		}
		require.Equal(t, everything, len(flushed) == len(all))
		for i := range b.Tails {
			to.s.Flushed(b.Tails[i].Queue, b.Tails[i].Last())
		}
		require.Empty(t, to.s.Check())
	}
	require.Equal(t, all, flushed)
	require.Zero(t, incoming.tail.n)
	to.do(add(far + 5_000_000))
	to.do(cancelImport(9))
	require.Empty(t, to.s.Check())
	require.Zero(t, to.s.Messages())
}

// incomingPair returns a source with a fenced queue, and a target that has imported its messages.
func incomingPair(t testing.TB) *transfer {
	t.Helper()
	from, q := member(t, txn.Config{})
	x := beginTransfer(from, newTarget(t), 9, q.id)
	x.messages(1000)
	from.do(fence(9, q.id))
	return x
}

// INV-28: a canceled import is never taken, and its epoch is never used again.
func TestCanceledImportIsNotTaken(t *testing.T) {
	x := incomingPair(t)
	d := x.to
	messages := d.s.Messages()
	require.Equal(t, uint64(100), messages)
	x.state(100)
	require.Equal(t, []txn.OpResult{{Changed: 100}}, d.do(cancelImport(9)).Ops)
	check := func() {
		for name, op := range map[string]func(b *txn.Builder){
			"take": takeMoved(9), "begin": begin(9, txn.ImportQueue{Name: "q", Source: 1}),
			"begin lower": begin(8, txn.ImportQueue{Name: "q", Source: 1}),
			"import":      messagesFrom(tailRecord, x.from.s.Queue(1), x.first, 9, 1, 5),
			"state":       func(b *txn.Builder) { b.ImportState(x.first, 9, nil, nil, true) },
		} {
			d.rejected(txn.ErrMoveChanged, op, "a canceled import was continued: "+name)
		}
	}
	check()
	require.Equal(t, []txn.OpResult{{}}, d.do(cancelImport(9)).Ops, "a retry")
	d.reload()
	check()
	require.Zero(t, d.s.Messages())
	require.Equal(t, []Move{{Epoch: 9, State: MoveCanceled, Pair: "pair-1"}}, d.s.Moves())
	d.do(forgetMove(9))
	check()
	d.rejected(txn.ErrMoveChanged, cancelImport(9), "the record was removed")
	d.reload()
	check()
	d.do(cancelImport(20)) // before it begins
	require.Equal(t, []Move{{Epoch: 20, State: MoveCanceled}}, d.s.Moves())
	d.rejected(txn.ErrMoveChanged, begin(20, txn.ImportQueue{Name: "q", Source: 1}), "a canceled import began")
	d.rejected(txn.ErrMoved, leave, "a move exists")
	d.reload()
	d.do(forgetMove(20))
	d.do(begin(21, txn.ImportQueue{Name: "q", Source: 1}))
	require.Empty(t, d.s.Check())
}

// INV-28: an import is taken only if all queues are complete.
func TestIncompleteImportIsNotTaken(t *testing.T) {
	from, q := member(t, txn.Config{})
	other := from.owned("other", 7, txn.Config{})
	to := newTarget(t)
	x := beginTransfer(from, to, 9, q.id, other.id)
	from.do(fence(9, q.id, other.id))
	refused := func(why string) {
		t.Helper()
		to.rejected(txn.ErrMoveIncomplete, takeMoved(9), "an incomplete import was taken: "+why)
	}
	refused("no messages")
	pairs := exported(t, from.s, q, nil, nil)
	ops := stateOps(pairs, nil, x.first, 9, 1)
	for _, op := range ops[:len(ops)-1] {
		to.do(op)
		refused("no messages")
	}
	to.rejected(txn.ErrMoveIncomplete, ops[len(ops)-1], "the messages are missing")
	to.rejected(txn.ErrMoveChanged, messagesFrom(tailRecord, q, x.first, 9, 1, 5), "messages after the state")
	to.do(cancelImport(9))

	from.do(unfence(9))
	x = beginTransfer(from, to, 10, q.id, other.id)
	from.do(fence(10, q.id, other.id))
	x.messages(1000)
	for i, id := range x.queues {
		refusedState := to.rejected
		refusedState(txn.ErrMoveIncomplete, func(b *txn.Builder) {
			b.ImportState(x.first+uint64(i), 10, nil, nil, true)
		}, "no state")
		for _, op := range stateOps(exported(t, from.s, from.s.Queue(id), nil, nil), nil, x.first+uint64(i), 10, 1) {
			to.rejected(txn.ErrMoveIncomplete, takeMoved(10), "an incomplete import was taken")
			to.do(op)
			to.rejected(txn.ErrMoveChanged, op, "a part was imported twice")
		}
	}
	to.rejected(txn.ErrMoveChanged, takeMoved(9), "another epoch")
	to.do(takeMoved(10))
	to.rejected(txn.ErrMoveChanged, takeMoved(10), "taken twice")
	to.rejected(txn.ErrMoveChanged, cancelImport(10), "canceled after the take")
	require.Empty(t, to.s.Check())
}

// INV-28: the name of an incoming queue is reserved, and the queue is not visible.
func TestIncomingQueueIsHidden(t *testing.T) {
	x := incomingPair(t)
	d := x.to
	check := func() {
		d.rejected(txn.ErrMoved, ownNew("q", 50), "a queue was created while it is incoming")
		d.rejected(txn.ErrMoved, begin(50, txn.ImportQueue{Name: "q", Source: 3}), "imported twice")
		d.rejected(txn.ErrMoved, leave, "leave during an import")
		require.Nil(t, d.s.QueueByName("q"))
		require.Equal(t, 1, d.s.QueueCount())
		require.Len(t, d.s.List(nil, "", "", 10), 1)
		require.NotNil(t, d.s.Queue(x.first))
		first := d.s.QueueByName("first")
		for name, op := range operationsOn(d.s.Queue(x.first)) {
			if name == "create" || name == "leave" || name == "policy" || name == "all" {
				continue
			}
			d.rejected(txn.ErrQueueNotFound, op, "an incoming queue was used: "+name)
		}
		for name, op := range operationsTo(t, d.s.Queue(x.first), first) {
			if name != "forward" && name != "prepare" && name != "move" { // a forward to a missing queue has no effect
				d.rejected(txn.ErrQueueNotFound, op, "an incoming queue was used: "+name)
			}
		}
		require.Empty(t, d.s.Check())
	}
	check()
	d.reload()
	check()
	d.do(func(b *txn.Builder) { b.PutPolicy("*", txn.QueuePolicy{Defaults: txn.Config{TTL: 5000}}) })
	require.Len(t, d.s.TTLs(), 1)
	x.state(100)
	d.do(takeMoved(9))
	require.Len(t, d.s.TTLs(), 2, "the policies apply from the take on")
	d.rejected(txn.ErrQueueExists, begin(51, txn.ImportQueue{Name: "q", Source: 3}), "the queue exists")
	require.Empty(t, d.s.Check())
}

func TestInvalidImport(t *testing.T) {
	d := newDriver(t)
	q := txn.ImportQueue{Name: "q", Source: 1}
	other := func(b *txn.Builder) { b.ImportBegin(8, "pair-2", []txn.ImportQueue{q}) }
	d.rejected(txn.ErrFleetChanged, other, "not a member")
	d.rejected(txn.ErrFleetChanged, cancelImport(8), "not a member")
	d.do(join(5))
	d.owned("old", 6, txn.Config{})
	d.rejected(txn.ErrFleetChanged, begin(8, q), "the pair itself")
	d.rejected(txn.ErrFleetChanged, func(b *txn.Builder) {
		b.ImportBegin(5, "pair-2", []txn.ImportQueue{q})
	}, "the epoch of the join")
	d.rejected(txn.ErrQueueExists, func(b *txn.Builder) {
		b.ImportBegin(8, "pair-2", []txn.ImportQueue{q, {Name: "old", Source: 2}})
	}, "the queue exists")
	d.rejected(txn.ErrMalformed, func(b *txn.Builder) {
		b.ImportBegin(8, "pair-2", []txn.ImportQueue{q, {Name: "q", Source: 2}})
	}, "two queues with one name")
	d.do(fence(7, 1))
	d.rejected(txn.ErrMoved, func(b *txn.Builder) {
		b.ImportBegin(8, "pair-2", []txn.ImportQueue{{Name: "old", Source: 2}})
	}, "the queue is fenced")
	d.rejected(txn.ErrMoveChanged, func(b *txn.Builder) { b.ImportBegin(7, "pair-2", []txn.ImportQueue{q}) }, "own fence")
	d.rejected(txn.ErrMoveChanged, takeMoved(7), "own fence")
	d.rejected(txn.ErrMoveChanged, cancelImport(7), "own fence")
	d.rejected(txn.ErrMoveChanged, forgetMove(7), "own fence")
	d.s.limits.queues = 1
	d.rejected(txn.ErrTooManyQueues, other, "too many queues")
	d.s.limits.queues = 2
	d.do(other)
	d.rejected(txn.ErrTooManyQueues, ownNew("r", 30), "incoming queues count")
	d.rejected(txn.ErrMoveChanged, unfence(8), "an import")
	d.rejected(txn.ErrMoveChanged, dropMoved(8), "an import")
	d.rejected(txn.ErrMoveChanged, forgetMove(8), "an import")
	require.Equal(t, FleetState{ID: fleetID, Pair: "pair-1", JoinEpoch: 5, MaxEpoch: 8, ImportEpoch: 8}, d.s.Fleet())
}

// Invalid pairs of a state are rejected and change nothing.
func TestInvalidState(t *testing.T) {
	x := incomingPair(t)
	d, q := x.to, x.from.s.Queue(1)
	good := exported(t, x.from.s, q, nil, nil)
	state := func(after []byte, pairs ...txn.StatePair) func(b *txn.Builder) {
		return func(b *txn.Builder) { b.ImportState(x.first, 9, after, pairs, false) }
	}
	bad := func(why string, after []byte, pairs ...txn.StatePair) {
		t.Helper()
		d.rejected(txn.ErrMalformed, state(after, pairs...), why)
		require.Empty(t, d.s.Check())
	}
	queueOf := func(edit func(x *importedQueue)) txn.StatePair {
		value := q.exported()
		edit(value)
		return txn.StatePair{Key: []byte{keyQueue}, Value: value.appendValue(nil)}
	}
	bad("no queue", nil, good[1])
	bad("another name", nil, queueOf(func(x *importedQueue) { x.name = "r" }))
	bad("fewer messages", nil, queueOf(func(x *importedQueue) { x.nextSeq = 100 }))
	bad("no subscription number", nil, queueOf(func(x *importedQueue) { x.nextSub = 0 }))
	bad("priorities", nil, queueOf(func(x *importedQueue) { x.config.Priorities = 1; x.fields |= txn.FieldPriorities }))
	bad("too large", nil, queueOf(func(x *importedQueue) { x.nextSeq = 1 << 60 }))
	bad("several kinds", nil, good[0], good[1])
	bad("trailing bytes", nil, txn.StatePair{Key: good[0].Key, Value: append(bytes.Clone(good[0].Value), 0)})
	bad("trailing bytes of a key", nil, txn.StatePair{Key: append(bytes.Clone(good[0].Key), 0), Value: good[0].Value})
	last := func(after []byte, pairs ...txn.StatePair) func(b *txn.Builder) {
		return func(b *txn.Builder) { b.ImportState(x.first, 9, after, pairs, true) }
	}
	bad("no pairs", nil)
	d.rejected(txn.ErrMalformed, last(nil, good[0]), "pairs at the end")
	fewer := queueOf(func(x *importedQueue) { x.live = 99 })
	d.do(state(nil, fewer))
	after := fewer.Key
	d.rejected(txn.ErrMoveChanged, state(nil, fewer), "imported twice")
	for _, kind := range []byte{keySizes, keyPriorities, keyIndex, keySchedule, keyState, keyMove, 0} {
		bad(fmt.Sprintf("kind %q", kind), after, txn.StatePair{Key: append([]byte{kind}, good[1].Key[1:]...)})
	}
	bad("another queue", after, good[0])
	bad("out of order", after, good[2], good[1])
	bad("twice", after, good[1], good[1])
	sub := good[1]
	bad("same name", after, sub, txn.StatePair{Key: good[2].Key, Value: sub.Value})
	bad("subscription 0", after, txn.StatePair{Key: []byte{keySub, 0, 0, 0, 0}, Value: sub.Value})
	bad("unknown subscription", after, txn.StatePair{Key: []byte{keySub, 0, 0, 0, 9}, Value: sub.Value})
	bad("the hidden subscription", after, txn.StatePair{Key: []byte{keySub, 255, 255, 255, 253}, Value: sub.Value})
	bad("a named hidden subscription", after, txn.StatePair{Key: []byte{keySub, 255, 255, 255, 254}, Value: sub.Value})
	bad("beyond the end", after, txn.StatePair{Key: sub.Key, Value: []byte{valueVersion, 1, 'a', 1, 102}})
	bad("start above the floor", after, txn.StatePair{Key: sub.Key, Value: []byte{valueVersion, 1, 'a', 3, 2}})
	d.do(state(after, good[1], good[2]))
	after = good[2].Key
	bad("a subscription twice", after, good[2])
	words := func(set ...uint64) []byte {
		var slot ackSlot
		slot.c = new(ackChunk)
		for _, seq := range set {
			slot.c.words[seq/64] |= 1 << (seq % 64)
		}
		return slot.appendValue(nil)
	}
	bad("no chunk", after, txn.StatePair{Key: []byte{keyAcks, 0, 0, 0, 1}, Value: words(5)})
	bad("the floor", after, txn.StatePair{Key: subChunkKey(keyAcks, 1, 0), Value: words(1, 5)})
	bad("unpublished", after, txn.StatePair{Key: subChunkKey(keyAcks, 1, 0), Value: words(5, 101)})
	bad("all", after, txn.StatePair{Key: subChunkKey(keyAcks, 1, 0)})
	bad("none", after, txn.StatePair{Key: subChunkKey(keyAcks, 1, 0), Value: words()})
	bad("beyond the end", after, txn.StatePair{Key: subChunkKey(keyAcks, 1, 1), Value: words(5)})
	bad("another subscription", after, txn.StatePair{Key: subChunkKey(keyAcks, 3, 0), Value: words(5)})
	acks := txn.StatePair{Key: subChunkKey(keyAcks, 1, 0), Value: words(5, 6)}
	d.do(state(after, acks))
	after = acks.Key
	count := func(offset, n byte) txn.StatePair {
		return txn.StatePair{Key: subChunkKey(keyCounts, 1, 0), Value: []byte{1, offset, n}}
	}
	bad("acknowledged", after, count(5, 1))
	bad("unpublished", after, count(101, 1))
	bad("zero", after, count(4, 0))
	bad("pause of a missing subscription", after, txn.StatePair{
		Key: []byte{keyPauses}, Value: (&pauses{bySub: map[uint32]txn.Pause{7: {Deliver: true}}}).appendValue(nil),
	})
	bad("delays", after, txn.StatePair{Key: append([]byte{keyDelayed}, make([]byte, 8)...), Value: []byte{1, 4}})
	bad("forwards", after, txn.StatePair{Key: []byte{keyForwards}, Value: []byte{valueVersion, 0}})
	bad("generations", after, txn.StatePair{Key: []byte{keyIDSet}, Value: (&idSet{added: 5}).appendValue(nil)})
	bad("message ID", after, txn.StatePair{Key: append([]byte{keyIDs}, make([]byte, 24)...), Value: []byte{0, 0, 0}})
	d.rejected(txn.ErrMoveIncomplete, last(after), "live messages")
	d.reload()
	d.rejected(txn.ErrMoveIncomplete, last(after), "live messages")
	require.Empty(t, d.s.Check())
	d.do(cancelImport(9))
	require.Empty(t, d.s.Check())
}

// References of an incoming queue must be to queues of the same move, without cycles.
func TestReferencesOfImport(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(a, b *importedQueue)
		want txn.Code
	}{
		"missing": {func(a, _ *importedQueue) { a.config.DeadLetter = 77 }, txn.ErrMoveIncomplete},
		"itself":  {func(a, _ *importedQueue) { a.config.DeadLetter = 1 }, txn.ErrDeadLetterCycle},
		"cycle":   {func(a, b *importedQueue) { a.config.DeadLetter, b.config.DeadLetter = 2, 1 }, txn.ErrDeadLetterCycle},
		"chain":   {func(_, b *importedQueue) { b.config.DeadLetter = 1 }, txn.OK},
	} {
		t.Run(name, func(t *testing.T) {
			to := newTarget(t)
			first := to.do(begin(9, txn.ImportQueue{Name: "a", Source: 1}, txn.ImportQueue{Name: "b", Source: 2})).Ops[0].ID
			a, b := &importedQueue{name: "a", nextSeq: 1, nextSub: 1}, &importedQueue{name: "b", nextSeq: 1, nextSub: 1}
			c.edit(a, b)
			for i, x := range []*importedQueue{a, b} {
				x.fields = x.config.Fields()
				pair := txn.StatePair{Key: []byte{keyQueue}, Value: x.appendValue(nil)}
				for _, op := range stateOps([]txn.StatePair{pair}, nil, first+uint64(i), 9, 1) {
					to.do(op)
				}
			}
			require.Empty(t, to.s.Check())
			r := to.apply(nil, takeMoved(9))
			require.Equal(t, c.want, r.Code)
			to.reload()
			require.Empty(t, to.s.Check())
		})
	}
}

// A copy of a member keeps its incoming queues until they are canceled.
func TestDetachedImport(t *testing.T) {
	x := incomingPair(t)
	x.state(100)
	key, value, _ := x.to.s.DetachedFleet()
	l := NewLoader()
	for k, v := range x.to.s.All {
		if string(k) != string(key) {
			require.NoError(t, l.Put(k, v))
		}
	}
	require.NoError(t, l.Put(key, value))
	copied, err := l.Finish(x.to.lsn)
	require.NoError(t, err)
	d := &driver{t: t, s: copied, lsn: x.to.lsn}
	d.rejected(txn.ErrFleetChanged, takeMoved(9), "the copy is not a member")
	d.do(join(10))
	d.rejected(txn.ErrFleetChanged, takeMoved(9), "the import belongs to an earlier membership")
	d.do(cancelImport(9))
	require.Zero(t, d.s.Messages())
	require.Empty(t, d.s.Check())
}

// Message IDs that the next checkpoint removes from the tree are not exported.
func TestExportOfRemovedIDs(t *testing.T) {
	d := newDriver(t)
	d.do(join(5))
	q := d.owned("q", 6, txn.Config{DedupWindow: 1000})
	pages := newFakePages()
	d.s.ReadIDs(pages.get)
	d.do(func(b *txn.Builder) {
		b.BeginPublish(q.id)
		b.MessageWith(0, &txn.Attributes{MessageID: "a"}, nil, nil)
		b.EndPublish()
	})
	require.Equal(t, 1, q.UnwrittenIDs())
	batch := d.s.Collect(0, true)
	for i := range batch.IDs {
		for key, value := range batch.IDs[i].Puts {
			pages.kv[string(key)] = bytes.Clone(value)
		}
	}
	require.Equal(t, 1, q.UnwrittenIDs())
	d.s.ScheduleWritten()
	require.Zero(t, q.UnwrittenIDs())
	d.do(fence(7, q.id))
	kinds := func() (kinds string) {
		for _, p := range exported(t, d.s, q, []byte{keySub, 255, 255, 255, 255}, pages.kv) {
			kinds += string(rune(p.Key[0]))
		}
		return kinds
	}
	require.Equal(t, "ge", kinds())
	d.do(unfence(7))
	d.do(func(b *txn.Builder) { b.AlterQueue(q.id, txn.Config{}, txn.FieldDedupWindow) })
	d.do(fence(8, q.id))
	require.Empty(t, kinds())
}
