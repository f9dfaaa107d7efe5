// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/mutate"
)

// Identity describes a node's store.
type Identity struct {
	Node  uuid.UUID
	Store uuid.UUID
	// Incarnation is incremented when the store's content is replaced, when the store is quarantined, and by ClearLoss.
	Incarnation uint64
	// PairID is uuid.Nil until JoinPair.
	PairID uuid.UUID
	Fence  Fence
	// End is the position of the last record in the log, which need not be durable.
	End lsn.Position
	// Restored reports whether the store is a restored backup that has not joined a pair since.
	Restored bool
	// MayHaveLost reports whether acknowledged bytes may be lost (INV-6). It is durable until ClearLoss.
	MayHaveLost bool
	// Committed is the last LSN durably known to be committed; never above End.
	Committed uint64
	// Quarantine is the directory of the previous store, with the reason, if that store could not be opened. It becomes
	// empty when a snapshot of the other node is installed, or when the record lists this process as in sync. The pair
	// ID may have been lost with the store, so such a node joins any pair, but does not create one.
	Quarantine string
	// Generation is the last process generation known to be listed in the record. ClaimedGeneration is the generation of
	// the last process that participated, until the record is known to list it (INV-11).
	Generation, ClaimedGeneration uuid.UUID
}

// Member returns the store's current or future entry in Record.InSync.
func (id Identity) Member() Member {
	m := Member{Node: id.Node, Store: id.Store, Incarnation: id.Incarnation, Generation: id.Generation}
	if id.ClaimedGeneration != uuid.Nil {
		m.Generation = id.ClaimedGeneration
	}
	return m
}

// Empty reports whether the store has no records and has never been part of a pair. A store that joined a pair is not
// empty even without records: a new record would lock out the node that has the messages (INV-9).
func (id Identity) Empty() bool {
	if id.Quarantine != "" && !mutate.Off("INV-9-quarantined-store-is-new") {
		return false
	}
	return id.PairID == uuid.Nil && id.End.IsZero() && id.Fence == Fence{}
}

// ErrGone is returned by DataPlane.Handshake if the host is reachable but no process listens: the process terminated.
var ErrGone = errors.New("no process listens on the address")

// Peer is the identity reported by a process of the pair.
type Peer struct {
	Node, Store uuid.UUID
	// Process distinguishes processes of one node.
	Process string
	End     lsn.Position
}

// DataPlane controls a node's store and its replication role. The Runner calls it from one goroutine, in the order of
// the machine's effects; only Identity, Committed, Drain and Handshake are also called concurrently. At most one role
// runs at a time. Calls may block for disk I/O. Longer work runs in goroutines of the data plane, and the Stop calls
// wait for those goroutines.
//
// An error from any call except Drain and Handshake is fatal: Runner.Run stops the node's role and returns the error.
type DataPlane interface {
	// Identity returns the store's current identity. It must not block.
	Identity() Identity

	// JoinPair durably makes the store part of a pair. It fails for a store of another pair.
	JoinPair(ctx context.Context, pair uuid.UUID) error

	// SetFence durably raises the fence (INV-1, INV-4). A fence that is not above the current one has no effect.
	SetFence(ctx context.Context, f Fence) error

	// ClearLoss clears MayHaveLost and increments Incarnation in one durable write. A record with the old incarnation
	// then no longer lists this store as in sync.
	ClearLoss(ctx context.Context) error

	// MarkLoss durably sets MayHaveLost.
	MarkLoss(ctx context.Context) error

	// ClaimGeneration persists two process generations: listed, the one that the record currently lists (zero if
	// none), and claimed, the one of this process. After it returns, the record may list claimed, and a standby sends
	// it in its hello (INV-11).
	ClaimGeneration(ctx context.Context, listed, claimed uuid.UUID) error

	// ConfirmGeneration durably records that the cluster record lists the given process generation.
	ConfirmGeneration(ctx context.Context, listed uuid.UUID) error

	// Committed returns the position of the last committed record of the current term. It returns false if no record of
	// the term is committed, or if this node is not active.
	Committed() (lsn.Position, bool)

	// Handshake requests the identity and log end of the process at an address. It returns ErrGone if no process
	// listens there.
	Handshake(ctx context.Context, address string) (Peer, error)

	// StartActive starts the active role. The log continues in spec.Term with a term-start record, existing records are
	// committed as far as spec allows and applied, and standbys are accepted. ActiveReady is posted when everything is
	// applied. The caller has raised the fence to at least {spec.Config, spec.Term} (INV-1), and no follower is running.
	StartActive(ctx context.Context, spec ActiveSpec, post func(DataEvent)) error

	// ConfigureActive replaces the configuration of the active role. After it returns, no transaction is acknowledged
	// under weaker conditions, and every message to the standby contains cfg.Config.
	ConfigureActive(ctx context.Context, cfg ActiveConfig) error

	// StopActive ends the active role. After it returns, nothing is appended, acknowledged, applied, delivered or sent to
	// the standby. All pending transactions have failed, with an unknown outcome if they may be logged. Clients are
	// redirected to next, if its ID is set.
	StopActive(ctx context.Context, next NodeInfo) error

	// StartFollower starts the standby role, which replicates from spec.Active. After a connection loss, it redials
	// immediately, and then at short intervals until StopFollower. It rejects messages below the fence, and persists a
	// higher fence before it accepts messages with that fence (INV-1). The caller ensures that no active role is running.
	StartFollower(ctx context.Context, spec FollowSpec, post func(DataEvent)) error

	// StopFollower ends the standby role. After it returns, nothing from the old active is accepted or acknowledged
	// (INV-4).
	StopFollower(ctx context.Context) error

	// Drain prepares a planned handover. It holds new transactions, and waits until all earlier transactions are
	// committed, and are durable and applied on the standby. It returns the end of the log; no record is appended after
	// it unless Resume is called. The Runner calls Resume or StopActive after every Drain, even a failed one.
	Drain(ctx context.Context) (lsn.Position, error)

	// Resume accepts transactions again after Drain.
	Resume(ctx context.Context) error
}

// ActiveSpec configures StartActive.
type ActiveSpec struct {
	// Term is the term of new log records. It must never have been used before, by any node.
	Term uint64
	ActiveConfig
}

// ActiveConfig determines when the active acknowledges and delivers.
type ActiveConfig struct {
	// Config is the config number in every message to the standby (INV-1).
	Config uint64
	// RequireStandby reports whether a transaction is committed only when it is durable on this node and on Standby
	// (INV-2). If false, local durability suffices.
	RequireStandby bool
	// Standby is the member that must acknowledge, if RequireStandby is set. With the zero Member, nothing can then be
	// committed.
	Standby Member
	// Requirement is the number of the period in which acks are required. StandbySynced contains the same number.
	Requirement uint64
	// Serve permits acknowledgements. If it is false, new transactions are rejected, pending transactions fail with an
	// unknown outcome, and the commit LSN does not advance.
	Serve bool
	// Deliver permits deliveries. It is false if the node may no longer be the active.
	Deliver bool
	// Reason is part of client errors while Serve is false.
	Reason string
}

// FollowSpec configures StartFollower.
type FollowSpec struct {
	Active NodeInfo
	Config uint64
	Term   uint64
	// Forced is the record's last forced failover, if any. The records of this node that the failover discarded must
	// be saved before they are replaced. Forced is never changed in place.
	Forced *Forced
}

// LostCause is the cause of a lost connection.
type LostCause uint8

// Causes of a lost connection.
const (
	// LostReset means that the connection was reset; the state of the peer is unknown.
	LostReset LostCause = iota + 1
	// LostRefused means that the peer's host reports that no process listens on the address.
	LostRefused
	LostSilence
	// LostRejected means that the peer responds, but replication is impossible: for example, it is not active, has a
	// config and term below the fence, or rejects this node.
	LostRejected
	LostSlow
	// LostAhead means that the standby's fence is above this node's config and term: the standby is taking over, or
	// has done so.
	LostAhead
	// LostBehind means that records that this node knows to be committed are missing on the active. No record was
	// truncated (INV-13).
	LostBehind
	// LostNoSpace means that this node's disk is nearly full.
	LostNoSpace
)

var lostCauses = [...]struct { //nolint:gochecknoglobals // a constant
	code Code
	text string
}{
	0:            {CodeNoConnection, "cause 0"},
	LostReset:    {CodeConnectionClosed, "connection reset"},
	LostRefused:  {CodeConnectionRefused, "connection refused"},
	LostSilence:  {CodeSilence, "no message received"},
	LostRejected: {CodeRejected, "rejected"},
	LostSlow:     {CodeSlow, "acknowledgements too slow"},
	LostAhead:    {CodeFenceHigher, "its fence is higher"},
	LostBehind:   {CodeActiveBehind, "committed records of this node are missing there"},
	LostNoSpace:  {CodeDiskFull, "disk of this node is nearly full, replication is suspended"},
}

func (c LostCause) String() string {
	if int(c) < len(lostCauses) {
		return lostCauses[c].text
	}
	return fmt.Sprintf("cause %d", uint8(c))
}

// DataEvent is an event of the data plane. The function that posts it never blocks and is safe for concurrent use.
// Events about a peer must be posted in order of occurrence: a StandbySynced posted after a later StandbyLost could add
// an incomplete standby to in_sync. Events of a stopped role are ignored.
type DataEvent interface{ dataEvent() }

// Events of the follower.
type (
	// FollowerConnected reports that the active accepted this node.
	FollowerConnected struct{ Config, Term uint64 }
	// FollowerIncomplete reports that the active, in configuration Config, has committed records up to LSN Committed, and
	// some are missing from this node's log. Common is the last LSN that both logs contain. If the hello response reports
	// the records, the event precedes FollowerConnected. All fields are zero if the active reports only that this node has
	// lost acknowledged records.
	FollowerIncomplete struct{ Config, Common, Committed uint64 }
	// FollowerRequired reports that the active requires this node's acks from now on.
	FollowerRequired struct{}
	// FollowerLost reports that the stream has ended, or another dial has failed. It is posted again when the cause
	// changes. After a reset, the data plane must redial immediately and report the outcome.
	FollowerLost struct {
		Cause LostCause
		Err   error
	}
)

// Events of the active.
type (
	// ActiveReady reports that the term-start record and all earlier records are committed and applied.
	ActiveReady struct{}
	// StandbyConnected reports that the active has accepted the hello of a standby.
	StandbyConnected struct{ Member Member }
	// StandbyCaughtUp reports that the standby is so close to the end of the log that its acks can be required. It is
	// posted once per connection, even if they are already required.
	StandbyCaughtUp struct{ Member Member }
	// StandbySynced reports that the standby's acks are required, and all records committed before the requirement
	// are durable there. Only now may it be added to in_sync (INV-3). Requirement is ActiveConfig.Requirement:
	// records committed between two requirements may be missing on the standby.
	StandbySynced struct {
		Member      Member
		Requirement uint64
	}
	// StandbyLost reports that the standby's connection was lost, that the standby does not connect, or that it was
	// refused; see Cause.
	StandbyLost struct {
		Node  uuid.UUID
		Cause LostCause
		Err   error
	}
	// StandbyAhead reports that a standby was refused because it knows records to be committed that are missing from this
	// node's log (INV-13). End is the end of the standby's log, Committed the last LSN that the standby knows to be
	// committed. It is posted for each hello of the standby.
	StandbyAhead struct {
		Member    Member
		End       lsn.Position
		Committed uint64
	}
	// DiskStalled reports whether log writes are stalled. It is posted on changes.
	DiskStalled struct{ Stalled bool }
)

// Failed reports that the store cannot continue (INV-7). It is posted by a role, or through Runner.Post. Runner.Run
// then stops the role and returns the error.
type Failed struct{ Err error }

func (FollowerConnected) dataEvent()  {}
func (FollowerIncomplete) dataEvent() {}
func (FollowerRequired) dataEvent()   {}
func (FollowerLost) dataEvent()       {}
func (ActiveReady) dataEvent()        {}
func (StandbyConnected) dataEvent()   {}
func (StandbyCaughtUp) dataEvent()    {}
func (StandbySynced) dataEvent()      {}
func (StandbyLost) dataEvent()        {}
func (StandbyAhead) dataEvent()       {}
func (DiskStalled) dataEvent()        {}
func (Failed) dataEvent()             {}
