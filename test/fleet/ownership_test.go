// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// move is a move according to the logs.
type move struct {
	epoch      uint64
	from, to   string
	queues     []string
	taken      bool
	fence, end record // at the source; end is the removal of the fence, or the deletion
	take       record // at the target
}

// tenure is a range of the log of a pair in which it owns a queue, and serves it, except in the ranges of paused.
type tenure struct {
	pair     string
	from, to uint64 // LSNs of the take and the fence
	paused   [][2]uint64
}

var errOwnership = errors.New("ownership is violated")

// find returns the records of an epoch with a code.
func find(all []record, epoch uint64, code txn.OpCode) (found []record) {
	for _, r := range all {
		if r.epoch == epoch && r.code == code {
			found = append(found, r)
		}
	}
	return found
}

// checkMoves returns the moves in the logs of all pairs, in the order of their epochs. It verifies that each move has
// one outcome, and that its steps are in the required order:
//
//   - taken: fence at the source, take at the target, deletion at the source
//   - not taken: cancellation at the target, removal of the fence at the source; no take before the cancellation
//
// The processes have the same clock, and each step is created after the commit of the previous one.
func checkMoves(all map[string][]record) (moves []move, _ error) {
	seen := map[uint64]bool{}
	for _, to := range slices.Sorted(maps.Keys(all)) {
		for _, begin := range all[to] {
			if begin.code != txn.OpImportBegin || seen[begin.epoch] {
				continue
			}
			seen[begin.epoch] = true
			m := move{epoch: begin.epoch, from: begin.other, to: to, queues: begin.queues}
			if err := m.check(all[m.from], all[to]); err != nil {
				return nil, fmt.Errorf("%w: move %d from %s to %s: %w", errOwnership, m.epoch, m.from, to, err)
			}
			moves = append(moves, m)
		}
	}
	slices.SortFunc(moves, func(a, b move) int { return cmp.Compare(a.epoch, b.epoch) })
	return moves, nil
}

func (m *move) check(source, target []record) error {
	fences, takes := find(source, m.epoch, txn.OpFence), find(target, m.epoch, txn.OpTakeMoved)
	drops, unfences := find(source, m.epoch, txn.OpDropMoved), find(source, m.epoch, txn.OpUnfence)
	cancels := find(target, m.epoch, txn.OpCancelImport)
	switch m.taken = len(drops) > 0; {
	case m.taken && len(unfences) > 0:
		return errors.New("the source has deleted its copy, and removed the fence")
	case m.taken && (len(takes) == 0 || len(fences) == 0):
		return errors.New("the source has deleted its copy without a fence and a take")
	case m.taken:
		m.fence, m.take, m.end = fences[0], takes[0], drops[0]
		return m.checkTaken(cancels)
	case len(cancels) == 0 || len(unfences) == 0:
		return errors.New("neither taken nor canceled")
	case cancels[0].timeMS > unfences[0].timeMS:
		return errors.New("the fence was removed before the cancellation")
	case len(takes) > 0 && takes[0].lsn < cancels[0].lsn:
		return errors.New("canceled after the take")
	}
	m.end = unfences[0]
	if len(fences) > 0 && fences[0].lsn < m.end.lsn {
		m.fence = fences[0]
	}
	return nil
}

func (m *move) checkTaken(cancels []record) error {
	switch {
	case m.end.lsn < m.fence.lsn:
		return errors.New("the source has deleted its copy before the fence")
	case m.take.timeMS < m.fence.timeMS:
		return errors.New("taken before the fence")
	case m.end.timeMS < m.take.timeMS:
		return errors.New("the source has deleted its copy before the take")
	case len(cancels) > 0 && cancels[0].lsn < m.take.lsn:
		return errors.New("taken after the cancellation")
	}
	return nil
}

// checkTenures returns the owners of a queue in their order. Consecutive ranges do not overlap, because the fence that
// ends a range precedes the take that begins the next one.
func checkTenures(queue string, moves []move) (list []tenure, _ error) {
	for _, m := range moves {
		if !slices.Contains(m.queues, queue) {
			continue
		}
		if len(list) == 0 {
			list = append(list, tenure{pair: m.from, to: math.MaxUint64})
		}
		last := &list[len(list)-1]
		fenced := m.fence.lsn != 0
		switch {
		case last.pair != m.from:
			return nil, fmt.Errorf("%w: move %d of %s is from %s, the owner is %s", errOwnership, m.epoch, queue, m.from,
				last.pair)
		case fenced && m.fence.lsn <= last.from:
			return nil, fmt.Errorf("%w: move %d of %s: fenced before the take", errOwnership, m.epoch, queue)
		case m.taken:
			last.to = m.fence.lsn
			list = append(list, tenure{pair: m.to, from: m.take.lsn, to: math.MaxUint64})
		case fenced:
			last.paused = append(last.paused, [2]uint64{m.fence.lsn, m.end.lsn})
		}
	}
	return list, nil
}

// serves reports whether a pair that committed a message owned the queue.
func (o *tenure) serves(r receipt) bool {
	return o.pair == r.pair && o.from < r.lsn && r.lsn < o.to &&
		!slices.ContainsFunc(o.paused, func(p [2]uint64) bool { return p[0] < r.lsn && r.lsn < p[1] })
}

// checkReceipts verifies that each message of a queue was committed while its pair owned the queue, and that the
// sequences increase from each owner to the next one. counts is the number of messages by owner.
func checkReceipts(queue string, owners []tenure, all []receipt) (counts []int, _ error) {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b receipt) int { return cmp.Compare(a.sequence, b.sequence) })
	counts = make([]int, len(owners))
	at := 0
	for i, r := range all {
		if i > 0 && r.sequence == all[i-1].sequence {
			return nil, fmt.Errorf("%w: sequence %d of %s was confirmed twice", errOwnership, r.sequence, queue)
		}
		for at < len(owners) && !owners[at].serves(r) {
			at++
		}
		if at == len(owners) {
			return nil, fmt.Errorf("%w: message %+v of %s; owners %+v", errOwnership, r, queue, owners)
		}
		counts[at]++
	}
	return counts, nil
}

// The checks detect each violation.
func TestOwnershipChecks(t *testing.T) {
	const q = "q"
	begin := func(lsn, epoch uint64, from string) record {
		return record{lsn: lsn, timeMS: int64(lsn), code: txn.OpImportBegin, epoch: epoch, other: from, queues: []string{q}}
	}
	of := func(lsn, epoch uint64, code txn.OpCode) record {
		return record{lsn: lsn, timeMS: int64(lsn), code: code, epoch: epoch}
	}
	// Moves from a to b (5), from b to c (6, canceled), and from b to a (7).
	valid := func() map[string][]record {
		return map[string][]record{
			"a": {
				of(20, 5, txn.OpFence), of(40, 5, txn.OpDropMoved),
				begin(70, 7, "b"), of(90, 7, txn.OpTakeMoved), of(110, 7, txn.OpForgetMove),
			},
			"b": {
				begin(10, 5, "a"), of(30, 5, txn.OpTakeMoved), of(45, 5, txn.OpForgetMove),
				of(55, 6, txn.OpFence), of(65, 6, txn.OpUnfence), of(80, 7, txn.OpFence), of(100, 7, txn.OpDropMoved),
			},
			"c": {begin(50, 6, "b"), of(60, 6, txn.OpCancelImport), of(68, 6, txn.OpForgetMove)},
		}
	}
	receipts := func() []receipt {
		return []receipt{{0, 1, 5, "a"}, {1, 2, 19, "a"}, {2, 3, 31, "b"}, {3, 4, 66, "b"}, {4, 5, 91, "a"}}
	}
	check := func(logs map[string][]record, all []receipt) ([]int, error) {
		moves, err := checkMoves(logs)
		if err != nil {
			return nil, err
		}
		owners, err := checkTenures(q, moves)
		if err != nil {
			return nil, err
		}
		return checkReceipts(q, owners, all)
	}
	counts, err := check(valid(), receipts())
	require.NoError(t, err)
	require.Equal(t, []int{2, 2, 1}, counts)

	for name, breaks := range map[string]func(map[string][]record){
		"deleted and unfenced":     func(l map[string][]record) { l["a"] = append(l["a"], of(120, 5, txn.OpUnfence)) },
		"deleted without a take":   func(l map[string][]record) { l["b"][1].code = txn.OpForgetMove },
		"deleted without a fence":  func(l map[string][]record) { l["a"][0].epoch = 4 },
		"deleted before the fence": func(l map[string][]record) { l["a"][1].lsn = 19 },
		"taken before the fence":   func(l map[string][]record) { l["b"][1].timeMS = 19 },
		"deleted before the take":  func(l map[string][]record) { l["a"][1].timeMS = 29 },
		"taken after cancellation": func(l map[string][]record) { l["b"] = append(l["b"], of(29, 5, txn.OpCancelImport)) },
		"no outcome":               func(l map[string][]record) { l["c"][1].epoch = 4 },
		"fence was not removed":    func(l map[string][]record) { l["b"][4].epoch = 4 },
		"unfenced before cancel":   func(l map[string][]record) { l["c"][1].timeMS = 66 },
		"canceled after the take":  func(l map[string][]record) { l["c"] = append(l["c"], of(59, 6, txn.OpTakeMoved)) },
		"source is not the owner": func(l map[string][]record) {
			l["c"][0].other, l["a"] = "a", append(l["a"], l["b"][4])
		},
		"fenced before the own take": func(l map[string][]record) { l["b"][3].lsn = 29 },
		"taken from a pair without ownership": func(l map[string][]record) {
			l["a"][2].other, l["c"] = "c", append(l["c"], l["b"][5:]...)
		},
	} {
		logs := valid()
		breaks(logs)
		_, err := check(logs, receipts())
		require.ErrorIs(t, err, errOwnership, name)
	}
	for name, r := range map[string]receipt{
		"after the fence":         {sequence: 6, lsn: 21, pair: "a"},
		"before the take":         {sequence: 3, lsn: 29, pair: "b"},
		"during a canceled move":  {sequence: 5, lsn: 60, pair: "b"},
		"pair without ownership":  {sequence: 6, lsn: 70, pair: "c"},
		"sequence of a successor": {sequence: 6, lsn: 32, pair: "b"},
		"duplicate sequence":      {sequence: 5, lsn: 92, pair: "a"},
	} {
		_, err := check(valid(), append(receipts(), r))
		require.ErrorIs(t, err, errOwnership, name)
	}
}
