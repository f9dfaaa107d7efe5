// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"cmp"
	"strings"

	"go.uber.org/zap"
)

// Code identifies the cause of a role change, or of a standby's removal from the in-sync set. Codes are stable;
// docs/explanation/failover.md lists them.
type Code string

// Codes of lost connections; see LostCause.
const (
	CodeSilence           Code = "silence"
	CodeConnectionClosed  Code = "connection-closed"
	CodeConnectionRefused Code = "connection-refused"
	CodeNoConnection      Code = "no-connection" // never connected
	CodeRejected          Code = "rejected"
	CodeSlow              Code = "slow"
	CodeFenceHigher       Code = "fence-higher"
	CodeActiveBehind      Code = "active-behind"
	CodeDiskFull          Code = "disk-full"
)

// Codes of gaining or losing the active role.
const (
	CodeActiveLeft Code = "active-left"
	CodeRestart    Code = "restart"
	CodeSwitchover Code = "switchover"
	CodeForced     Code = "forced"
	CodeAdopted    Code = "adopted"
	CodeNewPair    Code = "new-pair"
	CodeLongerLog  Code = "longer-log"
	CodeReplaced   Code = "replaced"
)

// Codes of other role changes on the active.
const (
	CodeReady           Code = "ready"
	CodeUnblocked       Code = "unblocked"
	CodeStandbyInSync   Code = "standby-in-sync"
	CodeStandbyDropped  Code = "standby-dropped"
	CodeStandbyLeft     Code = "standby-left"
	CodeUnknownOutcome  Code = "unknown-outcome"
	CodeHistoriesDiffer Code = "histories-differ"
	CodeMinInSync       Code = "min-in-sync"
)

// Codes of role changes on a node that is not active.
const (
	CodeStart           Code = "start"
	CodeRecord          Code = "record"
	CodeCaughtUp        Code = "caught-up"
	CodeInSync          Code = "in-sync"
	CodeDropped         Code = "dropped"
	CodeSuperseded      Code = "superseded"
	CodeStoreRolledBack Code = "store-rolled-back"
)

// Code returns the code of the cause, or CodeNoConnection for the zero LostCause and unknown values.
func (c LostCause) Code() Code {
	if int(c) < len(lostCauses) {
		return lostCauses[c].code
	}
	return CodeNoConnection
}

type change struct {
	code Code
	term uint64 // term of the attempt to become active; 0 without an attempt
}

func (s *State) roleCode(before Status) Code {
	_, listed := s.rec.Member(s.self.ID)
	switch role := s.Role(); role {
	case RoleCandidate, RoleActivating, RoleFenced:
		return s.change.code
	case RoleActive, RoleBlocked, RoleActiveAlone:
		return s.actingCode(role, before)
	case RoleStandby:
		return CodeInSync
	case RoleSyncing, RoleCatchingUp:
		switch {
		case before.Role == RoleStandby && !listed:
			return CodeDropped
		case role == RoleSyncing:
			return CodeCaughtUp
		case before.Role == RoleSyncing:
			return s.follow.cause.Code()
		}
		return CodeRecord
	case RoleRecovering:
		return s.idleCode()
	default:
		return CodeRecord
	}
}

func (s *State) actingCode(role Role, before Status) Code {
	switch {
	case role == RoleBlocked && s.unknown:
		return CodeUnknownOutcome
	case role == RoleBlocked && s.act.ahead.end != 0:
		return CodeHistoriesDiffer
	case role == RoleBlocked && s.absent():
		return s.act.cause.Code()
	case role == RoleBlocked:
		return CodeMinInSync
	case before.Role == RoleActivating:
		return CodeReady
	case role == RoleActive && !before.hasOther():
		return CodeStandbyInSync
	case role == RoleActiveAlone && before.hasOther():
		return CodeStandbyDropped
	default:
		return CodeUnblocked
	}
}

func (s *State) idleCode() Code {
	_, listed := s.rec.Member(s.self.ID)
	switch {
	case s.proc.superseded != "":
		return CodeSuperseded
	case !s.known:
		return CodeStart
	case listed && s.proc.rolledBack != "":
		return CodeStoreRolledBack
	default:
		return CodeRecord
	}
}

func (s *State) activationCode() Code {
	switch _, other := s.rec.Other(s.self.ID); {
	case s.change.term == s.rec.Term:
		return s.change.code
	case s.rec.Config == 1:
		return CodeNewPair
	case other:
		return CodeSwitchover
	default:
		return CodeLongerLog
	}
}

func (s *State) yieldCode() Code {
	switch f := s.rec.Forced; {
	case f != nil && f.Term > s.act.term && !f.Settled:
		return CodeForced
	case s.rec.Active == s.self.ID:
		return CodeRecord
	case s.act.ahead.end != 0 && s.act.ahead.member.Node == s.rec.Active:
		return CodeLongerLog
	case s.hand.phase == handoverSwapping && s.rec.Term == s.hand.term && s.wroteRecord():
		return CodeSwitchover
	default:
		return CodeReplaced
	}
}

func (s *State) dropped(before Status) (Code, bool) {
	if !before.Role.Acts() || !s.leads() || !before.hasOther() || before.Record.Term != s.rec.Term {
		return "", false
	}
	if _, other := s.rec.Other(s.self.ID); other {
		return "", false
	}
	if !s.wroteRecord() {
		return CodeStandbyLeft, true
	}
	return s.act.cause.Code(), true
}

const roleChanged = "role changed"

func (s *State) wroteRecord() bool { return strings.HasPrefix(s.rec.OpID, s.process+"/") }

func (s Status) hasOther() bool {
	if s.Record == nil {
		return false
	}
	_, ok := s.Record.Other(s.Self.ID)
	return ok
}

func (r *Runner) logStart(end uint64) {
	r.log.Info(roleChanged, zap.Stringer("from", Role(0)), zap.Stringer("to", RoleRecovering),
		zap.String("code", string(CodeStart)), zap.Uint64("lsn", end))
}

// logChange logs role changes and dropped standbys.
func (r *Runner) logChange(s *State, before, now Status, end uint64) {
	fields := []zap.Field{zap.Uint64("lsn", end)}
	if now.Record != nil {
		fields = append(fields, zap.Uint64("config", now.Record.Config), zap.Uint64("term", now.Record.Term),
			zap.Int("in_sync", len(now.Record.InSync)))
	}
	if code, ok := s.dropped(before); ok {
		other, _ := before.Record.Other(now.Self.ID)
		node, _ := describeNode(*before.Record, now.Live, other.Node)
		r.log.Warn("standby dropped", append([]zap.Field{
			zap.String("code", string(code)), zap.String("standby", cmp.Or(node.Name, other.Node.String())),
		}, fields...)...)
	}
	if now.Role != before.Role {
		r.log.Info(roleChanged, append([]zap.Field{
			zap.Stringer("from", before.Role), zap.Stringer("to", now.Role),
			zap.String("code", string(s.roleCode(before))), zap.String("reason", now.Reason),
		}, fields...)...)
	}
}
