// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

var fleetID = uuid.UUID{15: 9}

func join(epoch uint64) func(b *txn.Builder) {
	return func(b *txn.Builder) {
		b.Fleet(txn.FleetChange{Action: txn.FleetJoin, ID: fleetID, Pair: "pair-1", Epoch: epoch})
	}
}

func leave(b *txn.Builder) { b.Fleet(txn.FleetChange{Action: txn.FleetLeave}) }

func own(name string, epoch uint64) func(b *txn.Builder) {
	return func(b *txn.Builder) { b.OwnQueue(name, epoch) }
}

func create(name string) func(b *txn.Builder) {
	return func(b *txn.Builder) { b.CreateQueue(name, txn.Config{}, "a") }
}

func ownNew(name string, epoch uint64) func(b *txn.Builder) {
	return func(b *txn.Builder) { own(name, epoch)(b); create(name)(b) }
}

// rejected applies a transaction that must be rejected and change nothing but the digest of the history.
func (d *driver) rejected(want txn.Code, build func(b *txn.Builder), reason string) {
	d.t.Helper()
	before := allOf(d.s)
	r := d.apply(nil, build)
	require.Equal(d.t, want, r.Code, reason)
	require.Equal(d.t, 0, r.Op)
	require.Empty(d.t, r.Ops)
	after := allOf(d.s)
	delete(before, string(keyState))
	delete(after, string(keyState))
	same(d.t, before, after, "a rejected transaction changes nothing")
}

// The membership changes only by a join of a pair that is not a member, and a leave of a member.
func TestFleetMembership(t *testing.T) {
	d := newDriver(t)
	require.Zero(t, d.s.Fleet())
	d.rejected(txn.ErrFleetChanged, leave, "leave of a pair that is not a member")
	q := d.queue("old", txn.Config{}, "a")
	digest := q.Digest()
	d.s.TakeTouched(nil)

	require.Equal(t, []txn.OpResult{{}}, d.do(join(5)).Ops)
	require.Equal(t, FleetState{ID: fleetID, Pair: "pair-1", JoinEpoch: 5, MaxEpoch: 5}, d.s.Fleet())
	require.True(t, d.s.Fleet().Member())
	require.Equal(t, uint64(5), d.s.OwnershipEpoch(q))
	require.Equal(t, digest, q.Digest(), "a join changes no queue")
	require.Equal(t, []uint64{FleetQueue}, d.s.TakeTouched(nil))
	require.Empty(t, d.s.TakeTouched(nil), "reported once")
	d.rejected(txn.ErrFleetChanged, join(6), "join of a member")
	d.rejected(txn.ErrFleetChanged, func(b *txn.Builder) {
		b.Fleet(txn.FleetChange{Action: txn.FleetJoin, ID: uuid.Max, Pair: "pair-1", Epoch: 6})
	}, "join of another fleet")
	require.Empty(t, d.s.TakeTouched(nil))

	d.do(own("old", 8))
	d.do(leave)
	require.Equal(t, FleetState{MaxEpoch: 8}, d.s.Fleet())
	require.False(t, d.s.Fleet().Member())
	require.Zero(t, d.s.OwnershipEpoch(q), "epochs have no effect outside a fleet")
	require.Equal(t, []uint64{FleetQueue}, d.s.TakeTouched(nil))
	d.queue("new", txn.Config{})
	d.reload()
	d.do(join(9))
	for q := range d.s.Queues {
		require.Equal(t, uint64(9), d.s.OwnershipEpoch(q), q.Name())
	}
	require.Empty(t, d.s.Check())
}

// INV-27: a pair of a fleet creates a queue only under an epoch.
func TestCreationRequiresEpoch(t *testing.T) {
	d := newDriver(t)
	d.rejected(txn.ErrFleetChanged, ownNew("q", 1), "an epoch outside a fleet")
	d.queue("old", txn.Config{})
	d.do(join(5))
	d.rejected(txn.ErrQueueExists, create("old"), "the queue exists")
	d.rejected(txn.ErrNotOwned, create("q"), "a queue was created without an epoch")
	d.rejected(txn.ErrFleetChanged, ownNew("q", 5), "an epoch of an earlier membership")
	d.rejected(txn.ErrQueueExists, ownNew("old", 6), "the queue exists")
	require.Equal(t, uint64(5), d.s.Fleet().MaxEpoch)

	r := d.do(ownNew("q", 7))
	require.Equal(t, []txn.OpResult{{ID: 2}}, r.Ops, "the result of the creation")
	q := d.s.Queue(2)
	require.Equal(t, uint64(7), d.s.OwnershipEpoch(q))
	require.Equal(t, 1, q.SubCount())
	d.do(ownNew("earlier", 6)) // assigned concurrently
	require.Equal(t, uint64(6), d.s.OwnershipEpoch(d.s.QueueByName("earlier")))
	require.Equal(t, uint64(7), d.s.Fleet().MaxEpoch)
	d.do(func(b *txn.Builder) { b.DeleteQueue(2, false) })
	d.rejected(txn.ErrNotOwned, create("q"), "a deleted queue was created without an epoch")
	d.do(leave)
	d.queue("q", txn.Config{})
	require.Empty(t, d.s.Check())
}

// INV-27: the epoch of an existing queue only increases.
func TestEpochIncreases(t *testing.T) {
	d := newDriver(t)
	q := d.queue("old", txn.Config{})
	d.rejected(txn.ErrFleetChanged, own("old", 9), "an epoch outside a fleet")
	d.do(join(5))
	d.do(ownNew("q", 7))
	d.rejected(txn.ErrQueueNotFound, own("missing", 9), "no queue")
	d.rejected(txn.ErrFleetChanged, own("old", 5), "the epoch of a queue decreased")
	digest := q.Digest()
	require.Equal(t, []txn.OpResult{{ID: q.id}}, d.do(own("old", 6)).Ops)
	require.Equal(t, uint64(6), d.s.OwnershipEpoch(q))
	require.NotEqual(t, digest, q.Digest())
	d.rejected(txn.ErrFleetChanged, own("old", 6), "the epoch of a queue decreased")
	d.rejected(txn.ErrFleetChanged, own("q", 6), "the epoch of a queue decreased")
	d.reload()
	d.rejected(txn.ErrFleetChanged, own("q", 7), "the epoch of a queue decreased")
	d.do(own("q", 10))
	require.Equal(t, uint64(10), d.s.Fleet().MaxEpoch)
}

// INV-27: a join has a higher epoch than all epochs in the log, so that the epochs of queues do not decrease.
func TestJoinIncreasesEpochs(t *testing.T) {
	d := newDriver(t)
	d.do(join(5))
	d.do(ownNew("q", 7))
	d.do(leave)
	d.rejected(txn.ErrFleetChanged, join(6), "a join under an older epoch was accepted")
	d.rejected(txn.ErrFleetChanged, join(7), "a join under an older epoch was accepted")
	d.reload()
	d.rejected(txn.ErrFleetChanged, join(7), "a join under an older epoch was accepted")
	d.do(join(8))
	require.Equal(t, uint64(8), d.s.OwnershipEpoch(d.s.QueueByName("q")))
}

// raw encodes operations without the checks of the builder.
func raw(t *testing.T, builds ...func(b *txn.Builder)) []byte {
	t.Helper()
	var all []byte
	for _, build := range builds {
		payload := encode(t, build)
		if all == nil {
			all = append(all, payload[:12]...)
		}
		ops := payload[2]
		all = append(all, payload[12:]...)
		if len(all) > len(payload) {
			all[2] += ops
		}
	}
	return all
}

// INV-27: an epoch permits only the creation of the queue with its name, and no other operation.
func TestEpochOfAnotherName(t *testing.T) {
	d := newDriver(t)
	d.queue("old", txn.Config{}, "a")
	d.do(join(5))
	before := allOf(d.s)
	put := func(b *txn.Builder) { b.PutMeta("k", nil) }
	for i, mixed := range [][]func(b *txn.Builder){
		{own("a", 6), create("b")},
		{own("old", 6), put},
		{own("a", 6), put},
		{put, own("old", 6)},
		{own("a", 6), own("a", 7)},
		{create("a"), own("a", 6)},
		{own("a", 6), create("a"), put},
		{put, own("a", 6), create("a")},
		{own("old", 6), join(9)},
		{own("old", 6), func(b *txn.Builder) { b.DeleteQueue(1, false) }},
	} {
		d.lsn++
		r := d.s.Apply(d.lsn, raw(t, mixed...))
		require.Equal(t, txn.ErrMixed, r.Code, "transaction %d was accepted", i)
	}
	after := allOf(d.s)
	delete(before, string(keyState))
	delete(after, string(keyState))
	same(t, before, after, "a rejected transaction changes nothing")
	d.rejected(txn.ErrNotOwned, create("a"), "an epoch of a rejected transaction was used")
	d.lsn++
	require.Equal(t, txn.OK, d.s.Apply(d.lsn, raw(t, own("a", 6), create("a"))).Code)
}

// A retried request returns the original result, even if the directory has assigned another epoch.
func TestRetryOfOwnedCreation(t *testing.T) {
	d := newDriver(t)
	d.do(join(5))
	refused := d.apply(origin("p", 1, 1), create("q"))
	require.Equal(t, txn.ErrNotOwned, refused.Code)
	first := d.apply(origin("p", 1, 2), ownNew("q", 6))
	require.Equal(t, txn.OK, first.Code)
	d.reload()
	for _, c := range []struct {
		sequence uint64
		want     txn.Result
	}{{1, refused}, {2, first}} {
		c.want.Duplicate = true
		require.Equal(t, c.want, d.apply(origin("p", 1, c.sequence), ownNew("q", 9)))
	}
	require.Equal(t, uint64(6), d.s.OwnershipEpoch(d.s.QueueByName("q")))
	require.Equal(t, uint64(6), d.s.Fleet().MaxEpoch)
}

// A replica site applies the membership and the epochs of the primary.
func TestFleetOfReplica(t *testing.T) {
	primary, replica := newDriver(t), newDriver(t)
	require.Equal(t, txn.OK, replica.site(txn.SiteChange{Action: txn.SiteFollow, Lineage: lineage, Epoch: 1}))
	for i, build := range []func(b *txn.Builder){
		create("old"), join(5), create("rejected"), ownNew("q", 6), own("old", 7), own("old", 7), leave, create("r"), join(8),
	} {
		n := uint64(i + 1)
		want := primary.apply(nil, build)
		require.Equal(t, want, replica.envelope(txn.Site{Epoch: 1, Upstream: position(n), Logical: n}, encode(t, build)))
	}
	same(t, allOf(primary.s), withoutSite(replica.s), "the sites are equal")
	require.Equal(t, primary.s.Digest(), replica.s.Digest())
	require.Equal(t, primary.s.Fleet(), replica.s.Fleet())
}

// Without epochs, the stored values are those of earlier releases.
func TestEpochInValues(t *testing.T) {
	d := newDriver(t)
	d.queue("q", txn.Config{})
	require.NotContains(t, allOf(d.s), string(keyFleet))
	require.EqualValues(t, valueVersion, allOf(d.s)[string(queueKey(nil, keyQueue, 1))][0])
	d.do(join(5))
	require.EqualValues(t, valueVersion, allOf(d.s)[string(queueKey(nil, keyQueue, 1))][0])
	d.do(own("q", 6))
	require.EqualValues(t, ownedVersion, allOf(d.s)[string(queueKey(nil, keyQueue, 1))][0])
}

// The loader rejects an inconsistent membership.
func TestCorruptFleet(t *testing.T) {
	for name, f := range map[string]FleetState{
		"no epochs":        {ID: fleetID, Pair: "p"},
		"no join epoch":    {ID: fleetID, Pair: "p", MaxEpoch: 1},
		"no pair":          {ID: fleetID, JoinEpoch: 1, MaxEpoch: 1},
		"invalid pair":     {ID: fleetID, Pair: " ", JoinEpoch: 1, MaxEpoch: 1},
		"no fleet":         {Pair: "p", JoinEpoch: 1, MaxEpoch: 1},
		"pair, no fleet":   {Pair: "p", MaxEpoch: 1},
		"maximum too low":  {ID: fleetID, Pair: "p", JoinEpoch: 2, MaxEpoch: 1},
		"below some queue": {MaxEpoch: 3},
	} {
		l := NewLoader()
		s := newDriver(t)
		s.do(join(1))
		s.do(ownNew("q", 4))
		for k, v := range s.s.All {
			if string(k) != string(keyFleet) {
				require.NoError(t, l.Put(k, v))
			}
		}
		err := l.Put([]byte{keyFleet}, (&fleet{FleetState: f}).appendValue(nil))
		if err == nil {
			_, err = l.Finish(5)
		}
		require.ErrorIs(t, err, ErrCorrupt, name)
	}
}

// A detached copy of a member is not a member. It keeps the maximum epoch.
func TestDetachedFleet(t *testing.T) {
	d := newDriver(t)
	_, _, member := d.s.DetachedFleet()
	require.False(t, member)
	d.do(join(5))
	d.do(ownNew("q", 6))
	key, value, member := d.s.DetachedFleet()
	require.True(t, member)
	l := NewLoader()
	for k, v := range d.s.All {
		if string(k) != string(key) {
			require.NoError(t, l.Put(k, v))
		}
	}
	require.NoError(t, l.Put(key, value))
	copied, err := l.Finish(d.lsn)
	require.NoError(t, err)
	require.Equal(t, FleetState{MaxEpoch: 6}, copied.Fleet())
	require.Zero(t, copied.OwnershipEpoch(copied.QueueByName("q")))
}
