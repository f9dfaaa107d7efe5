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

// RecordVersion is the version that this build writes and the newest that it reads.
const RecordVersion = 1

// maxRecordBytes bounds what DecodeRecord looks at. A real record has less than 2 KiB.
const maxRecordBytes = 64 << 10

// Errors of DecodeRecord and Record.Validate.
var (
	// ErrRecordVersion is returned when a record was written by a newer version of Lockstep.
	ErrRecordVersion = errors.New("the pair's record was written by a newer version of lockstep; upgrade this node")
	// ErrRecordInvalid is returned when a record contradicts itself or cannot be parsed.
	ErrRecordInvalid = errors.New("the pair's record is invalid")
)

// Record is the pair's record: the one thing that decides who may act. It is written only by compare-and-swap, and
// Config grows by one with every write. A Record and its slices are never changed in place; use With… or Clone.
type Record struct {
	// Version of this structure.
	Version int `json:"version"`
	// PairID names the pair for good. A node that holds another pair's data refuses to start.
	PairID uuid.UUID `json:"pair_id"`
	// Config is +1 on every write: the fencing token. It is kept in the value because a restored coordinator can hand
	// out an old revision.
	Config uint64 `json:"config"`
	// Term is +1 on every activation, and so whenever Active changes; it is stamped on every log record.
	Term uint64 `json:"term"`
	// Active is the node that may act.
	Active uuid.UUID `json:"active"`
	// InSync are the stores whose log holds every committed transaction. Only they may promote themselves.
	InSync []Member `json:"in_sync"`
	// MinInSync is 1 to go on alone, or 2 to refuse writes while alone.
	MinInSync int `json:"min_in_sync"`
	// MinInSyncSet is what an operator has set while the nodes ran: each node that becomes active writes it instead of
	// its own; 0: none has. Needs FeatureMinInSync on both nodes.
	MinInSyncSet int `json:"min_in_sync_set,omitempty"`
	// Switchover is a planned hand-over that was asked for, if any.
	Switchover *Switchover `json:"switchover,omitempty"`
	// Paused: no standby takes over by itself; nil when one may. Needs FeaturePause on both nodes.
	Paused *Pause `json:"paused,omitempty"`
	// Forced is the last forced failover; nil if there never was one.
	Forced *Forced `json:"forced,omitempty"`
	// Mark is how far the pair was known to have committed when the record was written (INV-12).
	Mark Mark `json:"mark,omitzero"`
	// OpID is the id of the operation that wrote the record. A swap that timed out is recognized by it.
	OpID string `json:"op_id"`
	// Nodes describes the nodes that the pair has seen: two at most.
	Nodes []NodeInfo `json:"nodes"`

	// unknown are the fields that a newer release wrote. They are written back as they were: while a pair is upgraded,
	// a node of the older release must not undo what the newer one has set. Never changed in place.
	unknown map[string]json.RawMessage
}

// Member names one store in a state in which it is known to be complete, as an entry of Record.InSync.
type Member = identity.Member

// Fence is what a node has promised not to go back behind (INV-1).
type Fence = identity.Fence

// NodeInfo describes a node.
type NodeInfo struct {
	// ID is the node's UUID; nodes are told apart by it and never by name.
	ID uuid.UUID `json:"id"`
	// Name from the node's configuration, for people.
	Name string `json:"name"`
	// Address, host:port, that clients and the other node reach it by.
	Address string `json:"address"`
	// Version of the software that the node runs, for people; empty before 0.1.0.
	Version string `json:"version,omitempty"`
	// Features that the node's release knows: see there.
	Features Features `json:"features,omitempty"`
	// Preferred: this node should be the active one when it is in sync.
	Preferred bool `json:"preferred,omitempty"`
	// AMQP is the address, host:port, that clients reach it by which speak AMQP 1.0; empty if it has no port for them.
	AMQP string `json:"amqp,omitempty"`
}

// Pause is an operator's wish that no standby takes over by itself: for work on the network or the machines that would
// only look like the death of a node. What an operator asks for, such as a switchover, is done all the same, and an
// active that starts again keeps its role.
type Pause struct {
	// Since when.
	Since time.Time `json:"since"`
	// Reason in the operator's words; may be empty.
	Reason string `json:"reason,omitempty"`
}

// Forced is what an operator did who made a node active that was not known to hold everything (INV-4 set aside, with
// open eyes): what is lost by it begins after a certain record, and who did it why is kept.
type Forced struct {
	// At is when, to the second.
	At time.Time `json:"at"`
	// By is who asked for it, in the operator's own words or those of his machine: not proven. Reason may be empty.
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
	// Node that was made active, and Term that began with it.
	Node uuid.UUID `json:"node"`
	Term uint64    `json:"term"`
	// After is the last LSN up to which nothing that was acknowledged can be lost: SurelyKept of that node, or less if
	// a forced failover before this one is not settled. What the other node has after it, of an earlier term than Term,
	// is not part of the pair any more.
	After uint64 `json:"after"`
	// Settled: both nodes have been in sync since.
	Settled bool `json:"settled,omitempty"`
}

// Switchover asks the active to hand over.
type Switchover struct {
	// ID of the request.
	ID string `json:"id"`
	// To is the node that is to become active.
	To uuid.UUID `json:"to"`
}

// Fence is the fence that obeying this record means.
func (r Record) Fence() Fence { return Fence{Config: r.Config, Term: r.Term} }

// Member returns the in-sync entry of a node.
func (r Record) Member(node uuid.UUID) (Member, bool) {
	for _, m := range r.InSync {
		if m.Node == node {
			return m, true
		}
	}
	return Member{}, false
}

// Other returns the in-sync entry of the node that is not `node`.
func (r Record) Other(node uuid.UUID) (Member, bool) {
	for _, m := range r.InSync {
		if m.Node != node {
			return m, true
		}
	}
	return Member{}, false
}

// Node returns the description of a node.
func (r Record) Node(id uuid.UUID) (NodeInfo, bool) {
	for _, n := range r.Nodes {
		if n.ID == id {
			return n, true
		}
	}
	return NodeInfo{}, false
}

// Clone returns a copy that shares nothing with r.
func (r Record) Clone() Record {
	r.InSync = slices.Clone(r.InSync)
	r.Nodes = slices.Clone(r.Nodes)
	if r.Switchover != nil {
		s := *r.Switchover
		r.Switchover = &s
	}
	if r.Paused != nil {
		p := *r.Paused
		r.Paused = &p
	}
	if r.Forced != nil {
		f := *r.Forced
		r.Forced = &f
	}
	return r
}

// Validate tells whether the record can be trusted to be one. It wraps ErrRecordVersion or ErrRecordInvalid.
func (r Record) Validate() error {
	switch {
	case r.Version > RecordVersion:
		return fmt.Errorf("version %d, this build knows %d: %w", r.Version, RecordVersion, ErrRecordVersion)
	case r.Version < 1:
		return fmt.Errorf("version %d: %w", r.Version, ErrRecordInvalid)
	case r.PairID == uuid.Nil || r.Active == uuid.Nil:
		return fmt.Errorf("no pair id or no active node: %w", ErrRecordInvalid)
	case r.Config == 0 || r.Term == 0:
		return fmt.Errorf("config %d, term %d, both start at 1: %w", r.Config, r.Term, ErrRecordInvalid)
	case len(r.InSync) < 1 || len(r.InSync) > 2:
		return fmt.Errorf("%d members in sync, a pair has 1 or 2: %w", len(r.InSync), ErrRecordInvalid)
	case len(r.InSync) == 2 && r.InSync[0].Node == r.InSync[1].Node:
		return fmt.Errorf("node %s is in sync twice: %w", r.InSync[0].Node, ErrRecordInvalid)
	case r.MinInSync < 1 || r.MinInSync > 2:
		return fmt.Errorf("min_in_sync %d, only 1 and 2 are possible: %w", r.MinInSync, ErrRecordInvalid)
	}
	return nil
}

// Encode gives the bytes that a coordinator stores.
func (r Record) Encode() ([]byte, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	b, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode the pair's record: %w", err)
	}
	return b, nil
}

// DecodeRecord reads what Encode wrote. Fields that it does not know are kept for the next Encode, so that a release
// can add some.
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
