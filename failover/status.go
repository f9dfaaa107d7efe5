// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
)

// Errors of Runner.Run and of Status.Refused.
var (
	// ErrOtherPair is returned if the store and the record belong to different pairs.
	ErrOtherPair = errors.New("store belongs to another pair")
	// ErrRestored is set while a node waits because its store is a restored backup, and the coordinator has the record
	// of another pair.
	ErrRestored = errors.New("store was restored from a backup and is not part of the coordinator's pair")
	// ErrRecordLost is set while a node waits because its store was part of a pair and the coordinator has no record
	// (INV-9).
	ErrRecordLost = errors.New("coordinator has no cluster record, but this node's store is not empty")
	// ErrRecordOld is set while a node waits because the coordinator's record is older than the one it has obeyed
	// (INV-9).
	ErrRecordOld = errors.New("coordinator's record is older than this node's own")
	// ErrFailed is returned after the store reported that it cannot continue (INV-7).
	ErrFailed = errors.New("store failed; the node stops and recovers at restart")
	// ErrStopped is returned by calls to a Runner that is not running.
	ErrStopped = errors.New("failover is not running on this node")
)

// ErrAdopt is returned if the cluster record was not rebuilt. Unless it also wraps ErrUnknownOutcome, nothing was
// changed.
var ErrAdopt = errors.New("cluster record was not rebuilt")

// Reasons of ErrAdopt.
var (
	errAdoptBusy    = errors.New("a change of the cluster record is in progress on this node; try again")
	errAdoptNoPair  = errors.New("this node's store has never been part of a pair; it joins automatically")
	errAdoptFine    = errors.New("the coordinator's record is not older than this node's: nothing to adopt")
	errAdoptStandby = errors.New("this node runs and is not the active: adopt on the active, or stop that and " +
		"restart this one")
	errAdoptUnknown = errors.New("the outcome of this node's last change of the cluster record was unknown when the " +
		"record was lost, so it cannot write the same record again: stop this node, start it, and adopt then")
	errAdoptLoss = errors.New("acknowledged transactions may be missing on this node, since its machine went down " +
		"without a clean stop and " +
		"sync is not \"always\": adopt on the other node, or accept the loss with --accept-data-loss")
)

// ErrForce is returned if a forced failover failed. Unless it also wraps ErrUnknownOutcome, nothing was changed.
var ErrForce = errors.New("no forced failover")

// ErrSwitchover is returned if a planned switchover failed. The role is unchanged, unless a takeover moved it.
var ErrSwitchover = errors.New("switchover failed")

// Settings of the machine. Zero fields use the default.
type Settings struct {
	// FailoverTimeout is the time without a connection to the active after which an in-sync standby takes over. Default
	// 2 s.
	FailoverTimeout time.Duration
	// StartupWait is the time after its own start during which an in-sync standby leaves the role to the previous
	// active, and a previously active node waits for the other one to report its log end. Default 1 s.
	StartupWait time.Duration
	// StandbyWait is how long a new active waits for an in-sync standby before it drops it. Default 1.5 s.
	StandbyWait time.Duration
	// RefuseAfter is how long transactions wait while the active is blocked, before they fail. Default 1 s.
	RefuseAfter time.Duration
	// LeaseMargin is the time before the expiry of its lease at which a blocked active stops deliveries. Default 500
	// ms.
	LeaseMargin time.Duration
	// DrainTimeout limits the drain of a switchover. Default 1 s.
	DrainTimeout time.Duration
	// SwitchoverTimeout limits a switchover as a whole. Default 10 s.
	SwitchoverTimeout time.Duration
	// RetryDelay between two attempts to reach the coordinator. Default 100 ms.
	RetryDelay time.Duration
	// RefusedDelay between two attempts of a swap that the coordinator rejects. Default 500 ms.
	RefusedDelay time.Duration
	// CoordinatorTimeout of one call. Default 2 s.
	CoordinatorTimeout time.Duration
	// MinInSync is written into the record by this node when it becomes active: 1 (default) or 2.
	MinInSync int
	// Preferred: an active that is not preferred hands the role to this node.
	Preferred bool
	// FailbackDelay is how long a preferred node must be in sync without interruption to get the role. 0: never.
	FailbackDelay time.Duration
	// AcceptLoss: start even if acknowledged bytes may be lost and no other node has them (INV-6). Only for a node
	// without a partner.
	AcceptLoss bool
}

func (s Settings) withDefaults() Settings {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&s.FailoverTimeout, 2*time.Second)
	def(&s.StartupWait, time.Second)
	def(&s.StandbyWait, 1500*time.Millisecond)
	def(&s.RefuseAfter, time.Second)
	def(&s.LeaseMargin, 500*time.Millisecond)
	def(&s.DrainTimeout, time.Second)
	def(&s.SwitchoverTimeout, 10*time.Second)
	def(&s.RetryDelay, 100*time.Millisecond)
	def(&s.RefusedDelay, 500*time.Millisecond)
	def(&s.CoordinatorTimeout, 2*time.Second)
	if s.MinInSync == 0 {
		s.MinInSync = 1
	}
	return s
}

// Status is the state of a node at one moment.
type Status struct {
	Role Role
	// Reason describes why the node has its role or cannot serve.
	Reason string
	// Refused is ErrRestored, ErrRecordLost or ErrRecordOld while the node waits for an operator.
	Refused error
	// Since is the time of the last role change.
	Since time.Time
	Self  NodeInfo
	// Record is nil before the first read.
	Record   *Record
	Revision Revision
	// Coordinator is the kind: "etcd", "memory".
	Coordinator          string
	CoordinatorReachable bool
	Live                 []Live
	// Superseded: another process runs with a copy of this data directory; this one no longer takes part.
	Superseded bool
	// RolledBack is the reason why the data directory is considered an older copy or a duplicate (INV-11, INV-12).
	RolledBack string
	// Duplicate is another process running under this node's identity, if known.
	Duplicate *Live
	// Ahead describes diverged histories (INV-13): this active lacks committed records that the other node has, and
	// does not serve; or this node has such records, and is not in sync.
	Ahead string
	// Serve: transactions are acknowledged.
	Serve bool
	// Deliver: messages may be delivered.
	Deliver bool
	// Standby is the node connected to this active; uuid.Nil if none.
	Standby uuid.UUID
	// FailbackAt is the scheduled handover to the preferred node, if any.
	FailbackAt time.Time
	// CoordinatorRefuses is the reason for rejecting the last change of the record; empty if it was not rejected.
	CoordinatorRefuses string
	// MayHaveLost: acknowledged bytes may be missing in this node's store (INV-6).
	MayHaveLost bool
	Conditions  []Condition
}

// ActiveNode returns the active node, if known. The liveness key may have a newer address than the record.
func (s Status) ActiveNode() (NodeInfo, bool) {
	if s.Record == nil {
		return NodeInfo{}, false
	}
	return describeNode(*s.Record, s.Live, s.Record.Active)
}

// Node returns the description of a node of the pair, if known.
func (s Status) Node(id uuid.UUID) (NodeInfo, bool) {
	if s.Record == nil {
		return NodeInfo{}, false
	}
	return describeNode(*s.Record, s.Live, id)
}

// IsLive reports whether a node has a liveness key.
func (s Status) IsLive(node uuid.UUID) bool { return isLive(s.Live, node) }

func isLive(live []Live, node uuid.UUID) bool {
	return slices.ContainsFunc(live, func(l Live) bool { return l.Node.ID == node })
}

// describeNode prefers the liveness keys to the record.
func describeNode(r Record, live []Live, id uuid.UUID) (NodeInfo, bool) {
	if l, ok := (Observation{Live: live}).LiveNode(id); ok && l.Node.Address != "" {
		return l.Node, true
	}
	return r.Node(id)
}
