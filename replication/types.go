// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store/identity"
	"github.com/lockstep-mq/lockstep/store/lsn"
)

// Member names one store in one state of trust, as the pair's record does.
type Member = identity.Member

// Hello introduces a standby to the active.
type Hello struct {
	// Pair that the standby belongs to.
	Pair uuid.UUID
	// Member is who the standby is.
	Member Member
	// LogEnd is the last record of the standby's log; durable there.
	LogEnd lsn.Position
	// Applied is the last record that the standby applied: its log cannot be cut below it.
	Applied lsn.Position
	// TermEnds has the last position of each term in the standby's log, newest first.
	TermEnds []lsn.Position
	// Protocol is the standby's ProtocolVersion, and OldestProtocol its oldest; 0 if it speaks one version only.
	Protocol, OldestProtocol uint32
	// Features that the standby knows.
	Features []string
	// Committed is the last record that the standby knows to be committed, and will not give up (INV-13). Zero if it
	// knows of none, or does not say.
	Committed lsn.Position
	// VoidTerm is the term of the last forced failover, if the standby's log ends before it: an active that holds
	// records of this term may lack anything that the standby has. 0: none.
	VoidTerm uint64
}

// StandbyMessage is what a standby sends: an acknowledgement and a sign of life.
type StandbyMessage struct {
	// Config and Term are the fence that the standby obeys (INV-1).
	Config, Term uint64
	// Hello is set in the first message only.
	Hello *Hello
	// Durable is the last record that is durable on the standby; cumulative. Zero in the first message.
	Durable lsn.Position
	// AppliedLSN is the last record that the standby applied; cumulative.
	AppliedLSN uint64
}

// Welcome answers a Hello.
type Welcome struct {
	// ResumeAfter is the last common record. The standby cuts what its log has after it; with SnapshotRequired it keeps
	// that aside. Then it may be zero: not known.
	ResumeAfter lsn.Position
	// SnapshotRequired tells that the log cannot help: it begins too late, or the histories differ below what the
	// standby applied.
	SnapshotRequired bool
	// Reason says in words why, for the log.
	Reason string
	// Protocol is the active's ProtocolVersion, and OldestProtocol its oldest; 0 if it speaks one version only.
	Protocol, OldestProtocol uint32
	// Features that the active knows.
	Features []string
	// HoldsCommitted tells that the active has the record that the hello names as committed. False may also mean that
	// it cannot tell.
	HoldsCommitted bool
}

// ActiveMessage is what the active sends: records, the commit LSN, and a sign of life.
type ActiveMessage struct {
	// Config and Term are the active's (INV-1).
	Config, Term uint64
	// Welcome is set in the first message only.
	Welcome *Welcome
	// Previous is the record before the first of Records.
	Previous lsn.Position
	// Records are whole log frames; or, while Last is zero, a piece of them, and the next messages bring the rest.
	Records []byte
	// Last is the last of Records.
	Last lsn.Position
	// CommitLSN is the active's: the standby may apply up to here what it has durable.
	CommitLSN uint64
	// AckRequired tells the standby that the active waits for its acks (SYNCING or in sync).
	AckRequired bool
	// CommitTime is how long commits take at present, as the active sees them; 0: there were none lately, or it was told
	// a moment ago.
	CommitTime time.Duration
	// Trace names the span that the active sends Records in; nil if they are not traced.
	Trace *TraceContext
}

// SnapshotRequest asks for a checkpoint of the active.
type SnapshotRequest struct {
	// Pair that the standby belongs to.
	Pair uuid.UUID
	// Node is the standby.
	Node uuid.UUID
	// Config that the standby obeys (INV-1).
	Config uint64
	// ResumeID names an interrupted transfer to go on with; empty for a new one.
	ResumeID string
	// ResumeOffset is where in the page file to go on, in bytes.
	ResumeOffset uint64
	// Committed as in Hello.
	Committed lsn.Position
}

// SnapshotHeader describes a snapshot that is being sent.
type SnapshotHeader struct {
	// ID names the pinned checkpoint for as long as the active keeps it.
	ID string
	// Position that it holds: the log goes on after it.
	Position lsn.Position
	// FileBytes is the size of the page file up to its last used page.
	FileBytes uint64
	// DataBytes is how much is sent in all: free extents are left out.
	DataBytes uint64
	// PageSize in bytes.
	PageSize uint32
	// Config and Term of the active (INV-1).
	Config, Term uint64
	// HoldsCommitted as in Welcome, for the record that the request names: the log goes on from Position up to there.
	HoldsCommitted bool
}

// SnapshotChunk is a piece of a snapshot.
type SnapshotChunk struct {
	// Header is set in the first chunk only.
	Header *SnapshotHeader
	// Offset of Data in the page file.
	Offset uint64
	// Data of at most SnapshotChunkBytes; none in the last chunk, and in those that only say that the active is there.
	Data []byte
	// Checksum is the CRC32C of Data.
	Checksum uint32
	// Finished is true in the last chunk.
	Finished bool
}

// StandbyStream is the active's end of a standby's connection. One goroutine sends and another one receives.
// Both calls return an error once the connection is gone or the call of Service.Replicate has returned.
type StandbyStream interface {
	// Send does not keep the message when it has returned, but it may keep the records, which must not change any more.
	Send(m *ActiveMessage) error
	// Recv blocks until a message arrives.
	Recv() (*StandbyMessage, error)
}

// Service is what the active offers to a standby. Primary implements it; a transport calls it.
type Service interface {
	// Replicate serves one connection of a standby until it ends. The transport must end the stream, so that a blocked
	// Send or Recv returns, as soon as Replicate has returned.
	Replicate(ctx context.Context, stream StandbyStream) error
	// FetchSnapshot sends a checkpoint, chunk by chunk. send does not keep the chunk when it has returned.
	FetchSnapshot(ctx context.Context, req SnapshotRequest, send func(*SnapshotChunk) error) error
}

// ActiveStream is the standby's end of a connection. Sends are serialised by the caller; one other goroutine receives.
// Both calls return an error once the connection is gone or the context that it was made with has ended.
type ActiveStream interface {
	// Send does not keep the message when it has returned.
	Send(m *StandbyMessage) error
	// Recv blocks until a message arrives; the message and its records belong to the caller.
	Recv() (*ActiveMessage, error)
}

// SnapshotStream brings the chunks of a snapshot.
type SnapshotStream interface {
	// Recv blocks until a chunk arrives; it belongs to the caller. io.EOF after the last one.
	Recv() (*SnapshotChunk, error)
}

// Conn is a connection to an active.
type Conn interface {
	// Replicate opens the record stream; it ends with ctx.
	Replicate(ctx context.Context) (ActiveStream, error)
	// FetchSnapshot opens a snapshot transfer; it ends with ctx.
	FetchSnapshot(ctx context.Context, req SnapshotRequest) (SnapshotStream, error)
	// Meet introduces this process to the one at the other end, and returns who that is.
	Meet(ctx context.Context, me Introduction) (Introduction, error)
	// Received is how many bytes have come over the connection, parts of messages among them; 0 where messages come whole.
	Received() uint64
	// Close ends everything on the connection.
	Close() error
}

// Dialer makes connections to an active.
type Dialer interface {
	// Dial returns an error that wraps ErrRefused when the address can be reached and no process listens there: the
	// process is gone.
	Dial(ctx context.Context, address string) (Conn, error)
}
