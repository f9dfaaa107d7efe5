// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store/mutate"
)

// This file detects data directories that are copies, older copies, or on volumes attached to two machines.
//
// Only one process generation of a store may act (INV-11). A process persists its generation before it participates.
// Then the record lists the generation in in_sync, and no copy of the directory can act as that generation.

type processState struct {
	id uuid.UUID
	// boot are the generations in the directory at the start. They are valid until a record does not list this node.
	boot       [2]uuid.UUID
	claimed    bool // id is durable in the store's identity
	compared   bool // the log was compared with the pair's mark
	named      bool // the record has listed id
	superseded string
	rolledBack string
	// missing describes the records missing below the pair's mark, if an unclean stop may have lost them.
	missing string

	mark      Mark // highest known mark
	markKnown bool
	logGrown  bool // since the start
	markRead  bool // in this step

	announced         bool
	duplicate         Live   // another process announced as this node; zero if none
	copyOf            string // address of a duplicate that responded at the start; empty if none
	gone              string // process known to have terminated
	checkingDuplicate bool
	queried           Live // target of the query
	duplicateCheckAt  time.Duration
	// beside is a duplicate process that, according to the coordinator, is running; zero if none.
	beside Live
	// reported is a duplicate process that contacted this process, last at reportedAt; zero if none.
	reported   Live
	reportedAt time.Duration
}

func generationOf(process string) uuid.UUID {
	if id, err := uuid.Parse(process); err == nil {
		return id
	}
	return uuid.NewSHA1(uuid.NameSpaceOID, []byte(process))
}

func (s *State) me() Member {
	me := s.ident.Member()
	if !s.recordHasGenerations() {
		me.Generation = uuid.Nil
	}
	return me
}

// recordHasGenerations reports whether the record lists process generations.
func (s *State) recordHasGenerations() bool {
	if mutate.Off("INV-11-generations-are-not-listed") {
		return false
	}
	if !s.known {
		return s.self.Features.Has(FeatureGenerations)
	}
	n, lacks := nodeWithout(s.rec, s.live, FeatureGenerations)
	if _, described := describeNode(s.rec, s.live, n.ID); lacks && !described {
		m, _ := s.rec.Member(n.ID) // its lease was not visible yet when it was added to in_sync
		return m.Generation != uuid.Nil
	}
	return !lacks
}

// owns reports whether a generation is zero, that of this process, or one of those that the directory contained at
// startup, until clearBoot discards those.
func (s *State) owns(generation uuid.UUID) bool {
	r := &s.proc
	return generation == uuid.Nil || generation == r.id || generation == r.boot[0] || generation == r.boot[1]
}

// participates reports whether this process may act on the record: it was not superseded, and at the start its log was
// compared with the pair's mark while no duplicate was known to be running. participates performs this comparison and
// claims the generation. It stops the role of a superseded process.
func (m *machine) participates() bool {
	r := &m.proc
	switch {
	case r.superseded != "":
		if m.request.id != "" {
			m.endRequest(r.superseded)
		}
		if m.forces.id != "" {
			m.abortForce(errors.New(r.superseded))
		}
		m.stopAll()
		return false
	case r.named || r.compared:
		return true // the remaining checks only apply at the start
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
	switch r := &s.proc; {
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
	r := &m.proc
	if r.claimed {
		return
	}
	r.claimed = true
	before := m.ident.Generation
	switch me, listed := m.rec.Member(m.self.ID); {
	case m.known && !listed:
		m.clearBoot()
		before = m.ident.Generation
	case m.known && me.Generation != uuid.Nil && me.Generation == r.boot[1]:
		before = me.Generation // the previous process was listed, but stopped before it read the record
	}
	m.ident.Generation, m.ident.ClaimedGeneration = before, r.id
	m.do(ClaimGeneration{Listed: before, Claimed: r.id})
}

// clearBoot discards the generations that the directory contained at startup: the record does not list this node. It
// reports whether the caller must also remove one of them from the directory.
func (m *machine) clearBoot() bool {
	if mutate.Off("INV-11-earlier-generations-are-kept") {
		return false
	}
	m.proc.boot = [2]uuid.UUID{}
	if m.ident.Generation == uuid.Nil || m.ident.Generation == m.proc.id {
		return false
	}
	m.ident.Generation = uuid.Nil
	return true
}

func (m *machine) compareGeneration() {
	r := &m.proc
	me, listed := m.rec.Member(m.self.ID)
	switch {
	case r.superseded != "":
	case !listed && r.claimed: // if not claimed, the watch may have delivered an outdated record
		if m.clearBoot() {
			m.do(ClaimGeneration{Claimed: r.id}) // remove it from the directory, in case this process stops before it is listed
		}
	case !listed || me.Node != m.ident.Node || me.Store != m.ident.Store || me.Incarnation != m.ident.Incarnation:
		return // INV-4 covers this case
	case me.Generation == r.id && r.claimed:
		r.named = true
		if !m.ident.MayHaveLost {
			r.rolledBack = "" // the missing records were fetched from the other node
		}
		if m.ident.Generation != r.id || m.ident.ClaimedGeneration != uuid.Nil {
			m.ident.Generation, m.ident.ClaimedGeneration = r.id, uuid.Nil
			m.do(ConfirmGeneration{Listed: r.id})
		}
	case m.owns(me.Generation) || mutate.Off("INV-11-any-generation-may-act"):
		if r.claimed && me.Generation != uuid.Nil && me.Generation != m.ident.Generation {
			// A late swap of the previous process was applied. Persist its generation, in case this process stops before it
			// is listed.
			m.ident.Generation, m.ident.ClaimedGeneration = me.Generation, r.id
			m.do(ClaimGeneration{Listed: me.Generation, Claimed: r.id})
		}
		if !m.ident.MayHaveLost {
			r.rolledBack = "" // as above; a record of an older release lists no generations
		}
	case r.named:
		m.supersede()
	case r.rolledBack == "":
		m.reportRollback("a newer process generation of this node has been in sync: this data directory is a copy, or was " +
			"restored from an older copy")
	}
}

// clearPreviousGeneration discards the connection of a standby if rec lists a newer generation of it.
func (m *machine) clearPreviousGeneration(rec Record) {
	a := &m.act
	if a.standby == standbyNone || mutate.Off("INV-11-former-generation-in-sync") {
		return
	}
	was, ok := m.rec.Member(a.member.Node)
	now, still := rec.Member(a.member.Node)
	if ok && still && was == a.member && now.Generation != uuid.Nil && now.Generation != was.Generation &&
		now.WithGeneration(was.Generation) == was {
		a.standby, a.member, a.cause = standbyNone, Member{}, LostReset
	}
}

// reportDuplicate excludes this process permanently: records that the other process acknowledged may be missing
// here.
func (m *machine) reportDuplicate() {
	m.proc.copyOf = m.proc.duplicate.Node.Address
	m.proc.superseded = fmt.Sprintf("duplicate node identity: this node was already running at %s when this process "+
		"started. If this data directory is a copy, stop this process, and start a new node with an empty directory. "+
		"Otherwise, first ensure that the pair's other node is in sync; then stop the process at %s, keep its data "+
		"directory, and restart this one", m.proc.copyOf, m.proc.copyOf)
	m.warn("%s", m.proc.superseded)
}

func (m *machine) supersede() {
	m.proc.superseded = "superseded: another process with a copy of this data directory has replaced this one in the " +
		"pair; records acknowledged by this process since then may be missing there. The other process (see the pair's " +
		"status) has all acknowledged records: stop this one. To keep this one instead, first ensure that the pair's other " +
		"node is in sync. To run a separate node, start it with an empty data directory"
	m.warn("%s", m.proc.superseded)
}

// reportRollback records that this directory was rolled back, and durably sets MayHaveLost (INV-6, INV-11 to INV-13).
func (m *machine) reportRollback(why string) {
	m.proc.rolledBack = why
	m.warn("data directory was rolled back: %s", why)
	if !m.ident.MayHaveLost {
		m.ident.MayHaveLost = true
		m.do(MarkLoss{})
	}
}

// renew proposes a record with this process's generation if the record lists this node with another generation or
// none. It reports whether the node may follow the active: acks do not count while the record lists another
// generation.
func (m *machine) renew() bool {
	me, listed := m.rec.Member(m.self.ID)
	if !listed || !m.recordHasGenerations() || me.Generation == m.proc.id {
		return true
	}
	if m.canSwap() {
		m.propose(m.withGeneration(m.rec))
	}
	return me.Generation == uuid.Nil
}

func (m *machine) withGeneration(rec Record) Record {
	rec = rec.Clone()
	for i := range rec.InSync {
		if rec.InSync[i].Node == m.self.ID {
			rec.InSync[i].Generation = m.proc.id
		}
	}
	return rec
}
