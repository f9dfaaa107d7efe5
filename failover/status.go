// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"errors"
	"time"

	"github.com/google/uuid"
)

// Errors of Runner.Run and of Status.Refused.
var (
	// ErrOtherPair is returned when the store and the record belong to different pairs.
	ErrOtherPair = errors.New("this store belongs to another pair")
	// ErrRestored is why a node waits whose store was restored from a backup while the coordinator has the record of a
	// pair that this store is not part of.
	ErrRestored = errors.New("this store was restored from a backup and is not part of the coordinator's pair")
	// ErrRecordLost is why a node waits whose store has been part of a pair while the coordinator has no record of one
	// (INV-9).
	ErrRecordLost = errors.New("the coordinator has no record of the pair, but this node's store is not empty")
	// ErrRecordOld is why a node waits while the coordinator's record is older than what it has already obeyed (INV-9).
	ErrRecordOld = errors.New("the coordinator's record is older than this node's own")
	// ErrFailed is returned when the store reported that it cannot go on (INV-7).
	ErrFailed = errors.New("the store failed; the node stops and recovers when it is started again")
	// ErrStopped is returned by calls to a Runner that is not running.
	ErrStopped = errors.New("failover is not running on this node")
)

// ErrAdopt is returned when a node has not adopted its pair. Unless it also is ErrUnknownOutcome, nothing was changed.
var ErrAdopt = errors.New("the pair was not adopted")

// Why there is nothing to adopt.
var (
	errAdoptBusy   = errors.New("a change of the pair's record is under way on this node; try again")
	errAdoptNoPair = errors.New("this node's store has never been part of a pair; it joins by itself")
	errAdoptFine   = errors.New("the coordinator's record is not older than what this node knows: " +
		"there is nothing to adopt")
	errAdoptStandby = errors.New("this node runs and is not the active one: adopt on the active, or stop that and " +
		"start this one anew")
	errAdoptUnknown = errors.New("this node's last change of the pair's record had no answer before the record was " +
		"lost, so it cannot write the same record again: stop this node, start it, and adopt then")
	errAdoptLoss = errors.New("acknowledged transactions may be missing on this node, since its machine went down " +
		"without a clean stop and " +
		"sync is not \"always\": adopt on the other node, or accept the loss with --accept-data-loss")
)

// ErrForce is returned when a node was not made active by force. Unless it also is ErrUnknownOutcome, nothing was
// changed.
var ErrForce = errors.New("no forced failover")

// ErrSwitchover is returned when a planned hand-over was not done. The role is where it was, or where a takeover has
// put it meanwhile; Status tells.
var ErrSwitchover = errors.New("no switchover")

// Settings of the machine. The zero value of each field means its default.
type Settings struct {
	// FailoverTimeout: a standby in sync that has had no connection to the active for so long takes over. Default 2 s.
	FailoverTimeout time.Duration
	// StartupWait: so long after its own start a standby in sync leaves the role to the previous active, if its
	// liveness key is there. Default 1 s.
	StartupWait time.Duration
	// StandbyWait: so long a new active waits for a standby in sync to connect before it drops it. Default 1.5 s.
	StandbyWait time.Duration
	// RefuseAfter: so long transactions wait while the active is blocked before they are refused. Default 1 s.
	RefuseAfter time.Duration
	// LeaseMargin: deliveries of a blocked active stop so long before its lease can end. Default 500 ms.
	LeaseMargin time.Duration
	// DrainTimeout bounds the drain of a planned switchover. Default 1 s.
	DrainTimeout time.Duration
	// SwitchoverTimeout bounds a planned switchover as a whole. Default 10 s.
	SwitchoverTimeout time.Duration
	// RetryDelay between two attempts to reach the coordinator. Default 100 ms.
	RetryDelay time.Duration
	// RefusedDelay between two attempts of a swap that the coordinator refuses. Default 500 ms.
	RefusedDelay time.Duration
	// CoordinatorTimeout of one call. Default 2 s.
	CoordinatorTimeout time.Duration
	// MinInSync that this node writes into the record when it activates: 1 (default) or 2.
	MinInSync int
	// Preferred: this node should be the active one. It is given the role by an active that is not preferred.
	Preferred bool
	// FailbackDelay: so long a preferred node has to be in sync, without interruption, before the active hands over to
	// it. 0: never.
	FailbackDelay time.Duration
	// AcceptLoss: start even if acknowledged bytes may be gone and no other node has them (INV-6). Only for a node
	// without a partner.
	AcceptLoss bool
}

// withDefaults fills in what was left out.
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

// Status is what a node is and knows, at one moment.
type Status struct {
	// Role of the node.
	Role Role
	// Reason why it is in that role or cannot serve, in words.
	Reason string
	// Refused is set while the node waits for an operator, because it must not use what the coordinator has:
	// ErrRestored, ErrRecordLost, ErrRecordOld.
	Refused error
	// Since when it has had this role.
	Since time.Time
	// Self describes the node.
	Self NodeInfo
	// Record of the pair, as far as it is known; nil before that.
	Record *Record
	// Revision of Record.
	Revision Revision
	// Coordinator is the kind: "etcd", "memory".
	Coordinator string
	// CoordinatorReachable tells whether it answered the last time.
	CoordinatorReachable bool
	// Live are the nodes whose liveness key is there.
	Live []Live
	// Superseded: another process has taken this node's place with a copy of its data directory; this one takes no part
	// any more.
	Superseded bool
	// PutBack says why the data directory is taken for an older image or a copy of itself (INV-11, INV-12); empty if it
	// is not.
	PutBack string
	// Twin is another process that runs under this node's identity; nil if none is known.
	Twin *Live
	// Ahead tells that the other node knows records to be committed that this active lacks, which therefore does not
	// serve; or that this node knows such records, and is not in sync (INV-13). Empty otherwise.
	Ahead string
	// Serve: transactions are acknowledged.
	Serve bool
	// Deliver: messages may be delivered.
	Deliver bool
	// Standby is the node that has connected to this active; uuid.Nil if none.
	Standby uuid.UUID
	// FailbackAt is when this active hands over to the preferred node, if nothing comes between; zero if it will not.
	FailbackAt time.Time
	// CoordinatorRefuses is why the coordinator has refused the last change of the record, in its words; empty if it
	// has not.
	CoordinatorRefuses string
	// MayHaveLost: acknowledged bytes may be missing in this node's store (INV-6).
	MayHaveLost bool
	// Notices are what an operator has to know besides.
	Notices []Notice
}

// ActiveNode describes the active node, if it is known. The liveness key knows a newer address than the record.
func (s Status) ActiveNode() (NodeInfo, bool) {
	if s.Record == nil {
		return NodeInfo{}, false
	}
	return describeNode(*s.Record, s.Live, s.Record.Active)
}

// Node describes a node of the pair, as far as it is known.
func (s Status) Node(id uuid.UUID) (NodeInfo, bool) {
	if s.Record == nil {
		return NodeInfo{}, false
	}
	return describeNode(*s.Record, s.Live, id)
}

// IsLive tells whether the liveness key of a node is there.
func (s Status) IsLive(node uuid.UUID) bool {
	_, ok := Observation{Live: s.Live}.LiveNode(node)
	return ok
}

// describeNode looks a node up: first in the liveness keys, then in the record.
func describeNode(r Record, live []Live, id uuid.UUID) (NodeInfo, bool) {
	if l, ok := (Observation{Live: live}).LiveNode(id); ok && l.Node.Address != "" {
		return l.Node, true
	}
	return r.Node(id)
}
