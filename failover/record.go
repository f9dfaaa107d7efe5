// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store/identity"
)

// RecordVersion is the version that this build writes, and the newest version that it can read.
const RecordVersion = 1

const maxRecordBytes = 64 << 10

// Errors of DecodeRecord and Record.Validate.
var (
	// ErrRecordVersion is returned for a record written by a newer version of Lockstep.
	ErrRecordVersion = errors.New("cluster record was written by a newer version of lockstep; upgrade this node")
	// ErrRecordInvalid is returned for an inconsistent or malformed record.
	ErrRecordInvalid = errors.New("invalid cluster record")
)

// Record is the cluster record, which defines which node may act. It is written only by compare-and-swap. Copies of
// a Record share its slices and the values of its pointers, which are never modified. See Clone.
type Record struct {
	Version int `json:"version"`
	// PairID identifies the pair permanently.
	PairID uuid.UUID `json:"pair_id"`
	// Config increases with every write, and serves as the fencing token.
	Config uint64 `json:"config"`
	// Term increases with every activation of a node. Every log record contains the term of its active.
	Term   uint64    `json:"term"`
	Active uuid.UUID `json:"active"`
	// InSync are the stores that have every committed transaction. Only they may promote themselves.
	InSync []Member `json:"in_sync"`
	// MinInSync is 1 to allow writes without a standby, or 2 to reject writes without a standby.
	MinInSync int `json:"min_in_sync"`
	// MinInSyncSet is an operator's override of MinInSync, which each new active writes instead of its configured value;
	// 0 without an override. It requires FeatureMinInSync on both nodes.
	MinInSyncSet int         `json:"min_in_sync_set,omitempty"`
	Switchover   *Switchover `json:"switchover,omitempty"`
	// Paused disables automatic takeover; it is nil while automatic takeover is enabled. It requires FeaturePause on
	// both nodes.
	Paused *Pause  `json:"paused,omitempty"`
	Forced *Forced `json:"forced,omitempty"`
	// Mark is a high-water mark that the writer of the record knew (INV-12); zero if none. The coordinator may store a
	// higher one.
	Mark Mark `json:"mark,omitzero"`
	// OpID identifies the operation that wrote the record, to resolve swaps with an unknown outcome.
	OpID string `json:"op_id"`
	// Nodes are the known nodes of the pair, at most two.
	Nodes []NodeInfo `json:"nodes"`

	// unknown contains the fields of a newer release. They are preserved on write. The map is never modified in place.
	unknown map[string]json.RawMessage
}

// Member identifies one incarnation of a store, and its process generation. Record.InSync contains the Members of the
// complete stores.
type Member = identity.Member

// Fence is the lower bound of config and term that a node accepts (INV-1).
type Fence = identity.Fence

// NodeInfo describes a node.
type NodeInfo struct {
	ID uuid.UUID `json:"id"`
	// Name is the name of the node, only for display.
	Name string `json:"name"`
	// Address is the host:port for clients and the other node.
	Address string `json:"address"`
	// Version is the release, only for display; empty for releases before 0.1.0.
	Version  string   `json:"version,omitempty"`
	Features Features `json:"features,omitempty"`
	// Preferred reports whether this node should be the active when it is in sync.
	Preferred bool `json:"preferred,omitempty"`
	// AMQP is the host:port for AMQP 1.0 clients; empty without an AMQP listener.
	AMQP string `json:"amqp,omitempty"`
}

// Pause disables automatic takeover, for maintenance that would be detected as a node failure. Operations requested by
// an operator are still executed, and an active that restarts keeps its role.
type Pause struct {
	Since  time.Time `json:"since"`
	Reason string    `json:"reason,omitempty"`
}

// Forced describes a forced failover: an operator activated a node although acknowledged records may be missing
// (INV-4). It also describes an adoption of the record without a response from the other node
// (AdoptRequested.WithoutOther).
type Forced struct {
	At time.Time `json:"at"`
	// By is the name of the operator or the operator's machine, which is not authenticated; "lockstep pair adopt" for an
	// adoption.
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
	// Node is the node that was activated, in Term.
	Node uuid.UUID `json:"node"`
	Term uint64    `json:"term"`
	// After is the LSN up to which no acknowledged record is lost: GuaranteedLSN of the node, or, for an adoption, the
	// last LSN that the node knows to be committed. It can be lower if an earlier forced failover is not settled. Later
	// records of the other node are discarded if their term is below Term.
	After uint64 `json:"after"`
	// Settled reports whether both nodes have been in sync since the forced failover.
	Settled bool `json:"settled,omitempty"`
}

// Switchover is a request to the active to transfer the role to the node To.
type Switchover struct {
	ID string    `json:"id"`
	To uuid.UUID `json:"to"`
}

// Fence returns the record's fence.
func (r Record) Fence() Fence { return Fence{Config: r.Config, Term: r.Term} }

// Member returns the in-sync entry of a node.
func (r Record) Member(node uuid.UUID) (Member, bool) {
	return find(r.InSync, func(m Member) bool { return m.Node == node })
}

// Other returns the in-sync entry of the node that is not the given one.
func (r Record) Other(node uuid.UUID) (Member, bool) {
	return find(r.InSync, func(m Member) bool { return m.Node != node })
}

// Node returns the description of a node.
func (r Record) Node(id uuid.UUID) (NodeInfo, bool) {
	return find(r.Nodes, func(n NodeInfo) bool { return n.ID == id })
}

// find returns the first element for which ok is true.
func find[T any](all []T, ok func(T) bool) (found T, _ bool) {
	if i := slices.IndexFunc(all, ok); i >= 0 {
		return all[i], true
	}
	return found, false
}

// Clone returns a copy of r that shares no mutable data with r.
func (r Record) Clone() Record {
	r.InSync = slices.Clone(r.InSync)
	r.Nodes = slices.Clone(r.Nodes)
	if r.Switchover != nil {
		r.Switchover = new(*r.Switchover)
	}
	if r.Paused != nil {
		r.Paused = new(*r.Paused)
	}
	if r.Forced != nil {
		r.Forced = new(*r.Forced)
	}
	return r
}

// Validate checks the fields that the machine depends on. Its errors wrap ErrRecordVersion or ErrRecordInvalid.
func (r Record) Validate() error {
	switch {
	case r.Version > RecordVersion:
		return fmt.Errorf("version %d, this build supports %d: %w", r.Version, RecordVersion, ErrRecordVersion)
	case r.Version < 1:
		return fmt.Errorf("version %d: %w", r.Version, ErrRecordInvalid)
	case r.PairID == uuid.Nil || r.Active == uuid.Nil:
		return fmt.Errorf("no pair id or no active node: %w", ErrRecordInvalid)
	case r.Config == 0 || r.Term == 0:
		return fmt.Errorf("config %d, term %d, both start at 1: %w", r.Config, r.Term, ErrRecordInvalid)
	case len(r.InSync) < 1 || len(r.InSync) > 2:
		return fmt.Errorf("%d members in sync, a pair has 1 or 2: %w", len(r.InSync), ErrRecordInvalid)
	case len(r.InSync) == 2 && r.InSync[0].Node == r.InSync[1].Node:
		return fmt.Errorf("duplicate in-sync node %s: %w", r.InSync[0].Node, ErrRecordInvalid)
	case r.MinInSync < 1 || r.MinInSync > 2:
		return fmt.Errorf("min_in_sync %d, must be 1 or 2: %w", r.MinInSync, ErrRecordInvalid)
	}
	return nil
}

// Encode validates r, and returns the bytes to store in the coordinator.
func (r Record) Encode() ([]byte, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	b, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode cluster record: %w", err)
	}
	return b, nil
}

// DecodeRecord decodes and validates the output of Encode. Unknown fields are kept for the next Encode. Its errors
// wrap ErrRecordVersion or ErrRecordInvalid.
func DecodeRecord(b []byte) (Record, error) {
	if len(b) > maxRecordBytes {
		return Record{}, fmt.Errorf("%d bytes, limit %d: %w", len(b), maxRecordBytes, ErrRecordInvalid)
	}
	var r Record
	if err := json.Unmarshal(b, &r); err != nil {
		return Record{}, fmt.Errorf("%w: %w", ErrRecordInvalid, err)
	}
	if err := r.Validate(); err != nil {
		return Record{}, err
	}
	return r, nil
}
