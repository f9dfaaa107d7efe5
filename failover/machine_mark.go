// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"fmt"

	"github.com/lockstep-mq/lockstep/store/mutate"
)

// This file compares what this node holds with the high-water mark of the pair (INV-12).

// compareMark is INV-12: a store that is named in sync and ends before the pair's high-water mark was put back to an
// older image. To be called while the log is as it was at the start: before this run takes part, and before it takes
// the role without having been active or connected.
func (m *machine) compareMark() {
	r := &m.run
	if r.putBack != "" || mutate.Off("INV-12-mark-is-not-compared") {
		return
	}
	me, listed := m.rec.Member(m.self.ID)
	if !listed || !me.Is(m.ident.Member().InRun(me.Run)) {
		return
	}
	mark := m.highWater()
	if mark.Reached(m.ident.End) {
		return
	}
	lacks := fmt.Sprintf("its log ends with LSN %d of term %d, but the pair knows that it once held %s",
		m.ident.End.LSN, m.ident.End.Term, mark)
	if m.ident.MayHaveLost {
		r.lacks = lacks // a machine that went down with sync off does that, too: it need not have been put back
		return
	}
	m.foundPutBack(lacks + ": it is an older image of itself")
}

// freshMark tells whether the mark that the log was held against is still the newest, as far as that can be known. A
// node that takes the role with the log that it had at its start reads the mark once more: the active that is gone may
// have written one since.
func (m *machine) freshMark() bool {
	r := &m.run
	if r.grown {
		return true
	}
	if r.markedNow {
		m.compareMark()
		return r.putBack == ""
	}
	m.needLoad = true
	return false
}

// compareOwnMark is INV-12 for an active that has not started: only this run writes marks in its term, so one above all
// that it has written shows that it does not know what it has done. Its machine was woken with an older snapshot of its
// memory, or runs twice. What it has acknowledged since then is not what the pair had acknowledged.
func (m *machine) compareOwnMark(mark Mark) {
	r := &m.run
	if !m.leads() || mark.Pair != m.rec.PairID || mark.By != m.act.term || !r.mark.Less(mark) || r.superseded != "" ||
		mutate.Off("INV-12-own-mark-is-not-compared") {
		return
	}
	m.foundPutBack(fmt.Sprintf("the pair's mark is %s, which this run has written, and does not remember", mark))
	r.superseded = "superseded: this machine was woken with an older snapshot of its memory, or runs twice: " +
		r.putBack + ". What it has acknowledged since then may not be part of the pair. Start this process again; if " +
		"no other node is in sync, it will wait for an operator (docs/explanation/failover.md)"
	m.warn("%s", r.superseded)
}

// marked takes note of the pair's mark, as the coordinator has it.
func (m *machine) marked(mark Mark) {
	m.compareOwnMark(mark)
	m.run.markKnown, m.run.markedNow = true, true
	if m.run.mark.Less(mark) {
		m.run.mark = mark
	}
}

// highWater is the highest mark that holds for the pair as the record has it. What was committed before a forced
// failover may be void.
func (s *State) highWater() Mark {
	best := Mark{Pair: s.rec.PairID}
	for _, mark := range []Mark{s.rec.Mark, s.run.mark} {
		if mark.Pair == s.rec.PairID && best.Less(mark) && (s.rec.Forced == nil || mark.By >= s.rec.Forced.Term) {
			best = mark
		}
	}
	return best
}

// committed takes note of how far the active has committed, and raises the pair's mark.
func (m *machine) committed(e Committed) {
	if m.mode != modeAct || !m.leads() || e.Term != m.act.term {
		return
	}
	mark := Mark{Pair: m.rec.PairID, By: e.Term, Term: e.Term, LSN: e.LSN}
	if m.highWater().Less(mark) {
		m.run.mark = mark
		m.do(WriteMark{Mark: mark})
	}
}
