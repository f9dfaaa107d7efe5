// SPDX-License-Identifier: Apache-2.0

// Package state describes a node as it is at one moment. The status, the metrics and the probes are made from it, and
// so cannot disagree.
package state

import (
	"time"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/conditions"
	"github.com/lockstep-mq/lockstep/server/maintenance"
)

// Node is what a node is and knows.
type Node struct {
	// Pair is the state of failover.
	Pair failover.Status
	// Coordinator is the kind that was configured, CoordinatorAddresses where it is.
	Coordinator          string
	CoordinatorAddresses []string
	// Primary is set while the node holds the active role, Follower while it follows.
	Primary  *replication.PrimaryStatus
	Follower *replication.FollowerStatus
	// ArchiveDir is the directory of this node's log archive; empty for none, and for one in a bucket.
	ArchiveDir string
	// Version of the software.
	Version string
	// StartedAt is when the process started.
	StartedAt time.Time
	// Maintenance that runs on this node; nil for none. Plan of the pair; nil if there never was one.
	Maintenance *maintenance.Activity
	Plan        *maintenance.Plan
	// Conditions are what an operator may have to know now, the most serious first.
	Conditions []conditions.Condition
	// DiskLowWatermark: publishes are refused while the disk has less than so many bytes available.
	DiskLowWatermark uint64
	// Certificates that the node uses.
	Certificates []Certificate
	// Activity is what the node does and uses.
	Activity Activity
	// Console is where the node's console is; empty without one.
	Console string
}

// Activity is what a node does and uses, besides what its store knows.
type Activity struct {
	// Delivered messages since the start, redelivered ones among them.
	Delivered uint64
	// Consumers and Connections that are there now.
	Consumers, Connections int
	// Commits says how long batches took to be committed.
	Commits []LatencyBucket
	// Memory that the process has from the system, and MemoryBudget, in bytes.
	Memory, MemoryBudget uint64
}

// Certificate is a file with certificates that a node uses.
type Certificate struct {
	// Use is what for: "node", "etcd", "raft" or "metrics".
	Use string
	// File they are in, and whether it has the authorities that others are checked against.
	File      string
	Authority bool
	// Subject of the one that ends first, and when it Ends.
	Subject string
	Ends    time.Time
}
