// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"fmt"
	"strings"

	"github.com/google/uuid"
)

// This file derives status texts from the state.

// Role returns the node's role.
func (s *State) Role() Role {
	switch s.mode {
	case modeAct:
		return s.actingRole()
	case modeFollow:
		_, listed := s.rec.Member(s.self.ID)
		switch {
		case s.fenced && !s.follow.connected:
			return RoleFenced
		case listed:
			return RoleStandby
		case s.follow.required:
			return RoleSyncing
		default:
			return RoleCatchingUp
		}
	case modeIdle:
		if s.candidate {
			return RoleCandidate
		}
		return RoleRecovering
	default:
		return RoleRecovering
	}
}

func (s *State) actingRole() Role {
	_, hasOther := s.rec.Other(s.self.ID)
	switch {
	case !s.act.ready:
		return RoleActivating
	case !s.act.sent.Serve || s.absent():
		return RoleBlocked
	case hasOther:
		return RoleActive
	default:
		return RoleActiveAlone
	}
}

// Reason describes why the node has its role, or the event that it waits for. It does not change without a state
// change.
func (s *State) Reason() string {
	reason := s.ownReason()
	more := s.refusal
	if more == "" && !s.reachable {
		more = s.hint
	}
	if reason != "" && more != "" {
		reason += ": "
	}
	return reason + more
}

// ownReason returns the reason without the coordinator's part.
func (s *State) ownReason() string {
	switch {
	case s.run.superseded != "":
		return s.run.superseded
	case s.run.twin != Live{}:
		return s.twinReason()
	case !s.known && s.refused != nil:
		return s.refused.Error()
	case !s.known && s.missing:
		return "no record of the pair yet: creating it"
	case !s.known && s.reachable:
		return "reading the pair's record"
	case !s.known:
		return "waiting for the coordinator: it cannot be reached"
	case s.trouble != "":
		return s.trouble
	case s.mode == modeAct:
		return s.actingReason()
	case s.candidate && s.reachable:
		return s.why
	case s.candidate:
		return s.why + "; the coordinator cannot be reached"
	case s.mode == modeFollow && s.fenced:
		return s.why
	case s.mode == modeFollow:
		return s.followingReason()
	default:
		return s.idleReason()
	}
}

func (s *State) actingReason() string {
	switch {
	case s.unknown:
		return s.act.sent.Reason
	case s.hand.phase == handDraining || s.hand.phase == handSwapping:
		return "handing over to the standby"
	case s.absent() && s.reachable:
		return "the standby in sync is gone" + s.standbyCause() + ": releasing it"
	case s.absent():
		return "the standby in sync is gone" + s.standbyCause() + ", and the coordinator cannot be reached"
	case !s.act.sent.Serve:
		return s.act.sent.Reason
	case !s.act.ready:
		return "replaying the log"
	case !s.reachable:
		return "the coordinator cannot be reached: role changes are frozen"
	case len(s.rec.InSync) == 1 && s.act.standby != standbyNone:
		return "the standby catches up"
	case len(s.rec.InSync) == 1:
		return "no standby is connected" + s.standbyCause()
	default:
		return s.thirdReason()
	}
}

// twinReason describes a process with this identity that may still run.
func (s *State) twinReason() string {
	return fmt.Sprintf("another process has announced itself as this node at %s and does not answer: waiting until "+
		"its lease has ended",
		s.run.twin.Node.Address)
}

func (s *State) standbyCause() string {
	if s.act.cause == 0 {
		return ""
	}
	return " (" + s.act.cause.String() + ")"
}

func (s *State) followingReason() string {
	f := &s.follow
	_, listed := s.rec.Member(s.self.ID)
	var reason string
	switch {
	case f.connected:
	case f.cause != 0:
		reason = fmt.Sprintf("no connection to the active %s: %s", f.active.Address, f.cause)
	default:
		reason = "connecting to the active " + f.active.Address
	}
	if listed && !f.connected && f.cause != 0 && s.rec.Paused != nil {
		reason += "; the pair is paused, so this node does not take over: lockstep resume"
	}
	if !listed && !f.connected && f.cause != 0 {
		reason += "; " + s.waiting()
		reason += s.asideReason()
	}
	if !s.reachable {
		if reason != "" {
			reason += "; "
		}
		reason += "the coordinator cannot be reached: role changes are frozen"
	}
	return reason
}

// lacksReason describes, based on the pair's mark, the gap of a store that may have lost records.
func (s *State) lacksReason() string {
	if s.run.lacks == "" {
		return ""
	}
	return ". " + strings.ToUpper(s.run.lacks[:1]) + s.run.lacks[1:] +
		": if an older image of its disk was put back, bring back the newest one instead"
}

// asideReason describes the quarantine of a node that is waiting to be resynchronized.
func (s *State) asideReason() string {
	if s.ident.Quarantine == "" {
		return ""
	}
	return ". What this node held could not be opened and is kept in its data directory, in " + s.ident.Quarantine +
		": if it can be mended, do that and force nothing (docs/explanation/maintenance.md, \"Corrupt files at startup\")"
}

// howToForce returns the command for a forced failover. No node can be forced while another one responds, so such a
// node must be stopped first.
func (s *State) howToForce() string {
	const command = "lockstep failover --force"
	for _, l := range s.live {
		if l.Node.ID != s.self.ID && l.Node.ID != uuid.Nil {
			return fmt.Sprintf("node %s runs, too, and no node is forced beside another one. See whose log goes "+
				"further (lockstep status), stop the other node, and then: %s", describeShort(l.Node), command)
		}
	}
	return command
}

func (s *State) idleReason() string {
	me, listed := s.rec.Member(s.self.ID)
	_, hasOther := s.rec.Other(s.self.ID)
	switch {
	case listed && !s.eligible() && hasOther && s.run.putBack != "":
		return "this data directory was put back: " + s.run.putBack +
			". Leaving the in-sync set; this node gets what it lacks from the other one"
	case listed && !s.eligible() && s.run.putBack != "":
		return "this data directory was put back: " + s.run.putBack +
			". No other node is in sync: bring back the newest image of this node or the other one, or go on without " +
			"what is missing: " + s.howToForce()
	case listed && !s.eligible() && hasOther:
		return "this store may have lost acknowledged transactions: leaving the in-sync set" // INV-6
	case listed && !s.eligible() && s.ident.MayHaveLost:
		return "this store may have lost acknowledged transactions, and no other node holds them: " +
			// INV-6
			"restore it from a backup or the other node, or go on without them: " + s.howToForce() +
			s.lacksReason() + s.asideReason()
	case listed && !s.eligible():
		return "the pair's record expects another store on this node, and no other node is in sync: bring back the " +
			"data directory, or go on without it: " + s.howToForce()
	case s.rec.Active == s.self.ID && listed && !s.reachable:
		return "waiting for the coordinator: it cannot be reached"
	case s.rec.Active == s.self.ID && listed && hasOther && !s.meeting.known && s.mode == modeIdle:
		return "waiting a moment for the other node, to compare the ends of the logs"
	case s.rec.Active == s.self.ID && listed:
		return "taking up the role again"
	case s.rec.Active == s.self.ID:
		return "not in sync any more: waiting for the other node to take over. Start it if it is down; if it is up and " +
			"does not take over, its own status says why; if it is lost for good, lockstep failover --dry-run says " +
			"what would be lost by going on with this one"
	case listed && me.Run != s.run.id && s.namesRuns():
		return "in sync, but the coordinator has not written yet that this run of the node takes part: its " +
			"acknowledgements do not count before that"
	default:
		return "the address of the active is not known"
	}
}
