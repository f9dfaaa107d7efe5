// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
)

// Revision names one write of the record in one coordinator. 0 stands for "there is no record".
type Revision int64

// Errors of a Coordinator.
var (
	// ErrNoRecord is returned when the pair has no record yet, or no more.
	ErrNoRecord = errors.New("the coordinator has no record of the pair")
	// ErrConflict is returned when the record is not at the expected revision: another node wrote it. Nothing was
	// done.
	ErrConflict = errors.New("the pair's record was changed by another node")
	// ErrUnknownOutcome is returned when a swap may or may not have been done, or may even be done later (INV-8). Only
	// a record at another revision settles it.
	ErrUnknownOutcome = errors.New("the coordinator did not say whether it wrote the pair's record")
	// ErrRefused is returned when the coordinator has answered that it will not write the record, and why: it is out of
	// space, or this node may not. The swap was not done and will not be.
	ErrRefused = errors.New("the coordinator refuses to write the pair's record")
	// ErrUnreachable is returned when the coordinator did not answer a read in time.
	ErrUnreachable = errors.New("the coordinator cannot be reached")
)

// Live is what a node's liveness key says. A hint, never a proof: the key outlives its node by up to a lease, and can
// be gone while the node is well.
type Live struct {
	// Node is the one that announced itself.
	Node NodeInfo `json:"node"`
	// Process tells runs of the same node apart.
	Process string `json:"process"`
}

// Twin is another process under this node's id, by its announcement.
type Twin struct {
	Live
	// Stale is true as long as nothing shows that the process ran after this one had announced itself: it may be an
	// earlier run of this node that was killed, whose lease has not ended yet; or one that runs and was not heard again
	// so far. Once false, it stays false as long as the twin is there.
	Stale bool
}

// Observation is everything that a coordinator knows at a moment. Each one supersedes those before it, so a reader that
// is late misses nothing but history.
type Observation struct {
	// Record is the newest one seen; nil if none was seen yet, or if it is missing.
	Record *Record
	// Revision of Record.
	Revision Revision
	// Missing is true when the coordinator said that there is no record.
	Missing bool
	// RecordErr tells why the stored record cannot be used (ErrRecordVersion, ErrRecordInvalid).
	RecordErr error
	// Live are the nodes whose liveness key is there, this node included, sorted by node id. Of two processes under one
	// id, it is the one that announced itself last.
	Live []Live
	// LiveKnown is false until Live was read for the first time.
	LiveKnown bool
	// Twin is another process that announces itself under the id of the node for which Announce runs on this
	// connection; nil without one, and while Announce does not run. It is there from the first moment, Stale at first;
	// of a process that runs, Stale is false within a third of a lease after each of the two has announced itself, and
	// both see each other. It is gone within about a lease after the other process is (at once, if that one's Announce
	// has ended in order). Of several, one that is not stale is shown. A process of release 0.1.0 is seen only if it
	// announced itself after this one (etcd), or not at all (raft).
	Twin *Twin
	// Reachable tells whether the coordinator answered the last time it was asked.
	Reachable bool
	// Trouble says in words why the coordinator cannot be reached, or what is wrong with it, if an operator can do
	// something about it; empty if not. It does not change by itself.
	Trouble string
	// Notices are what an operator has to know of the coordinator besides; never changed in place.
	Notices []Notice
	// LeaseUntil is when the lease of this node's own liveness key ends at the earliest: the granted time to live
	// counted from before the request for it was sent. Zero without a lease. It carries a monotonic clock reading.
	LeaseUntil time.Time
}

// Coordinator is the authority that holds the record of one pair. Implementations are safe for concurrent use. One
// conformance suite, coordinator/coordtest, runs against each of them.
type Coordinator interface {
	// Name of the kind: "etcd", "memory".
	Name() string

	// Load reads the record linearizably: it returns what is there at some moment between call and return. Errors:
	// ErrNoRecord, ErrUnreachable, ErrRecordVersion, ErrRecordInvalid.
	Load(ctx context.Context) (Record, Revision, error)

	// Swap replaces the record if it is still at revision `expect` (0: if there is none) and returns the new revision.
	// When it returns nil, the record is durable in the coordinator. Errors: ErrConflict and ErrRefused: not done; any
	// other error must be treated like ErrUnknownOutcome. A record that is already `next` by its OpID counts as
	// success.
	Swap(ctx context.Context, expect Revision, next Record) (Revision, error)

	// WriteMark raises the pair's mark. A mark that is not above the present one (Mark.Less) changes nothing and is no
	// error: of several that are written at once, the highest stays. When it returns nil, the mark, or a higher one, is
	// durable in the coordinator. Any error is an unknown outcome, and harmless. Neither the record nor its revision
	// changes, and no watcher is woken. It outlives the record. It returns the mark that was there before: m itself if
	// an earlier attempt had been done, and the zero Mark if there was none, or if a voter of an older release does not
	// say.
	WriteMark(ctx context.Context, m Mark) (before Mark, err error)

	// LoadMark reads the pair's mark linearizably; the zero Mark if there is none, which is also so when the
	// coordinator cannot keep one yet (a voter of an older release). Errors: ErrUnreachable, ErrRecordInvalid.
	LoadMark(ctx context.Context) (Mark, error)

	// Watch sends what is known now, then after each change, until ctx ends; then it closes the channel. A slow reader
	// gets only the latest observation.
	Watch(ctx context.Context) <-chan Observation

	// Announce keeps this node's liveness key alive until ctx ends, through every outage, and then tries to remove it.
	// One at a time. It returns nil when ctx ended.
	Announce(ctx context.Context, live Live) error

	// Close frees what the coordinator holds. Every call that is under way fails. Close waits for nothing but its own.
	Close() error
}

// LiveNode returns the liveness entry of a node.
func (o Observation) LiveNode(id uuid.UUID) (Live, bool) {
	for _, l := range o.Live {
		if l.Node.ID == id {
			return l, true
		}
	}
	return Live{}, false
}
