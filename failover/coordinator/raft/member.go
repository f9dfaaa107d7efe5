// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"errors"
	"time"
)

// Errors of voters and of Admin.
var (
	// ErrNoQuorum is returned if no leader was found, or none completed the request in time.
	ErrNoQuorum  = errors.New("voters have no leader; two of the three must be running and connected")
	ErrNotMember = errors.New("voter id or address not found in the cluster")
	ErrInUse     = errors.New("voter directory is in use by another process")
	ErrNoState   = errors.New("directory has no state of a cluster member")
	// ErrMembership is returned if a membership change was rejected. Nothing was changed, except that a replacement may
	// have removed the old voter.
	ErrMembership = errors.New("members were not changed")
)

type fencing string

const (
	// FencedRolledBack means that the voter's disk was restored to an older state. The voter must be replaced.
	FencedRolledBack = "put-back"
	// FencedRecovered means that a lost quorum was recovered by force without this voter.
	FencedRecovered = "recovered"
)

// Member is one voter of the cluster.
type Member struct {
	// ID is stored on the voter's disk. A replaced disk has a new ID.
	ID      string `json:"id"`
	Address string `json:"address"`
	Kind    Kind   `json:"kind"`
	// Leader reports whether the member is the leader, which is independent of the active node.
	Leader bool `json:"leader"`
	// Voter reports whether the member may vote.
	Voter bool `json:"voter"`
	// LastContact is the time of the member's last response to this voter as the leader; zero if there was none. For this
	// voter itself, it is the current time.
	LastContact time.Time `json:"last_contact"`
}

// Status is the state of a voter and its cluster, as known to that voter.
type Status struct {
	ID      string `json:"id"`
	Address string `json:"address"`
	Kind    Kind   `json:"kind"`
	Member  bool   `json:"member"`
	// State is the raft state: "Leader", "Follower", "Candidate" or "Shutdown"; empty while the voter starts.
	State         string   `json:"state"`
	LeaderID      string   `json:"leader_id"`
	LeaderAddress string   `json:"leader_address"`
	Voters        []Member `json:"voters"`
	Term          uint64   `json:"term"`
	// Fenced is FencedRolledBack or FencedRecovered if the voter is fenced; otherwise empty.
	Fenced       string `json:"fenced,omitempty"`
	LastIndex    uint64 `json:"last_index"`
	AppliedIndex uint64 `json:"applied_index"`
	Recoveries   uint64 `json:"recoveries"`
	Problem      string `json:"trouble"`
}
