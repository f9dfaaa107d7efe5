// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"fmt"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store/mutate"
)

func (m *machine) reportedByFollower(ev DataEvent) {
	f := &m.follow
	switch e := ev.(type) {
	case FollowerConnected:
		f.connected, f.ever, f.required, f.cause = true, true, false, 0
		m.proc.logGrown = true
		m.fenced = false
		if seen := Fence(e); m.accepted.Less(seen) {
			m.accepted = seen
		}
		if e.Term > m.rec.Term {
			m.needLoad = true
		}
		m.handedTo(e.Term)
	case FollowerIncomplete:
		f.incomplete = e
		if e.Config > m.rec.Config {
			m.needLoad = true
		}
		// The active may not have received the record in which this node wrote its process generation.
		if e.Config == 0 || e.Config == m.rec.Config-1 && m.wroteRecord() {
			f.incomplete.Config = m.rec.Config
		}
	case FollowerRequired:
		f.required = f.connected
	case FollowerLost:
		if f.connected {
			f.since = m.now
		}
		if e.Cause == LostRejected && f.cause != LostRejected {
			m.needLoad = true
		}
		f.connected, f.required, f.cause = false, false, e.Cause
	}
}

// admitted clears the recorded connection loss when this node is added to in_sync. The record may arrive before the
// FollowerConnected event.
func (m *machine) admitted() {
	if !m.follow.connected {
		m.follow.cause, m.follow.since = 0, m.now
	}
}

// eligible reports whether the record lists this node's store in its current state as in sync (INV-4, INV-6). For the
// only in-sync member with Settings.AcceptLoss, the incarnation may differ.
func (s *State) eligible() bool {
	if mutate.Off("INV-4-any-node-may-promote-itself") {
		return true
	}
	me, ok := s.rec.Member(s.self.ID)
	if s.set.AcceptLoss && len(s.rec.InSync) == 1 {
		return ok && me.Store == s.ident.Store && !s.ident.MayHaveLost
	}
	return ok && me.Is(s.ident.Member().WithGeneration(me.Generation)) && s.owns(me.Generation) && !s.ident.MayHaveLost
}

func (m *machine) standBy() {
	if m.force() {
		return
	}
	if !m.declareLoss() {
		return
	}
	switch {
	case m.candidate:
		m.stand()
	case m.rec.Active == m.self.ID && m.rec.Fence().Less(m.accepted):
		// The record is outdated: the active of a newer record has accepted this node.
		m.needLoad = true
	case m.rec.Active == m.self.ID && !m.eligible():
		m.stopFollowing() // the other node is in sync, and takes over
	case m.rec.Active == m.self.ID:
		// The role was handed over to this node, or its swap was applied without a response: the term is unused. After a
		// restart the term may have been used, and is never reused.
		me, _ := m.rec.Member(m.self.ID)
		if m.rec.Term > m.bootTerm && m.rec.Term > m.usedTerm && (me.Generation == uuid.Nil || me.Generation == m.proc.id) {
			m.takeUp()
			m.lead()
			return
		}
		m.stand()
	case m.takeoverDue():
		m.stand()
		if !m.candidate {
			m.followActive()
		}
	case m.renew():
		m.followActive()
	}
	m.requestHandover()
}

// declareLoss implements INV-6: a node that may have lost records leaves in_sync. If it is the only member, it
// continues only with Settings.AcceptLoss; otherwise, it waits for an operator. declareLoss reports whether the node
// may act.
func (m *machine) declareLoss() bool {
	if mutate.Off("INV-6-stays-in-sync-after-loss") {
		return true
	}
	m.compareCommitted()
	_, listed := m.rec.Member(m.self.ID)
	if !listed {
		if m.ident.MayHaveLost {
			m.ident.MayHaveLost = false
			m.do(ClearLoss{})
		}
		return true
	}
	if m.eligible() {
		return true
	}
	other, ok := m.rec.Other(m.self.ID)
	if !ok && m.set.AcceptLoss && m.ident.MayHaveLost {
		m.warn("acknowledged transactions may be lost, and no other node has them")
		m.do(ClearLoss{}) // IdentityChanged follows
		return false
	}
	m.stopFollowing()
	if ok && m.canSwap() {
		next := m.rec
		next.InSync = []Member{other}
		m.propose(next)
	}
	return false
}

func (s *State) takeoverDue() bool {
	f := &s.follow
	if !s.eligible() || s.rec.Active == s.self.ID || s.rec.Paused != nil {
		return false
	}
	if _, ok := s.rec.Member(s.rec.Active); !ok {
		return true // the active removed itself (INV-6)
	}
	if s.mode != modeFollow || f.connected {
		return false
	}
	switch {
	case f.cause == LostSilence && f.ever:
		return true // the follower has waited for the timeout
	case f.cause == LostRefused && (f.ever || !s.deferToActive()):
		return true // the active's process has terminated
	default:
		return s.now >= f.since+s.set.FailoverTimeout && !s.deferToActive()
	}
}

// deferToActive reports whether this node has just started, and leaves the role to the previous active, which may
// also be starting. A missing lease of that node proves nothing.
func (s *State) deferToActive() bool { return s.now < s.started+s.set.StartupWait }

// If a swap is possible and the checks of INV-12 and INV-13 succeed, stand makes this node a candidate: it fences the
// active, and proposes a record with this node as the active. If the other in-sync member has a longer log, stand
// transfers the role to that member instead. A candidate follows no active until the record has changed.
func (m *machine) stand() {
	if !m.eligible() || !m.canSwap() {
		return
	}
	if m.rec.Active == m.self.ID && !m.candidate {
		if !m.peerResponded() {
			return
		}
		if other, more := m.peerIsAhead(); more {
			m.transferRole(other)
			return
		}
	}
	if !m.candidate && !m.freshMark() {
		return
	}
	if !m.candidate {
		m.candidate, m.why = true, m.standReason()
		m.change = change{code: m.standCode(), term: m.rec.Term + 1}
	}
	// INV-4: this node's log contains every record that it has acknowledged to the old active. It acknowledges no
	// further records of that active. The fence only excludes the current config and term: if the old active's swap is
	// applied, its next config is accepted.
	if !mutate.Off("INV-4-swaps-without-a-fence") {
		m.stopFollowing()
		m.raiseFence(Fence{Config: m.rec.Config, Term: m.rec.Term + 1})
	}
	next := m.rec
	next.Term = m.rec.Term + 1
	next.MinInSync = m.minInSync()
	next.Switchover = nil
	me := m.me()
	next.InSync = []Member{me}
	if m.rec.Active == m.self.ID {
		// After a restart, unlike after a takeover, the standby may be healthy: it stays in sync, and is dropped if it does
		// not connect.
		if other, ok := m.rec.Other(m.self.ID); ok && m.isLive(other.Node) {
			next.InSync = []Member{me, other}
		}
	}
	next.Active = m.self.ID
	m.propose(next)
}

func (s *State) standReason() string {
	_, activeInSync := s.rec.Member(s.rec.Active)
	switch {
	case s.rec.Active == s.self.ID:
		return "this node was active before the restart"
	case !activeInSync:
		return "active has left the in-sync set"
	case s.follow.cause != 0:
		return fmt.Sprintf("connection to the active %s lost: %s", s.follow.active.Address, s.follow.cause)
	default:
		return fmt.Sprintf("active %s does not respond", s.follow.active.Address)
	}
}

func (s *State) standCode() Code {
	_, activeInSync := s.rec.Member(s.rec.Active)
	switch {
	case s.rec.Active == s.self.ID:
		return CodeRestart
	case !activeInSync:
		return CodeActiveLeft
	default:
		return s.follow.cause.Code()
	}
}

func (s *State) isLive(node uuid.UUID) bool { return isLive(s.live, node) }

func (m *machine) followActive() {
	active, ok := describeNode(m.rec, m.live, m.rec.Active)
	if !ok {
		m.stopFollowing()
		return
	}
	if m.mode == modeFollow {
		if m.follow.active.ID == active.ID && (m.follow.connected || m.follow.active.Address == active.Address) {
			return
		}
		since := m.follow.since
		same := m.follow.active.ID == active.ID
		m.stopFollowing()
		defer func() {
			if same {
				m.follow.since = since // a new address does not reset the outage
			}
		}()
	}
	if m.ident.Fence.Term < m.rec.Term || m.ident.Fence.Term > m.rec.Term {
		// The term is new, or this node has failed to take over. The follower raises the fence for a higher config of the
		// same term: if the fence were raised here, it would exclude the active until the active has processed its own
		// swap.
		m.raiseFence(m.rec.Fence())
	}
	m.mode = modeFollow
	m.epoch++
	m.follow = following{active: active, since: m.now}
	m.do(StartFollower{Epoch: m.epoch, Spec: FollowSpec{
		Active: active, Config: m.rec.Config, Term: m.rec.Term,
		Forced: m.rec.Forced,
	}})
}

func (m *machine) stopFollowing() {
	if m.mode != modeFollow {
		return
	}
	m.do(StopFollower{})
	m.mode = modeIdle
	m.epoch++
	m.follow = following{}
}
