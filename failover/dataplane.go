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
	Node  uuid.UUID
	Store uuid.UUID
	// Incarnation is incremented when the store's content is replaced, and by ClearLoss.
	Incarnation uint64
	// PairID is uuid.Nil until JoinPair.
	PairID uuid.UUID
	Fence  Fence
	// End is the last record of the log, durable or not.
	End lsn.Position
	// Restored: the store is a restored backup that has not joined a pair since. No record lists it, and it may start a
	// pair.
	Restored bool
	// MayHaveLost: acknowledged bytes may be lost (INV-6). It persists over restarts until ClearLoss.
	MayHaveLost bool
	// Committed is the last LSN known, on disk, to be committed; never above End.
	Committed uint64
	// Quarantine is the directory of the previous contents if those could not be opened, with the reason, until the
	// other node has replicated everything again. The pair ID may have been lost with the contents: such a store joins
	// any pair, and starts none.
	Quarantine string
	// Run is the last process generation known to be listed in the record. ClaimedRun is that of the last process that
	// took part, until its listing is confirmed (INV-11).
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

// Empty reports whether the store has never been part of a pair. A store that joined a pair is not empty even without
// records: a new record would lock out the node that has the messages (INV-9).
func (id Identity) Empty() bool {
	if id.Quarantine != "" && !mutate.Off("INV-9-set-aside-is-taken-for-new") {
		return false
	}
	return id.PairID == uuid.Nil && id.End.IsZero() && id.Fence == Fence{}
}

// ErrGone is returned by DataPlane.Handshake if the host is reachable and no process listens: it has terminated.
var ErrGone = errors.New("no process listens on the address")

// Peer is the identity reported by a process of the pair.
type Peer struct {
	// Process distinguishes processes of one node.
	Node, Store uuid.UUID
	Process     string
	End         lsn.Position
}

// DataPlane is failover's interface to a node: its store, and the two roles of replication. The Runner calls it from
// one goroutine, in the order of the machine's effects; only Drain and Handshake run concurrently. At most one role is
// started at a time. Each call returns within the time that the disk needs; longer work runs in goroutines of the data
// plane, joined by the Stop call.
//
// An error from any call except Drain and Handshake is fatal: Runner.Run stops the node's role and returns the error.
type DataPlane interface {
	Identity() Identity

	// JoinPair makes the store part of a pair, durably. It fails for a store of another pair.
	JoinPair(ctx context.Context, pair uuid.UUID) error

	// SetFence raises the fence, durably (INV-1, INV-4). A fence that is not above the current one has no effect.
	SetFence(ctx context.Context, f Fence) error

	// ClearLoss clears MayHaveLost and increments Incarnation in one durable write. The record then no longer lists
	// this store as in sync, and an active that has not detected the restart cannot add it under its old incarnation.
	ClearLoss(ctx context.Context) error

	// MarkLoss sets MayHaveLost, durably: the directory is an older copy or a duplicate.
	MarkLoss(ctx context.Context) error

	// ClaimRun persists this process generation, together with the one that the record lists now (zero if none). From
	// then on the record may list this generation, and a standby sends it in its hello (INV-11).
	ClaimRun(ctx context.Context, named, run uuid.UUID) error

	// ConfirmRun records, durably, that the record lists this generation.
	ConfirmRun(ctx context.Context, run uuid.UUID) error

	// Committed returns the newest committed record of the current term; false without one, or without the active role.
	// It is called about once a second.
	Committed() (lsn.Position, bool)

	// Handshake requests the identity and log end of the process at an address, or returns ErrGone.
	Handshake(ctx context.Context, address string) (Peer, error)

	// StartActive takes the active role. The log continues under spec.Term with a term-start record, existing records
	// are committed as far as spec allows and applied, and standbys are accepted. ActiveReady is posted when everything
	// is applied. The persisted fence is {spec.Config, spec.Term} or above (INV-1). No follower is running.
	StartActive(ctx context.Context, spec ActiveSpec, post func(DataEvent)) error

	// ConfigureActive changes the conditions for acknowledgements. After it returns, no transaction is acknowledged
	// under weaker conditions, and every message to the standby carries cfg.Config.
	ConfigureActive(ctx context.Context, cfg ActiveConfig) error

	// StopActive ends the active role. After it returns, nothing is appended, acknowledged, applied, delivered or sent
	// to the standby; waiting transactions have failed with "outcome unknown". Clients are referred to `next`, if its
	// ID is set.
	StopActive(ctx context.Context, next NodeInfo) error

	// StartFollower follows spec.Active: dial it, truncate a divergent tail, catch up, append, sync, acknowledge. A
	// lost connection is redialed immediately and then every few 10 ms, until StopFollower. It rejects anything below
	// the fence, and persists a higher fence before obeying it (INV-1). No active role is running.
	StartFollower(ctx context.Context, spec FollowSpec, post func(DataEvent)) error

	// StopFollower ends following. After it returns, nothing from the old active is accepted or acknowledged (INV-4),
	// and all acknowledged records are durable.
	StopFollower(ctx context.Context) error

	// Drain prepares a planned handover: new transactions are held, those in flight are committed, and the standby has
	// applied everything durably. After it returns nil, nothing is appended until Resume or StopActive, one of which
	// follows any outcome.
	Drain(ctx context.Context) (lsn.Position, error)

	Resume(ctx context.Context) error
}

// ActiveSpec configures StartActive.
type ActiveSpec struct {
	// Term of new log records. Never used before, by any node.
	Term uint64
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
	// Serve: if false, no transaction may be acknowledged. New and waiting ones fail immediately with "unavailable,
	// outcome unknown", and the commit LSN does not advance.
	Serve bool
	// Deliver: if false, nothing may be delivered, because the node may no longer be the active.
	Deliver bool
	// Reason is part of client errors while Serve or Deliver is false.
	Reason string
}

// FollowSpec configures StartFollower.
type FollowSpec struct {
	Active NodeInfo
	Config uint64
	Term   uint64
	// Forced is the record's last forced failover, if any. The part of this node's log that it discarded must be saved
	// before it is replaced. Never changed in place.
	Forced *Forced
}

// LostCause is the reason of a lost connection.
type LostCause uint8

// Causes of a lost connection.
const (
	// LostReset: the connection broke; the state of the peer is unknown.
	LostReset LostCause = iota + 1
	// LostRefused: the peer's host reports that no process listens.
	LostRefused
	LostSilence
	// LostRejected: the peer responded, but not as the active, or with a config and term below the fence.
	LostRejected
	LostSlow
	// LostAhead: the standby's fence is above this node's config and term: it takes over, or has taken over.
	LostAhead
	// LostBehind: the active lacks records that this node knows to be committed. Nothing was truncated (INV-13).
	LostBehind
	// LostNoRoom: this node's disk is nearly full, so its follower does not connect.
	LostNoRoom
)

var lostCauses = [...]struct { //nolint:gochecknoglobals // a constant
	code Code
	text string
}{
	0:            {CodeNoConnection, "cause 0"},
	LostReset:    {CodeConnectionClosed, "connection broken"},
	LostRefused:  {CodeConnectionRefused, "connection refused"},
	LostSilence:  {CodeSilence, "silent"},
	LostRejected: {CodeRejected, "rejected"},
	LostSlow:     {CodeSlow, "too slow"},
	LostAhead:    {CodeFenceHigher, "rejects this node: its fence is higher"},
	LostBehind:   {CodeActiveBehind, "lacks records that this node knows to be committed"},
	LostNoRoom:   {CodeDiskFull, "disk of this node is nearly full, replication is suspended"},
}

func (c LostCause) String() string {
	if int(c) < len(lostCauses) {
		return lostCauses[c].text
	}
	return fmt.Sprintf("cause %d", uint8(c))
}

// DataEvent is an event of the data plane. The function that posts it never blocks and is safe for concurrent use.
// Events about one peer must be posted in order of occurrence: a StandbySynced that overtakes an earlier StandbyLost
// could add an incomplete standby to in_sync. Events of a stopped role are ignored.
type DataEvent interface{ dataEvent() }

// Events of the follower.
type (
	// FollowerConnected: the active accepted this node.
	FollowerConnected struct{ Config, Term uint64 }
	// FollowerIncomplete: the active, in configuration Config, has committed a record that this node's log lacks; Common is
	// the last common record. It precedes FollowerConnected. All fields are zero if the active only reports that this
	// node lacks records that it acknowledged.
	FollowerIncomplete struct{ Config, Common, Committed uint64 }
	// FollowerRequired: the active requires this node's acks from now on.
	FollowerRequired struct{}
	// FollowerLost: the stream has ended, or another dial has failed; posted again when the cause changes. After a
	// reset the data plane must redial immediately and report the outcome, since only LostRefused starts a takeover
	// immediately.
	FollowerLost struct {
		Cause LostCause
		Err   error
	}
)

// Events of the active.
type (
	// ActiveReady: the term-start record is durable here, and everything known to be committed is applied.
	ActiveReady struct{}
	// StandbyConnected: a standby sent a hello.
	StandbyConnected struct{ Member Member }
	// StandbyCaughtUp: the standby is close enough to the log end to require its acks. Posted once per connection
	// (again after a fall-back), whether or not they are already required.
	StandbyCaughtUp struct{ Member Member }
	// StandbySynced: the standby's acks are required, and it is durable at or past everything committed before that.
	// Only now may it be added to in_sync (INV-3). Requirement is that of the ActiveConfig: between two requirements
	// there may be commits that the standby lacks.
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
	// StandbyAhead: a standby that knows records to be committed which this node's log lacks was refused (INV-13). End
	// is the last record of its log, Committed the last one it knows to be committed. Posted for each such hello.
	StandbyAhead struct {
		Member    Member
		End       lsn.Position
		Committed uint64
	}
	// DiskStalled: log writes are stalled, or (Stalled is false) complete again.
	DiskStalled struct{ Stalled bool }
)

// Failed: the store cannot continue, for example because an fsync failed (INV-7). Either role may post it, or
// Runner.Post. Runner.Run stops the node and returns the error.
type Failed struct{ Err error }

func (FollowerConnected) dataEvent() {}
func (FollowerIncomplete) dataEvent()     {}
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
