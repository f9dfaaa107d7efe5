// SPDX-License-Identifier: Apache-2.0

package mover

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/fleet"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/store/queue"
)

// observed is the state of a fleet for an observer, as seen by pair b.
type observed struct {
	m       *Manager
	logged  []queue.Move
	intents []fleet.Move
	owners  map[string]fleet.Owner
	down    map[string]bool
	now     time.Time
}

func newObserved() *observed {
	return &observed{
		m: &Manager{
			o: Options{Pair: "b"}, primary: &replication.Primary{}, progress: map[uint64]*Progress{}, open: map[uint64]bool{},
		},
		owners: map[string]fleet.Owner{}, down: map[string]bool{}, now: time.Unix(1_000_000, 0),
	}
}

// after returns the statistics after a time.
func (s *observed) after(d time.Duration) Stats {
	s.now = s.now.Add(d)
	o := observer{m: s.m, now: s.now, logged: s.logged, intents: s.intents}
	o.owner = func(queue string) (fleet.Owner, bool, error) { owner, ok := s.owners[queue]; return owner, ok, nil }
	o.down = func(pair string) bool { return s.down[pair] }
	return o.stats()
}

func fencedMove() queue.Move {
	return queue.Move{
		Epoch: 9, State: queue.MoveFenced, Pair: "c", Queues: []queue.MovedQueue{{ID: 1, Name: "x"}, {ID: 2, Name: "y"}},
	}
}

// The source reports fenced queues after the limit of the target, until the directory contains their new owner. Then it
// reports a move that does not end.
func TestSourceReportsFence(t *testing.T) {
	s := newObserved()
	s.logged = []queue.Move{fencedMove()}
	require.Empty(t, s.after(0).Fenced)
	require.Equal(t, 2, s.after(FencedAfter-1).FencedQueues)
	require.Empty(t, s.after(0).Fenced)
	require.Len(t, s.after(1).Fenced, 1)

	s.owners["y"] = fleet.Owner{Pair: "c", Epoch: 9}
	st := s.after(time.Second)
	require.Empty(t, st.Fenced, "the target serves the queues")
	require.Empty(t, st.Stuck)
	require.Len(t, s.after(StuckAfter).Stuck, 1)
	s.logged = nil
	require.Equal(t, Stats{Phases: map[Phase]int{}}, s.after(time.Second))

	s.logged = []queue.Move{fencedMove()}
	s.owners["y"] = fleet.Owner{Pair: "b", Epoch: 3}
	require.Empty(t, s.after(time.Second).Fenced, "the time begins with each fence")
	require.Len(t, s.after(FencedAfter).Fenced, 1)
	s.m.primary = nil
	require.Empty(t, s.after(time.Second).Fenced, "the node is not the active")
}

// A source reports a move that does not begin because the target is down.
func TestSourceReportsTarget(t *testing.T) {
	s := newObserved()
	s.intents = []fleet.Move{{Epoch: 9, From: "b", To: "c", Queues: []string{"x"}}}
	s.after(0)
	require.Empty(t, s.after(StuckAfter).Stuck)
	s.down["c"] = true
	s.after(0)
	require.Len(t, s.after(StuckAfter).Stuck, 1)
}

// The target reports queues that may be fenced at a source that does not respond, and moves without progress.
func TestTargetReportsMoves(t *testing.T) {
	s := newObserved()
	s.intents = []fleet.Move{{Epoch: 9, From: "a", To: "b", Queues: []string{"x"}}}
	require.Equal(t, map[Phase]int{PhaseWaiting: 1}, s.after(0).Phases)
	s.logged = []queue.Move{{Epoch: 9, State: queue.MoveImporting, Pair: "a", Queues: []queue.MovedQueue{{Name: "x"}}}}
	s.m.open[9] = true
	p := &Progress{Move: s.intents[0], Phase: PhaseCopying, CopiedBytes: 10}
	s.m.progress[9] = p
	require.Equal(t, map[Phase]int{PhaseCopying: 1}, s.after(0).Phases)
	require.Empty(t, s.after(StuckAfter).Stuck, "without an error, the copy continues")
	p.Err = errors.New("no response")
	s.after(0)
	p.CopiedBytes++
	s.after(StuckAfter)
	require.Empty(t, s.after(StuckAfter-1).Stuck, "progress starts the time again")
	st := s.after(1)
	require.Len(t, st.Stuck, 1)
	require.Empty(t, st.Fenced, "the source serves the queues")

	delete(s.m.open, 9)
	s.after(0)
	require.Len(t, s.after(FencedAfter).Fenced, 1)
	s.logged[0] = queue.Move{Epoch: 9, State: queue.MoveCanceled, Pair: "a"}
	st = s.after(0)
	require.Equal(t, map[Phase]int{PhaseCanceled: 1}, st.Phases)
	require.Len(t, st.Fenced, 1)
	s.logged[0] = queue.Move{Epoch: 9, State: queue.MoveTaken, Pair: "a"}
	require.Empty(t, s.after(0).Fenced, "this pair serves the queues")
	require.Len(t, s.after(StuckAfter).Stuck, 1)

	p.Phase, s.logged, s.intents = PhaseDone, nil, nil
	require.Equal(t, Stats{Phases: map[Phase]int{}}, s.after(0))
}

// The counters include all attempts of a move, and each end once.
func TestMoveTotals(t *testing.T) {
	s := newObserved()
	move := fleet.Move{Epoch: 9, From: "a", Queues: []string{"x"}}
	s.m.update(move, func(p *Progress) { p.Phase, p.CopiedBytes = PhaseCopying, 10 })
	s.m.update(move, func(p *Progress) { p.CopiedBytes += 5 })
	for range 2 {
		s.m.update(move, func(p *Progress) { p.Phase = PhaseDone })
	}
	s.m.update(fleet.Move{Epoch: 10}, func(p *Progress) { p.Phase = PhaseNotMoved })
	st := s.after(0)
	require.Equal(t, []uint64{1, 1, 15}, []uint64{st.Done, st.NotMoved, st.CopiedBytes})
}
