// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/store/mutate"
)

// This file queries other processes: one that runs under this node's identity, and the other member before this node
// takes the role again (INV-13).

// handshake is the query of the other in-sync member by a node about to take the role after a start.
type handshake struct {
	asked bool          // in progress
	tried bool          // with any outcome
	at    time.Duration // of the next query
	known bool          // peer is valid
	peer  Peer
}

const duplicateCheckDelay = time.Second

func (m *machine) startHandshake() {
	r := &m.run
	if r.announced || !m.liveKnown {
		return
	}
	if r.copyOf == "" {
		r.duplicate = m.findDuplicate()
	}
	if (r.duplicate != Live{}) {
		r.markKnown = false // it may commit in the meantime
	}
	switch {
	case r.duplicate == Live{}:
		r.announced = true
		m.do(Announce{})
	case r.checkingDuplicate || m.now < r.duplicateCheckAt:
	default:
		r.checkingDuplicate, r.asked = true, r.duplicate
		m.do(Handshake{Address: r.duplicate.Node.Address})
	}
}

// findDuplicate returns another process that is announced as this node. One at this node's own address has terminated,
// because this process has its port.
func (s *State) findDuplicate() Live {
	l, _ := find(s.live, func(l Live) bool {
		return l.Node.ID == s.self.ID && l.Process != "" && l.Process != s.process && l.Process != s.run.gone &&
			l.Node.Address != s.self.Address
	})
	return l
}

func (m *machine) handshakeDone(e HandshakeDone) {
	r := &m.run
	if asked := r.asked; r.checkingDuplicate && e.Address == asked.Node.Address {
		r.checkingDuplicate, r.asked, r.duplicateCheckAt = false, Live{}, m.now+duplicateCheckDelay
		switch {
		case r.copyOf != "": // queried again so that it is aware of this process
			r.duplicateCheckAt = m.now + duplicateRetention/2
		// that process, or a later one from the same directory
		case e.Err == nil && e.Peer.Node == m.self.ID && e.Peer.Process != m.process:
			if r.claimed {
				return // its lease has expired since: the record decides
			}
			r.duplicate = asked
			m.reportDuplicate()
		case e.Err == nil || e.Gone:
			r.gone = asked.Process
		default: // wait for its lease
		}
		return
	}
	if m.handshake.asked {
		m.handshake.asked, m.handshake.tried, m.handshake.at = false, true, m.now+m.set.RetryDelay
		if e.Err == nil && e.Peer.Node != m.self.ID {
			m.handshake = handshake{known: true, peer: e.Peer}
		}
	}
}

// peerResponded reports whether a node that was active before its start may take the role again: the other in-sync
// member has reported its log end, or does not respond. The node with the longer log continues, so that acknowledged
// records survive if the other one was restored from an older copy (INV-13). The member is queried at least once, even
// if the coordinator was slow to provide its address.
func (m *machine) peerResponded() bool {
	other, ok := m.rec.Other(m.self.ID)
	if !ok || m.handshake.known || mutate.Off("INV-13-role-without-a-comparison") {
		return true
	}
	described, _ := describeNode(m.rec, m.live, other.Node)
	if described.Address != "" && !m.handshake.asked && m.now >= m.handshake.at {
		m.handshake.asked = true
		m.do(Handshake{Address: described.Address})
	}
	return m.now >= m.started+m.set.StartupWait && (m.handshake.tried || described.Address == "")
}

// compareCommitted implements INV-6 and INV-13: a standby that is listed in sync, but lacks records that its active
// knows to be committed, was restored from an older copy.
func (m *machine) compareCommitted() {
	l := m.follow.lacks
	if l.Config == 0 || l.Config != m.rec.Config || m.run.rolledBack != "" ||
		mutate.Off("INV-13-standby-ignores-what-it-lacks") {
		return
	}
	if _, listed := m.rec.Member(m.self.ID); listed && m.eligible() {
		why := "this node had acknowledged more to the active than its log holds"
		if l.Committed > 0 {
			why = fmt.Sprintf("its log has LSN %d in common with the active, but the two had committed up to LSN %d",
				l.Common, l.Committed)
		}
		m.reportRollback(why + ": its data directory was restored from an older copy")
	}
}

func (s *State) peerIsAhead() (Member, bool) {
	other, ok := s.rec.Other(s.self.ID)
	p := s.handshake.peer
	if !ok || !s.handshake.known || p.Node != other.Node || p.Store != other.Store {
		return Member{}, false
	}
	own := s.ident.End
	return other, p.End.Term > own.Term || p.End.Term == own.Term && p.End.LSN > own.LSN
}

// transferRole hands the role to the member that has more records, and leaves the in-sync set.
func (m *machine) transferRole(other Member) {
	next := m.rec
	next.Active, next.Term, next.Switchover = other.Node, m.rec.Term+1, nil
	next.InSync = []Member{other}
	m.why = "the other node has records that this one lacks, so it becomes active"
	m.propose(next)
}

// duplicateRetention is how long a process that called under this node's identity is considered running.
const duplicateRetention = 10 * time.Second

func (s *State) duplicate() *Live {
	r := &s.run
	switch {
	case r.copyOf != "":
		return new(r.duplicate)
	case r.beside != Live{}:
		return new(r.beside)
	case r.reported != Live{} && s.now < r.reportedAt+duplicateRetention:
		return new(r.reported)
	default:
		return nil
	}
}

const behindReason = "no records of this node are truncated, and the active does not serve while it knows about " +
	"this: one of the two was restored from an older copy, and an operator must decide which of them continues " +
	"(docs/explanation/failover.md, \"When histories differ\")"

// ahead describes diverged histories, of which neither contains the other; empty if none were detected.
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
