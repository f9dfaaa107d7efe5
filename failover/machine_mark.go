// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"fmt"

	"github.com/lockstep-mq/lockstep/store/mutate"
)

// compareMark implements INV-12. It must be called while the log is unchanged since the start: before this process
// participates, and before it becomes active for the first time without a previous connection.
func (m *machine) compareMark() {
	r := &m.proc
	if r.rolledBack != "" || mutate.Off("INV-12-mark-is-not-compared") {
		return
	}
	me, listed := m.rec.Member(m.self.ID)
	if !listed || !me.Is(m.ident.Member().WithGeneration(me.Generation)) {
		return
	}
	mark := m.highWater()
	if mark.Reached(m.ident.End) {
		return
	}
	missing := fmt.Sprintf("its log ends at LSN %d of term %d, before the pair's high-water mark (%s)", m.ident.End.LSN,
		m.ident.End.Term, mark)
	if m.ident.MayHaveLost {
		r.missing = missing // a crash without sync has the same effect, so this need not be an older copy
		return
	}
	m.reportRollback(missing + ": its data directory was restored from an older copy")
}

// freshMark reports whether the pair's mark permits this node to become active. If the log is unchanged since the
// start, freshMark requests another read of the mark and compares the log with it.
func (m *machine) freshMark() bool {
	r := &m.proc
	if r.logGrown {
		return true
	}
	if r.markRead {
		m.compareMark()
		return r.rolledBack == ""
	}
	m.needLoad = true
	return false
}

// compareOwnMark implements INV-12 for a running active. Only this process writes marks in its term.
func (m *machine) compareOwnMark(mark Mark) {
	r := &m.proc
	if !m.leads() || mark.Pair != m.rec.PairID || mark.By != m.act.term || !r.mark.Less(mark) || r.superseded != "" ||
		mutate.Off("INV-12-own-mark-is-not-compared") {
		return
	}
	m.reportRollback(fmt.Sprintf("the pair's high-water mark (%s) was written in this process's term, but not by this "+
		"process", mark))
	r.superseded = "superseded: this machine was resumed from an older memory snapshot, or runs twice: " +
		r.rolledBack + ". Records acknowledged since then may be missing on the other node. Restart this process; if no " +
		"other node is in sync, it waits for an operator (docs/explanation/failover.md)"
	m.warn("%s", r.superseded)
}

func (m *machine) marked(mark Mark) {
	m.compareOwnMark(mark)
	m.proc.markKnown, m.proc.markRead = true, true
	if m.proc.mark.Less(mark) {
		m.proc.mark = mark
	}
}

// highWater returns the highest mark that is valid for the current record. A mark written before a forced failover is
// invalid.
func (s *State) highWater() Mark {
	best := Mark{Pair: s.rec.PairID}
	for _, mark := range []Mark{s.rec.Mark, s.proc.mark} {
		if mark.Pair == s.rec.PairID && best.Less(mark) && (s.rec.Forced == nil || mark.By >= s.rec.Forced.Term) {
			best = mark
		}
	}
	return best
}

func (m *machine) committed(e Committed) {
	if m.mode != modeAct || !m.leads() || e.Term != m.act.term {
		return
	}
	mark := Mark{Pair: m.rec.PairID, By: e.Term, Term: e.Term, LSN: e.LSN}
	if m.highWater().Less(mark) {
		m.proc.mark = mark
		m.do(WriteMark{Mark: mark})
	}
}
