// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"errors"
	"slices"

	"github.com/stretchr/testify/require"
)

// lose loses a pair permanently, with its log. Another pair with its name is started.
func (m *model) lose() {
	if len(m.lost) > 0 {
		return
	}
	i := m.rand.IntN(len(m.pairs))
	p := m.pairs[i]
	if p.fleetID == "" || p.active.changing {
		return
	}
	m.log("%s is lost, with %v", p.id, p.queues)
	m.totals["lost pair"]++
	p.lost = true
	for _, n := range slices.Clone(m.nodes) {
		if n.pair == p {
			m.crash(n)
		}
	}
	_, err := m.client.Delete(m.t.Context(), p.active.key(dirLoad, p.name))
	require.NoError(m.t, err)
	m.lost = append(m.lost, p)
	m.pairs[i] = newModelPair(p.name, p.id+"+")
	m.activate(m.pairs[i])
}

// isReplaced reports whether a lost pair with the name is not removed yet.
func (m *model) isReplaced(name string) bool {
	return slices.ContainsFunc(m.lost, func(p *modelPair) bool { return p.name == name })
}

// registered returns the pair that is registered with a name.
func (m *model) registered(name string) *modelPair {
	for _, p := range slices.Concat(m.lost, m.pairs) {
		if p.name == name {
			return p
		}
	}
	require.FailNow(m.t, "unknown pair", name)
	return nil
}

// isRemoved reports whether the removal of a pair has begun.
func (m *model) isRemoved(p *modelPair) bool {
	resp, err := m.client.Get(m.t.Context(), p.active.key(dirForgotten, p.id))
	require.NoError(m.t, err)
	return len(resp.Kvs) > 0
}

// forget removes a lost pair.
func (m *model) forget(n *modelNode) {
	if len(m.lost) == 0 || n.pair.name == m.lost[0].name {
		return
	}
	p := m.lost[0]
	forgotten, err := n.Forget(m.t.Context(), p.name)
	m.log("removal of %s by %s/%d: %+v %v", p.id, n.pair.name, n.term, forgotten, err)
	done := err == nil && len(forgotten.Waiting) == 0 || errors.Is(err, ErrNotMember) && m.isRemoved(p)
	if done && !n.dead && m.isReplaced(p.name) {
		m.totals["removed pair"]++
		m.lost = nil
	}
}

// reclaim ends a move to a lost pair at the source: it assigns the queue to the source, and removes the fence in a
// later step.
func (m *model) reclaim(mv *modelMove) {
	n := mv.from.active
	if mv.from.lost || mv.from.fenced[mv.queue] != mv || n.busy && !m.settled {
		return
	}
	epoch, err := n.Reclaim(m.t.Context(), Move{
		Epoch: mv.epoch, From: mv.from.name, To: mv.to.name, Queues: []string{mv.queue},
	})
	m.log("reclaim %s by %s/%d, epoch %d: %d %v", mv.queue, mv.from.name, n.term, mv.epoch, epoch, err)
	var conflict *ConflictError
	taken := errors.As(err, &conflict)
	if n.dead || err != nil && (!taken || !m.settled) { // the source keeps its copy until the operator decides
		return
	}
	m.later(n, func() {
		if !n.isActive() || mv.from.fenced[mv.queue] != mv { // the log rejects the record
			return
		}
		delete(mv.from.fenced, mv.queue)
		mv.state = moveEnded
		if taken {
			m.totals["dropped"]++
			delete(mv.from.queues, mv.queue)
			return
		}
		m.totals["reclaimed"]++
		mv.from.unfenced = max(mv.from.unfenced, mv.epoch)
		mv.from.queues[mv.queue] = epoch
		mv.from.highest = max(mv.from.highest, epoch)
	})
}

// forgetAll removes the lost pair, and ends the moves from it and to it.
func (m *model) forgetAll() {
	for range 4 {
		for _, p := range m.pairs {
			if len(m.lost) == 0 || p.name == m.lost[0].name {
				continue
			}
			if p.fleetID == "" {
				m.join(p.active)
			}
			m.forget(p.active)
		}
		for _, mv := range m.moves {
			switch {
			case mv.to.lost:
				m.reclaim(mv)
			case mv.from.lost:
				m.cancelMove(mv)
				if mv.state == moveCanceled {
					m.unfenceMove(mv)
				}
				m.endMove(mv)
			}
		}
	}
	require.Empty(m.t, m.lost)
	m.moves = slices.DeleteFunc(m.moves, func(mv *modelMove) bool {
		require.False(m.t, mv.to.lost && !mv.from.lost && mv.from.fenced[mv.queue] == mv)
		return mv.state == moveEnded || mv.to.lost
	})
	m.check()
}
