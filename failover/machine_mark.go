// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"fmt"

	"github.com/lockstep-mq/lockstep/store/mutate"
)

// compareMark implements INV-12. It must be called while the log is as it was at the start: before this process takes
// part, or before it takes the role without having been active or connected.
func (m *machine) compareMark() {
	r := &m.run
	if r.rolledBack != "" || mutate.Off("INV-12-mark-is-not-compared") {
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
	lacks := fmt.Sprintf("its log ends with LSN %d of term %d, but the pair's high-water mark shows that it once held %s",
		m.ident.End.LSN, m.ident.End.Term, mark)
	if m.ident.MayHaveLost {
		r.lacks = lacks // a crash with sync off has the same effect, so it need not be an older copy
		return
	}
	m.reportRollback(lacks + ": its data directory was restored from an older copy")
}

// freshMark reports whether the mark that the log was compared with is the newest one. A node that takes the role with
// the log from its start reads it again, because the lost active may have raised it since.
func (m *machine) freshMark() bool {
	r := &m.run
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

// compareOwnMark implements INV-12 for a running active. Only this process writes marks in its term, so a higher one
// proves that its memory is stale: its machine was resumed from an older snapshot, or runs twice.
func (m *machine) compareOwnMark(mark Mark) {
	r := &m.run
	if !m.leads() || mark.Pair != m.rec.PairID || mark.By != m.act.term || !r.mark.Less(mark) || r.superseded != "" ||
		mutate.Off("INV-12-own-mark-is-not-compared") {
		return
	}
	m.reportRollback(fmt.Sprintf("the pair's high-water mark is %s, which this process has written, and does not "+
		"remember", mark))
	r.superseded = "superseded: this machine was resumed from an older memory snapshot, or runs twice: " +
		r.rolledBack + ". Records it acknowledged since then may not be part of the pair. Restart this process; if " +
		"no other node is in sync, it will wait for an operator (docs/explanation/failover.md)"
	m.warn("%s", r.superseded)
}

func (m *machine) marked(mark Mark) {
	m.compareOwnMark(mark)
	m.run.markKnown, m.run.markRead = true, true
	if m.run.mark.Less(mark) {
		m.run.mark = mark
	}
}

// highWater returns the highest mark that is valid in the current record. Records committed before a forced failover
// may be discarded.
func (s *State) highWater() Mark {
	best := Mark{Pair: s.rec.PairID}
	for _, mark := range []Mark{s.rec.Mark, s.run.mark} {
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
		m.run.mark = mark
		m.do(WriteMark{Mark: mark})
	}
}
