// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"fmt"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

// Event is something that the owner of the node's role must know. Events are delivered one after the other, in the
// order in which they became true, from a goroutine of the primary's or follower's and never under a lock. The function
// that gets them must not block and must not stop the sender.
type Event interface{ event() }

// LostCause says how a connection was lost.
type LostCause uint8

// The causes.
const (
	// LostReset: the connection ended, and whether the process still runs is not known (yet).
	LostReset LostCause = iota + 1
	// LostRefused: a reconnect was refused, the process is gone.
	LostRefused
	// LostSilence: nothing was heard for the timeout.
	LostSilence
	// LostRejected: the other end answers, but will not or must not go on with us: it is not the active, has another
	// pair's data, an older configuration (INV-1), or lacks records that it had acknowledged.
	LostRejected
	// LostSlow: the standby lives but does not acknowledge in time.
	LostSlow
	// LostAhead: the standby obeys a higher configuration than this active (INV-1).
	LostAhead
	// LostNoRoom: this standby's own disk is nearly full, and it takes nothing in.
	LostNoRoom
	// LostBehind: the active lacks records that this standby knows to be committed. Nothing was cut or replaced
	// (INV-13).
	LostBehind
)

// String gives the word that logs and status use.
func (c LostCause) String() string {
	switch c {
	case LostReset:
		return "reset"
	case LostRefused:
		return "refused"
	case LostSilence:
		return "silence"
	case LostRejected:
		return "rejected"
	case LostSlow:
		return "slow"
	case LostAhead:
		return "ahead"
	case LostNoRoom:
		return "no room"
	case LostBehind:
		return "behind"
	default:
		return fmt.Sprintf("LostCause(%d)", uint8(c))
	}
}

// Events of a Primary.
type (
	// ActiveReady tells that the term-start record is committed and applied, and with it everything that was committed
	// in earlier terms: only now does the store show what clients were told before.
	ActiveReady struct{}
	// StandbyConnected tells that a standby said hello.
	StandbyConnected struct {
		Member Member
		// Snapshot tells that the log cannot help it: it fetches a snapshot and connects again.
		Snapshot bool
	}
	// StandbyAhead tells that a standby knows records to be committed that this node's log does not have: it was not
	// welcomed (INV-13). This node was put back to an older state, it seems. Posted for each hello.
	StandbyAhead struct {
		Member Member
		// End is the last record of the standby's log, Committed the last that it knows to be committed.
		End       lsn.Position
		Committed uint64
	}
	// StandbyCaughtUp tells that the standby is within the window, so that its acks can be required. Once per
	// connection.
	StandbyCaughtUp struct{ Member Member }
	// StandbySynced tells that the acks of the standby are required and that it is durable past everything that was
	// committed before they were: it may be added to in_sync now (INV-3). Once per connection and requirement.
	StandbySynced struct {
		Member Member
		// Requirement of the ActiveConfig under which it got there.
		Requirement uint64
	}
	// StandbyLost tells that a standby's connection ended; or that a required one has not connected within the timeout.
	StandbyLost struct {
		Member Member
		Cause  LostCause
		Err    error
	}
)

// Events of a Follower.
type (
	// FollowerConnected tells that the active has welcomed the standby and that records flow, or a snapshot does.
	FollowerConnected struct {
		// Config and Term of the active.
		Config, Term uint64
	}
	// FollowerLacks tells that the active, in configuration Config, has committed up to a record that is not in this
	// log; Common is the last record that both have. It comes before FollowerConnected, and before a snapshot. All are
	// zero when the active has only refused this standby with ErrLostRecords.
	FollowerLacks struct {
		Config, Common, Committed uint64
	}
	// FollowerRequired tells that the active waits for this standby's acks from now on (SYNCING).
	FollowerRequired struct{}
	// FollowerLost tells that the active is lost. It comes again when the cause changes: a reset is followed by what
	// the attempt to connect again tells.
	FollowerLost struct {
		Cause LostCause
		Err   error
	}
	// SnapshotInstalled tells that the store was replaced by a snapshot of the active's.
	SnapshotInstalled struct{ Position lsn.Position }
)

// Events of both.
type (
	// DiskStalled tells that a write or sync of the log has not come back for the stall timeout. Heartbeats have
	// stopped.
	DiskStalled struct{}
	// DiskBack tells that it has come back after all.
	DiskBack struct{}
	// Failed tells that the store failed (INV-7). The role cannot go on, and neither can the node.
	Failed struct{ Err error }
)

func (ActiveReady) event()       {}
func (StandbyConnected) event()  {}
func (StandbyAhead) event()      {}
func (StandbyCaughtUp) event()   {}
func (StandbySynced) event()     {}
func (StandbyLost) event()       {}
func (FollowerConnected) event() {}
func (FollowerLacks) event()     {}
func (FollowerRequired) event()  {}
func (FollowerLost) event()      {}
func (SnapshotInstalled) event() {}
func (DiskStalled) event()       {}
func (DiskBack) event()          {}
func (Failed) event()            {}
