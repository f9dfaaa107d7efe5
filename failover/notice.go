// SPDX-License-Identifier: Apache-2.0

package failover

import "time"

// Notice is something about this node or its pair that an operator has to know and that only failover finds out. It is
// there for as long as it is the case. Package server/conditions says what each kind means and what to do; the names
// are the ones that it has for them.
type Notice struct {
	// Kind is one of the Notice constants.
	Kind string
	// Details say in words what exactly is the case.
	Details string
	// Since when; zero: since it was first seen in a Status.
	Since time.Time
}

// The kinds of notices.
const (
	// NoticeSuperseded: the record names this node, but another run of it has written it.
	NoticeSuperseded = "superseded"
	// NoticeTwoProcesses: another process has this node's identity.
	NoticeTwoProcesses = "duplicate-process"
	// NoticeStorePutBack: this node's store ends before what it is known to have committed.
	NoticeStorePutBack = "store-rolled-back"
	// NoticeHistoriesDiverged: the active lacks committed records that the other node has.
	NoticeHistoriesDiverged = "histories-diverged"
	// NoticeVoterMissing, NoticeVoterBehind, NoticeVoterPutBack and NoticeVoterWiped are about a voter of the
	// coordinator.
	NoticeVoterMissing = "voter-missing"
	NoticeVoterBehind  = "voter-behind"
	NoticeVoterPutBack = "voter-rolled-back"
	NoticeVoterWiped   = "voter-wiped"
)
