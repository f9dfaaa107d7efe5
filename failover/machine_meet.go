// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/store/mutate"
)

// This file is about asking another process: one that runs under this node's identity, and the other member, before
// this node takes the role up again (INV-13).

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
	case r.reported != Live{} && s.now < r.reportedAt+twinMemory:
		t := r.reported
		return &t
	default:
		return nil
	}
}

// behindReason is what a node says that has committed records which the active lacks.
const behindReason = "nothing of this node's is cut, and the active does not serve while it knows of that: one of " +
	"the two was put back to an older image, and an operator has to say which of them goes on " +
	"(docs/explanation/failover.md, \"When histories differ\")"

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
