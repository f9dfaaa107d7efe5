// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"fmt"
	"time"

	"github.com/google/uuid"
)

// State is the complete state of the machine. Copies of a State share its slices and the values of its pointers,
// which are never modified.
type State struct {
	set     Settings
	self    NodeInfo
	process string // distinguishes processes of this node; part of every OpID
	newPair uuid.UUID

	now     time.Duration
	started time.Duration

	ident     Identity
	bootFence Fence // fence at the start, for the check of INV-9

	known      bool // rec and rev are valid
	missing    bool // a linearizable read found no record
	rec        Record
	rev        Revision
	problem    string // why the coordinator's record is unusable
	reachable  bool
	leaseUntil time.Duration // 0 before the first lease
	live       []Live
	liveKnown  bool
	proc       processState
	handshake  handshake
	bootTerm   uint64 // term of the first record seen, unless this process wrote that record
	refused    error  // why a starting node waits for an operator (INV-9)
	adopts     adopting
	forces     forcing

	// pending are this node's swaps at rev that may have been applied, or may still be applied. Only a record at another
	// revision resolves them.
	pending               []Record
	unanswered            []string // OpIDs of pending swaps that received no response
	swapping              string   // OpID of the current call
	loading               bool
	needLoad              bool
	unknown               bool // an outcome is unknown, and no read has followed (INV-8)
	retryAt               time.Duration
	refusal               string
	refusedUntil          time.Duration
	hint                  string // the coordinator's description of its problem
	coordinatorConditions []Condition

	mode            mode
	epoch           uint64
	usedTerm        uint64 // last term in which this process was active
	candidate       bool   // this node has stopped following and tries to take over
	fenced          bool   // this node lost the role, and has not connected to the new active yet
	accepted        Fence  // highest fence of an active that accepted this node
	why             string // reason of the last change of mode
	change          change
	failbackBlocked string // why the preferred node must not receive the role
	follow          following
	act             acting

	hand    handover          // the active's side
	request switchoverRequest // the standby's side

	halted bool
}

type mode uint8

const (
	modeIdle mode = iota
	modeFollow
	modeAct
)

type following struct {
	active     NodeInfo
	connected  bool
	ever       bool // connected since following began
	required   bool
	incomplete FollowerIncomplete // Config is 0 without a report
	cause      LostCause          // 0 until the connection is lost or an attempt fails
	since      time.Duration      // start of the time without a connection
}

type acting struct {
	term       uint64
	sent       ActiveConfig
	ready      bool
	standby    standbyState
	member     Member    // connected standby
	needs      uint64    // number of the current requirement (ActiveConfig.Requirement)
	cause      LostCause // why the last standby was lost; 0 if none was lost
	stalled    bool
	ahead      ahead         // a standby with committed records that are missing on this active
	dropAt     time.Duration // when an absent in-sync standby is dropped; never if it is present
	blocked    time.Duration // when the required standby became absent; never if it is present
	transferAt time.Duration // when the preferred node receives the role; never if no handover is due
}

func newActing(term uint64) acting {
	return acting{term: term, dropAt: never, blocked: never, transferAt: never}
}

type standbyState uint8

const (
	standbyNone standbyState = iota
	standbyConnected
	standbyCaughtUp
	standbySynced
)

const never = time.Duration(1<<63 - 1)

// NewState returns the initial state of a node. process must be unique among the node's processes. newPair becomes the
// pair's ID if this node creates the first record.
func NewState(set Settings, self NodeInfo, process string, newPair uuid.UUID) State {
	return State{
		set: set.withDefaults(), self: self, process: process, newPair: newPair,
		act: newActing(0), proc: processState{id: generationOf(process)},
	}
}

type machine struct {
	State
	effects []Effect
}

// Step processes an event, and returns the new state and the effects. now is the monotonic time of the event. The
// effects must be executed in order, before the next Step.
func Step(s State, now time.Duration, ev Event) (State, []Effect) {
	if s.halted {
		return s, nil
	}
	m := machine{State: s}
	m.now = now
	m.handle(ev)
	m.reconcile()
	m.proc.markRead = false
	return m.State, m.effects
}

func (m *machine) do(e Effect) { m.effects = append(m.effects, e) }

func (m *machine) warn(format string, args ...any) { m.do(Warn{Text: fmt.Sprintf(format, args...)}) }

func (m *machine) halt(err error) {
	m.halted = true
	m.do(Halt{Err: err})
}

// handle records the event in the state. It also decides about requests and records, and detects duplicate processes
// and rollbacks. Role changes are decided by reconcile, which uses only the state.
func (m *machine) handle(ev Event) {
	switch e := ev.(type) {
	case Started:
		m.started, m.ident, m.bootFence = m.now, e.Identity, e.Identity.Fence
		m.proc.boot = [2]uuid.UUID{e.Identity.Generation, e.Identity.ClaimedGeneration}
	case IdentityChanged:
		m.ident = e.Identity
		if m.known {
			m.compareGeneration() // after an accepted loss, the record lists the new incarnation before the store has it
		}
	case Observed:
		m.observed(e)
	case Loaded:
		m.loaded(e)
	case Swapped:
		m.swapped(e)
	case Reported:
		if f, ok := e.Event.(Failed); ok {
			m.halt(fmt.Errorf("%w: %w", ErrFailed, f.Err))
		} else if e.Epoch == m.epoch {
			m.reported(e.Event)
		}
	case DrainEnded:
		m.drainEnded(e)
	case SwitchoverRequested:
		m.switchoverRequested(e)
	case AdoptRequested:
		m.adoptRequested(e)
	case ForceRequested:
		m.forceRequested(e)
	case FailbackBlocked:
		m.failbackBlocked = e.Reason
	case Committed:
		m.committed(e)
	case MarkWritten:
		m.compareOwnMark(e.Before)
	case HandshakeDone:
		m.handshakeDone(e)
	case DuplicateReported:
		m.proc.reported, m.proc.reportedAt = e.Live, m.now
	case Ticked:
	}
}

func (m *machine) reconcile() {
	m.sendAdoption()
	m.startHandshake()
	switch {
	case m.halted:
		return
	case m.known && !m.participates():
	case !m.known && m.missing:
		m.create()
	case !m.known:
		m.load()
	case m.leads():
		m.lead()
	default:
		if m.mode == modeAct {
			m.yieldRole()
		}
		m.standBy()
	}
	if m.needLoad {
		m.load()
	}
}

// leads reports whether this node is active, and the record lists it as the active of the same term.
func (s *State) leads() bool {
	return s.mode == modeAct && s.rec.Active == s.self.ID && s.rec.Term == s.act.term
}

func (m *machine) reported(ev DataEvent) {
	if m.mode == modeAct {
		m.reportedByActive(ev)
	} else if m.mode == modeFollow {
		m.reportedByFollower(ev)
	}
}

// Deadline returns the next time at which a Ticked event may change the state; false if none.
func (s *State) Deadline() (time.Duration, bool) {
	next := never
	at := func(t time.Duration) {
		if t > s.now && t < next {
			next = t
		}
	}
	at(s.retryAt)
	at(s.proc.duplicateCheckAt)
	at(s.handshake.at)
	if s.rec.Active == s.self.ID && s.mode != modeAct {
		at(s.started + s.set.StartupWait)
	}
	if s.refusal != "" {
		at(s.refusedUntil)
	}
	if s.mode == modeFollow && !s.follow.connected {
		at(s.follow.since + s.set.FailoverTimeout)
		at(s.started + s.set.StartupWait)
	}
	if s.forces.id != "" {
		at(s.forces.deadline)
	}
	if s.mode == modeAct {
		at(s.act.dropAt)
		at(s.act.transferAt)
		if s.act.blocked != never {
			at(s.act.blocked + s.set.RefuseAfter)
			at(s.leaseUntil - s.set.LeaseMargin)
		}
	}
	if s.hand.phase != handoverNone {
		at(s.hand.deadline)
	}
	if s.request.id != "" {
		at(s.request.deadline)
	}
	return next, next != never
}
