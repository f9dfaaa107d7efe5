// SPDX-License-Identifier: Apache-2.0

// Package nodestatus implements a snapshot of a node's state. The status, the metrics and the probes are derived from
// it, and are therefore consistent.
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
	// Pair is the state of failover.
	Pair failover.Status
	// Coordinator is the configured kind, CoordinatorAddresses its addresses.
	Coordinator          string
	CoordinatorAddresses []string
	// Primary is set while the node is active, Follower while it follows.
	Primary  *replication.PrimaryStatus
	Follower *replication.FollowerStatus
	// ArchiveDir is the directory of this node's log archive; empty without an archive, and for an archive in a bucket.
	ArchiveDir string
	// Version of the software.
	Version string
	// StartedAt is the start time of the process.
	StartedAt time.Time
	// Maintenance is the running operation of this node; nil if idle. Plan is the pair's last plan; nil if there was
	// none.
	Maintenance *maintenance.Activity
	Plan        *maintenance.Plan
	// Conditions that are raised, the most severe first.
	Conditions []conditions.Condition
	// DiskLowWatermark: publishes are refused while fewer bytes are available on disk.
	DiskLowWatermark uint64
	// Certificates used by the node.
	Certificates []Certificate
	// Activity of the node.
	Activity Activity
	// Console is the address of the node's console; empty if disabled.
	Console string
}

// Activity is the load and the resource usage of a node, in addition to those of its store.
type Activity struct {
	// Delivered is the number of messages delivered since start, including redeliveries.
	Delivered uint64
	// Consumers and Connections are the current numbers.
	Consumers, Connections int
	// Commits is the histogram of commit latencies of batches.
	Commits []LatencyBucket
	// Memory obtained from the system by the process, and MemoryBudget, in bytes.
	Memory, MemoryBudget uint64
}

// Certificate is a certificate file used by a node.
type Certificate struct {
	// Use is the purpose: "node", "etcd", "raft" or "metrics".
	Use string
	// File name, and whether it contains the CAs for verification of others.
	File string
	CA   bool
	// Subject of the certificate that expires first, and its expiry in Ends.
	Subject string
	Ends    time.Time
}
