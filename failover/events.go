// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"time"

	"github.com/google/uuid"
)

// Event is what Step reacts to. Times in events are on the monotonic clock of the caller: durations since its start.
type Event interface{ event() }

// The events.
type (
	// Started is the first event.
	Started struct{ Identity Identity }
	// IdentityChanged: the store has another identity now, for example because a snapshot was installed.
	IdentityChanged struct{ Identity Identity }
	// Observed is what Coordinator.Watch sent.
	Observed struct {
		Observation
		// LeaseUntil on the caller's clock; 0 without a lease. Stands for Observation.LeaseUntil.
		LeaseUntil time.Duration
	}
	// Loaded is the outcome of LoadRecord.
	Loaded struct {
		Record   Record
		Revision Revision
		Mark     Mark // read before the record: what it says holds for every store that the record names in sync
		Err      error
	}
	// Swapped is the outcome of SwapRecord.
	Swapped struct {
		OpID     string
		Revision Revision
		Err      error
	}
	// Reported is a report of the data plane, with the epoch of the role that sent it.
	Reported struct {
		Epoch uint64
		Event DataEvent
	}
	// DrainEnded is the outcome of BeginDrain.
	DrainEnded struct {
		Drain uint64 // number from BeginDrain
		Err   error
	}
	// SwitchoverAsked: the operator wants the other node to be active.
	SwitchoverAsked struct {
		ID string
		// To is the node that is to be active; uuid.Nil: the one that is not.
		To uuid.UUID
	}
	// Occupied: the role should not be given to the preferred node now, because of Why, such as a maintenance plan;
	// empty: it may be.
	Occupied struct{ Why string }
	// Committed: the active has committed up to a record that it wrote in its own term.
	Committed struct{ Term, LSN uint64 }
	// MarkWritten is the outcome of WriteMark: Before is the mark that was there.
	MarkWritten struct{ Before Mark }
	// Met is the outcome of Meet. Gone: no process listens at the address.
	Met struct {
		Address string
		Peer    Peer
		Gone    bool
		Err     error
	}
	// TwinReported: another process of this node's identity has asked this one (Meet).
	TwinReported struct{ Live Live }
	// Ticked: a deadline that State.Deadline named has passed.
	Ticked struct{}
)

func (Started) event()         {}
func (IdentityChanged) event() {}
func (Observed) event()        {}
func (Loaded) event()          {}
func (Swapped) event()         {}
func (Reported) event()        {}
func (DrainEnded) event()      {}
func (SwitchoverAsked) event() {}
func (Occupied) event()        {}
func (Committed) event()       {}
func (MarkWritten) event()     {}
func (Met) event()             {}
func (TwinReported) event()    {}
func (Ticked) event()          {}

// Effect is what Step wants done. Effects are carried out strictly in order. SwapRecord, LoadRecord and BeginDrain are
// only begun in that order; their outcome comes back as an event. An effect is not begun before all those before it
// have succeeded: the fence is on disk before the swap is sent (INV-4).
type Effect interface{ effect() }

// The effects.
type (
	// LoadRecord reads the record; the outcome is Loaded.
	LoadRecord struct{}
	// SwapRecord writes the record; the outcome is Swapped.
	SwapRecord struct {
		Expect Revision
		Next   Record
	}
	// JoinPair calls DataPlane.JoinPair.
	JoinPair struct{ Pair uuid.UUID }
	// SetFence calls DataPlane.SetFence.
	SetFence struct{ Fence Fence }
	// ClearLoss calls DataPlane.ClearLoss.
	ClearLoss struct{}
	// MarkLoss calls DataPlane.MarkLoss.
	MarkLoss struct{}
	// ClaimRun calls DataPlane.ClaimRun.
	ClaimRun struct{ Named, Run uuid.UUID }
	// ConfirmRun calls DataPlane.ConfirmRun.
	ConfirmRun struct{ Run uuid.UUID }
	// WriteMark raises the pair's high-water mark in the coordinator. Nothing waits for it; the outcome, if there is
	// one, is MarkWritten.
	WriteMark struct{ Mark Mark }
	// Announce begins to keep this node's liveness key.
	Announce struct{}
	// Meet asks the process at an address who it is; the outcome is Met.
	Meet struct{ Address string }
	// StartActive calls DataPlane.StartActive.
	StartActive struct {
		Epoch uint64
		Spec  ActiveSpec
	}
	// ConfigureActive calls DataPlane.ConfigureActive.
	ConfigureActive struct{ Config ActiveConfig }
	// StopActive calls DataPlane.StopActive.
	StopActive struct{ Next NodeInfo }
	// StartFollower calls DataPlane.StartFollower.
	StartFollower struct {
		Epoch uint64
		Spec  FollowSpec
	}
	// StopFollower calls DataPlane.StopFollower.
	StopFollower struct{}
	// BeginDrain calls DataPlane.Drain with a limit; the outcome is DrainEnded.
	BeginDrain struct {
		Drain uint64 // tells drains apart
		Limit time.Duration
	}
	// Resume ends a drain that is still running, and calls DataPlane.Resume.
	Resume struct{}
	// SwitchoverEnded answers SwitchoverAsked.
	SwitchoverEnded struct {
		ID string
		// Failure says why it was not done; empty if it was.
		Failure string
		// Pause is for how long no transaction could be acknowledged, as seen from here.
		Pause time.Duration
		// Already: the record named SwitchoverAsked.To when it was asked.
		Already bool
	}
	// Warn logs something that an operator should know.
	Warn struct{ Text string }
	// Halt ends the Runner with an error: the node must not go on.
	Halt struct{ Err error }
)

func (LoadRecord) effect()      {}
func (SwapRecord) effect()      {}
func (JoinPair) effect()        {}
func (SetFence) effect()        {}
func (ClearLoss) effect()       {}
func (MarkLoss) effect()        {}
func (ClaimRun) effect()        {}
func (ConfirmRun) effect()      {}
func (WriteMark) effect()       {}
func (Announce) effect()        {}
func (Meet) effect()            {}
func (StartActive) effect()     {}
func (ConfigureActive) effect() {}
func (StopActive) effect()      {}
func (StartFollower) effect()   {}
func (StopFollower) effect()    {}
func (BeginDrain) effect()      {}
func (Resume) effect()          {}
func (SwitchoverEnded) effect() {}
func (Warn) effect()            {}
func (Halt) effect()            {}
