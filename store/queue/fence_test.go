// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

func fence(epoch uint64, queues ...uint64) func(b *txn.Builder) {
	return func(b *txn.Builder) { b.Fence(epoch, "pair-2", queues) }
}

func unfence(epoch uint64) func(b *txn.Builder) {
	return func(b *txn.Builder) { b.Unfence(epoch) }
}

func dropMoved(epoch uint64) func(b *txn.Builder) {
	return func(b *txn.Builder) { b.DropMoved(epoch) }
}

// member returns a member of a fleet with queue q of the given configuration and 100 messages.
func member(t testing.TB, c txn.Config) (*driver, *Queue) {
	t.Helper()
	d := newDriver(t)
	d.do(join(5))
	q := d.owned("q", 6, c)
	d.publish(q, 100)
	return d, q
}

func (d *driver) owned(name string, epoch uint64, c txn.Config) *Queue {
	d.t.Helper()
	d.do(func(b *txn.Builder) { b.OwnQueue(name, epoch); b.CreateQueue(name, c, "a", "b") })
	return d.s.QueueByName(name)
}

// queueState returns the keys and values of one queue.
func queueState(s *State, id uint64) map[string][]byte {
	all := allOf(s)
	for key := range all {
		one := false
		for _, r := range QueueKeys(id) {
			one = one || key >= string(r.From) && key < string(r.To)
		}
		if !one {
			delete(all, key)
		}
	}
	return all
}

// operationsOn are operations that change queue q, which has subscription 1 and messages.
func operationsOn(q *Queue) map[string]func(b *txn.Builder) {
	id, name := q.id, q.name
	return map[string]func(b *txn.Builder){
		"alter":     func(b *txn.Builder) { b.AlterQueue(id, txn.Config{MaxMessages: 9}, txn.FieldMaxMessages) },
		"delete":    func(b *txn.Builder) { b.DeleteQueue(id, false) },
		"purge":     func(b *txn.Builder) { b.Purge(id, 0) },
		"subscribe": func(b *txn.Builder) { b.CreateSubscription(id, "new", txn.StartLatest) },
		"filter": func(b *txn.Builder) {
			b.CreateSubscriptionWith(id, "new", txn.StartLatest, txn.SubscriptionOptions{Filter: "size > 3"})
		},
		"unsubscribe": func(b *txn.Builder) { b.DeleteSubscription(id, 1) },
		"alter subscription": func(b *txn.Builder) {
			b.AlterSubscription(id, 1, txn.SubscriptionChange{Filter: true})
		},
		"publish":  func(b *txn.Builder) { publish(b, id, 1, 1) },
		"ack":      func(b *txn.Builder) { b.Ack(id, 1, txn.Range{First: 1, Last: 1}) },
		"release":  func(b *txn.Builder) { b.Release(id, 1, txn.Range{First: 1, Last: 1}) },
		"take":     func(b *txn.Builder) { b.Take(id, 1, txn.Range{First: 1, Last: 1}) },
		"discard":  func(b *txn.Builder) { b.BeginMove(id, 1, txn.NoQueue); b.Move(1, nil); b.EndMove() },
		"seek":     func(b *txn.Builder) { b.Seek(id, 1, 1) },
		"trim":     func(b *txn.Builder) { b.Trim(id, 1, &txn.Config{}) },
		"forwards": func(b *txn.Builder) { b.SetForwards(id, nil) },
		"pause":    func(b *txn.Builder) { b.Pause(id, 0, txn.Pause{Publish: true}) },
		"create":   ownNew(name, 1000),
		"own":      own(name, 1000),
		"policy":   func(b *txn.Builder) { b.PutPolicy(name, txn.QueuePolicy{Limits: txn.Config{TTL: 5}}) },
		"all":      func(b *txn.Builder) { b.PutPolicy("*", txn.QueuePolicy{Limits: txn.Config{TTL: 5}}) },
		"leave":    leave,
	}
}

// operationsTo are operations on queue other that add messages or references to q.
func operationsTo(t testing.TB, q, other *Queue) map[string]func(b *txn.Builder) {
	rec, err := txn.AppendMessage(nil, 1, nil, nil, []byte("x"))
	require.NoError(t, err)
	id := other.id
	deadLetter := txn.Config{DeadLetter: q.id}
	return map[string]func(b *txn.Builder){
		"move":        func(b *txn.Builder) { b.BeginMove(id, 1, q.id); b.Move(1, rec); b.EndMove() },
		"forward":     func(b *txn.Builder) { publish(b, id, 1, 1); b.Forward(id, q.id, false, nil) },
		"forwards":    func(b *txn.Builder) { b.SetForwards(id, []txn.Forward{{Target: q.id}}) },
		"dead letter": func(b *txn.Builder) { b.AlterQueue(id, deadLetter, txn.FieldDeadLetter) },
		"new queue":   func(b *txn.Builder) { b.OwnQueue("new", 1001); b.CreateQueue("new", deadLetter) },
		"subscription": func(b *txn.Builder) {
			b.CreateSubscriptionWith(id, "new", txn.StartLatest, txn.SubscriptionOptions{
				Own: txn.FieldDeadLetter, Policy: deadLetter,
			})
		},
		"alter subscription": func(b *txn.Builder) {
			b.AlterSubscription(id, 1, txn.SubscriptionChange{
				Fields: txn.FieldDeadLetter, Options: txn.SubscriptionOptions{Own: txn.FieldDeadLetter, Policy: deadLetter},
			})
		},
		"policy": func(b *txn.Builder) { b.PutPolicy("none", txn.QueuePolicy{Defaults: deadLetter}) },
		"prepare": func(b *txn.Builder) {
			b.Prepare("x", encode(t, func(b *txn.Builder) { publish(b, id, 1, 1); b.Forward(id, q.id, false, nil) }))
		},
		"prepared publish": func(b *txn.Builder) {
			b.Prepare("x", encode(t, func(b *txn.Builder) { publish(b, q.id, 1, 1) }))
		},
		"prepared ack": func(b *txn.Builder) {
			b.Prepare("x", encode(t, func(b *txn.Builder) { b.Take(q.id, 1, txn.Range{First: 2, Last: 2}) }))
		},
		"two": func(b *txn.Builder) { publish(b, q.id, 1, 1); publish(b, id, 1, 1) },
	}
}

// INV-28: a fenced queue does not change until the fence is removed.
func TestFencedQueueDoesNotChange(t *testing.T) {
	d, q := member(t, txn.Config{})
	other := d.owned("other", 7, txn.Config{})
	d.publish(other, 5)
	d.s.TakeTouched(nil)
	require.Equal(t, []txn.OpResult{{Changed: 1}}, d.do(fence(8, q.id)).Ops)
	require.ElementsMatch(t, []uint64{q.id, FleetQueue}, d.s.TakeTouched(nil))
	check := func() {
		q, other = d.s.Queue(q.id), d.s.Queue(other.id)
		epoch, pair, ok := q.Fence()
		require.True(t, ok)
		require.Equal(t, uint64(8), epoch)
		require.Equal(t, "pair-2", pair)
		require.True(t, q.Sub(1).Paused(), "no messages are delivered")
		for name, op := range operationsOn(q) {
			d.rejected(txn.ErrMoved, op, "a fenced queue was changed: "+name)
		}
		for name, op := range operationsTo(t, q, other) {
			d.rejected(txn.ErrMoved, op, "a reference to a fenced queue was created: "+name)
		}
		d.rejected(txn.ErrMoved, fence(9, q.id), "the queue was fenced twice")
		d.rejected(txn.ErrMoveChanged, fence(8, other.id), "the epoch was used twice")
		require.Empty(t, d.s.Check())
	}
	check()
	d.reload()
	check()
	require.Equal(t, []Move{{Epoch: 8, State: MoveFenced, Pair: "pair-2", Queues: []MovedQueue{{ID: q.id, Name: "q"}}}},
		d.s.Moves())

	before := queueState(d.s, q.id)
	require.Equal(t, []txn.OpResult{{Changed: 1}}, d.do(unfence(8)).Ops)
	require.ElementsMatch(t, []uint64{q.id, FleetQueue}, d.s.TakeTouched(nil))
	same(t, before, queueState(d.s, q.id), "the queue was changed while it was fenced")
	require.False(t, q.Sub(1).Paused())
	require.Equal(t, uint64(8), d.s.Fleet().UnfencedEpoch)
	require.Empty(t, d.s.Moves())
	require.Equal(t, uint64(6), d.s.OwnershipEpoch(q))
	d.do(operationsOn(q)["ack"])
	d.rejected(txn.ErrMoveChanged, fence(8, q.id), "a removed fence was repeated")
	d.do(fence(9, q.id))
	d.do(unfence(9))
	d.do(unfence(9))
	d.do(unfence(12)) // without a fence
	d.rejected(txn.ErrMoveChanged, fence(11, q.id), "the fence was prevented")
	d.reload()
	d.rejected(txn.ErrMoveChanged, fence(12, q.id), "the fence was prevented")
	d.do(leave)
}

// INV-28: the times of fenced queues have no effect, and the active does not see them.
func TestDueInFencedQueue(t *testing.T) {
	d, q := member(t, txn.Config{TTL: 1000, TemporaryGrace: 9, RetentionMessages: 1000})
	d.do(func(b *txn.Builder) {
		b.BeginPublish(q.id)
		b.MessageWith(0, &txn.Attributes{ExpiresAtMS: 5}, nil, nil)
		b.MessageWith(0, &txn.Attributes{DeliverAtMS: 6}, nil, nil)
		b.EndPublish()
	})
	entries := []txn.Due{
		{TimeMS: 5, Queue: q.id, Sequence: 101, Kind: txn.DueExpire},
		{TimeMS: 6, Queue: q.id, Sequence: 102, Kind: txn.DueDeliver},
	}
	scheduled := func() []txn.Due { return d.s.Scheduled(txn.Due{}, txn.Due{TimeMS: 100}, nil, 10, nil) }
	due := func() uint64 {
		var b txn.Builder
		b.Begin(nil, 5000, nil)
		b.Due(append(entries, txn.Due{TimeMS: 0, Queue: q.id, Sequence: 1, Kind: txn.DueTTL})...)
		payload, err := b.Finish()
		require.NoError(t, err)
		d.lsn++
		r := d.s.Apply(d.lsn, payload)
		require.NoError(t, r.Err())
		return r.Ops[0].Changed
	}
	require.Equal(t, entries, scheduled())
	d.do(fence(8, q.id))
	before := queueState(d.s, q.id)
	require.Zero(t, due(), "a time changed a fenced queue")
	same(t, before, queueState(d.s, q.id), "a time changed a fenced queue")
	require.Empty(t, scheduled())
	require.Empty(t, d.s.TTLs())
	require.Empty(t, d.s.Temporary())
	require.Empty(t, d.s.Expiring())
	require.Empty(t, d.s.Check())

	d.s.TakeSoonest()
	d.do(unfence(8))
	require.Zero(t, d.s.TakeSoonest(), "the active reads the schedule again")
	require.Equal(t, entries, scheduled())
	require.Len(t, d.s.TTLs(), 1)
	require.Len(t, d.s.Temporary(), 1)
	require.Len(t, d.s.Expiring(), 1)
	require.Equal(t, uint64(3), due())
}

// References between queues of the move and other queues prevent the fence.
func TestFenceOfReferences(t *testing.T) {
	for name, c := range map[string]struct {
		refer func(d *driver, q, other uint64)
		want  txn.Code
		both  bool // both queues can be fenced together
	}{
		"dead-letter queue": {func(d *driver, q, other uint64) {
			d.do(func(b *txn.Builder) { b.AlterQueue(q, txn.Config{DeadLetter: other}, txn.FieldDeadLetter) })
		}, txn.ErrQueueInUse, true},
		"dead-letter queue of a subscription": {func(d *driver, q, other uint64) {
			d.do(func(b *txn.Builder) {
				b.CreateSubscriptionWith(q, "c", txn.StartLatest, txn.SubscriptionOptions{
					Own: txn.FieldDeadLetter, Policy: txn.Config{DeadLetter: other},
				})
			})
		}, txn.ErrQueueInUse, true},
		"forward": {func(d *driver, q, other uint64) {
			d.do(func(b *txn.Builder) { b.SetForwards(q, []txn.Forward{{Target: other}}) })
		}, txn.ErrQueueInUse, true},
		"prepared": {func(d *driver, q, other uint64) {
			require.Equal(d.t, txn.OK, d.prepare("x", func(b *txn.Builder) { publish(b, q, 1, 1); publish(b, other, 1, 1) }))
		}, txn.ErrPreparedInUse, false},
	} {
		t.Run(name, func(t *testing.T) {
			d, q := member(t, txn.Config{})
			other := d.owned("other", 7, txn.Config{})
			c.refer(d, q.id, other.id)
			d.rejected(c.want, fence(8, q.id), "the queue refers to another one")
			d.rejected(c.want, fence(8, other.id), "another queue refers to the queue")
			if !c.both {
				d.rejected(c.want, fence(8, q.id, other.id), "a prepared transaction refers to the queues")
				return
			}
			d.do(fence(8, q.id, other.id))
			d.reload()
			require.Empty(t, d.s.Check())
			require.Equal(t, []txn.OpResult{{Changed: 100}}, d.do(dropMoved(8)).Ops)
			require.Zero(t, d.s.QueueCount())
			require.Empty(t, d.s.Moves())
			require.Empty(t, d.s.deadLettersTo)
			require.Empty(t, d.s.forwardsTo)
			d.reload()
			require.Empty(t, d.s.Check())
		})
	}
}

// Neither the dead-letter queue of a policy nor the target of a prepared forward can be fenced.
func TestFenceOfPolicyAndForward(t *testing.T) {
	d, q := member(t, txn.Config{})
	other := d.owned("other", 7, txn.Config{})
	d.do(func(b *txn.Builder) { b.PutPolicy("o*", txn.QueuePolicy{Defaults: txn.Config{DeadLetter: q.id}}) })
	d.rejected(txn.ErrQueueInUse, fence(8, q.id), "a policy refers to the queue")
	d.rejected(txn.ErrQueueInUse, fence(8, q.id, other.id), "a policy refers to the queue")
	d.do(fence(8, other.id)) // references by policies do not prevent the move of the other queue
	d.do(unfence(8))
	d.do(func(b *txn.Builder) { b.DeletePolicy("o*") })
	require.Equal(t, txn.OK, d.prepare("x", func(b *txn.Builder) {
		publish(b, other.id, 1, 1)
		b.Forward(other.id, q.id, false, nil)
	}))
	d.rejected(txn.ErrPreparedInUse, fence(9, q.id), "a prepared transaction forwards to the queue")
	require.Equal(t, txn.OK, d.commitPrepared("x").Code)
	d.do(fence(9, q.id))
}

func TestInvalidFence(t *testing.T) {
	d := newDriver(t)
	old := d.queue("old", txn.Config{})
	d.rejected(txn.ErrFleetChanged, fence(8, old.id), "not a member")
	d.rejected(txn.ErrMoveChanged, unfence(8), "not a member")
	d.do(join(5))
	d.rejected(txn.ErrFleetChanged, fence(5, old.id), "the epoch of the queue")
	d.do(own("old", 7))
	d.rejected(txn.ErrFleetChanged, fence(7, old.id), "the epoch of the queue")
	d.rejected(txn.ErrQueueNotFound, fence(8, old.id, old.id+1), "no such queue")
	d.rejected(txn.ErrFleetChanged, func(b *txn.Builder) { b.Fence(8, "pair-1", []uint64{old.id}) }, "the pair itself")
	d.rejected(txn.ErrMoveChanged, dropMoved(8), "no fence")
	d.s.limits.moves = 1
	d.do(fence(8, old.id))
	d.owned("q", 9, txn.Config{})
	d.rejected(txn.ErrTooManyMoves, fence(10, old.id+1), "too many moves")
	require.Equal(t, uint64(9), d.s.Fleet().MaxEpoch)
}

// A copy of a member is not a member, and its queues are not fenced.
func TestDetachedFence(t *testing.T) {
	d, q := member(t, txn.Config{TTL: 9})
	d.do(fence(8, q.id))
	key, value, _ := d.s.DetachedFleet()
	l := NewLoader()
	for k, v := range d.s.All {
		if string(k) != string(key) {
			require.NoError(t, l.Put(k, v))
		}
	}
	require.NoError(t, l.Put(key, value))
	copied, err := l.Finish(d.lsn)
	require.NoError(t, err)
	d.s = copied
	require.Empty(t, d.s.Moves())
	require.Len(t, d.s.TTLs(), 1)
	d.do(operationsOn(d.s.Queue(q.id))["publish"])
	b := d.s.Collect(0, true)
	require.Contains(t, b.Deletes, moveKey(nil, 8))
	d.do(join(9))
}
