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
	// IdentityChanged reports that the store's identity changed, for example by an installed snapshot.
	IdentityChanged struct{ Identity Identity }
	Observed        struct {
		Observation
		// LeaseUntil is Observation.LeaseUntil as a monotonic time of the machine; 0 before the first lease.
		LeaseUntil time.Duration
	}
	Loaded struct {
		Record   Record
		Revision Revision
		Mark     Mark // read before the record, so every in-sync store of the record must have reached it
		Err      error
	}
	Swapped struct {
		OpID     string
		Revision Revision
		Err      error
	}
	// Reported contains an event of the role that was started with Epoch. Failed is processed with any Epoch.
	Reported struct {
		Epoch uint64
		Event DataEvent
	}
	DrainEnded struct {
		Drain uint64 // from BeginDrain
		Err   error
	}
	SwitchoverRequested struct {
		ID string
		// To is the node to activate; uuid.Nil for the node that is not active.
		To uuid.UUID
	}
	// FailbackBlocked sets the reason why the preferred node must not receive the role, such as a maintenance plan; empty
	// if failback is allowed.
	FailbackBlocked struct{ Reason string }
	// Committed reports that the active has committed a record of its term.
	Committed struct{ Term, LSN uint64 }
	// MarkWritten reports that WriteMark succeeded. Before is the previous mark.
	MarkWritten struct{ Before Mark }
	// HandshakeDone is the outcome of Handshake. Gone is set if no process listens at the address.
	HandshakeDone struct {
		Address string
		Peer    Peer
		Gone    bool
		Err     error
	}
	// DuplicateReported reports that another process with this node's identity has contacted this process.
	DuplicateReported struct{ Live Live }
	Ticked            struct{}
)

func (Started) event()             {}
func (IdentityChanged) event()     {}
func (Observed) event()            {}
func (Loaded) event()              {}
func (Swapped) event()             {}
func (Reported) event()            {}
func (DrainEnded) event()          {}
func (SwitchoverRequested) event() {}
func (FailbackBlocked) event()     {}
func (Committed) event()           {}
func (MarkWritten) event()         {}
func (HandshakeDone) event()       {}
func (DuplicateReported) event()   {}
func (Ticked) event()              {}

// Effect is an action requested by Step. Effects are executed in order, and only if all earlier effects succeeded.
// In particular, the fence is durable before the swap is sent (INV-4). An effect with an outcome is only started in
// order; its outcome is reported later, as an event.
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
	JoinPair          struct{ Pair uuid.UUID }
	SetFence          struct{ Fence Fence }
	ClearLoss         struct{}
	MarkLoss          struct{}
	ClaimGeneration   struct{ Listed, Claimed uuid.UUID }
	ConfirmGeneration struct{ Listed uuid.UUID }
	// WriteMark raises the pair's high-water mark. Later effects do not wait for it. On success, MarkWritten follows.
	WriteMark struct{ Mark Mark }
	// Announce calls Coordinator.Announce in the background.
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
	// SwitchoverEnded is the response to SwitchoverRequested.
	SwitchoverEnded struct {
		ID string
		// Failure is the reason why the switchover failed; empty on success.
		Failure string
		// Pause is the time since the start of the drain, during which no new transaction could be acknowledged. If the
		// standby received the request, it is the time since the request.
		Pause time.Duration
		// Already reports whether SwitchoverRequested.To was active at the time of the request.
		Already bool
	}
	Warn struct{ Text string }
	// Halt ends the Runner with an error: the node must not continue.
	Halt struct{ Err error }
)

func (LoadRecord) effect()        {}
func (SwapRecord) effect()        {}
func (JoinPair) effect()          {}
func (SetFence) effect()          {}
func (ClearLoss) effect()         {}
func (MarkLoss) effect()          {}
func (ClaimGeneration) effect()   {}
func (ConfirmGeneration) effect() {}
func (WriteMark) effect()         {}
func (Announce) effect()          {}
func (Handshake) effect()         {}
func (StartActive) effect()       {}
func (ConfigureActive) effect()   {}
func (StopActive) effect()        {}
func (StartFollower) effect()     {}
func (StopFollower) effect()      {}
func (BeginDrain) effect()        {}
func (Resume) effect()            {}
func (SwitchoverEnded) effect()   {}
func (Warn) effect()              {}
func (Halt) effect()              {}
