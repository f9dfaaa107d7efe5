// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"fmt"
	"time"

	"github.com/google/uuid"
)

// In a planned switchover, the active drains, and then swaps the record. A standby that receives the request writes
// it into the record, and waits for the active.

type handover struct {
	phase    handoverPhase
	id       string // of the local request; empty for a request of the standby, or a failback
	began    time.Duration
	deadline time.Duration
	term     uint64 // term of the new active
	drain    uint64 // number of the drain
	declined string // ID of a request in the record that has failed
	failback bool   // automatic: the standby is the preferred node
}

type handoverPhase uint8

const (
	handoverNone handoverPhase = iota
	handoverDraining
	handoverSwapping
	handoverWaiting // for the other node to accept this node as its active
)

type switchoverRequest struct {
	id       string
	seen     bool // the request is in the record
	began    time.Duration
	deadline time.Duration
}

func (m *machine) switchoverRequested(e SwitchoverRequested) {
	fail := func(format string, args ...any) {
		m.do(SwitchoverEnded{ID: e.ID, Failure: fmt.Sprintf(format, args...)})
	}
	named := e.To != uuid.Nil
	switch {
	case named && m.known && m.problem == "" && m.rec.Active == e.To:
		m.do(SwitchoverEnded{ID: e.ID, Already: true})
	case m.hand.phase != handoverNone || m.request.id != "" || m.known && m.rec.Switchover != nil:
		fail(reasonBusy)
	case named && m.known && e.To != m.self.ID && !m.isOther(e.To):
		fail("target node is not in sync")
	case named && m.known && e.To != m.self.ID && m.mode == modeFollow:
		fail("this node is no longer active") // a request from here would activate this node
	case m.known && m.leads():
		if why := m.switchoverBlocker(); why != "" {
			fail("%s", why)
			return
		}
		m.beginHandOver(e.ID)
	case m.mode == modeFollow && m.eligible() && m.follow.connected:
		m.request = switchoverRequest{id: e.ID, began: m.now, deadline: m.now + m.set.SwitchoverTimeout}
	default:
		fail("this node is neither active nor a connected standby in sync")
	}
}

const reasonBusy = "another switchover is in progress"

// reasonNoAddress is transient: a standby can be in sync before its liveness key, with its address, is visible.
const reasonNoAddress = "address of the standby is unknown"

func (s *State) switchoverBlocker() string {
	other, ok := s.rec.Other(s.self.ID)
	_, described := describeNode(s.rec, s.live, other.Node)
	switch {
	case !s.act.ready:
		return "activation is in progress"
	case !ok:
		return "no standby is in sync"
	case s.absent():
		return "in-sync standby is not connected"
	case !described:
		return reasonNoAddress
	case !s.reachable || s.problem != "":
		return "coordinator is unreachable"
	case s.unknown || len(s.pending) > 0:
		return "a change of the cluster record is in progress"
	default:
		return ""
	}
}

func (m *machine) beginHandOver(id string) {
	m.hand = handover{
		phase: handoverDraining, id: id, began: m.now, term: m.rec.Term + 1, drain: m.hand.drain + 1,
		deadline: m.now + m.set.DrainTimeout + m.set.CoordinatorTimeout,
	}
	m.do(BeginDrain{Drain: m.hand.drain, Limit: m.set.DrainTimeout})
}

func (m *machine) drainEnded(e DrainEnded) {
	if m.hand.phase != handoverDraining || e.Drain != m.hand.drain {
		return
	}
	if e.Err != nil {
		m.abortHandOver(fmt.Sprintf("drain failed on the active: %v", e.Err))
		return
	}
	m.hand.phase = handoverSwapping
}

func (m *machine) handOver() {
	switch m.hand.phase {
	case handoverNone:
		// leadSwap removes a request that cannot be met.
		if r := m.rec.Switchover; r != nil && r.ID != m.hand.declined && m.isOther(r.To) && m.switchoverBlocker() == "" {
			m.beginHandOver("")
		}
	case handoverDraining:
		if m.absent() {
			m.abortHandOver("standby disconnected")
		}
	case handoverSwapping:
		other, ok := m.rec.Other(m.self.ID)
		switch {
		case !ok || m.absent() && len(m.pending) == 0:
			m.abortHandOver("standby disconnected")
		case m.now >= m.hand.deadline && !m.unknown && m.swapping == "":
			// The swap may still be applied. Until it is resolved, transactions require the standby's acks, which prove that
			// it has not become active.
			m.abortHandOver("cluster record was not written in time")
		case m.canSwap():
			next := m.rec
			next.Active, next.Term, next.Switchover = other.Node, m.rec.Term+1, nil
			m.propose(next)
		}
	case handoverWaiting:
		if m.rec.Term >= m.hand.term { // this node is active again
			m.endHandOver("other node did not activate; this node is active again")
		}
	}
}

func (m *machine) abortHandOver(why string) {
	m.do(Resume{})
	m.endHandOver(why)
}

func (m *machine) endHandOver(failure string) {
	switch {
	case m.hand.id != "":
		m.do(SwitchoverEnded{ID: m.hand.id, Failure: failure, Pause: m.now - m.hand.began})
	case failure != "" && m.hand.failback:
		m.warn("failback to the preferred node failed: %s", failure)
	case failure != "":
		m.warn("switchover requested by the standby failed: %s", failure)
	}
	m.hand = handover{drain: m.hand.drain}
	if m.rec.Switchover != nil {
		m.hand.declined = m.rec.Switchover.ID
	}
}

func (s *State) isOther(node uuid.UUID) bool {
	o, ok := s.rec.Other(s.self.ID)
	return ok && o.Node == node
}

func (m *machine) handedOver() {
	switch {
	case m.hand.phase == handoverNone:
	case m.hand.phase == handoverSwapping && m.rec.Active != m.self.ID && m.rec.Term == m.hand.term && m.hand.id != "":
		m.hand.phase = handoverWaiting
		m.hand.deadline = m.hand.began + m.set.SwitchoverTimeout
	case m.hand.phase == handoverSwapping && m.rec.Active != m.self.ID && m.rec.Term == m.hand.term:
		m.hand = handover{drain: m.hand.drain} // the standby that requested the switchover is active
	default:
		m.endHandOver("this node lost the role concurrently")
	}
}

func (m *machine) handedTo(term uint64) {
	if m.hand.phase == handoverWaiting && term >= m.hand.term {
		m.endHandOver("")
	}
}

func (m *machine) requestHandover() {
	if m.hand.phase == handoverWaiting && m.now >= m.hand.deadline {
		m.endHandOver("other node was activated but does not respond")
	}
	if m.request.id == "" {
		return
	}
	mine := m.rec.Switchover != nil && m.rec.Switchover.ID == m.request.id
	switch {
	case m.now >= m.request.deadline:
		if mine && m.canSwap() {
			next := m.rec
			next.Switchover = nil
			m.propose(next)
		}
		m.endRequest("active did not hand over in time")
	case m.rec.Active == m.self.ID:
	case mine:
	case m.request.seen:
		m.endRequest("handover failed on the active; see its log")
	case m.rec.Switchover != nil:
		m.endRequest(reasonBusy)
	case m.mode == modeFollow && m.canSwap():
		next := m.rec
		next.Switchover = &Switchover{ID: m.request.id, To: m.self.ID}
		m.propose(next)
	}
}

func (m *machine) endRequest(failure string) {
	m.do(SwitchoverEnded{ID: m.request.id, Failure: failure, Pause: m.now - m.request.began})
	m.request = switchoverRequest{}
}

// failBack starts a handover when the preferred standby has been in sync for FailbackDelay without interruption.
func (m *machine) failBack() {
	a := &m.act
	switch {
	case !m.standbyIsPreferred() || m.hand.phase != handoverNone:
		a.transferAt = never
	case a.transferAt == never:
		a.transferAt = m.now + m.set.FailbackDelay
	case m.now < a.transferAt:
	case m.switchoverBlocker() != "":
		a.transferAt = m.now + m.set.FailbackDelay // the pair is not stable enough for a handover
	default:
		a.transferAt = never
		m.beginHandOver("")
		m.hand.failback = true
	}
}

// standbyIsPreferred reports whether the standby is in sync and preferred over this node, and a failback is allowed.
// When it returns false, the delay restarts.
func (s *State) standbyIsPreferred() bool {
	other, ok := s.rec.Other(s.self.ID)
	if !ok || s.set.Preferred || s.set.FailbackDelay <= 0 || !s.act.ready || s.absent() {
		return false
	}
	if s.rec.Paused != nil || s.rec.Switchover != nil || s.failbackBlocked != "" || len(s.rec.InSync) < s.rec.MinInSync {
		return false
	}
	n, ok := describeNode(s.rec, s.live, other.Node)
	return ok && n.Preferred
}
