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
	reported   Live
	reportedAt time.Duration
}

// runOf makes the generation of a run from the name of its process.
func runOf(process string) uuid.UUID {
	if id, err := uuid.Parse(process); err == nil {
		return id
	}
	return uuid.NewSHA1(uuid.NameSpaceOID, []byte(process))
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
	if ok && still && was == a.member && now.Run != uuid.Nil && now.Run != was.Run && now.InRun(was.Run) == was {
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
