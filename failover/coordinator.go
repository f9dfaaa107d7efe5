// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
)

// Revision identifies one write of the record; 0 means that no record exists.
type Revision int64

// Errors of a Coordinator.
var (
	// ErrNoRecord is returned if the coordinator responded, but has no record.
	ErrNoRecord = errors.New("coordinator has no cluster record")
	// ErrConflict is returned if the record is not at the expected revision. Nothing was changed.
	ErrConflict = errors.New("cluster record was changed by another node")
	// ErrUnknownOutcome is returned if a swap may have been applied, or may still be applied (INV-8). Only a record at
	// another revision resolves the outcome.
	ErrUnknownOutcome = errors.New("outcome of the cluster record write is unknown")
	// ErrRefused is returned if the coordinator rejected the write. The swap will not be applied later.
	ErrRefused = errors.New("coordinator rejected the write of the cluster record")
	// ErrUnreachable is returned if a read failed: the coordinator did not respond, or rejected the read.
	ErrUnreachable = errors.New("coordinator is unreachable")
)

// Live is the content of a node's liveness key. It is only a hint: the key outlives its node by up to the lease's time
// to live, and can be missing while the node is healthy.
type Live struct {
	Node    NodeInfo `json:"node"`
	Process string   `json:"process"`
}

// Duplicate is another process announced under this node's ID.
type Duplicate struct {
	Live
	// Stale reports whether the process may be an earlier process of this node that was killed before its lease expired.
	// It becomes false when it is proven that the process was running after this process had announced itself, and stays
	// false while the process is announced.
	Stale bool
}

// Observation is the state of the coordinator at one moment, as known to one connection. A slow reader skips
// observations.
type Observation struct {
	// Record is the newest record seen; nil if none was seen yet, or if it is missing.
	Record   *Record
	Revision Revision
	// Missing reports whether the coordinator reported that no record exists.
	Missing bool
	// RecordErr is the reason why the stored record is unusable. It wraps ErrRecordVersion or ErrRecordInvalid.
	RecordErr error
	// Live lists the nodes with a liveness key, including this node, sorted by node ID. If two processes share an ID,
	// Live contains the process announced last.
	Live []Live
	// LiveKnown reports whether Live has been read at least once.
	LiveKnown bool
	// Duplicate is another process announced under the ID of the node for which Announce runs on this connection,
	// preferably one that is not stale; nil if none. A process of release 0.1.0 may not be detected.
	Duplicate *Duplicate
	Reachable bool
	// Problem describes why the coordinator is unreachable, or another problem of the coordinator that an operator can
	// fix; otherwise it is empty. The text changes only if the problem changes.
	Problem string
	// Conditions lists the coordinator's conditions. The slice is never modified in place.
	Conditions []Condition
	// LeaseUntil is the earliest time at which this node's lease expires: the granted time to live, counted from the time
	// just before the request was sent. It is zero before the first lease, and has a monotonic clock reading.
	LeaseUntil time.Time
}

// Coordinator stores the record of one pair. Implementations are safe for concurrent use and pass test/coordtest.
type Coordinator interface {
	// Name returns the name of the implementation: "etcd", "raft" or "memory".
	Name() string

	// Load reads the record linearizably. It returns ErrNoRecord, ErrUnreachable, ErrRecordVersion or ErrRecordInvalid.
	Load(ctx context.Context) (Record, Revision, error)

	// Swap durably replaces the record if it is still at revision `expect` (0: no record), and returns the new revision.
	// ErrConflict and ErrRefused mean that the swap was not applied; the caller must treat any other error as an unknown
	// outcome. If the stored record already has the OpID of `next`, Swap succeeds.
	Swap(ctx context.Context, expect Revision, next Record) (Revision, error)

	// WriteMark durably raises the pair's mark. A mark that is not above the current one (Mark.Less) has no effect, and
	// is not an error. Any error is an unknown outcome, and safe to ignore. The record and its revision do not change,
	// no watcher is notified, and the mark outlives the record. WriteMark returns the previous mark, or m if an earlier
	// attempt was applied. It returns the zero Mark if none existed, or if a voter of an older release omits it.
	WriteMark(ctx context.Context, m Mark) (before Mark, err error)

	// LoadMark reads the pair's mark linearizably. It returns the zero Mark if none exists, or if the coordinator does
	// not support marks yet (a voter of an older release). It returns ErrUnreachable or ErrRecordInvalid.
	LoadMark(ctx context.Context) (Mark, error)

	// Watch returns a channel that receives the current observation, and the latest one after each change. The channel
	// is closed when ctx ends.
	Watch(ctx context.Context) <-chan Observation

	// Announce maintains this node's liveness key, through any outage, until ctx ends. It then tries to remove the key,
	// and returns nil. It returns an error only if live is invalid or the coordinator was closed. Only one call may run at
	// a time.
	Announce(ctx context.Context, live Live) error

	// Close makes requests in progress fail. It waits for the coordinator's goroutines, but not until the calls of these
	// requests have returned.
	Close() error
}

// LiveNode returns the liveness entry of a node.
func (o Observation) LiveNode(id uuid.UUID) (Live, bool) {
	return find(o.Live, func(l Live) bool { return l.Node.ID == id })
}

// Condition is a condition of this node or its pair that only failover detects.
type Condition struct {
	// Kind is one of the Condition constants.
	Kind    string
	Details string
	// Since is the start of the condition. If it is zero, the condition starts with the first Status that includes it.
	Since time.Time
}

// Kinds of conditions.
const (
	// ConditionSuperseded means that another process with this node's identity has replaced this process in the pair, or
	// that the machine was resumed from an older memory snapshot.
	ConditionSuperseded       = "superseded"
	ConditionDuplicateProcess = "duplicate-process"
	// ConditionStoreRolledBack means that this node's data directory is an older copy, or a copy of a running node's
	// directory (INV-11 to INV-13).
	ConditionStoreRolledBack = "store-rolled-back"
	// ConditionHistoriesDiverged means that committed records of the node that is not active are missing on the active.
	ConditionHistoriesDiverged = "histories-diverged"
	// ConditionVoterMissing and the following conditions describe a voter of the raft coordinator.
	ConditionVoterMissing    = "voter-missing"
	ConditionVoterBehind     = "voter-behind"
	ConditionVoterRolledBack = "voter-rolled-back"
	ConditionVoterWiped      = "voter-wiped"
)
