// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"fmt"
	"strings"
)

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

// Reason describes why the node has its role, or what it waits for. It changes only with the state.
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

func (s *State) ownReason() string {
	switch {
	case s.proc.superseded != "":
		return s.proc.superseded
	case s.proc.duplicate != Live{}:
		return s.duplicateReason()
	case !s.known && s.refused != nil:
		return s.refused.Error()
	case !s.known && s.missing:
		return "creating the cluster record"
	case !s.known && s.reachable:
		return "reading the cluster record"
	case !s.known:
		return "coordinator is unreachable"
	case s.problem != "":
		return s.problem
	case s.mode == modeAct:
		return s.actingReason()
	case s.candidate && s.reachable:
		return s.why
	case s.candidate:
		return s.why + "; coordinator is unreachable"
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
	case s.hand.phase == handoverDraining || s.hand.phase == handoverSwapping:
		return "handing over to the standby"
	case s.absent() && s.reachable:
		return "in-sync standby is disconnected" + s.standbyCause() + ": removing it from the in-sync set"
	case s.absent():
		return "in-sync standby is disconnected" + s.standbyCause() + ", and the coordinator is unreachable"
	case !s.act.sent.Serve:
		return s.act.sent.Reason
	case !s.act.ready:
		return "replaying the log"
	case !s.reachable:
		return "coordinator is unreachable: role changes are suspended"
	case len(s.rec.InSync) == 1 && s.act.standby != standbyNone:
		return "standby is catching up"
	case len(s.rec.InSync) == 1:
		return "no standby is connected" + s.standbyCause()
	default:
		return s.thirdReason()
	}
}

func (s *State) duplicateReason() string {
	return fmt.Sprintf("another process with this node's identity, at %s, does not respond: waiting until its lease "+
		"expires", s.proc.duplicate.Node.Address)
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
		reason = fmt.Sprintf("not connected to the active %s: %s", f.active.Address, f.cause)
	default:
		reason = "connecting to the active " + f.active.Address
	}
	if listed && !f.connected && f.cause != 0 && s.rec.Paused != nil {
		reason += "; the pair is paused, so this node does not take over until lockstep resume"
	}
	if !listed && !f.connected && f.cause != 0 {
		reason += "; " + s.waiting()
		reason += s.quarantineReason()
	}
	if !s.reachable {
		if reason != "" {
			reason += "; "
		}
		reason += "coordinator is unreachable: role changes are suspended"
	}
	return reason
}

func (s *State) missingReason() string {
	if s.proc.missing == "" {
		return ""
	}
	return ". " + strings.ToUpper(s.proc.missing[:1]) + s.proc.missing[1:] +
		": if the disk was restored from an older copy, restore the newest copy"
}

func (s *State) quarantineReason() string {
	if s.ident.Quarantine == "" {
		return ""
	}
	return ". The previous store of this node could not be opened, and is kept in " + s.ident.Quarantine + " in its " +
		"data directory: repair it, if possible, instead of forcing a failover (docs/explanation/maintenance.md, \"Corrupt " +
		"files at startup\")"
}

// startOther returns the instruction to start the other node, unless that node is running.
func (s *State) startOther() string {
	if s.otherLives() {
		return ""
	}
	return "start the other node; if that is impossible, "
}

// forceCommand returns the command for a forced failover. If another node is running, it also returns the instruction
// to stop one of the nodes first.
func (s *State) forceCommand() string {
	const command = "lockstep failover --force"
	if l, ok := s.otherLive(); ok {
		return fmt.Sprintf("node %s is also running, which prevents a forced failover. Stop the node with the lower "+
			"term or, in the same term, the lower LSN (columns Term and Durable of lockstep status), and run on the remaining "+
			"node: %s", describeShort(l.Node), command)
	}
	return command
}

func (s *State) idleReason() string {
	me, listed := s.rec.Member(s.self.ID)
	_, hasOther := s.rec.Other(s.self.ID)
	switch {
	case listed && !s.eligible() && hasOther && s.proc.rolledBack != "":
		return "this data directory was rolled back: " + s.proc.rolledBack +
			". This node leaves the in-sync set, and fetches missing records from the other node"
	case listed && !s.eligible() && s.proc.rolledBack != "":
		return "this data directory was rolled back: " + s.proc.rolledBack +
			". No other node is in sync: " + s.startOther() + "restore the newest copy of either node, or continue without " +
			"the missing records: " + s.forceCommand()
	case listed && !s.eligible() && hasOther:
		return "this store may have lost acknowledged transactions: leaving the in-sync set" // INV-6
	case listed && !s.eligible() && s.ident.MayHaveLost:
		return "this store may have lost acknowledged transactions, and no other node is in sync: " + s.startOther() +
			"restore a backup, or continue without them: " + s.forceCommand() + s.missingReason() + s.quarantineReason()
	case listed && !s.eligible():
		return "the cluster record lists another store of this node, and no other node is in sync: restore the data " +
			"directory; if that is impossible, " + s.startOther() + "continue without it: " + s.forceCommand()
	case s.rec.Active == s.self.ID && listed && !s.reachable:
		return "coordinator is unreachable"
	case s.rec.Active == s.self.ID && listed && hasOther && !s.handshake.known && s.mode == modeIdle:
		return "waiting for the other node to compare the logs"
	case s.rec.Active == s.self.ID && listed:
		return "resuming the active role"
	case s.rec.Active == s.self.ID:
		return "no longer in sync: waiting for the other node to take over. Start it if it is not running, and check its " +
			"status if it does not take over; if it is permanently lost, check with lockstep failover --dry-run which records " +
			"a failover to this node would lose"
	case listed && me.Generation != s.proc.id && s.recordHasGenerations():
		return "in sync, but the cluster record does not list this process generation yet"
	default:
		return "address of the active is unknown"
	}
}
