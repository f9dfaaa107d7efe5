// SPDX-License-Identifier: Apache-2.0

package failover

import "fmt"

// Role is what a node does now.
type Role uint8

// The roles, in the order in which a node usually takes them.
const (
	// RoleRecovering: it does not know the record yet, or waits for something that only others can change.
	RoleRecovering Role = iota + 1
	// RoleCatchingUp: it fetches what it lacks from the active.
	RoleCatchingUp
	// RoleSyncing: caught up; the active requires its acks and is about to name it in sync.
	RoleSyncing
	// RoleStandby: in sync; it could take over at any moment.
	RoleStandby
	// RoleCandidate: it tries to take over.
	RoleCandidate
	// RoleActivating: it has won the role and replays the last of the log.
	RoleActivating
	// RoleActive: it serves clients; the standby holds everything as well.
	RoleActive
	// RoleBlocked: active, but not able to acknowledge at the moment.
	RoleBlocked
	// RoleActiveAlone: it serves clients; no other node holds everything.
	RoleActiveAlone
	// RoleFenced: it lost the role and is about to rejoin.
	RoleFenced
)

// String gives the name that status and logs use.
func (r Role) String() string {
	names := [...]string{
		"UNKNOWN", "RECOVERING", "CATCHING_UP", "SYNCING", "STANDBY", "CANDIDATE", "ACTIVATING", "ACTIVE",
		"BLOCKED", "ACTIVE_ALONE", "FENCED",
	}
	if int(r) < len(names) {
		return names[r]
	}
	return fmt.Sprintf("ROLE_%d", uint8(r))
}

// Acts tells whether a node in this role holds the active role.
func (r Role) Acts() bool {
	switch r {
	case RoleActivating, RoleActive, RoleBlocked, RoleActiveAlone:
		return true
	case RoleRecovering, RoleCatchingUp, RoleSyncing, RoleStandby, RoleCandidate, RoleFenced:
		return false
	default:
		return false
	}
}
