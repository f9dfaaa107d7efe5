// SPDX-License-Identifier: Apache-2.0

// Package nodestatus defines a snapshot of a node's state.
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
	// Primary is the status of the active role, and Follower that of the standby role. They are nil while the node
	// does not have the role.
	Primary  *replication.PrimaryStatus
	Follower *replication.FollowerStatus
	// ArchiveDir is the directory of the log archive. It is empty without an archive, or if the archive is in a
	// bucket.
	ArchiveDir string
	Version    string
	// StartedAt is the time at which the process started.
	StartedAt time.Time
	// Maintenance is the operation in progress on this node, if any. Plan is the last plan of the pair, if any.
	Maintenance *maintenance.Activity
	Plan        *maintenance.Plan
	// Conditions contains the raised conditions, most severe first.
	Conditions []conditions.Condition
	// DiskLowWatermark is the current value of disk.low-watermark, in bytes.
	DiskLowWatermark uint64
	Certificates     []conditions.Certificate
	Activity         Activity
	// Site is the role of the pair in a group of two sites. It is nil without site.name, unless the pair has a role in
	// such a group.
	Site *conditions.Site
	// Fleet is the membership of the pair in a fleet. It is nil if the pair belongs to no fleet and fleet.pair is not
	// set.
	Fleet *conditions.Fleet
	// Console is the address of the node's console. It is empty without a console.
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
	// Commits is the histogram of the commit latencies of batches.
	Commits []LatencyBucket
	// Memory is the memory that the Go runtime has obtained from the system and not released, in bytes. MemoryBudget is
	// the configured budget.
	Memory, MemoryBudget uint64
}
