// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store/mutate"
)

// This file detects copied or outdated data directories: copies, restored older copies, and volumes attached twice.
//
// The right to act belongs to one process generation (run) of one store (INV-11). A process persists its generation
// before it takes part, and the record lists it in in_sync. From then on no copy of the directory can act as that
// generation.

type runs struct {
	id uuid.UUID
	// boot are the generations that the directory held at the start. The record may list them until it has listed none.
	boot       [2]uuid.UUID
	claimed    bool // id is durable in the store's identity
	compared   bool // compared with the pair's mark, before it took part
	named      bool // the record has listed id
	superseded string
	rolledBack string
	// lacks describes what the store lacks below the pair's mark, if that may be an ordinary loss of records.
	lacks string

	mark      Mark // highest known mark
	markKnown bool
	logGrown  bool // since the start
	markRead  bool // in this step

	announced         bool
	duplicate         Live   // another process that is announced as this node; zero if none
	copyOf            string // address at which it has responded: one of the two directories is a copy of the other
	gone              string // process known to have terminated
	checkingDuplicate bool
	asked             Live // target of the query
	duplicateCheckAt  time.Duration
	// another process with this node's identity, seen by the coordinator since this one was announced
	beside Live
	// another process with this node's identity that has called this one; zero if none
	reported   Live
	reportedAt time.Duration
}

func runOf(process string) uuid.UUID {
	if id, err := uuid.Parse(process); err == nil {
		return id
	}
	return uuid.NewSHA1(uuid.NameSpaceOID, []byte(process))
}

func (s *State) me() Member {
	me := s.ident.Member()
	if !s.recordHasRuns() {
		me.Run = uuid.Nil
	}
	return me
}

// recordHasRuns reports whether both nodes' releases support generations.
func (s *State) recordHasRuns() bool {
	if mutate.Off("INV-11-runs-are-not-named") {
		return false
	}
	if !s.known {
		return s.self.Features.Has(FeatureRuns)
	}
	n, lacks := lacking(s.rec, s.live, FeatureRuns)
	if _, described := describeNode(s.rec, s.live, n.ID); lacks && !described {
		m, _ := s.rec.Member(n.ID) // its lease was not visible yet when it was added to in_sync
		return m.Run != uuid.Nil
	}
	return !lacks
}

// owns reports whether a generation in this node's entry of the record belongs to this process, or to the previous one
// in this directory. clearBoot ends the latter.
func (s *State) owns(run uuid.UUID) bool {
	r := &s.run
	return run == uuid.Nil || run == r.id || run == r.boot[0] || run == r.boot[1]
}

// participates reports whether this process may act on the record: its log was compared with the pair's mark, and no
// other process is known to run under this node's identity.
func (m *machine) participates() bool {
	r := &m.run
	switch {
	case r.superseded != "":
		if m.ask.id != "" {
			m.endAsk(r.superseded)
		}
		if m.forces.id != "" {
			m.abortForce(errors.New(r.superseded))
		}
		m.stopAll()
		return false
	case r.named || r.compared:
		return true // the remaining checks apply to the start
	case !m.liveKnown || r.duplicate != Live{}:
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

// exclusionError returns the reason why this process must not act, even if an operator requests it.
func (s *State) exclusionError() error {
	switch r := &s.run; {
	case r.superseded != "":
		return errors.New(r.superseded)
	case r.duplicate != Live{}:
		return errors.New(s.duplicateReason())
	default:
		return nil
	}
}

func (m *machine) stopAll() {
	if m.mode == modeAct {
		m.yieldRole()
	}
	m.stopFollowing()
}

func (m *machine) claim() {
	r := &m.run
	if r.claimed {
		return
	}
	r.claimed = true
	before := m.ident.Run
	switch me, listed := m.rec.Member(m.self.ID); {
	case m.known && !listed:
		m.clearBoot()
		before = m.ident.Run
	case m.known && me.Run != uuid.Nil && me.Run == r.boot[1]:
		before = me.Run // the previous generation was listed, but stopped before it learned that
	}
	m.ident.Run, m.ident.ClaimedRun = before, r.id
	m.do(ClaimRun{Named: before, Run: r.id})
}

// clearBoot discards the generations that the directory held at the start, because the record does not list this node.
// The active has seen any generation that it lists later; if it is one of the discarded ones, it is another process
// with a copy of the directory. clearBoot reports whether the directory still holds one.
func (m *machine) clearBoot() bool {
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

func (m *machine) compareRun() {
	r := &m.run
	me, listed := m.rec.Member(m.self.ID)
	switch {
	case r.superseded != "":
	case !listed && r.claimed: // before that, the watch may have delivered an outdated record
		if m.clearBoot() {
			m.do(ClaimRun{Run: r.id}) // the next process must not know it either, if this one stops before it is listed
		}
	case !listed || me.Node != m.ident.Node || me.Store != m.ident.Store || me.Incarnation != m.ident.Incarnation:
		return // INV-4 covers this case
	case me.Run == r.id && r.claimed:
		r.named = true
		if !m.ident.MayHaveLost {
			r.rolledBack = "" // it has fetched the missing records from the other node
		}
		if m.ident.Run != r.id || m.ident.ClaimedRun != uuid.Nil {
			m.ident.Run, m.ident.ClaimedRun = r.id, uuid.Nil
			m.do(ConfirmRun{Run: r.id})
		}
	case m.owns(me.Run) || mutate.Off("INV-11-any-run-may-act"):
		if r.claimed && me.Run != uuid.Nil && me.Run != m.ident.Run {
			// A late swap of the previous generation: the next process must know it if this one stops before it is
			// listed.
			m.ident.Run, m.ident.ClaimedRun = me.Run, r.id
			m.do(ClaimRun{Named: me.Run, Run: r.id})
		}
		if !m.ident.MayHaveLost {
			r.rolledBack = "" // as above, with a release that lists no generations
		}
	case r.named:
		m.supersede()
	case r.rolledBack == "":
		m.reportRollback("a newer process generation of this node has taken part in the pair: " +
			"this data directory is a copy, or was restored from an older copy")
	}
}

// clearPreviousRun drops the active's connection to a generation of the standby that the new record replaces. The new
// generation has the store open, so the connection is dead. If acks from before listed its generation again, the
// running one would be superseded.
func (m *machine) clearPreviousRun(rec Record) {
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

// reportDuplicate excludes this process permanently: it lacks records that the other one acknowledged.
func (m *machine) reportDuplicate() {
	m.run.copyOf = m.run.duplicate.Node.Address
	m.run.superseded = fmt.Sprintf("duplicate node identity: this node already runs at %s, or did when this "+
		"process started, which takes no part until it is restarted. If this data directory is a copy, do not "+
		"start it: a second node starts with an empty one. Otherwise stop the "+
		"process at %s, and restart this one", m.run.copyOf, m.run.copyOf)
	m.warn("%s", m.run.superseded)
}

func (m *machine) supersede() {
	m.run.superseded = "superseded: another process has taken this node's place in the pair, with a copy of this " +
		"data directory; records this process acknowledged since then may not be part of the pair. Everything the pair " +
		"has acknowledged is on the other one (its address is in the pair's status): stop this one, or, if " +
		"the other one should go, first make sure that the pair's other node is in sync. To use a copy as " +
		"a separate node, start it with an empty data directory"
	m.warn("%s", m.run.superseded)
}

// reportRollback treats this directory from here on like one with lost records (INV-6, INV-11, INV-12).
func (m *machine) reportRollback(why string) {
	m.run.rolledBack = why
	m.warn("THIS DATA DIRECTORY WAS ROLLED BACK: %s", why)
	if !m.ident.MayHaveLost {
		m.ident.MayHaveLost = true
		m.do(MarkLoss{})
	}
}

// renew writes this process's generation into the record of an in-sync standby. It reports whether the node may follow:
// its acks do not count while the record lists the previous generation.
func (m *machine) renew() bool {
	me, listed := m.rec.Member(m.self.ID)
	if !listed || !m.recordHasRuns() || me.Run == m.run.id {
		return true
	}
	if m.canSwap() {
		m.propose(m.withRun(m.rec))
	}
	return me.Run == uuid.Nil
}

func (m *machine) withRun(rec Record) Record {
	rec = rec.Clone()
	for i := range rec.InSync {
		if rec.InSync[i].Node == m.self.ID {
			rec.InSync[i].Run = m.run.id
		}
	}
	return rec
}
