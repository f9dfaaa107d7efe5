// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// modelFleet is the membership in a fleet. The model sets the epochs of all queues at a join.
type modelFleet struct {
	id        uuid.UUID // zero if not a member
	pair      string
	join, max uint64
}

func (f *modelFleet) member() bool { return f.id != uuid.Nil }

// someEpoch returns an epoch that is mostly higher than all others.
func (m *model) someEpoch() uint64 {
	if m.rng.IntN(4) == 0 {
		return 1 + m.rng.Uint64N(m.fleet.max+2)
	}
	return m.fleet.max + 1 + m.rng.Uint64N(3)
}

func (m *model) changeFleet(b *txn.Builder, want *txn.Result) {
	f := &m.fleet
	switch k := m.rng.IntN(4); {
	case k == 0, !f.member() && k == 1:
		c := txn.FleetChange{
			Action: txn.FleetJoin, ID: uuid.UUID{1, 15: byte(m.rng.IntN(3))}, Pair: fmt.Sprint("p", m.rng.IntN(3)),
			Epoch: max(f.max+m.rng.Uint64N(3), 1),
		}
		b.Fleet(c)
		if f.member() || c.Epoch <= f.max {
			want.Code, want.Op = txn.ErrFleetChanged, 0
			return
		}
		*f = modelFleet{id: c.ID, pair: c.Pair, join: c.Epoch, max: c.Epoch}
		m.setEpochs(c.Epoch)
	case k == 1:
		b.Fleet(txn.FleetChange{Action: txn.FleetLeave})
		*f = modelFleet{max: f.max}
		m.setEpochs(0)
	default:
		m.own(b, want)
		return
	}
	want.Ops = []txn.OpResult{{}}
}

func (m *model) setEpochs(epoch uint64) {
	for _, q := range m.queues {
		q.epoch = epoch
	}
}

func (m *model) own(b *txn.Builder, want *txn.Result) {
	name, epoch := fmt.Sprintf("q%d", m.rng.IntN(10)), m.someEpoch()
	b.OwnQueue(name, epoch)
	q := m.named(name)
	switch {
	case q == nil:
		want.Code, want.Op = txn.ErrQueueNotFound, 0
	case !m.fleet.member() || epoch <= q.epoch:
		want.Code, want.Op = txn.ErrFleetChanged, 0
	default:
		q.epoch, m.fleet.max = epoch, max(m.fleet.max, epoch)
		want.Ops = []txn.OpResult{{ID: q.id}}
	}
}

func (m *model) named(name string) *modelQueue {
	for _, q := range m.queues {
		if q.name == name {
			return q
		}
	}
	return nil
}

// ownNew adds the epoch of a new queue to the transaction, mostly if the pair is a member. It returns the epoch, or 0
// for none.
func (m *model) ownNew(b *txn.Builder, name string) (epoch uint64) {
	if odd := m.rng.IntN(8) == 0; m.fleet.member() == odd {
		return 0
	}
	epoch = m.someEpoch()
	b.OwnQueue(name, epoch)
	return epoch
}

// checkNew returns the code of the creation of a queue, without the checks of its configuration.
func (m *model) checkNew(name string, epoch uint64) txn.Code {
	switch {
	case epoch != 0 && (!m.fleet.member() || epoch <= m.fleet.join):
		return txn.ErrFleetChanged
	case m.named(name) != nil:
		return txn.ErrQueueExists
	case epoch == 0 && m.fleet.member():
		return txn.ErrNotOwned
	}
	return txn.OK
}

func (m *model) checkFleet(t *testing.T, s *State) {
	t.Helper()
	f := m.fleet
	require.Equal(t, FleetState{ID: f.id, Pair: f.pair, JoinEpoch: f.join, MaxEpoch: f.max}, s.Fleet())
	for id, q := range m.queues {
		require.Equal(t, q.epoch, s.OwnershipEpoch(s.Queue(id)), "epoch of queue %d", id)
	}
}
