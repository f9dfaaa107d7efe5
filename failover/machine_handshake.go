// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/store/mutate"
)

// This file contains the queries of other processes: of one with this node's identity, and of the other in-sync
// member before this node resumes the role after a restart (INV-13).

// handshake is the query of the other in-sync member.
type handshake struct {
	running bool          // in progress
	tried   bool          // completed, with any outcome
	at      time.Duration // of the next query
	known   bool          // peer is valid
	peer    Peer
}

const duplicateCheckDelay = time.Second

func (m *machine) startHandshake() {
	r := &m.proc
	if r.announced || !m.liveKnown {
		return
	}
	if r.copyOf == "" {
		r.duplicate = m.findDuplicate()
	}
	if (r.duplicate != Live{}) {
		r.markKnown = false // that process may commit until it terminates
	}
	switch {
	case r.duplicate == Live{}:
		r.announced = true
		m.do(Announce{})
	case r.checkingDuplicate || m.now < r.duplicateCheckAt:
	default:
		r.checkingDuplicate, r.queried = true, r.duplicate
		m.do(Handshake{Address: r.duplicate.Node.Address})
	}
}

// findDuplicate returns another process announced as this node. It ignores processes with this node's address.
func (s *State) findDuplicate() Live {
	l, _ := find(s.live, func(l Live) bool {
		return l.Node.ID == s.self.ID && l.Process != "" && l.Process != s.process && l.Process != s.proc.gone &&
			l.Node.Address != s.self.Address
	})
	return l
}

func (m *machine) handshakeDone(e HandshakeDone) {
	r := &m.proc
	if queried := r.queried; r.checkingDuplicate && e.Address == queried.Node.Address {
		r.checkingDuplicate, r.queried, r.duplicateCheckAt = false, Live{}, m.now+duplicateCheckDelay
		switch {
		case r.copyOf != "": // queried again to notify that process
			r.duplicateCheckAt = m.now + duplicateRetention/2
		// the queried process, or a later one from the same directory
		case e.Err == nil && e.Peer.Node == m.self.ID && e.Peer.Process != m.process:
			if r.claimed {
				return // its lease has expired in the meantime, so the record decides
			}
			r.duplicate = queried
			m.reportDuplicate()
		case e.Err == nil || e.Gone:
			r.gone = queried.Process
		default: // wait until its lease expires
		}
		return
	}
	if m.handshake.running {
		m.handshake.running, m.handshake.tried, m.handshake.at = false, true, m.now+m.set.RetryDelay
		if e.Err == nil && e.Peer.Node != m.self.ID {
			m.handshake = handshake{known: true, peer: e.Peer}
		}
	}
}

// peerResponded queries the other in-sync member, and reports whether a node that was active before its start may
// resume the role: the member has reported the end of its log, or has not responded within StartupWait (INV-13). If
// the address of the member is known, it is queried at least once.
func (m *machine) peerResponded() bool {
	other, ok := m.rec.Other(m.self.ID)
	if !ok || m.handshake.known || mutate.Off("INV-13-role-without-comparison") {
		return true
	}
	described, _ := describeNode(m.rec, m.live, other.Node)
	if described.Address != "" && !m.handshake.running && m.now >= m.handshake.at {
		m.handshake.running = true
		m.do(Handshake{Address: described.Address})
	}
	return m.now >= m.started+m.set.StartupWait && (m.handshake.tried || described.Address == "")
}

// compareCommitted implements INV-6 and INV-13: if a standby is listed in sync, but committed records of its active
// are missing from its log, the standby was restored from an older copy.
func (m *machine) compareCommitted() {
	l := m.follow.incomplete
	if l.Config == 0 || l.Config != m.rec.Config || m.proc.rolledBack != "" ||
		mutate.Off("INV-13-standby-ignores-missing-records") {
		return
	}
	if _, listed := m.rec.Member(m.self.ID); listed && m.eligible() {
		why := "this node has acknowledged records that are missing from its log"
		if l.Committed > 0 {
			why = fmt.Sprintf("its log matches the active's up to LSN %d, but the pair has committed LSN %d", l.Common,
				l.Committed)
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

// transferRole proposes a record in which the member with more records is active, and this node is not in sync.
func (m *machine) transferRole(other Member) {
	next := m.rec
	next.Active, next.Term, next.Switchover = other.Node, m.rec.Term+1, nil
	next.InSync = []Member{other}
	m.why = "other node has a longer log and becomes active"
	m.propose(next)
}

// duplicateRetention is how long a process with this node's identity is considered running after it contacted this
// process.
const duplicateRetention = 10 * time.Second

func (s *State) duplicate() *Live {
	r := &s.proc
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

const behindReason = "one of the nodes was restored from an older copy. No records are truncated. The active does " +
	"not serve until it accepts a standby, even if this node is stopped; after a restart, it serves until this node " +
	"connects. An operator must decide which node continues (docs/explanation/failover.md, \"When histories differ\")"

// ahead returns a description of diverged histories; "" if none were detected.
func (s *State) ahead() string {
	switch {
	case s.mode == modeAct && s.act.ahead.end != 0:
		return s.act.ahead.reason()
	case s.mode == modeFollow && s.follow.cause == LostBehind && !s.eligible():
		return "committed records of this node are missing on the active at " + s.follow.active.Address + ": " +
			behindReason
	default:
		return ""
	}
}
