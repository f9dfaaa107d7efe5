// SPDX-License-Identifier: Apache-2.0

package failover

import "time"

// Condition is a condition of this node or its pair that only failover detects. Package server/observe/conditions
// documents each kind, under the same name.
type Condition struct {
	// Kind is one of the constants below.
	Kind    string
	Details string
	// Since is the start; if zero, the time of the first Status that includes the condition.
	Since time.Time
}

// Kinds of conditions.
const (
	// ConditionSuperseded: the record names this node, but another process generation of it wrote the record.
	ConditionSuperseded = "superseded"
	// ConditionDuplicateProcess: another process has this node's identity.
	ConditionDuplicateProcess = "duplicate-process"
	// ConditionStoreRolledBack: this node's store ends before a position it is known to have committed.
	ConditionStoreRolledBack = "store-rolled-back"
	// ConditionHistoriesDiverged: the active lacks committed records that the other node has.
	ConditionHistoriesDiverged = "histories-diverged"
	// ConditionVoterMissing and the following ones concern a voter of the coordinator.
	ConditionVoterMissing    = "voter-missing"
	ConditionVoterBehind     = "voter-behind"
	ConditionVoterRolledBack = "voter-rolled-back"
	ConditionVoterWiped      = "voter-wiped"
)
