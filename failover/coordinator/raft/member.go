// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"errors"
	"time"
)

// Errors of voters and of Admin.
var (
	// ErrNoQuorum is returned if no leader was found in time.
	ErrNoQuorum  = errors.New("voters have no leader: two of the three must be up and reach each other")
	ErrNotMember = errors.New("voter id or address not found in the cluster")
	ErrInUse     = errors.New("voter directory is in use by another process")
	ErrNoState   = errors.New("directory has no state of a cluster member")
	// ErrMembership is returned if a membership change is rejected; nothing was changed.
	ErrMembership = errors.New("members were not changed")
)

type fencing string

const (
	// FencedRolledBack: the voter's disk was restored to an older state. The voter must be replaced.
	FencedRolledBack = "put-back"
	// FencedRecovered: a lost quorum was recovered by force without this voter.
	FencedRecovered = "recovered"
)

// Member is one voter of the cluster.
type Member struct {
	// ID is durable, and changes when a disk is replaced.
	ID      string `json:"id"`
	Address string `json:"address"`
	Kind    Kind   `json:"kind"`
	// Leader commits swaps. It is independent of the active node.
	Leader bool `json:"leader"`
	// Voter is false while it catches up before it may vote.
	Voter bool `json:"voter"`
	// LastContact is the time of its last response to the leader; zero if never. Only the leader has it.
	LastContact time.Time `json:"last_contact"`
}

// Status is the state of one voter and its cluster, as known without querying other voters.
type Status struct {
	ID      string `json:"id"`
	Address string `json:"address"`
	Kind    Kind   `json:"kind"`
	Member  bool   `json:"member"`
	// State of raft: "Leader", "Follower", "Candidate", "Shutdown".
	State         string   `json:"state"`
	LeaderID      string   `json:"leader_id"`
	LeaderAddress string   `json:"leader_address"`
	Voters        []Member `json:"voters"`
	Term          uint64   `json:"term"`
	// Fenced is FencedRolledBack or FencedRecovered if the voter no longer takes part.
	Fenced       string `json:"fenced,omitempty"`
	LastIndex    uint64 `json:"last_index"`
	AppliedIndex uint64 `json:"applied_index"`
	Recoveries   uint64 `json:"recoveries"`
	Problem      string `json:"trouble"`
}
