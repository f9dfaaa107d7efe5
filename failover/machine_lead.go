// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"cmp"
	"fmt"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store/mutate"
)

func (m *machine) takeUp() {
	if m.mode == modeFollow {
		m.do(StopFollower{})
	}
	// INV-1: the fence must be durable before the first acknowledgement.
	m.raiseFence(m.rec.Fence())
	m.change.code = m.activationCode()
	m.mode, m.fenced, m.candidate = modeAct, false, false
	m.epoch++
	m.usedTerm, m.proc.logGrown = m.rec.Term, true
	m.follow = following{}
	m.act = newActing(m.rec.Term)
	if _, ok := m.rec.Other(m.self.ID); ok {
		m.act.dropAt = m.now + m.set.StandbyWait
		m.act.blocked = m.now
	}
	m.act.sent = m.numbered(m.conditions())
	m.do(StartActive{Epoch: m.epoch, Spec: ActiveSpec{Term: m.act.term, ActiveConfig: m.act.sent}})
}

func (m *machine) raiseFence(f Fence) {
	if m.ident.Fence.Less(f) {
		m.ident.Fence = f
		m.do(SetFence{Fence: f})
	}
}

func (m *machine) yieldRole() {
	next, _ := describeNode(m.rec, m.live, m.rec.Active)
	if m.rec.Active == m.self.ID {
		next = NodeInfo{}
	}
	m.why = fmt.Sprintf("node %s is active in term %d", cmp.Or(next.Name, m.rec.Active.String()), m.rec.Term)
	if f := m.rec.Forced; f != nil && f.Term > m.act.term && !f.Settled {
		m.warn("forced failover by %s: node %s became active without this node; records of this node after LSN %d are "+
			"discarded, and saved to a file when it rejoins", cmp.Or(f.By, "an operator"),
			cmp.Or(next.Name, f.Node.String()), f.After)
	}
	m.change = change{code: m.yieldCode()}
	m.do(StopActive{Next: next})
	m.mode, m.fenced = modeIdle, true
	m.epoch++
	m.act = newActing(0)
	m.handedOver()
}

func (m *machine) reportedByActive(ev DataEvent) {
	a := &m.act
	switch e := ev.(type) {
	case ActiveReady:
		a.ready = true
	case StandbyConnected:
		// A third node that fetches a snapshot does not replace the required standby.
		r, ok := m.required()
		if a.standby == standbyNone || a.member.Node == e.Member.Node || ok && r.Is(e.Member) {
			a.standby, a.member = standbyConnected, e.Member
			a.ahead = ahead{}
		}
	case StandbyCaughtUp:
		if a.standby == standbyConnected && a.member == e.Member {
			a.standby = standbyCaughtUp
		}
	case StandbySynced:
		// This event may precede StandbyCaughtUp if the standby has all records when it connects. It is posted once per
		// requirement: it counts even if a swap that removes the standby is in progress.
		if a.standby != standbyNone && a.member == e.Member && a.sent.RequireStandby && a.sent.Standby == e.Member &&
			a.sent.Requirement == e.Requirement {
			a.standby = standbySynced
		}
	case StandbyLost:
		if a.standby != standbyNone && a.member.Node == e.Node {
			a.standby, a.member, a.cause = standbyNone, Member{}, e.Cause
		}
		if e.Cause == LostAhead {
			m.needLoad = true // the standby may know a newer record
		}
	case StandbyAhead:
		m.standbyAhead(e)
	case DiskStalled:
		a.stalled = e.Stalled
	}
}

// ahead describes a standby with committed records that are missing from this active's log.
type ahead struct {
	member         Member
	end, committed uint64 // LSNs
}

func (h ahead) reason() string {
	return fmt.Sprintf("histories differ: committed records up to LSN %d of node %s are missing on this active; one of "+
		"the nodes was restored from an older copy", h.committed, h.member.Node)
}

// standbyAhead records a standby that was refused because it has committed records that are missing here (INV-13).
func (m *machine) standbyAhead(e StandbyAhead) {
	a := &m.act
	if a.ahead.member != e.Member {
		m.warn("committed records up to LSN %d of node %s are missing on this active: its data directory was restored from "+
			"an older copy, or that of the other node does not belong to this pair; no records are truncated", e.Committed,
			e.Member.Node)
	}
	a.ahead = ahead{member: e.Member, end: e.End.LSN, committed: e.Committed}
}

// required returns the member that must acknowledge each record before it is committed, in addition to local
// durability (INV-2, INV-3). It returns false if no member must acknowledge.
func (s *State) required() (Member, bool) {
	if mutate.Off("INV-3-acknowledges-alone-before-swap") && s.act.standby == standbyNone {
		return Member{}, false
	}
	if o, ok := s.rec.Other(s.self.ID); ok {
		return s.inCurrentGeneration(o), true
	}
	for _, p := range s.pending {
		// A swap that adds the member to in_sync, or activates it, may be applied at any moment.
		if o, ok := p.Other(s.self.ID); ok {
			return s.inCurrentGeneration(o), true
		}
	}
	if s.act.standby >= standbyCaughtUp {
		return s.act.member, true
	}
	return Member{}, false
}

func (s *State) absent() bool {
	r, ok := s.required()
	return ok && (s.act.standby == standbyNone || s.act.member != r)
}

// inCurrentGeneration returns o. If o has no generation and is the store of the connected standby, it returns the
// entry of that standby.
func (s *State) inCurrentGeneration(o Member) Member {
	if o.Generation == uuid.Nil && s.act.standby != standbyNone && o.Is(s.act.member) {
		return s.act.member
	}
	return o
}

func (s *State) conditions() ActiveConfig {
	req, needed := s.required()
	c := ActiveConfig{Config: s.rec.Config, RequireStandby: needed, Standby: req, Serve: true, Deliver: true}
	if len(s.rec.InSync) < s.rec.MinInSync {
		c.RequireStandby = true
		c.Serve, c.Reason = false, "no standby is in sync, and min_in_sync is 2"
	}
	if s.act.ahead.end != 0 {
		c.Serve, c.Reason = false, s.act.ahead.reason() // INV-13
	}
	if s.act.blocked != never {
		if s.now >= s.act.blocked+s.set.RefuseAfter {
			c.Serve, c.Reason = false, "in-sync standby is disconnected, and not yet removed from the in-sync set"
		}
		if (!s.reachable || s.leaseUntil != 0) && s.now >= s.leaseUntil-s.set.LeaseMargin {
			c.Deliver = false // another node may be active
		}
	}
	if s.unknown && !mutate.Off("INV-8-serves-after-unknown-outcome") {
		c.Serve, c.Deliver, c.Reason = false, false, "outcome of the cluster record write is unknown" // INV-8
	}
	return c
}

func (m *machine) lead() {
	a := &m.act
	other, hasOther := m.rec.Other(m.self.ID)
	// Acks of a standby without a generation do not count if the record lists one: the standby was downgraded to an
	// older release, and must be added again.
	present := a.standby != standbyNone && a.member == m.inCurrentGeneration(other)
	switch {
	case !hasOther || present:
		a.dropAt = never
	case a.dropAt == never:
		a.dropAt = m.now // the connection was lost
	}
	if !m.absent() {
		a.blocked = never
	} else if a.blocked == never {
		a.blocked = m.now
	}
	m.configure()
	m.raiseFence(m.rec.Fence())
	if a.ready && m.request.id != "" {
		m.endRequest("")
	}
	m.handOver()
	m.failBack()
	m.leadSwap(hasOther, present)
	// A proposal may tighten the conditions, but never relaxes them.
	m.configure()
}

func (m *machine) configure() {
	if c := m.numbered(m.conditions()); c != m.act.sent {
		m.act.sent = c
		m.do(ConfigureActive{Config: c})
	}
}

// numbered returns c with its requirement number. It increments the number if c requires acks, and the previous
// configuration did not, or required those of another standby. Then a synced standby counts only as caught up.
func (m *machine) numbered(c ActiveConfig) ActiveConfig {
	if c.RequireStandby && (!m.act.sent.RequireStandby || m.act.sent.Standby != c.Standby) {
		m.act.needs++
		if m.act.standby == standbySynced {
			// Acks of another process of the same node may have been counted after the previous requirement.
			m.act.standby = standbyCaughtUp
		}
	}
	c.Requirement = m.act.needs
	return c
}

// undescribed reports whether the record lacks the description of a node that announces itself.
func (m *machine) undescribed(node uuid.UUID) bool {
	_, known := m.rec.Node(node)
	return !known && m.isLive(node)
}

func (m *machine) leadSwap(hasOther, present bool) {
	a := &m.act
	next := m.rec
	other, _ := m.rec.Other(m.self.ID)
	me, ok := m.rec.Member(m.self.ID)
	if !ok {
		return // this node has removed itself (INV-6), and the other node takes over
	}
	switch {
	case m.hand.phase >= handoverDraining && m.hand.phase <= handoverSwapping:
		return // handOver proposes the change
	case hasOther && a.ahead.member.Node != uuid.Nil && other.Is(a.ahead.member):
		// Nothing was acknowledged in this term: every acknowledgement required an ack of this member.
		if m.canSwap() {
			m.transferRole(other)
		}
		return
	case me.Generation != m.proc.id && m.recordHasGenerations():
		// The other node was upgraded to a release with generations, or its new process wrote the record.
		next = m.withGeneration(next)
	case hasOther && a.dropAt != never && m.now >= a.dropAt && a.stalled:
		// The other node disconnected to take over. With a stalled disk, this node could not serve clients alone.
		return
	case hasOther && a.dropAt != never && m.now >= a.dropAt:
		next.InSync = []Member{me} // INV-3: swap first, then acknowledge alone
	case !hasOther && (a.standby == standbySynced || a.standby == standbyCaughtUp &&
		mutate.Off("INV-3-in-sync-before-acks-required")):
		next.InSync = []Member{me, a.member} // INV-3: its acks are already required
		next.Forced = m.rec.Forced.settled()
	case m.rec.Switchover != nil && m.hand.phase == handoverNone:
		next.Switchover = nil
	case len(m.pending) > 0 && (!hasOther || present):
		// A change with an unknown outcome is obsolete: the standby reconnected before it was removed, or disconnected
		// before it was added. Writing the unchanged record again resolves the outcome. Until then, role changes are
		// impossible, and the acks of a lost standby may be required.
	case hasOther && m.undescribed(other.Node):
		// The standby was in sync before its announcement arrived. propose adds its name and address.
	default:
		return
	}
	if m.canSwap() {
		m.propose(next)
	}
}
