// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"fmt"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

// Event is an event for the owner of the node's role. Events are delivered in order, one at a time, without locks held.
// The receiver must not block and must not stop the sender.
type Event interface{ event() }

// LostCause is the reason of a lost connection.
type LostCause uint8

// Causes of a lost connection.
const (
	// LostReset: the connection ended; the state of the process is unknown.
	LostReset LostCause = iota + 1
	// LostRefused: a reconnect was refused; the process has terminated.
	LostRefused
	LostSilence
	// LostRejected: the other end responds but cannot replicate with this node: it is not the active, has another
	// pair's data or an older configuration (INV-1), or lacks records that it acknowledged.
	LostRejected
	LostSlow
	// LostAhead: the standby obeys a higher configuration than this active (INV-1).
	LostAhead
	LostNoSpace
	// LostBehind: the active lacks records that this standby knows to be committed. Nothing was truncated (INV-13).
	LostBehind
)

func (c LostCause) String() string {
	names := [...]string{
		LostReset: "reset", LostRefused: "refused", LostSilence: "silence", LostRejected: "rejected", LostSlow: "slow",
		LostAhead: "ahead", LostNoSpace: "no space", LostBehind: "behind",
	}
	if c != 0 && int(c) < len(names) {
		return names[c]
	}
	return fmt.Sprintf("LostCause(%d)", uint8(c))
}

// Events of a Primary.
type (
	// ActiveReady: the term-start record is committed and applied, with all records committed in earlier terms. Before
	// this event, the store may not reflect acknowledged transactions.
	ActiveReady      struct{}
	StandbyConnected struct {
		Member Member
		// Snapshot: the standby fetches a snapshot and reconnects.
		Snapshot bool
	}
	// StandbyAhead: a standby that knows records to be committed which this node's log lacks was refused (INV-13). This
	// node was probably restored from an older copy. Posted for each hello.
	StandbyAhead struct {
		Member Member
		// End is the last record of the standby's log, Committed the last one it knows to be committed.
		End       lsn.Position
		Committed uint64
	}
	// StandbyCaughtUp: the standby is within the window, so its acks can be required. Once per connection.
	StandbyCaughtUp struct{ Member Member }
	// StandbySynced: the standby's acks are required and it is durable past everything committed before that, so it may
	// be added to in_sync (INV-3). Once per connection and requirement.
	StandbySynced struct {
		Member      Member
		Requirement uint64
	}
	// StandbyLost: a standby's connection ended, or a required standby did not connect within the timeout.
	StandbyLost struct {
		Member Member
		Cause  LostCause
		Err    error
	}
)

// Events of a Follower.
type (
	FollowerConnected struct {
		// of the active
		Config, Term uint64
	}
	// FollowerLacks: the active, in configuration Config, has committed a record that this log lacks. Common is the
	// last common record. It is posted before FollowerConnected, and before a snapshot. All fields are zero if the
	// active only refused this standby with ErrLostRecords.
	FollowerLacks struct {
		Config, Common, Committed uint64
	}
	// FollowerRequired: the active waits for this standby's acks from now on.
	FollowerRequired struct{}
	// FollowerLost: the active is lost; posted again if the cause changes, as by the reconnect after a reset.
	FollowerLost struct {
		Cause LostCause
		Err   error
	}
	SnapshotInstalled struct{ Position lsn.Position }
)

// Events of both roles.
type (
	// DiskStalled: a write or sync of the log exceeds the stall timeout. Heartbeats are stopped.
	DiskStalled struct{}
	DiskBack    struct{}
	// Failed: the store failed (INV-7). Neither the role nor the node can continue.
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
