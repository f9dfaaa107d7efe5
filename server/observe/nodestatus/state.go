// SPDX-License-Identifier: Apache-2.0

// Package nodestatus defines the snapshot of a node's state from which status, metrics and probes are derived, so that
// they are consistent.
package nodestatus

import (
	"time"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/server/ops/maintenance"
)

// Node is the state of a node.
type Node struct {
	Pair failover.Status
	// Coordinator is the configured kind.
	Coordinator          string
	CoordinatorAddresses []string
	// Primary is set while the node is active, Follower while it follows.
	Primary  *replication.PrimaryStatus
	Follower *replication.FollowerStatus
	// ArchiveDir is the directory of the log archive; empty without an archive, and for one in a bucket.
	ArchiveDir string
	Version    string
	// StartedAt is the start time of the process.
	StartedAt time.Time
	// Maintenance is the running operation of this node, Plan the pair's last plan; nil for none.
	Maintenance *maintenance.Activity
	Plan        *maintenance.Plan
	// Conditions are the raised ones, the most severe first.
	Conditions []conditions.Condition
	// DiskLowWatermark: publishes are refused while fewer bytes are available on disk.
	DiskLowWatermark uint64
	Certificates     []conditions.Certificate
	Activity         Activity
	// Console is the address of the node's console; empty if disabled.
	Console string
}

// Activity is the load and the resource usage of a node, in addition to those of its store.
type Activity struct {
	// Delivered counts deliveries since start, including redeliveries.
	Delivered              uint64
	Consumers, Connections int
	// Commits is the histogram of commit latencies of batches.
	Commits []LatencyBucket
	// Memory obtained from the system by the process, in bytes.
	Memory, MemoryBudget uint64
}
