// SPDX-License-Identifier: Apache-2.0

package failover

import "time"

// Condition is a condition of this node or its pair that only failover detects and an operator must know. It exists
// while the condition lasts. Package server/observe/conditions documents each kind with cause and action, under the
// same names.
type Condition struct {
	// Kind is one of the Notice constants.
	Kind string
	// Details describes the condition in words.
	Details string
	// Since is the start of the condition. If zero, it is the time of the first Status that includes it.
	Since time.Time
}

// Kinds of notices.
const (
	// ConditionSuperseded: the record names this node, but another process generation of it wrote the record.
	ConditionSuperseded = "superseded"
	// ConditionDuplicateProcess: another process has this node's identity.
	ConditionDuplicateProcess = "duplicate-process"
	// ConditionStoreRolledBack: this node's store ends before a position it is known to have committed.
	ConditionStoreRolledBack = "store-rolled-back"
	// ConditionHistoriesDiverged: the active lacks committed records that the other node has.
	ConditionHistoriesDiverged = "histories-diverged"
	// ConditionVoterMissing, ConditionVoterBehind, ConditionVoterRolledBack and ConditionVoterWiped concern a voter of the
	// coordinator.
	ConditionVoterMissing    = "voter-missing"
	ConditionVoterBehind     = "voter-behind"
	ConditionVoterRolledBack = "voter-rolled-back"
	ConditionVoterWiped      = "voter-wiped"
)
