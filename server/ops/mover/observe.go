// SPDX-License-Identifier: Apache-2.0

package mover

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/lockstep-mq/lockstep/fleet"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/queue"
)

const (
	// FencedAfter is the time after which fenced queues are reported.
	FencedAfter = fenceLimit + 2*time.Second
	// StuckAfter is the time without progress after which a move is reported.
	StuckAfter = 5 * time.Minute
)

// Stats describes the moves of a pair.
type Stats struct {
	// Phases is the number of moves to this pair that have not ended, by phase. FencedQueues is the number of queues that
	// are fenced at this pair. Both are zero on a node that is not the active.
	Phases       map[Phase]int
	FencedQueues int
	// Done and NotMoved count the moves to this pair that have ended, with and without a take of the queues. CopiedBytes
	// is the size of all messages that were copied to this pair. All three count since the start of the process.
	Done, NotMoved, CopiedBytes uint64
	// Fenced describes the moves that have made, or may have made, queues unavailable for at least FencedAfter. Stuck
	// describes the moves without progress for at least StuckAfter. Both are texts for an operator.
	Fenced, Stuck []string
}

// totals are the counters of Stats.
type totals struct{ done, notMoved, copied uint64 }

// count adds the difference between two states of a move.
func (t *totals) count(before, after *Progress) {
	t.copied += after.CopiedBytes - before.CopiedBytes
	if before.Phase == after.Phase {
		return
	}
	switch after.Phase { //nolint:exhaustive // the other phases are not counted
	case PhaseDone:
		t.done++
	case PhaseNotMoved:
		t.notMoved++
	}
}

// watched identifies the progress of a move. Each change of the progress restarts the time.
type watched struct {
	epoch  uint64
	fenced bool
	phase  Phase
	copied uint64
}

// Stats returns the current statistics. It records when it has first seen the progress of each move: the caller must
// call it at intervals that are short compared with FencedAfter.
func (m *Manager) Stats() Stats {
	if m == nil {
		return Stats{}
	}
	o := observer{m: m, now: time.Now(), logged: query.Moves(m.o.Store)}
	o.owner = func(string) (fleet.Owner, bool, error) { return fleet.Owner{}, false, fleet.ErrUnavailable }
	o.down = func(string) bool { return false }
	if d := m.o.Member.Directory(); d != nil {
		o.intents, o.owner = d.Moves(), d.Owner
		o.down = func(pair string) bool { return d.Status().Current && !d.PairLive(pair) }
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return o.stats()
}

// observer derives Stats from the moves in the log, in the directory, and of this node, under the lock of the Manager.
type observer struct {
	m       *Manager
	now     time.Time
	logged  []queue.Move
	intents []fleet.Move
	// owner returns the owner of a queue in the copy of the directory. down reports whether a pair is not live.
	owner func(queue string) (fleet.Owner, bool, error)
	down  func(pair string) bool

	out  Stats
	seen map[watched]time.Time
}

func (o *observer) stats() Stats {
	m := o.m
	o.out = Stats{Done: m.totals.done, NotMoved: m.totals.notMoved, CopiedBytes: m.totals.copied}
	if m.primary == nil {
		m.seen = nil
		return o.out
	}
	o.out.Phases, o.seen = map[Phase]int{}, map[watched]time.Time{}
	o.observe()
	m.seen = o.seen
	return o.out
}

func (o *observer) observe() {
	progress := map[uint64]Progress{}
	for epoch, p := range o.m.progress {
		if p.Phase != PhaseDone && p.Phase != PhaseNotMoved {
			progress[epoch] = *p
		}
	}
	fenced := map[uint64]bool{}
	for i := range o.logged {
		move := &o.logged[i]
		if move.State == queue.MoveFenced {
			fenced[move.Epoch] = true
			o.out.FencedQueues += len(move.Queues)
			o.source(move)
			continue
		}
		p := progress[move.Epoch]
		p.Epoch, p.From = move.Epoch, move.Pair
		p.Phase = phaseOf(move.State, p.Phase)
		progress[move.Epoch] = p
	}
	for _, intent := range o.intents {
		switch p, known := progress[intent.Epoch]; {
		case intent.To == o.m.o.Pair && !known && o.m.progress[intent.Epoch] == nil:
			p.Move, p.Phase = intent, PhaseWaiting
			progress[intent.Epoch] = p
		case intent.From == o.m.o.Pair && !fenced[intent.Epoch]:
			o.waitingSource(intent)
		}
	}
	epochs := make([]uint64, 0, len(progress))
	for epoch := range progress {
		epochs = append(epochs, epoch)
	}
	slices.Sort(epochs)
	for _, epoch := range epochs {
		p := progress[epoch]
		o.out.Phases[p.Phase]++
		o.target(&p)
	}
}

// phaseOf returns the phase of a move at the target. The log is newer than the phase that this node has recorded.
func phaseOf(state queue.MoveState, recorded Phase) Phase {
	switch state {
	case queue.MoveTaken:
		return PhaseTaken
	case queue.MoveCanceled:
		return PhaseCanceled
	case queue.MoveImporting, queue.MoveFenced:
	}
	return max(recorded, PhaseWaiting)
}

// lasts records the progress of a move, and reports whether it has not changed for at least limit.
func (o *observer) lasts(w watched, limit time.Duration) bool {
	since, known := o.m.seen[w]
	if !known {
		since = o.now
	}
	o.seen[w] = since
	return o.now.Sub(since) >= limit
}

// source observes a move with queues that are fenced at this pair.
func (o *observer) source(move *queue.Move) {
	if err := o.m.lost[move.Epoch]; err != nil {
		if o.lasts(watched{epoch: move.Epoch, fenced: true}, FencedAfter) {
			o.out.Fenced = append(o.out.Fenced, fmt.Sprintf("move %d: %s fenced; pair %s was removed from the fleet%s",
				move.Epoch, queuesAre(len(move.Queues)), move.Pair, because(err)))
		}
		return
	}
	if o.taken(move) {
		if o.lasts(watched{epoch: move.Epoch, phase: PhaseTaken}, StuckAfter) {
			o.out.Stuck = append(o.out.Stuck, fmt.Sprintf("move %d: pair %s has taken the queues, but has not requested "+
				"that this pair deletes its copy", move.Epoch, move.Pair))
		}
		return
	}
	if o.lasts(watched{epoch: move.Epoch, fenced: true}, FencedAfter) {
		o.out.Fenced = append(o.out.Fenced, fmt.Sprintf("move %d: %s fenced, until pair %s has taken them or canceled "+
			"the move%s", move.Epoch, queuesAre(len(move.Queues)), move.Pair, o.notLive(move.Pair)))
	}
}

// taken reports whether the copy of the directory contains the target as the owner of one of the queues of a move.
func (o *observer) taken(move *queue.Move) bool {
	return slices.ContainsFunc(move.Queues, func(q queue.MovedQueue) bool {
		owner, found, err := o.owner(q.Name)
		return err == nil && found && owner.Pair == move.Pair && owner.Epoch >= move.Epoch
	})
}

// waitingSource observes a move of queues of this pair that are not fenced yet.
func (o *observer) waitingSource(intent fleet.Move) {
	reason := o.notLive(intent.To)
	if reason != "" && o.lasts(watched{epoch: intent.Epoch, phase: PhaseWaiting}, StuckAfter) {
		o.out.Stuck = append(o.out.Stuck, fmt.Sprintf("move %d to pair %s does not continue%s", intent.Epoch, intent.To,
			reason))
	}
}

// notLive returns a text for the details of a move, which states that a pair is not live. It returns "" if the pair is
// live, or if this is not known.
func (o *observer) notLive(pair string) string {
	if !o.down(pair) {
		return ""
	}
	return fmt.Sprintf("; pair %s is not live", pair)
}

// target observes a move to this pair.
func (o *observer) target(p *Progress) {
	begun := slices.ContainsFunc(o.logged, func(l queue.Move) bool {
		return l.Epoch == p.Epoch && l.State != queue.MoveTaken && l.Pair != ""
	})
	stalled := p.Err != nil || p.Phase == PhaseFenced
	if begun && stalled && !o.m.open[p.Epoch] && o.lasts(watched{epoch: p.Epoch, fenced: true}, FencedAfter) {
		o.out.Fenced = append(o.out.Fenced, fmt.Sprintf("move %d: the queues may be fenced at pair %s%s", p.Epoch, p.From,
			because(p.Err)))
	}
	if p.Err == nil {
		return
	}
	if o.lasts(watched{epoch: p.Epoch, phase: p.Phase, copied: p.CopiedBytes}, StuckAfter) {
		o.out.Stuck = append(o.out.Stuck, fmt.Sprintf("move %d from pair %s is %s%s", p.Epoch,
			cmp.Or(p.From, "unknown"), p.Phase, because(p.Err)))
	}
}

func because(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

func queuesAre(n int) string {
	if n == 1 {
		return "1 queue is"
	}
	return fmt.Sprintf("%d queues are", n)
}

// String returns the name of the phase, as in `lockstep fleet moves`.
func (p Phase) String() string {
	switch p {
	case PhaseWaiting:
		return "waiting"
	case PhaseCopying:
		return "copying"
	case PhaseFenced:
		return "fenced"
	case PhaseTaken:
		return "taken"
	case PhaseCanceled:
		return "canceled"
	case PhaseDone:
		return "done"
	case PhaseNotMoved:
		return "not-moved"
	case PhaseUnknown:
	}
	return "unknown"
}
