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

// Identity describes a node's store. It is read often, so reading it must be cheap.
type Identity struct {
	// Node UUID.
	Node uuid.UUID
	// Store UUID, created with the store.
	Store uuid.UUID
	// Incarnation of the store: incremented when its content is replaced, and by ClearLoss.
	Incarnation uint64
	// PairID that the store belongs to; uuid.Nil until JoinPair.
	PairID uuid.UUID
	// Fence as persisted.
	Fence Fence
	// End is the last record of the log, durable or not.
	End lsn.Position
	// Restored is true for a store from a backup that has not joined a pair since. No record lists it, and it may
	// start a pair.
	Restored bool
	// MayHaveLost is true if acknowledged bytes may be lost (INV-6). It persists over restarts until ClearLoss.
	MayHaveLost bool
	// Committed is the last LSN known, on disk, to be committed. It is never above End.
	Committed uint64
	// Quarantine is the directory of the previous contents if those could not be opened, with the reason; empty
	// otherwise. It is set until the other node has replicated everything again. The pair ID may have been lost with
	// the contents: such a store joins any pair, and starts none.
	Quarantine string
	// Run is the last process generation known to be listed in the record. ClaimedRun is the generation of the last
	// process that took part, while its listing is unconfirmed (INV-11).
	Run, ClaimedRun uuid.UUID
}

// Member returns the store's actual or future entry in Record.InSync.
func (id Identity) Member() Member {
	m := Member{Node: id.Node, Store: id.Store, Incarnation: id.Incarnation, Run: id.Run}
	if id.ClaimedRun != uuid.Nil {
		m.Run = id.ClaimedRun
	}
	return m
}

// Empty reports whether the store has never been part of a pair. A store that joined a pair but has no records is not
// empty. Its pair has a record, and a new one in its place would lock out the node that has the messages (INV-9).
func (id Identity) Empty() bool {
	if id.Quarantine != "" && !mutate.Off("INV-9-set-aside-is-taken-for-new") {
		return false
	}
	return id.PairID == uuid.Nil && id.End.IsZero() && id.Fence == Fence{}
}

// ErrGone is returned by DataPlane.Handshake if the address is reachable and no process listens on it: the process has
// terminated.
var ErrGone = errors.New("no process listens on the address")

// Peer is the identity reported by a process of the pair.
type Peer struct {
	// Node and Store of the process; Process distinguishes processes of one node.
	Node, Store uuid.UUID
	Process     string
	// End is the last record of its log.
	End lsn.Position
}

// DataPlane is failover's interface to a node: its store, and the two roles of replication. The Runner calls it from
// one goroutine, in the order of the machine's effects; only Drain runs concurrently. At most one role is started at
// a time. Each call returns within the time that the disk needs. Longer work runs in goroutines that the data plane
// owns and that the Stop call joins.
//
// An error from any call except Drain is fatal: Runner.Run stops the node's role and returns the error.
type DataPlane interface {
	// Identity returns the store's current identity.
	Identity() Identity

	// JoinPair makes the store part of a pair, durably. It fails if the store belongs to another pair.
	JoinPair(ctx context.Context, pair uuid.UUID) error

	// SetFence raises the fence, durably (INV-1, INV-4). A fence that is not above the current one (Fence.Less) has
	// no effect and is not an error.
	SetFence(ctx context.Context, f Fence) error

	// ClearLoss clears MayHaveLost and, in the same write, increments Incarnation. The record then no longer lists
	// this store as in sync, and an active that has not detected the restart cannot add it again as its old
	// incarnation. Durable before it returns.
	ClearLoss(ctx context.Context) error

	// MarkLoss sets MayHaveLost: the directory is an older copy or a duplicate. Durable before it returns.
	MarkLoss(ctx context.Context) error

	// ClaimRun persists this process generation, together with the one that the record lists now (zero if none). From
	// then on the record may list this generation, and a standby sends it in its hello (INV-11).
	ClaimRun(ctx context.Context, named, run uuid.UUID) error

	// ConfirmRun records that the record lists this generation. Durable before it returns.
	ConfirmRun(ctx context.Context, run uuid.UUID) error

	// Committed returns the newest record known to be committed and written in the term of the current active role;
	// false if none, or without such a role. It is called about once a second.
	Committed() (lsn.Position, bool)

	// Handshake requests the identity and log end of the process at an address. It returns ErrGone if no process listens
	// there. It may be called concurrently with other calls.
	Handshake(ctx context.Context, address string) (Peer, error)

	// StartActive takes the active role. The log continues under spec.Term with a term-start record, existing records
	// are committed as far as spec allows and applied, and standbys are accepted. It returns when the role is taken;
	// ActiveReady is posted when everything is applied. The persisted fence is {spec.Config, spec.Term} or above
	// (INV-1). No follower is running.
	StartActive(ctx context.Context, spec ActiveSpec, post func(DataEvent)) error

	// ConfigureActive changes the conditions for acknowledgements. After it returns, no transaction is acknowledged
	// under weaker conditions, and every message to the standby carries cfg.Config.
	ConfigureActive(ctx context.Context, cfg ActiveConfig) error

	// StopActive ends the active role. After it returns, nothing is appended, acknowledged, applied, delivered or
	// sent to the standby; waiting transactions have failed with "outcome unknown". `next` is the node that clients
	// should use, if known (ID not uuid.Nil).
	StopActive(ctx context.Context, next NodeInfo) error

	// StartFollower starts following spec.Active: dial it, truncate a divergent tail, catch up, append, sync,
	// acknowledge. When the connection ends, it redials immediately and then every few 10 ms, until StopFollower. It
	// rejects anything below the fence, and persists a higher fence before obeying it (INV-1). No active role is
	// running.
	StartFollower(ctx context.Context, spec FollowSpec, post func(DataEvent)) error

	// StopFollower ends following. After it returns, nothing from the old active is accepted or acknowledged (INV-4),
	// and all acknowledged records are durable.
	StopFollower(ctx context.Context) error

	// Drain prepares a planned handover. New transactions are held, those in flight are committed, and the standby
	// has applied everything durably. After it returns nil, nothing is appended until Resume or StopActive. It
	// returns an error when ctx ends; Resume follows in that case, too.
	Drain(ctx context.Context) (lsn.Position, error)

	// Resume reverts Drain and releases the held transactions.
	Resume(ctx context.Context) error
}

// ActiveSpec configures StartActive.
type ActiveSpec struct {
	// Term of new log records. Never used before, by any node.
	Term uint64
	// ActiveConfig is the initial configuration.
	ActiveConfig
}

// ActiveConfig is the set of conditions under which the active acknowledges.
type ActiveConfig struct {
	// Config is the config number carried in every message to the standby (INV-1).
	Config uint64
	// RequireStandby: a transaction is committed only when it is durable here and on Standby (INV-2). If false, local
	// durability suffices.
	RequireStandby bool
	// Standby whose acks are required. The zero Member (with RequireStandby) means that nothing can be committed.
	Standby Member
	// Requirement is the number of the period in which acks are required. StandbySynced returns it.
	Requirement uint64
	// Serve is false while no transaction may be acknowledged. New and waiting ones fail immediately with
	// "unavailable, outcome unknown", and the commit LSN does not advance.
	Serve bool
	// Deliver is false while nothing may be delivered to consumers, because the node may no longer be the active.
	Deliver bool
	// Reason is included in client errors while Serve or Deliver is false.
	Reason string
}

// FollowSpec configures StartFollower.
type FollowSpec struct {
	// Active node and its address.
	Active NodeInfo
	// Config of the record known to this node.
	Config uint64
	// Term of the record known to this node.
	Term uint64
	// Forced is the record's last forced failover, nil if none. The part of this node's log that it discarded must be
	// saved before it is replaced. Never changed in place.
	Forced *Forced
}

// LostCause is the reason of a lost connection.
type LostCause uint8

const (
	// LostReset: the connection broke; the state of the peer is unknown.
	LostReset LostCause = iota + 1
	// LostRefused: the peer's host reports that no process listens: the process has terminated.
	LostRefused
	// LostSilence: nothing was received within the timeout.
	LostSilence
	// LostRejected: the peer responded, but not as the active, or with a config and term below the fence.
	LostRejected
	// LostSlow: the standby did not keep up within the limits.
	LostSlow
	// LostAhead: the standby has a fence above this node's config and term: it tries to take over, or has taken over.
	LostAhead
	// LostBehind: the active lacks records that this node knows to be committed, so following it would truncate them.
	// Nothing was truncated (INV-13).
	LostBehind
	// LostNoRoom: this standby accepts no records, because its disk is nearly full.
	LostNoRoom
)

// String returns a description of the cause.
func (c LostCause) String() string {
	switch c {
	case LostReset:
		return "connection broken"
	case LostRefused:
		return "connection refused"
	case LostSilence:
		return "silent"
	case LostRejected:
		return "rejected"
	case LostSlow:
		return "too slow"
	case LostAhead:
		return "rejects this node: its fence is higher"
	case LostBehind:
		return "lacks records that this node knows to be committed"
	case LostNoRoom:
		return "disk of this node is nearly full, replication is suspended"
	default:
		return fmt.Sprintf("cause %d", uint8(c))
	}
}

// DataEvent is an event of the data plane. StartActive and StartFollower receive the function that posts it. That
// function never blocks and is safe for concurrent use. Events about one peer must be posted in order of occurrence:
// a StandbySynced that overtakes an earlier StandbyLost could add an incomplete standby to in_sync. Events of a
// stopped role are ignored.
type DataEvent interface{ dataEvent() }

// Events of the follower.
type (
	// FollowerConnected: the active accepted this node; records are being received or about to be.
	FollowerConnected struct{ Config, Term uint64 }
	// FollowerLacks: the active, in configuration Config, has committed a record that this node's log lacks; Common
	// is the last common record. It is posted when the active accepts this node or requires a snapshot, before
	// FollowerConnected. All fields are zero if the active only reports that this node lacks records that it
	// acknowledged.
	FollowerLacks struct{ Config, Common, Committed uint64 }
	// FollowerRequired: the active requires this node's acks from now on (SYNCING).
	FollowerRequired struct{}
	// FollowerLost: the stream has ended, or another dial has failed. After a reset the data plane must redial
	// immediately and report the outcome, since only LostRefused starts a takeover immediately. It is posted again
	// when the cause changes.
	FollowerLost struct {
		Cause LostCause
		Err   error
	}
)

// Events of the active.
type (
	// ActiveReady: the term-start record is durable here, and everything known to be committed is applied.
	ActiveReady struct{}
	// StandbyConnected: a standby sent a hello with the identity of its store.
	StandbyConnected struct{ Member Member }
	// StandbyCaughtUp: the standby is close enough to the log end to require its acks. Posted once per connection
	// (again after a fall-back), whether or not they are already required.
	StandbyCaughtUp struct{ Member Member }
	// StandbySynced: the standby's acks are required, and it is durable at or past everything committed before that.
	// Only now may it be added to in_sync (INV-3). Requirement is that of the ActiveConfig under which this was
	// reached: between two requirements there may be commits that the standby lacks.
	StandbySynced struct {
		Member      Member
		Requirement uint64
	}
	// StandbyLost: the standby's stream ended, it was silent for longer than the timeout, or it is too slow.
	StandbyLost struct {
		Node  uuid.UUID
		Cause LostCause
		Err   error
	}
	// StandbyAhead: a standby knows records to be committed that this node's log lacks, and was refused (INV-13). End
	// is the last record of its log, and Committed the last one it knows to be committed. Posted for each such hello.
	StandbyAhead struct {
		Member    Member
		End       lsn.Position
		Committed uint64
	}
	// DiskStalled: log writes are stalled, or (Stalled is false) complete again.
	DiskStalled struct{ Stalled bool }
)

// Failed: the store cannot continue, for example because an fsync failed (INV-7). Either role may post it, or
// Runner.Post. The node stops; Runner.Run returns the error.
type Failed struct{ Err error }

func (FollowerConnected) dataEvent() {}
func (FollowerLacks) dataEvent()     {}
func (FollowerRequired) dataEvent()  {}
func (FollowerLost) dataEvent()      {}
func (ActiveReady) dataEvent()       {}
func (StandbyConnected) dataEvent()  {}
func (StandbyCaughtUp) dataEvent()   {}
func (StandbySynced) dataEvent()     {}
func (StandbyLost) dataEvent()       {}
func (StandbyAhead) dataEvent()      {}
func (DiskStalled) dataEvent()       {}
func (Failed) dataEvent()            {}
