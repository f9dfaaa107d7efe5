// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"fmt"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

// Event is reported to the owner of the node's role. Events are delivered in order, one at a time, without locks held.
// The callback must not block and must not stop the role.
type Event interface{ event() }

// LostCause is the cause of a lost connection.
type LostCause uint8

// Causes of a lost connection.
const (
	// LostReset means that the connection ended; the state of the other process is unknown.
	LostReset LostCause = iota + 1
	// LostRefused means that a dial was refused: the host is reachable, and no process listens on the address.
	LostRefused
	LostSilence
	// LostRejected means that the other end responds, but the two nodes cannot replicate.
	LostRejected
	LostSlow
	// LostAhead means that the standby's fence is above this active's configuration and term (INV-1).
	LostAhead
	LostNoSpace
	// LostBehind means that records that this standby knows to be committed are missing from the active's log. No
	// record was truncated (INV-13).
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
	// ActiveReady reports that the term-start record and all earlier records are committed and applied. Before this
	// event, the store may not reflect acknowledged transactions.
	ActiveReady      struct{}
	StandbyConnected struct {
		Member Member
		// Snapshot reports whether the standby fetches a snapshot and then reconnects.
		Snapshot bool
	}
	// StandbyAhead reports that a standby was refused because it knows records to be committed that are missing from
	// this node's log (INV-13). It is posted for each hello of such a standby.
	StandbyAhead struct {
		Member Member
		// End is the end of the standby's log, Committed the last LSN that the standby knows to be committed.
		End       lsn.Position
		Committed uint64
	}
	// StandbyCaughtUp reports that the standby is within the window: its acks can be required. It is posted once per
	// connection.
	StandbyCaughtUp struct{ Member Member }
	// StandbySynced reports that the standby's acks are required, and all records committed before the requirement are
	// durable there (INV-3). It is posted once per connection and requirement.
	StandbySynced struct {
		Member      Member
		Requirement uint64
	}
	// StandbyLost reports that a standby's connection or snapshot transfer ended, that a required or redirected standby
	// did not connect in time, or that a standby was refused. Member may contain only the node.
	StandbyLost struct {
		Member Member
		Cause  LostCause
		Err    error
	}
)

// Events of a Follower.
type (
	FollowerConnected struct {
		Config, Term uint64 // of the active
	}
	// FollowerIncomplete reports that the active, in configuration Config, has committed records up to LSN Committed,
	// and some are missing from this log. Common is the last common LSN. It is posted at most once per connection. If
	// the hello response reports the records, it is posted before FollowerConnected and before a snapshot. All fields
	// are zero if the active refused this standby with ErrLostRecords.
	FollowerIncomplete struct {
		Config, Common, Committed uint64
	}
	// FollowerRequired reports that the active waits for this standby's acks from now on.
	FollowerRequired struct{}
	// FollowerLost reports that the active is lost. It is posted again if the cause changes, for example if the
	// reconnect after a reset is refused.
	FollowerLost struct {
		Cause LostCause
		Err   error
	}
	SnapshotInstalled struct{ Position lsn.Position }
)

// Events of both roles.
type (
	// DiskStalled reports that a write or sync of the log exceeds the stall timeout. Heartbeats are stopped.
	DiskStalled   struct{}
	DiskRecovered struct{}
	// Failed reports that the store failed (INV-7). Neither the role nor the node can continue.
	Failed struct{ Err error }
)

func (ActiveReady) event()        {}
func (StandbyConnected) event()   {}
func (StandbyAhead) event()       {}
func (StandbyCaughtUp) event()    {}
func (StandbySynced) event()      {}
func (StandbyLost) event()        {}
func (FollowerConnected) event()  {}
func (FollowerIncomplete) event() {}
func (FollowerRequired) event()   {}
func (FollowerLost) event()       {}
func (SnapshotInstalled) event()  {}
func (DiskStalled) event()        {}
func (DiskRecovered) event()      {}
func (Failed) event()             {}
