// SPDX-License-Identifier: Apache-2.0

package failover

import "fmt"

// Role is the role of a node.
type Role uint8

// Roles, in the usual order.
const (
	// RoleRecovering means that the node has no other role. For example, it has not read the record yet, it waits for
	// the other node or an operator, or another process has replaced it.
	RoleRecovering Role = iota + 1
	// RoleCatchingUp means that the node is not in sync. It connects to the active, or fetches missing records from it.
	RoleCatchingUp
	// RoleSyncing means that the node has caught up. The active requires its acks, and is about to add it to
	// in_sync.
	RoleSyncing
	// RoleStandby means that the node is in sync with the active, or was when the connection was lost, and can take
	// over.
	RoleStandby
	// RoleCandidate means that the node tries to become active.
	RoleCandidate
	// RoleActivating means that the node has the active role, but has not yet committed and applied the records in its
	// log.
	RoleActivating
	// RoleActive means that the node serves clients, and the standby is in sync.
	RoleActive
	// RoleBlocked means that the node has the active role, but cannot acknowledge.
	RoleBlocked
	// RoleActiveAlone means that the node serves clients, and no other node is in sync.
	RoleActiveAlone
	// RoleFenced means that the node has lost the active role, and has not connected to the new active yet.
	RoleFenced
)

// String returns the name used in status and logs.
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

// Acts reports whether a node with this role has the active role of its pair.
func (r Role) Acts() bool {
	return r == RoleActivating || r == RoleActive || r == RoleBlocked || r == RoleActiveAlone
}
