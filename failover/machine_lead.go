// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"cmp"
	"fmt"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store/mutate"
)

// This file is what the active does.

// takeUp takes the active role in the term of the known record, which names this node.
func (m *machine) takeUp() {
	if m.mode == modeFollow {
		m.do(StopFollower{})
	}
	// INV-1: the fence of the record is durable before it is obeyed. A process that acknowledged first and crashed
	// would, with a coordinator put back to an older state, accept the record before this one and use the term again
	// (INV-9).
	m.raiseFence(m.rec.Fence())
	m.change.code = m.takenUp()
	m.mode, m.fenced, m.candidate = modeAct, false, false
	m.epoch++
	m.usedTerm, m.run.grown = m.rec.Term, true
	m.follow = following{}
	m.act = newActing(m.rec.Term)
	if _, ok := m.rec.Other(m.self.ID); ok {
		m.act.dropAt = m.now + m.set.StandbyWait
		m.act.blocked = m.now
	}
	m.act.sent = m.numbered(m.conditions())
	m.do(StartActive{Epoch: m.epoch, Spec: ActiveSpec{Term: m.act.term, ActiveConfig: m.act.sent}})
}

// raiseFence persists a fence if it is above the current one.
func (m *machine) raiseFence(f Fence) {
	if m.ident.Fence.Less(f) {
		m.ident.Fence = f
		m.do(SetFence{Fence: f})
	}
}

// yieldRole gives up the active role: the record names the other node, or another term.
func (m *machine) yieldRole() {
	next, _ := describeNode(m.rec, m.live, m.rec.Active)
	if m.rec.Active == m.self.ID {
		next = NodeInfo{}
	}
	m.why = fmt.Sprintf("node %s is active now, in term %d", cmp.Or(next.Name, m.rec.Active.String()), m.rec.Term)
	if f := m.rec.Forced; f != nil && f.Term > m.act.term && !f.Settled {
		m.warn("FORCED FAILOVER by %s: node %s was made active without this one. What this node has acknowledged "+
			"after LSN %d is not part of "+
			"the pair any more; it is kept in a file when this node joins again", cmp.Or(f.By, "an operator"),
			cmp.Or(next.Name, f.Node.String()), f.After)
	}
	m.change = change{code: m.yielded()}
	m.do(StopActive{Next: next})
	m.mode, m.fenced = modeIdle, true
	m.epoch++
	m.act = newActing(0)
	m.handedOver()
}

// reportedByActive takes note of what the active role of replication reports.
func (m *machine) reportedByActive(ev DataEvent) {
	a := &m.act
	switch e := ev.(type) {
	case ActiveReady:
		a.ready = true
	case StandbyConnected:
		// A third node that fetches a snapshot does not hide the one that is waited for.
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
		// It may come before StandbyCaughtUp, from a standby in sync that lacks nothing when it connects. It comes only
		// once for a requirement, so it counts at once: a swap that releases the standby may still be under way.
		if a.standby != standbyNone && a.member == e.Member && a.sent.RequireStandby && a.sent.Standby == e.Member &&
			a.sent.Requirement == e.Requirement {
			a.standby = standbySynced
		}
	case StandbyLost:
		if a.standby != standbyNone && a.member.Node == e.Node {
			a.standby, a.member, a.cause = standbyNone, Member{}, e.Cause
		}
		if e.Cause == LostAhead {
			m.needLoad = true // it knows something that we don't
		}
	case StandbyAhead:
		m.standbyAhead(e)
	case DiskStalled:
		a.stalled = e.Stalled
	}
}

// ahead is a standby that knows records to be committed which this active's log does not have.
type ahead struct {
	member         Member
	end, committed uint64 // of its log
}

// reason tells an operator what that means.
func (h ahead) reason() string {
	return fmt.Sprintf("HISTORIES DIFFER: node %s has acknowledged records up to LSN %d that this active lacks, so "+
		"one of the two was put back to an older image", h.member.Node, h.committed)
}

// standbyAhead takes note of a standby that was not welcomed because its log would have to be cut below what it knows
// to be committed (INV-13).
func (m *machine) standbyAhead(e StandbyAhead) {
	a := &m.act
	if a.ahead.member != e.Member {
		m.warn("node %s has committed records up to LSN %d that this active does not have: this active's data "+
			"directory was put back to an older "+
			"image, or the other one's is not of this pair. Nothing is cut", e.Member.Node, e.Committed)
	}
	a.ahead = ahead{member: e.Member, end: e.End.LSN, committed: e.Committed}
}

// required is the member whose acks a commit needs besides our own durability (INV-2, INV-3).
func (s *State) required() (Member, bool) {
	if mutate.Off("INV-3-acknowledges-alone-before-the-swap") && s.act.standby == standbyNone {
		return Member{}, false
	}
	if o, ok := s.rec.Other(s.self.ID); ok {
		return s.inItsRun(o), true
	}
	for _, p := range s.pending {
		// A swap that names it in sync, or even active, may be done at any moment.
		if o, ok := p.Other(s.self.ID); ok {
			return s.inItsRun(o), true
		}
	}
	if s.act.standby >= standbyCaughtUp {
		return s.act.member, true
	}
	return Member{}, false
}

// absent tells whether acks are required from a standby that is not there.
func (s *State) absent() bool {
	r, ok := s.required()
	return ok && (s.act.standby == standbyNone || s.act.member != r)
}

// inItsRun gives an entry without a generation that of the standby that is connected: the record says nothing about its
// run.
func (s *State) inItsRun(o Member) Member {
	if o.Run == uuid.Nil && s.act.standby != standbyNone && o.Is(s.act.member) {
		return s.act.member
	}
	return o
}

// conditions are those under which this active may acknowledge now: the table "may the active acknowledge?".
func (s *State) conditions() ActiveConfig {
	req, needed := s.required()
	c := ActiveConfig{Config: s.rec.Config, RequireStandby: needed, Standby: req, Serve: true, Deliver: true}
	if len(s.rec.InSync) < s.rec.MinInSync {
		c.RequireStandby = true
		c.Serve, c.Reason = false, "alone, and min_in_sync is 2"
	}
	if s.act.ahead.end != 0 {
		c.Serve, c.Reason = false, s.act.ahead.reason() // INV-13
	}
	if s.act.blocked != never {
		if s.now >= s.act.blocked+s.set.RefuseAfter {
			c.Serve, c.Reason = false, "the standby in sync is gone, and the coordinator has not released it yet"
		}
		if (!s.reachable || s.leaseUntil != 0) && s.now >= s.leaseUntil-s.set.LeaseMargin {
			c.Deliver = false // it may not be the active any more
		}
	}
	if s.unknown && !mutate.Off("INV-8-serves-after-unknown-outcome") {
		// INV-8
		c.Serve, c.Deliver, c.Reason = false, false, "the coordinator did not say whether it wrote the pair's record"
	}
	return c
}

// lead does the active's duties.
func (m *machine) lead() {
	a := &m.act
	other, hasOther := m.rec.Other(m.self.ID)
	// One that names no run, where the record names one, is none whose acks count: it went back to an older release,
	// and joins anew.
	there := a.standby != standbyNone && a.member == m.inItsRun(other)
	switch {
	case !hasOther || there:
		a.dropAt = never
	case a.dropAt == never:
		a.dropAt = m.now // it was there, and is gone
	}
	if !m.absent() {
		a.blocked = never
	} else if a.blocked == never {
		a.blocked = m.now
	}
	m.configure()
	m.raiseFence(m.rec.Fence())
	if a.ready && m.ask.id != "" {
		m.endAsk("")
	}
	m.handOver()
	m.failBack()
	m.leadSwap(hasOther, there)
	// A proposal can only have tightened the conditions; still, they are sent before anything else happens.
	m.configure()
}

// configure sends the conditions to the data plane if they have changed.
func (m *machine) configure() {
	if c := m.numbered(m.conditions()); c != m.act.sent {
		m.act.sent = c
		m.do(ConfigureActive{Config: c})
	}
}

// numbered gives the conditions a new requirement number if acks begin to be required by them.
func (m *machine) numbered(c ActiveConfig) ActiveConfig {
	if c.RequireStandby && (!m.act.sent.RequireStandby || m.act.sent.Standby != c.Standby) {
		m.act.needs++
		if m.act.standby == standbySynced {
			// It was that for the requirement before: the acks of another run of the same node may have counted since.
			m.act.standby = standbyCaughtUp
		}
	}
	c.Requirement = m.act.needs
	return c
}

// leadSwap proposes the change of the record that is due, if any.
func (m *machine) leadSwap(hasOther, there bool) {
	a := &m.act
	next := m.rec
	other, _ := m.rec.Other(m.self.ID)
	me, ok := m.rec.Member(m.self.ID)
	if !ok {
		return // it has taken itself out (INV-6); the other one takes over
	}
	switch {
	case m.hand.phase >= handDraining && m.hand.phase <= handSwapping:
		return // handOver does it
	case hasOther && a.ahead.member.Node != uuid.Nil && other.Is(a.ahead.member):
		// Nothing was acknowledged in this term: it takes that member's acks, and there were none.
		if m.canSwap() {
			m.giveTo(other)
		}
		return
	case me.Run != m.run.id && m.namesRuns():
		next = m.withRun(next) // the other node's release has learned of it, or has written the record anew
	case hasOther && a.dropAt != never && m.now >= a.dropAt && a.stalled:
		// the other one has gone in order to take over; alone, a node that can write nothing would serve no client
		return
	case hasOther && a.dropAt != never && m.now >= a.dropAt:
		next.InSync = []Member{me} // INV-3: first this swap, then acknowledge alone
	case !hasOther && (a.standby == standbySynced || a.standby == standbyCaughtUp &&
		mutate.Off("INV-3-in-sync-before-its-acks-count")):
		next.InSync = []Member{me, a.member} // INV-3: its acks are required already
		next.Forced = m.rec.Forced.settled()
	case m.rec.Switchover != nil && m.hand.phase == handNone:
		next.Switchover = nil
	case len(m.pending) > 0 && (!hasOther || there):
		// A change whose outcome is not known became needless: the standby came back before it was released, or went
		// before it was named. As long as it may be done, no role can change, and the acks of a standby that is gone may
		// be required. Writing the record once more, as it is, settles it.
	default:
		return
	}
	if m.canSwap() {
		m.propose(next)
	}
}
