// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"time"

	"github.com/google/uuid"
)

// Event is an input of Step.
type Event interface{ event() }

// Events of Step.
type (
	Started struct{ Identity Identity }
	// IdentityChanged: the store's identity changed, for example by an installed snapshot.
	IdentityChanged struct{ Identity Identity }
	Observed        struct {
		Observation
		// LeaseUntil is Observation.LeaseUntil on the machine's clock; 0 without a lease.
		LeaseUntil time.Duration
	}
	Loaded struct {
		Record   Record
		Revision Revision
		Mark     Mark // read before the record, so it applies to every in-sync store of the record
		Err      error
	}
	Swapped struct {
		OpID     string
		Revision Revision
		Err      error
	}
	// Reported is an event of the role that was started under Epoch.
	Reported struct {
		Epoch uint64
		Event DataEvent
	}
	DrainEnded struct {
		Drain uint64 // from BeginDrain
		Err   error
	}
	SwitchoverAsked struct {
		ID string
		// To is the node to activate; uuid.Nil: the one that is not active.
		To uuid.UUID
	}
	// Occupied: the reason why the preferred node should not get the role now, such as a maintenance plan; or empty.
	Occupied struct{ Why string }
	// Committed: the active has committed a record of its own term.
	Committed struct{ Term, LSN uint64 }
	// MarkWritten is the outcome of WriteMark. Before is the previous mark.
	MarkWritten struct{ Before Mark }
	// HandshakeDone is the outcome of Handshake. Gone: no process listens at the address.
	HandshakeDone struct {
		Address string
		Peer    Peer
		Gone    bool
		Err     error
	}
	// DuplicateReported: another process with this node's identity has called this one.
	DuplicateReported struct{ Live Live }
	Ticked            struct{}
)

func (Started) event()           {}
func (IdentityChanged) event()   {}
func (Observed) event()          {}
func (Loaded) event()            {}
func (Swapped) event()           {}
func (Reported) event()          {}
func (DrainEnded) event()        {}
func (SwitchoverAsked) event()   {}
func (Occupied) event()          {}
func (Committed) event()         {}
func (MarkWritten) event()       {}
func (HandshakeDone) event()     {}
func (DuplicateReported) event() {}
func (Ticked) event()            {}

// Effect is an action requested by Step. Effects are executed in order; each one starts after all earlier ones
// succeeded, so that the fence is on disk before the swap is sent (INV-4). LoadRecord, SwapRecord and BeginDrain are
// only started in that order; their outcome arrives as an event.
type Effect interface{ effect() }

// Effects of Step.
type (
	// LoadRecord reads the record; the outcome is Loaded.
	LoadRecord struct{}
	// SwapRecord writes the record; the outcome is Swapped.
	SwapRecord struct {
		Expect Revision
		Next   Record
	}
	JoinPair   struct{ Pair uuid.UUID }
	SetFence   struct{ Fence Fence }
	ClearLoss  struct{}
	MarkLoss   struct{}
	ClaimRun   struct{ Named, Run uuid.UUID }
	ConfirmRun struct{ Run uuid.UUID }
	// WriteMark raises the pair's high-water mark. Later effects do not wait for it. On success, MarkWritten follows.
	WriteMark struct{ Mark Mark }
	// Announce starts maintaining this node's liveness key.
	Announce struct{}
	// Handshake requests the identity of the process at an address; the outcome is HandshakeDone.
	Handshake   struct{ Address string }
	StartActive struct {
		Epoch uint64
		Spec  ActiveSpec
	}
	ConfigureActive struct{ Config ActiveConfig }
	StopActive      struct{ Next NodeInfo }
	StartFollower   struct {
		Epoch uint64
		Spec  FollowSpec
	}
	StopFollower struct{}
	// BeginDrain calls DataPlane.Drain with a time limit; the outcome is DrainEnded.
	BeginDrain struct {
		Drain uint64 // identifies the drain
		Limit time.Duration
	}
	// Resume cancels a running drain and calls DataPlane.Resume.
	Resume struct{}
	// SwitchoverEnded is the response to SwitchoverAsked.
	SwitchoverEnded struct {
		ID string
		// Failure is empty on success.
		Failure string
		// Pause is how long no transaction could be acknowledged, as measured by this node.
		Pause time.Duration
		// Already: the record named SwitchoverAsked.To at the time of the request.
		Already bool
	}
	Warn struct{ Text string }
	// Halt ends the Runner with an error: the node must not continue.
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
func (Handshake) effect()       {}
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
