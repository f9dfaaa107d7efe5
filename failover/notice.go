// SPDX-License-Identifier: Apache-2.0

package failover

import "time"

// Notice is a condition of this node or its pair that only failover detects and an operator must know. It exists while
// the condition lasts. Package server/observe/conditions documents each kind with cause and action, under the same
// names.
type Notice struct {
	// Kind is one of the Notice constants.
	Kind string
	// Details describes the condition in words.
	Details string
	// Since is the start of the condition. If zero, it is the time of the first Status that includes it.
	Since time.Time
}

// Kinds of notices.
const (
	// NoticeSuperseded: the record names this node, but another process generation of it wrote the record.
	NoticeSuperseded = "superseded"
	// NoticeTwoProcesses: another process has this node's identity.
	NoticeTwoProcesses = "duplicate-process"
	// NoticeStorePutBack: this node's store ends before a position it is known to have committed.
	NoticeStorePutBack = "store-rolled-back"
	// NoticeHistoriesDiverged: the active lacks committed records that the other node has.
	NoticeHistoriesDiverged = "histories-diverged"
	// NoticeVoterMissing, NoticeVoterBehind, NoticeVoterPutBack and NoticeVoterWiped concern a voter of the
	// coordinator.
	NoticeVoterMissing = "voter-missing"
	NoticeVoterBehind  = "voter-behind"
	NoticeVoterPutBack = "voter-rolled-back"
	NoticeVoterWiped   = "voter-wiped"
)
