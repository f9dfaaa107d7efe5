// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
)

// Errors of a Runner and of Status.Refused.
var (
	// ErrOtherPair is returned if the store belongs to another pair than the record, or has records but never belonged
	// to a pair.
	ErrOtherPair = errors.New("store belongs to another pair")
	// ErrRestored is the reason why a node waits if its store is a restored backup, but the coordinator has the
	// record of another pair.
	ErrRestored = errors.New("store was restored from a backup and is not part of the coordinator's pair")
	// ErrRecordLost is the reason why a node waits if the coordinator has no record, but the node's store is neither new
	// nor a restored backup: it has records, was part of a pair, or replaced a store that could not be opened (INV-9).
	ErrRecordLost = errors.New("coordinator has no cluster record, but this node's store is not empty")
	// ErrRecordOld is the reason why a node waits if the coordinator's record has a lower config than the node's fence
	// (INV-9).
	ErrRecordOld = errors.New("coordinator's record is older than this node's fence")
	// ErrFailed is returned by Run after a Failed event (INV-7).
	ErrFailed = errors.New("store failed; the node stops, and recovers at the next start")
	// ErrStopped is returned by the requests Adopt, Force, MayForce and Switchover if Run has returned, or returns before
	// the response.
	ErrStopped = errors.New("failover is not running on this node")
)

// ErrAdopt is returned if the cluster record was not rebuilt. The record is unchanged, unless the error also wraps
// ErrUnknownOutcome.
var ErrAdopt = errors.New("cluster record was not rebuilt")

// Reasons of ErrAdopt.
var (
	errAdoptBusy    = errors.New("a change of the cluster record is in progress on this node; try again")
	errAdoptNoPair  = errors.New("store of this node has never been part of a pair; it joins automatically")
	errAdoptFine    = errors.New("coordinator's record is not outdated; nothing to adopt")
	errAdoptStandby = errors.New("this node is a standby: adopt on the active, or stop the active and restart this node")
	errAdoptUnknown = errors.New("outcome of this node's last change of the cluster record is unknown: restart this " +
		"node, and adopt then")
	errAdoptLoss = errors.New("acknowledged transactions may be missing on this node: adopt on the other node, or " +
		"accept the loss with --accept-data-loss")
)

// ErrForce is returned if a forced failover failed. The failover has not changed the cluster record, unless the error
// also wraps ErrUnknownOutcome.
var ErrForce = errors.New("forced failover failed")

// ErrSwitchover is returned if a planned switchover failed or did not complete in time. Usually the roles are
// unchanged. But the swap of the record may still be applied, or the other node may have been activated without a
// response: see Status.
var ErrSwitchover = errors.New("switchover failed")

// Settings configures the machine. Zero fields use their defaults.
type Settings struct {
	// FailoverTimeout is the time without a connection to the active after which an in-sync standby takes over. It takes
	// over earlier if the data plane reports that the active is silent, or that no process listens at the active's
	// address. Default 2 s.
	FailoverTimeout time.Duration
	// StartupWait is the time after a node's start during which an in-sync standby leaves the role to the previous
	// active. In the same period, a previously active node waits for the other node to report the end of its log. Default
	// 1 s.
	StartupWait time.Duration
	// StandbyWait is how long a new active waits for the connection of an in-sync standby before it removes the
	// standby from the in-sync set. Default 1.5 s.
	StandbyWait time.Duration
	// RefuseAfter is how long transactions wait for an absent in-sync standby before they fail. Default 1 s.
	RefuseAfter time.Duration
	// LeaseMargin is the time before the expiry of its lease at which a blocked active stops deliveries. Default 500
	// ms.
	LeaseMargin time.Duration
	// DrainTimeout limits the drain of a switchover. Default 1 s.
	DrainTimeout time.Duration
	// SwitchoverTimeout limits a switchover or a forced failover as a whole. Default 10 s.
	SwitchoverTimeout time.Duration
	// RetryDelay is the delay between two attempts to reach the coordinator, or the other node in a handshake. Default
	// 100 ms.
	RetryDelay time.Duration
	// RefusedDelay is the delay between two attempts of a swap that the coordinator rejects, and between two reads of
	// the record while the node waits for an operator. Default 500 ms.
	RefusedDelay time.Duration
	// CoordinatorTimeout limits a call to the coordinator. Default 2 s.
	CoordinatorTimeout time.Duration
	// MinInSync is the value for Record.MinInSync that this node writes when it becomes active, unless
	// Record.MinInSyncSet is set: 1 (default) or 2.
	MinInSync int
	// Preferred reports whether this node should be the active when both nodes are in sync; see FailbackDelay.
	Preferred bool
	// FailbackDelay is how long a preferred standby must be in sync without interruption before this node, which is not
	// preferred, transfers the role to it. 0 disables failback.
	FailbackDelay time.Duration
	// AcceptLoss permits a start even if acknowledged bytes may be lost and no other node has them (INV-6). It is
	// only for a node without a partner.
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
	// Refused wraps ErrRestored, ErrRecordLost or ErrRecordOld while the node waits for an operator; otherwise it is
	// nil.
	Refused error
	// Problem describes why this node, which has a cluster record, does not accept that of the coordinator: it is missing,
	// older, invalid or of another pair. Otherwise it is empty. Roles do not change until the record is correct.
	Problem string
	// Since is the time of the last role change.
	Since time.Time
	Self  NodeInfo
	// Record is the last known cluster record; nil before the first read.
	Record   *Record
	Revision Revision
	// Coordinator is the name of the coordinator: "etcd", "raft" or "memory".
	Coordinator          string
	CoordinatorReachable bool
	Live                 []Live
	// Superseded reports whether this process has permanently stopped its role: another process with this node's identity
	// has replaced it, or its machine was resumed from an older snapshot.
	Superseded bool
	// RolledBack is the reason why the data directory is considered an older copy or a duplicate (INV-11 to INV-13);
	// otherwise it is empty.
	RolledBack string
	// Duplicate is another process running under this node's identity, if known.
	Duplicate *Live
	// Ahead describes diverged histories (INV-13): committed records of the other node are missing on this active, which
	// does not serve; or committed records of this node, which is not in sync, are missing on the active. Otherwise it is
	// empty.
	Ahead string
	// Serve reports whether this node may acknowledge transactions.
	Serve bool
	// Deliver reports whether messages may be delivered.
	Deliver bool
	// Standby is the node connected to this active; uuid.Nil if none.
	Standby uuid.UUID
	// FailbackAt is the time of the scheduled handover to the preferred node; zero if none is scheduled.
	FailbackAt time.Time
	// CoordinatorRefuses is the reason why the coordinator rejected the last change of the record; empty if it was not
	// rejected.
	CoordinatorRefuses string
	// MayHaveLost reports whether acknowledged bytes may be missing in this node's store (INV-6).
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

// describeNode returns the description in the node's liveness key, or the one in the record.
func describeNode(r Record, live []Live, id uuid.UUID) (NodeInfo, bool) {
	if l, ok := (Observation{Live: live}).LiveNode(id); ok && l.Node.Address != "" {
		return l.Node, true
	}
	return r.Node(id)
}
