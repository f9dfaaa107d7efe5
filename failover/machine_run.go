// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store/mutate"
)

// This file is about directories that are not unique, or not the newest: copies, images that were put back, a volume
// attached twice.
//
// The right to act belongs to one run of one store (INV-11). A run claims a generation, durably, before it takes part;
// the record names it in in_sync; and from then on no copy of the directory, older or newer, can be taken for that run.
// A store that ends before the pair's high-water mark was put back to an older image (INV-12).

// runs is what the machine knows of this run and of others of the same store.
type runs struct {
	id uuid.UUID // generation of this run
	// boot are the generations that the directory held at the start: any of them may be what the record names, until
	// this run has seen a record that names none.
	boot     [2]uuid.UUID
	claimed  bool // id is durable in the store's identity
	compared bool // with the pair's mark, before it took part
	named    bool // the record has named this run
	// superseded says why this run must not take part any more; empty if it may.
	superseded string
	// putBack says why the directory is taken for an older image or a copy; empty if it is not.
	putBack string
	// lacks says by how much a store that may have lost something ends before the pair's mark; empty if it does not.
	lacks string

	mark      Mark // the highest known
	markKnown bool // the coordinator was asked for it
	grown     bool // the log may be longer than it was at the start
	markedNow bool // the mark was read in this very step

	announced bool
	twin      Live          // another process that has announced itself as this node; the zero Live if there is none
	copyOf    string        // address at which it has answered: this directory is a copy of its, or the other way round
	gone      string        // process of which it is known that it does not run any more
	askedTwin bool          // the question is under way
	asked     Live          // whom it is for: the twin may be another one by the time of the answer
	twinAt    time.Duration // when it is asked again
	// another process of this node's identity that the coordinator has heard since this one was announced
	beside Live
	// another process of this node's identity that has asked this one; the zero Live if none has
	knocked   Live
	knockedAt time.Duration
}

// meeting is what the other member in sync has answered to a node that is about to take up the role after a start.
type meeting struct {
	asked bool          // the question is under way
	tried bool          // it was asked once at least, whatever came of it
	at    time.Duration // when it is asked again
	known bool          // it has answered, and what follows holds
	peer  Peer
}

// twinDelay between two questions to another process of this node's identity.
const twinDelay = time.Second

// runOf makes the generation of a run from the name of its process.
func runOf(process string) uuid.UUID {
	if id, err := uuid.Parse(process); err == nil {
		return id
	}
	return uuid.NewSHA1(uuid.NameSpaceOID, []byte(process))
}

// is tells whether two entries name the same store in the same run. A release before FeatureRuns knows no generations,
// and drops them when it writes the record: an entry without one says nothing about the run.
func (m Member) is(o Member) bool {
	if m.Run != uuid.Nil && o.Run != uuid.Nil && m.Run != o.Run {
		return false
	}
	m.Run, o.Run = uuid.Nil, uuid.Nil
	return m == o
}

// me is the entry that this node writes into the record.
func (s *State) me() Member {
	me := s.ident.Member()
	if !s.namesRuns() {
		me.Run = uuid.Nil
	}
	return me
}

// namesRuns tells whether both nodes' releases know generations.
func (s *State) namesRuns() bool {
	if mutate.Off("INV-11-runs-are-not-named") {
		return false
	}
	if !s.known {
		return s.self.Features.Has(FeatureRuns)
	}
	n, lacks := lacking(s.rec, s.live, FeatureRuns)
	if _, described := describeNode(s.rec, s.live, n.ID); lacks && !described {
		m, _ := s.rec.Member(n.ID) // its lease was not there yet when it was named in sync
		return m.Run != uuid.Nil
	}
	return !lacks
}

// owns tells whether a generation in this node's entry of the record is this run's, or was that of the run before it in
// this directory. Of the latter there is none once a record did not list this node (forgetBoot).
func (s *State) owns(run uuid.UUID) bool {
	r := &s.run
	return run == uuid.Nil || run == r.id || run == r.boot[0] || run == r.boot[1]
}

// takesPart tells whether this run may look at the record with the intention to act on it: it has been compared with
// the pair's mark, and no other process is known to run under this node's identity.
func (m *machine) takesPart() bool {
	r := &m.run
	switch {
	case r.superseded != "":
		if m.ask.id != "" {
			m.endAsk(r.superseded)
		}
		if m.forces.id != "" {
			m.giveUpForce(errors.New(r.superseded))
		}
		m.stopAll()
		return false
	case r.named || r.compared:
		return true // what follows is about the start
	case !m.liveKnown || r.twin != Live{}:
		return false
	case !r.markKnown:
		m.load()
		return false
	}
	m.compareMark()
	r.compared = true
	m.claim()
	return true
}

// takesNoPart says why this process must not act, whatever an operator asks of it; nil if it may.
func (s *State) takesNoPart() error {
	switch r := &s.run; {
	case r.superseded != "":
		return errors.New(r.superseded)
	case r.twin != Live{}:
		return errors.New(s.twinReason())
	default:
		return nil
	}
}

// stopAll ends either role.
func (m *machine) stopAll() {
	if m.mode == modeAct {
		m.yieldRole()
	}
	m.stopFollowing()
}

// claim makes this run's generation durable, beside what the record names now.
func (m *machine) claim() {
	r := &m.run
	if r.claimed {
		return
	}
	r.claimed = true
	before := m.ident.Run
	switch me, listed := m.rec.Member(m.self.ID); {
	case m.known && !listed:
		m.forgetBoot()
		before = m.ident.Run
	case m.known && me.Run != uuid.Nil && me.Run == r.boot[1]:
		before = me.Run // the run before this one was named, and stopped before it knew
	}
	m.ident.Run, m.ident.ClaimedRun = before, r.id
	m.do(ClaimRun{Named: before, Run: r.id})
}

// forgetBoot gives up the generations that the directory held at the start: the record does not name this node, so that
// what it may name later is a run that the active has seen then. If that is one of those, it is another process with
// the same directory, and what that one acknowledges is not here. It reports whether the directory still has one.
func (m *machine) forgetBoot() bool {
	if mutate.Off("INV-11-earlier-runs-are-not-forgotten") {
		return false
	}
	m.run.boot = [2]uuid.UUID{}
	if m.ident.Run == uuid.Nil || m.ident.Run == m.run.id {
		return false
	}
	m.ident.Run = uuid.Nil
	return true
}

// compareRun looks at what a record that was just adopted says of this node's run.
func (m *machine) compareRun() {
	r := &m.run
	me, listed := m.rec.Member(m.self.ID)
	switch {
	case r.superseded != "":
	case !listed && r.claimed: // before that, the watch may have delivered a record that is older than the newest
		if m.forgetBoot() {
			m.do(ClaimRun{Run: r.id}) // should this one stop before it is named, the next must not know it either
		}
	case !listed || me.Node != m.ident.Node || me.Store != m.ident.Store || me.Incarnation != m.ident.Incarnation:
		return // INV-4 is about that
	case me.Run == r.id && r.claimed:
		r.named = true
		if !m.ident.MayHaveLost {
			r.putBack = "" // it has got from the other node what it lacked
		}
		if m.ident.Run != r.id || m.ident.ClaimedRun != uuid.Nil {
			m.ident.Run, m.ident.ClaimedRun = r.id, uuid.Nil
			m.do(ConfirmRun{Run: r.id})
		}
	case m.owns(me.Run) || mutate.Off("INV-11-any-run-may-act"):
		if r.claimed && me.Run != uuid.Nil && me.Run != m.ident.Run {
			// A swap of the run before this one came late. Should this one stop before it is named, the next has to
			// know that run.
			m.ident.Run, m.ident.ClaimedRun = me.Run, r.id
			m.do(ClaimRun{Named: me.Run, Run: r.id})
		}
		if !m.ident.MayHaveLost {
			r.putBack = "" // as above, beside a release that names no runs
		}
	case r.named:
		m.supersede()
	case r.putBack == "":
		m.foundPutBack("another run of this node has taken part in the pair since: this directory is a copy of its " +
			"own, or an older image of it")
	}
}

// forgetFormerRun gives up an active's connection to a run of the standby whose place another run takes in the record
// that is about to be adopted. The store is in use by that one now, so the connection is a dead one that has not been
// noticed yet: were its run named in sync once more, for what it had acknowledged, the one that lives would be
// superseded.
func (m *machine) forgetFormerRun(rec Record) {
	a := &m.act
	if a.standby == standbyNone || mutate.Off("INV-11-a-former-run-is-named-again") {
		return
	}
	was, ok := m.rec.Member(a.member.Node)
	now, still := rec.Member(a.member.Node)
	if ok && still && was == a.member && now.Run != uuid.Nil && now.Run != was.Run && now.inRun(was.Run) == was {
		a.standby, a.member, a.cause = standbyNone, Member{}, LostReset
	}
}

// foundCopy ends the part of a process that has found another one running under its identity: not even when that one
// has gone does this one take its place, since what that one acknowledged meanwhile is not here.
func (m *machine) foundCopy() {
	m.run.copyOf = m.run.twin.Node.Address
	m.run.superseded = fmt.Sprintf("two processes with one identity: this node runs at %s already, or did when this "+
		"process started, which takes no part until it is started again. If this data directory is a copy, do not "+
		"start it: a second node begins with an empty one. Otherwise stop the "+
		"process at %s, and start this one again", m.run.copyOf, m.run.copyOf)
	m.warn("%s", m.run.superseded)
}

// supersede ends the part of a run whose place another one has taken.
func (m *machine) supersede() {
	m.run.superseded = "superseded: another process has taken this node's place in the pair, with a copy of this " +
		"data directory; what this process has acknowledged since then may not be part of the pair. What the pair " +
		"has acknowledged is with the other one (its address is in the pair's status): stop this one, or, if it is " +
		"the other one that has to go, first see to it that the pair's other node is in sync. A copy that is to be a " +
		"node of its own must begin with an empty data directory"
	m.warn("%s", m.run.superseded)
}

// foundPutBack notes that this directory is not what it was (INV-11, INV-12). From here on it is treated as one that
// has lost (INV-6).
func (m *machine) foundPutBack(why string) {
	m.run.putBack = why
	m.warn("THIS DATA DIRECTORY WAS PUT BACK: %s", why)
	if !m.ident.MayHaveLost {
		m.ident.MayHaveLost = true
		m.do(MarkLoss{})
	}
}

// compareMark is INV-12: a store that is named in sync and ends before the pair's high-water mark was put back to an
// older image. To be called while the log is as it was at the start: before this run takes part, and before it takes
// the role without having been active or connected.
func (m *machine) compareMark() {
	r := &m.run
	if r.putBack != "" || mutate.Off("INV-12-mark-is-not-compared") {
		return
	}
	me, listed := m.rec.Member(m.self.ID)
	if !listed || !me.is(m.ident.Member().inRun(me.Run)) {
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

// inRun is the same entry for another run.
func (m Member) inRun(run uuid.UUID) Member {
	m.Run = run
	return m
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
		"no other node is in sync, it will wait for an operator (docs/failover.md)"
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

// renew writes this run's generation into the record of a standby that is in sync. It reports whether the node may
// follow: its acknowledgements do not count while the record names the run before it.
func (m *machine) renew() bool {
	me, listed := m.rec.Member(m.self.ID)
	if !listed || !m.namesRuns() || me.Run == m.run.id {
		return true
	}
	if m.canSwap() {
		m.propose(m.withRun(m.rec))
	}
	return me.Run == uuid.Nil
}

// withRun is a record in which this node's entry names this run.
func (m *machine) withRun(rec Record) Record {
	rec = rec.Clone()
	for i := range rec.InSync {
		if rec.InSync[i].Node == m.self.ID {
			rec.InSync[i].Run = m.run.id
		}
	}
	return rec
}

// introduce announces this node when no other process is known to run under its identity.
func (m *machine) introduce() {
	r := &m.run
	if r.announced || !m.liveKnown {
		return
	}
	if r.copyOf == "" {
		r.twin = m.findTwin()
	}
	if (r.twin != Live{}) {
		r.markKnown = false // it may commit meanwhile
	}
	switch {
	case r.twin == Live{}:
		r.announced = true
		m.do(Announce{})
	case r.askedTwin || m.now < r.twinAt:
	default:
		r.askedTwin, r.asked = true, r.twin
		m.do(Meet{Address: r.twin.Node.Address})
	}
}

// findTwin looks for another process that is announced as this node and may still run. One at this node's own address
// does not: its port is ours.
func (s *State) findTwin() Live {
	for _, l := range s.live {
		if l.Node.ID == s.self.ID && l.Process != "" && l.Process != s.process && l.Process != s.run.gone &&
			l.Node.Address != s.self.Address {
			return l
		}
	}
	return Live{}
}

// met takes note of what another process has answered.
func (m *machine) met(e Met) {
	r := &m.run
	if asked := r.asked; r.askedTwin && e.Address == asked.Node.Address {
		r.askedTwin, r.asked, r.twinAt = false, Live{}, m.now+twinDelay
		switch {
		case r.copyOf != "": // asked again so that it knows that this process is still there
			r.twinAt = m.now + twinMemory/2
		// this one, or the next from the same directory
		case e.Err == nil && e.Peer.Node == m.self.ID && e.Peer.Process != m.process:
			if r.claimed {
				return // its lease had ended meanwhile: the record decides
			}
			r.twin = asked
			m.foundCopy()
		case e.Err == nil || e.Gone:
			r.gone = asked.Process
		default: // its lease will tell
		}
		return
	}
	if m.meeting.asked {
		m.meeting.asked, m.meeting.tried, m.meeting.at = false, true, m.now+m.set.RetryDelay
		if e.Err == nil && e.Peer.Node != m.self.ID {
			m.meeting = meeting{known: true, peer: e.Peer}
		}
	}
}

// metOther tells whether a node that was active before its own start may take up the role again: the other member in
// sync was asked for the end of its log, or does not come. The one with the longer log goes on, so that what both had
// acknowledged survives an old image of one of them (INV-13). It was asked once at least, however long the coordinator
// has taken to let this node know whom to ask.
func (m *machine) metOther() bool {
	other, ok := m.rec.Other(m.self.ID)
	if !ok || m.meeting.known || mutate.Off("INV-13-role-without-a-comparison") {
		return true
	}
	described, _ := describeNode(m.rec, m.live, other.Node)
	if described.Address != "" && !m.meeting.asked && m.now >= m.meeting.at {
		m.meeting.asked = true
		m.do(Meet{Address: described.Address})
	}
	return m.now >= m.started+m.set.StartupWait && (m.meeting.tried || described.Address == "")
}

// compareCommitted is INV-6 and INV-13 for a standby: one that the record names in sync holds everything that is
// committed, so one that hears from its active of commits beyond the end of its log was put back to an older image. It
// must not take over as it is.
func (m *machine) compareCommitted() {
	l := m.follow.lacks
	if l.Config == 0 || l.Config != m.rec.Config || m.run.putBack != "" ||
		mutate.Off("INV-13-standby-ignores-what-it-lacks") {
		return
	}
	if _, listed := m.rec.Member(m.self.ID); listed && m.eligible() {
		why := "this node had acknowledged more to the active than its log holds"
		if l.Committed > 0 {
			why = fmt.Sprintf("its log has LSN %d in common with the active, but the two had committed up to LSN %d",
				l.Common, l.Committed)
		}
		m.foundPutBack(why + ": it is an older image of itself")
	}
}

// otherHasMore tells whether the other member in sync has the longer log.
func (s *State) otherHasMore() (Member, bool) {
	other, ok := s.rec.Other(s.self.ID)
	p := s.meeting.peer
	if !ok || !s.meeting.known || p.Node != other.Node || p.Store != other.Store {
		return Member{}, false
	}
	own := s.ident.End
	return other, p.End.Term > own.Term || p.End.Term == own.Term && p.End.LSN > own.LSN
}

// giveTo hands the role to the member that has more than this node, which leaves the in-sync set and follows it.
func (m *machine) giveTo(other Member) {
	next := m.rec
	next.Active, next.Term, next.Switchover = other.Node, m.rec.Term+1, nil
	next.InSync = []Member{other}
	m.why = "the other node has records that this one lacks, so it gets the role"
	m.propose(next)
}

// twinMemory is for how long a process that has asked under this node's identity counts as running.
const twinMemory = 10 * time.Second

// twin is another process of this node's identity, for people.
func (s *State) twin() *Live {
	r := &s.run
	switch {
	case r.copyOf != "":
		t := r.twin
		return &t
	case r.beside != Live{}:
		t := r.beside
		return &t
	case r.knocked != Live{} && s.now < r.knockedAt+twinMemory:
		t := r.knocked
		return &t
	default:
		return nil
	}
}

// behindReason is what a node says that has committed records which the active lacks.
const behindReason = "nothing of this node's is cut, and the active does not serve while it knows of that: one of " +
	"the two was put back to an older image, and an operator has to say which of them goes on (docs/failover.md, " +
	"\"When histories differ\")"

// ahead tells that the two nodes have histories of which neither contains the other, as far as this node knows; empty
// if they have not.
func (s *State) ahead() string {
	switch {
	case s.mode == modeAct && s.act.ahead.end != 0:
		return s.act.ahead.reason()
	case s.mode == modeFollow && s.follow.cause == LostBehind && !s.eligible():
		return "the active at " + s.follow.active.Address + " lacks records that this node knows to be committed: " +
			behindReason
	default:
		return ""
	}
}
