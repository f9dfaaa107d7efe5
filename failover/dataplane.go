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

// Identity is what a node's store says about itself. It is read often, so it has to be cheap.
type Identity struct {
	// Node UUID.
	Node uuid.UUID
	// Store UUID: made when the store was made.
	Store uuid.UUID
	// Incarnation of the store: raised when its content was replaced, and by ClearLoss.
	Incarnation uint64
	// PairID that the store belongs to; uuid.Nil until JoinPair.
	PairID uuid.UUID
	// Fence as it is on disk.
	Fence Fence
	// End is the last record of the log, durable or not.
	End lsn.Position
	// Restored is true for a store that came from a backup and has joined no pair since: no record knows it, and it may
	// begin a pair of its own.
	Restored bool
	// MayHaveLost is true when acknowledged bytes may be gone (INV-6). It stays true over restarts until ClearLoss.
	MayHaveLost bool
	// Committed is the last LSN that is known, on disk, to be committed: never above End.
	Committed uint64
	// Quarantine is where the node keeps what it held when that could not be opened, and why, until the other node has
	// filled it anew; empty for any other store. With the content the pair may have been forgotten: such a store
	// follows any pair, and begins none.
	Quarantine string
	// Run is the generation of the last run that the record is known to have named, and ClaimedRun that of the run that
	// took part last, while it is not known whether the record names it (INV-11).
	Run, ClaimedRun uuid.UUID
}

// Member is the entry that this store has, or would have, in Record.InSync.
func (id Identity) Member() Member {
	m := Member{Node: id.Node, Store: id.Store, Incarnation: id.Incarnation, Run: id.Run}
	if id.ClaimedRun != uuid.Nil {
		m.Run = id.ClaimedRun
	}
	return m
}

// Empty tells whether the store has never been part of a pair. One that has joined a pair and holds nothing yet is not:
// that pair has a record, and if it cannot be found, a new one in its place would shut out the node that holds the
// messages (INV-9).
func (id Identity) Empty() bool {
	if id.Quarantine != "" && !mutate.Off("INV-9-set-aside-is-taken-for-new") {
		return false
	}
	return id.PairID == uuid.Nil && id.End.IsZero() && id.Fence == Fence{}
}

// ErrGone is returned by DataPlane.Meet when the address can be reached and no process listens there: it is gone.
var ErrGone = errors.New("no process listens there")

// Peer is what a process of the pair says of itself.
type Peer struct {
	// Node and Store it has; Process tells runs of one node apart.
	Node, Store uuid.UUID
	Process     string
	// End is the last record of its log.
	End lsn.Position
}

// DataPlane is what failover needs of a node: its store, and the two roles of replication. The Runner calls it from one
// goroutine, in the order the machine asked for; only Drain runs beside the others. At most one of the two roles is
// started at a time. Each call returns within the time that the disk needs; longer work goes on in goroutines that the
// data plane owns and that the Stop call joins.
//
// An error from any call but Drain is fatal to the node: Runner.Run stops what runs and returns it.
type DataPlane interface {
	// Identity of the store, now.
	Identity() Identity

	// JoinPair makes the store part of a pair. Durable before it returns. Fails if it belongs to another pair.
	JoinPair(ctx context.Context, pair uuid.UUID) error

	// SetFence raises the fence. Durable before it returns (INV-1, INV-4). A fence that is not above the current one
	// (in the order of Fence.Less) changes nothing and is no error.
	SetFence(ctx context.Context, f Fence) error

	// ClearLoss forgets MayHaveLost and, in the same write, raises Incarnation by one: the record does not name this
	// store in sync any more, and an active that has not noticed the restart yet cannot bring it back in as what it
	// was. Durable before it returns.
	ClearLoss(ctx context.Context) error

	// MarkLoss sets MayHaveLost: the directory was found to be an older image or a copy. Durable before it returns.
	MarkLoss(ctx context.Context) error

	// ClaimRun makes the generation of this run durable, beside that of the run which the record names now (zero if it
	// names none): from then on the record may name this run, and a standby says it in its hello (INV-11).
	ClaimRun(ctx context.Context, named, run uuid.UUID) error

	// ConfirmRun notes that the record names this run. Durable before it returns.
	ConfirmRun(ctx context.Context, run uuid.UUID) error

	// Committed is the newest record that is known to be committed and was written in the term of the active role that
	// runs; false if there is none, or no such role. It is asked about once a second.
	Committed() (lsn.Position, bool)

	// Meet asks the process at an address who it is and how far its log goes. It returns ErrGone when no process
	// listens there. It may be called beside the other calls.
	Meet(ctx context.Context, address string) (Peer, error)

	// StartActive takes up the active role: the log goes on under spec.Term, beginning with a term-start record; what
	// the log already has is committed as far as spec allows, and applied; standbys are let in. It returns when the
	// role has been taken up, which is not yet when everything is applied: ActiveReady tells that. The persisted fence
	// is {spec.Config, spec.Term} or above (INV-1). No follower is running.
	StartActive(ctx context.Context, spec ActiveSpec, post func(DataEvent)) error

	// ConfigureActive changes the conditions under which the active acknowledges. When it returns, no transaction will
	// be acknowledged under looser conditions than these, and every message to the standby carries cfg.Config.
	ConfigureActive(ctx context.Context, cfg ActiveConfig) error

	// StopActive ends the active role. When it returns, nothing more is appended, acknowledged, applied, delivered or
	// sent to the standby; transactions that were waiting have failed with "outcome unknown". `next` is the node that
	// clients should turn to, if it is known (ID not uuid.Nil).
	StopActive(ctx context.Context, next NodeInfo) error

	// StartFollower begins to follow spec.Active: dial it, cut what diverges, catch up, append, sync, acknowledge; and
	// dial it again, at once and then every few 10 ms, whenever that ends, until StopFollower. It refuses whatever the
	// fence does not admit, and persists a higher fence before it obeys it (INV-1). No active role is running.
	StartFollower(ctx context.Context, spec FollowSpec, post func(DataEvent)) error

	// StopFollower ends following. When it returns, nothing more from the old active is accepted or acknowledged
	// (INV-4), and what was acknowledged is durable.
	StopFollower(ctx context.Context) error

	// Drain prepares a planned hand-over: new transactions wait, those under way are committed, and the standby is
	// durable and has applied everything. When it returns nil, nothing will be appended until Resume or StopActive. It
	// gives up, with an error, when ctx ends; then, too, Resume follows.
	Drain(ctx context.Context) (lsn.Position, error)

	// Resume undoes Drain: the transactions that wait go on.
	Resume(ctx context.Context) error
}

// ActiveSpec says how to take up the active role.
type ActiveSpec struct {
	// Term that the log goes on under. Never used before, by any node.
	Term uint64
	// ActiveConfig to begin with.
	ActiveConfig
}

// ActiveConfig are the conditions under which the active acknowledges.
type ActiveConfig struct {
	// Config that every message to the standby carries (INV-1).
	Config uint64
	// RequireStandby: a transaction is committed only when it is durable here and on Standby (INV-2). False: durable
	// here is enough.
	RequireStandby bool
	// Standby whose acks are required. The zero Member (with RequireStandby) means that nothing can be committed now.
	Standby Member
	// Requirement numbers the times at which acks began to be required; StandbySynced repeats it.
	Requirement uint64
	// Serve is false when no transaction may be acknowledged: new ones and those that wait fail at once, as
	// "unavailable, outcome unknown", and the commit point stays where it is.
	Serve bool
	// Deliver is false when nothing may be delivered to consumers: the node cannot know any more that it is the active.
	Deliver bool
	// Reason, for the errors that clients get when Serve or Deliver is false.
	Reason string
}

// FollowSpec says whom to follow.
type FollowSpec struct {
	// Active node and its address.
	Active NodeInfo
	// Config of the record as this node knows it.
	Config uint64
	// Term of the record as this node knows it.
	Term uint64
	// Forced is the record's last forced failover, nil if there never was one: what of this node's log it made void
	// must be kept aside before it is replaced. Never changed in place.
	Forced *Forced
}

// LostCause says how a connection ended.
type LostCause uint8

// The causes.
const (
	// LostReset: the connection broke, and it is not known yet whether the peer is gone.
	LostReset LostCause = iota + 1
	// LostRefused: the peer's host says that no process listens there: it is gone.
	LostRefused
	// LostSilence: nothing was heard for the whole timeout.
	LostSilence
	// LostRejected: the peer answered, but not as the active, or with a config and term that the fence does not admit.
	LostRejected
	// LostSlow: the standby has not kept up within the limits.
	LostSlow
	// LostAhead: the standby has a fence above our config and term: it tries to take over, or has done so.
	LostAhead
	// LostBehind: the active lacks records that this node knows to be committed, so that following it would cut them.
	// Nothing was cut (INV-13).
	LostBehind
	// LostNoRoom: this standby takes nothing in, because its own disk is nearly full.
	LostNoRoom
)

// String gives the cause in words.
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
		return "refuses us: its fence is higher"
	case LostBehind:
		return "lacks records that this node knows to be committed"
	case LostNoRoom:
		return "this node's disk is nearly full, so that it takes nothing in"
	default:
		return fmt.Sprintf("cause %d", uint8(c))
	}
}

// DataEvent is what the data plane reports. The function to report it with is handed to StartActive and StartFollower;
// it never blocks and may be called from any goroutine, but the events about one peer must be posted in the order in
// which they happened: a StandbySynced that overtakes the StandbyLost before it could name an incomplete standby in
// sync. Events of a role that was stopped meanwhile are ignored.
type DataEvent interface{ dataEvent() }

// Events of the follower.
type (
	// FollowerConnected: the active has welcomed us; records are flowing or about to.
	FollowerConnected struct{ Config, Term uint64 }
	// FollowerLacks: the active, in its configuration Config, has committed up to a record that this node's log does
	// not have; what the two have in common ends with Common. Posted when it welcomes us, or says that we need a
	// snapshot, before FollowerConnected. All are zero when the active says no more than that this node had
	// acknowledged records that it does not have.
	FollowerLacks struct{ Config, Common, Committed uint64 }
	// FollowerRequired: the active requires our acks from now on (SYNCING).
	FollowerRequired struct{}
	// FollowerLost: the stream has ended, or another attempt to connect has failed. Dial at once after a reset and
	// report the outcome, since LostRefused starts a takeover at once, and LostReset does not. Repeat it when the cause
	// changes.
	FollowerLost struct {
		Cause LostCause
		Err   error
	}
)

// Events of the active.
type (
	// ActiveReady: the term-start record is durable here, and everything known to be committed is applied.
	ActiveReady struct{}
	// StandbyConnected: a standby has said hello, with the identity of its store.
	StandbyConnected struct{ Member Member }
	// StandbyCaughtUp: the standby is so near to the end of the log that its acks can be required. Posted once per
	// connection (again after a fall-back), whether or not they are required already.
	StandbyCaughtUp struct{ Member Member }
	// StandbySynced: its acks are required, and it is durable at or past everything that was committed before that.
	// Only now may it be swapped in (INV-3). Requirement is that of the ActiveConfig under which it got there: between
	// two of them there may be commits that it does not have.
	StandbySynced struct {
		Member      Member
		Requirement uint64
	}
	// StandbyLost: the standby's stream ended, it was silent for longer than the active tolerates, or it is too slow.
	StandbyLost struct {
		Node  uuid.UUID
		Cause LostCause
		Err   error
	}
	// StandbyAhead: a standby that said hello knows records to be committed that this node's log does not have; it was
	// not welcomed (INV-13). End is the last record of its log, and Committed the last that it knows to be committed.
	// Posted for each such hello.
	StandbyAhead struct {
		Member    Member
		End       lsn.Position
		Committed uint64
	}
	// DiskStalled: writes of the log do not come back, or (Stalled is false) do so again.
	DiskStalled struct{ Stalled bool }
)

// Failed: the store cannot go on, for example because an fsync failed (INV-7). May be posted by either role, or to
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
