// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/identity"
	"github.com/lockstep-mq/lockstep/store/lsn"
)

// Member is one incarnation of a store, as listed in the cluster record.
type Member = identity.Member

// Hello is the first message of a standby to the active.
type Hello struct {
	Pair   uuid.UUID
	Member Member
	// LogEnd is the position of the last record in the standby's log.
	LogEnd lsn.Position
	// Applied is the position of the last record that the standby applied. The standby cannot truncate its log below
	// it.
	Applied lsn.Position
	// TermEnds is the last position of each term in the standby's log, newest first.
	TermEnds []lsn.Position
	// OldestProtocol is the oldest protocol version that the standby supports; 0 if it supports only Protocol.
	Protocol, OldestProtocol uint32
	Features                 []string
	// Committed is the position of the last record that the standby knows to be committed and refuses to truncate
	// (INV-13); zero if unknown.
	Committed lsn.Position
	// DiscardedTerm is the term of the last forced failover if the standby's log ends before it; otherwise 0. Any of the
	// standby's records may be missing on an active with records of this term.
	DiscardedTerm uint64
}

// StandbyMessage is a message from the standby: the hello, an acknowledgement or a heartbeat.
type StandbyMessage struct {
	// Config and Term are the fence of the standby (INV-1).
	Config, Term uint64
	Hello        *Hello
	// Durable is the position of the last record that is durable on the standby. It is zero in the first message.
	Durable    lsn.Position
	AppliedLSN uint64
}

// HelloResponse is the response to a Hello.
type HelloResponse struct {
	// ResumeAfter is the position of the last common record. The standby moves the records after this position to a
	// separate file. If SnapshotRequired is set, the standby copies them to a file before it installs the snapshot, and
	// ResumeAfter is zero if the position is unknown.
	ResumeAfter lsn.Position
	// SnapshotRequired reports whether the standby cannot catch up from the log.
	SnapshotRequired bool
	// Reason is a text for the log.
	Reason string
	// OldestProtocol is the oldest protocol version that the active supports; 0 if it supports only Protocol.
	Protocol, OldestProtocol uint32
	Features                 []string
	// HoldsCommitted reports whether the active has the record Hello.Committed, or whether the forced failover of
	// Hello.DiscardedTerm has discarded the record. False may also mean unknown.
	HoldsCommitted bool
}

// ActiveMessage is a message from the active: the hello response, records, the commit LSN, or a heartbeat.
type ActiveMessage struct {
	Config, Term uint64
	// HelloResponse is the response to the standby's Hello. It is set in the first message only.
	HelloResponse *HelloResponse
	// Previous is the position of the record before Records. For a fragment, it is the position before the first
	// fragment.
	Previous lsn.Position
	// Records contains log frames. If Last is zero, it is a fragment, continued in the next message.
	Records []byte
	// Last is the position of the last record in Records.
	Last lsn.Position
	// CommitLSN is the active's commit LSN. The standby may apply its durable records up to this LSN.
	CommitLSN   uint64
	AckRequired bool
	// CommitTime is the active's current commit latency; 0 without recent commits, or if it was sent recently.
	CommitTime time.Duration
	// Trace identifies the span in which the active sends Records; nil if they are not traced.
	Trace *TraceContext
}

// SnapshotRequest requests a checkpoint of the active.
type SnapshotRequest struct {
	Pair uuid.UUID
	Node uuid.UUID
	// Config is the configuration in the standby's fence (INV-1).
	Config uint64
	// ResumeID is the SnapshotHeader.ID of an interrupted transfer; empty for a new one.
	ResumeID string
	// ResumeOffset is the offset in the page file at which an interrupted transfer resumes.
	ResumeOffset uint64
	// Committed has the meaning of Hello.Committed. It is also zero if the active is known to have the record.
	Committed lsn.Position
}

// SnapshotHeader describes the snapshot of a transfer.
type SnapshotHeader struct {
	// ID identifies the checkpoint while the active pins it.
	ID string
	// Position is the position of the last record in the snapshot.
	Position lsn.Position
	// FileBytes is the size of the page file up to its last used page.
	FileBytes uint64
	// DataBytes is the number of bytes sent in total, without free extents.
	DataBytes    uint64
	PageSize     uint32
	Config, Term uint64
	// HoldsCommitted reports whether the active has the record SnapshotRequest.Committed. False may also mean
	// unknown.
	HoldsCommitted bool
}

// SnapshotChunk is a piece of a snapshot.
type SnapshotChunk struct {
	// Header describes the snapshot. It is set in the first chunk only.
	Header *SnapshotHeader
	Offset uint64
	// Data is a part of the snapshot. It is empty in the first and the last chunk, and in heartbeats. On receipt, it is
	// valid until the next Recv.
	Data []byte
	// Checksum is the CRC32C of Data.
	Checksum uint32
	// Finished reports whether this is the last chunk.
	Finished bool
}

// StandbyStream is the active's end of a standby's connection. The caller serializes sends; another goroutine receives.
// Both methods return an error when the connection is lost or Service.Replicate has returned.
type StandbyStream interface {
	// Send sends a message. It must not retain the message, but may retain the records, which must not be modified.
	Send(m *ActiveMessage) error
	Recv() (*StandbyMessage, error)
}

// Service serves standbys. Primary implements it.
type Service interface {
	// Replicate serves one connection of a standby until it ends. When Replicate returns, the transport must end the
	// stream.
	Replicate(ctx context.Context, stream StandbyStream) error
	// FetchSnapshot sends a checkpoint in chunks. send must not retain the chunk. When FetchSnapshot returns, the
	// transport must end the stream.
	FetchSnapshot(ctx context.Context, req SnapshotRequest, send func(*SnapshotChunk) error) error
}

// ActiveStream is the standby's end of a connection. The caller serializes sends; another goroutine receives. Both
// methods return an error when the connection is lost or the context of Conn.Replicate is done.
type ActiveStream interface {
	// Send sends a message, and must not retain it.
	Send(m *StandbyMessage) error
	// Recv waits for the next message and returns it. The caller owns the message and its records.
	Recv() (*ActiveMessage, error)
}

// SnapshotStream is a stream of snapshot chunks.
type SnapshotStream interface {
	// Recv waits for the next chunk and returns it, or io.EOF after the last chunk. The caller owns the chunk.
	Recv() (*SnapshotChunk, error)
}

// Conn is a connection to another node.
type Conn interface {
	// Replicate opens the record stream of an active. The stream ends when ctx is done.
	Replicate(ctx context.Context) (ActiveStream, error)
	// FetchSnapshot opens a snapshot transfer from an active. The transfer ends when ctx is done.
	FetchSnapshot(ctx context.Context, req SnapshotRequest) (SnapshotStream, error)
	// Handshake exchanges identities with the process at the other end.
	Handshake(ctx context.Context, me ProcessIdentity) (ProcessIdentity, error)
	// Received returns the number of bytes received on the connection, including partial messages. Transports that
	// deliver only whole messages return 0.
	Received() uint64
	Close() error
}

// Dialer connects to another node.
type Dialer interface {
	// Dial opens a connection. Its error wraps ErrRefused if the host is reachable but no process listens at address,
	// which proves that the process terminated.
	Dial(ctx context.Context, address string) (Conn, error)
}

// ProcessIdentity identifies a process to the other processes of its pair.
type ProcessIdentity struct {
	Pair, Node, Store uuid.UUID
	// Process distinguishes processes of one node.
	Process string
	Address string
	// End is the end of the process's log. It is zero if the store may have lost records: the peer must then not move
	// the role to this node because of its log (INV-6).
	End lsn.Position
}

// Self returns the identity of this process, with store s.
func Self(s *store.Store, process, address string) ProcessIdentity {
	id := s.Identity()
	i := ProcessIdentity{Pair: id.PairID, Node: id.NodeID, Store: id.StoreID, Process: process, Address: address}
	if !id.MayHaveLost {
		i.End = s.End()
	}
	return i
}

// Responder responds to handshakes of other processes. The zero value rejects all with ErrNotActive.
type Responder struct {
	Self func() ProcessIdentity
	// OnHandshake is called for each accepted handshake. It is required with Self, and must not block.
	OnHandshake func(ProcessIdentity)
}
