// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"errors"
	"time"
)

// Errors of voters and of Admin.
var (
	// ErrNoQuorum is returned when no leader was found in time: two of three voters have to be up and to reach each
	// other.
	ErrNoQuorum = errors.New("the voters have no leader: two of the three have to be up and to reach each other")
	// ErrNotMember is returned when an id or address is not the one of a member.
	ErrNotMember = errors.New("no voter of the cluster has this id or address")
	// ErrInUse is returned when the directory of a voter is in use by a process that runs.
	ErrInUse = errors.New("the voter's directory is in use by another process")
	// ErrNoState is returned by Recover when the directory holds nothing to recover from.
	ErrNoState = errors.New("the directory holds no state of a voter that was in a cluster")
	// ErrMembership is returned when a change of the members is refused; nothing was changed.
	ErrMembership = errors.New("the members were not changed")
)

// fencing is a reason to take no part any more.
type fencing string

// Reasons in Status.Fenced.
const (
	// FencedPutBack: the voter's disk was put back to an older state. It has to be replaced.
	FencedPutBack = "put-back"
	// FencedRecovered: a lost quorum was recovered by force without this voter.
	FencedRecovered = "recovered"
)

// Member is one voter of the cluster.
type Member struct {
	// ID is durable, and new after a disk was replaced.
	ID string `json:"id"`
	// Address, host:port, that the others reach it by.
	Address string `json:"address"`
	// Kind of the voter.
	Kind Kind `json:"kind"`
	// Leader is true for the one that commits swaps now. It says nothing about which node is active.
	Leader bool `json:"leader"`
	// Voter is false for one that still catches up before it may vote.
	Voter bool `json:"voter"`
	// LastContact is when it last answered the leader; now for the leader itself; zero if never. Only the leader knows
	// it.
	LastContact time.Time `json:"last_contact"`
}

// Status is what one voter knows of itself and of its cluster, without a question to another voter.
type Status struct {
	// ID, Address and Kind of this voter.
	ID      string `json:"id"`
	Address string `json:"address"`
	Kind    Kind   `json:"kind"`
	// Member is true if this voter has a vote in its cluster.
	Member bool `json:"member"`
	// State is raft's: "Leader", "Follower", "Candidate", "Shutdown".
	State string `json:"state"`
	// Leader's id and address; empty while there is none.
	LeaderID      string `json:"leader_id"`
	LeaderAddress string `json:"leader_address"`
	// Voters that this voter knows as its cluster; empty before it is in one.
	Voters []Member `json:"voters"`
	// Term of raft that it is in.
	Term uint64 `json:"term"`
	// Fenced is why it takes no part any more: FencedPutBack, FencedRecovered; empty if it does.
	Fenced string `json:"fenced,omitempty"`
	// LastIndex of its log, and what is applied of it.
	LastIndex    uint64 `json:"last_index"`
	AppliedIndex uint64 `json:"applied_index"`
	// Recoveries counts how often a lost quorum of this cluster was recovered by force.
	Recoveries uint64 `json:"recoveries"`
	// Trouble says in words what an operator can do something about; empty if nothing.
	Trouble string `json:"trouble"`
}
