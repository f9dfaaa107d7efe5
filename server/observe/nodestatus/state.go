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
	// Coordinator is the configured type of coordinator.
	Coordinator          string
	CoordinatorAddresses []string
	// Primary is the status of the active role, Follower that of the standby role; nil while the node does not have
	// the role.
	Primary  *replication.PrimaryStatus
	Follower *replication.FollowerStatus
	// ArchiveDir is the directory of the log archive; empty without an archive, or if it is in a bucket.
	ArchiveDir string
	Version    string
	// StartedAt is the start time of the process.
	StartedAt time.Time
	// Maintenance is the running operation of this node, if any; Plan is the last plan of the pair, if any.
	Maintenance *maintenance.Activity
	Plan        *maintenance.Plan
	// Conditions are the raised conditions, most severe first.
	Conditions []conditions.Condition
	// DiskLowWatermark is the number of available bytes on disk below which publishes are refused.
	DiskLowWatermark uint64
	Certificates     []conditions.Certificate
	Activity         Activity
	// Site is the role of the pair among two sites; nil if it has no sites.
	Site *conditions.Site
	// Console is the address of the node's console; empty if disabled.
	Console string
}

// ServesClients reports whether the node is active and accepts requests from clients.
func (n *Node) ServesClients() bool {
	if n.Site != nil && !n.Site.ServesClients() {
		return false
	}
	return n.Pair.Serve && n.Pair.Deliver &&
		(n.Pair.Role == failover.RoleActive || n.Pair.Role == failover.RoleActiveAlone)
}

// Activity contains the load and the resource usage of a node, except for its store.
type Activity struct {
	// Delivered counts deliveries since the start of the node, including redeliveries.
	Delivered              uint64
	Consumers, Connections int
	// Commits is the histogram of commit latencies of batches.
	Commits []LatencyBucket
	// Memory is the memory that the process has obtained from the system, in bytes.
	Memory, MemoryBudget uint64
}
