// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"slices"
	"strings"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// modelMove is a move, and its state in the log of the target.
type modelMove struct {
	epoch    uint64
	from, to *modelPair
	fleetID  string
	queue    string
	state    moveState
}

type moveState int

const (
	moveBegun moveState = iota
	moveImporting
	moveTaken
	moveCanceled
	moveUnfenced
	moveEnded
)

// moveStep begins a move to the pair of a node, or executes a random step of a move.
func (m *model) moveStep(n *modelNode, queue string) {
	if m.rand.IntN(4) == 0 || len(m.moves) == 0 {
		m.beginMove(n, queue)
		return
	}
	mv := m.moves[m.rand.IntN(len(m.moves))]
	if mv.to.lost && m.rand.IntN(2) == 0 {
		m.reclaim(mv)
		return
	}
	switch k := m.rand.IntN(8); {
	case k == 0 && mv.state == moveBegun:
		m.importMove(mv)
	case k < 3 && mv.state < moveTaken:
		m.fenceMove(mv)
	case k < 5:
		m.takeMove(mv)
	case k == 5:
		m.cancelMove(mv)
	case k == 6 && mv.state == moveCanceled:
		m.unfenceMove(mv)
	default:
		m.endMove(mv)
	}
	m.moves = slices.DeleteFunc(m.moves, func(mv *modelMove) bool { return mv.state == moveEnded })
}

func (m *model) beginMove(n *modelNode, queue string) {
	fleetID := n.state().FleetID
	begun, err := n.BeginMove(m.t.Context(), []string{queue})
	m.log("move of %s to %s/%d: %+v %v", queue, n.pair.name, n.term, begun, err)
	if err != nil || n.dead {
		return
	}
	mv := &modelMove{epoch: begun.Epoch, to: n.pair, fleetID: fleetID, queue: queue}
	mv.from = m.registered(begun.From)
	m.moves = append(m.moves, mv)
}

// inFleet reports whether a pair is a member of the fleet of the move.
func (mv *modelMove) inFleet(p *modelPair) bool { return p.fleetID == mv.fleetID }

func (m *model) importMove(mv *modelMove) {
	p := mv.to
	_, exists := p.queues[mv.queue]
	if p.lost || exists || p.incoming[mv.queue] != nil || mv.epoch <= p.imported || !mv.inFleet(p) {
		return
	}
	m.log("import %s at %s, epoch %d", mv.queue, p.name, mv.epoch)
	p.incoming[mv.queue], p.imported, p.highest = mv, mv.epoch, max(p.highest, mv.epoch)
	mv.state = moveImporting
}

func (m *model) fenceMove(mv *modelMove) {
	p := mv.from
	epoch, exists := p.queues[mv.queue]
	if p.lost || !exists || epoch >= mv.epoch || p.fenced[mv.queue] != nil || mv.epoch <= p.unfenced || !mv.inFleet(p) {
		return
	}
	m.log("fence %s at %s, epoch %d", mv.queue, p.name, mv.epoch)
	p.fenced[mv.queue], p.highest = mv, max(p.highest, mv.epoch)
}

func (m *model) takeMove(mv *modelMove) {
	if mv.to.lost || mv.state != moveImporting || mv.from.fenced[mv.queue] != mv || !mv.inFleet(mv.to) {
		return
	}
	m.log("take %s at %s, epoch %d", mv.queue, mv.to.name, mv.epoch)
	m.totals["taken"]++
	delete(mv.to.incoming, mv.queue)
	mv.to.queues[mv.queue], mv.to.taken[mv.queue] = mv.epoch, mv
	mv.state = moveTaken
}

func (m *model) cancelMove(mv *modelMove) {
	if mv.to.lost || mv.state > moveImporting {
		return
	}
	m.log("cancel the move of %s to %s, epoch %d", mv.queue, mv.to.name, mv.epoch)
	mv.to.imported = max(mv.to.imported, mv.epoch)
	if mv.state == moveImporting {
		delete(mv.to.incoming, mv.queue)
	}
	mv.state = moveCanceled
}

func (m *model) unfenceMove(mv *modelMove) {
	if mv.to.lost || mv.from.lost && !m.isRemoved(mv.from) {
		return
	}
	mv.from.unfenced = max(mv.from.unfenced, mv.epoch)
	if mv.from.fenced[mv.queue] == mv {
		m.log("unfence %s at %s, epoch %d", mv.queue, mv.from.name, mv.epoch)
		m.totals["unfenced"]++
		delete(mv.from.fenced, mv.queue)
	}
	mv.state = moveUnfenced
}

// endMove changes the directory after a take or cancellation, deletes the copy of the source, and forgets the move.
func (m *model) endMove(mv *modelMove) {
	n := mv.to.active
	if mv.to.lost || n.busy && !m.settled {
		return
	}
	switch mv.state {
	case moveTaken:
		done := Move{Epoch: mv.epoch, From: mv.from.name}
		if mv.to.queues[mv.queue] == mv.epoch {
			done.Queues = []string{mv.queue}
		}
		err := n.FinishMove(m.t.Context(), done)
		if err == nil && mv.from.lost && !m.isRemoved(mv.from) {
			return // the copy of the source is not deleted
		}
		m.log("finish the move of %s to %s, epoch %d: %v", mv.queue, mv.to.name, mv.epoch, err)
		if err == nil && !n.dead {
			m.dropMoved(mv)
			delete(mv.to.taken, mv.queue)
			m.totals["moved"]++
			mv.state = moveEnded
		}
	case moveUnfenced:
		err := n.CancelMove(m.t.Context(), mv.epoch)
		m.log("end the canceled move of %s to %s, epoch %d: %v", mv.queue, mv.to.name, mv.epoch, err)
		if err == nil && !n.dead {
			mv.state = moveEnded
		}
	case moveBegun, moveImporting, moveCanceled, moveEnded:
	}
}

func (m *model) dropMoved(mv *modelMove) {
	if mv.from.fenced[mv.queue] == mv {
		delete(mv.from.fenced, mv.queue)
		delete(mv.from.queues, mv.queue)
	}
}

// hasMoves reports whether the log of a pair contains a move.
func (p *modelPair) hasMoves(m *model) bool {
	return len(p.fenced)+len(p.incoming)+len(p.taken) > 0 || slices.ContainsFunc(m.moves, func(mv *modelMove) bool {
		return mv.to == p && mv.state > moveBegun
	})
}

// settleMoves ends the moves in the logs. The directory is changed by endMoves.
func (m *model) settleMoves() {
	for _, mv := range m.moves {
		if mv.to.lost {
			continue // see forgetAll
		}
		m.cancelMove(mv)
		if mv.state == moveCanceled {
			m.unfenceMove(mv)
		}
		if mv.state == moveTaken {
			m.dropMoved(mv)
		}
	}
}

// endMoves ends all moves in the directory, including moves with an intent that was restored, or that was written by a
// request with an unknown outcome.
func (m *model) endMoves() {
	for _, mv := range m.moves {
		if mv.inFleet(mv.to) {
			m.endMove(mv)
			require.Equal(m.t, moveEnded, mv.state)
		}
		delete(mv.to.taken, mv.queue)
	}
	n := m.pairs[0].active
	resp, err := m.client.Get(m.t.Context(), n.prefix+dirMoves, clientv3.WithPrefix())
	require.NoError(m.t, err)
	for _, kv := range resp.Kvs {
		mv, err := decodeMove(strings.TrimPrefix(string(kv.Key), n.prefix+dirMoves), kv.Value)
		require.NoError(m.t, err)
		for _, p := range m.pairs {
			if p.name == mv.To {
				require.NoError(m.t, p.active.CancelMove(m.t.Context(), mv.Epoch))
			}
		}
	}
}
