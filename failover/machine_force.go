// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

// In a forced failover the only in-sync node is lost, and an operator activates the other one without the records that
// only the lost node had. It is the only exception to INV-4; all other rules apply. A returning old active detects that
// it was replaced.

// Reasons of ErrForce.
var (
	errForceBusy   = errors.New("a change of the cluster record is in progress on this node; try again")
	errForceRecord = errors.New("this node does not have the cluster record; if the coordinator has lost it, use " +
		"lockstep pair adopt")
	errForceActive = errors.New("this node is already active")
	errForceInSync = errors.New("this node is in sync and takes over automatically: a forced failover is not needed, " +
		"and nothing would be lost")
	errForcePaused = errors.New("this node is in sync and would take over automatically, but the pair is paused: " +
		"lockstep resume. A forced failover is not needed")
	errForceConnected   = errors.New("this node is connected to the active, which is not lost")
	errForceCoordinator = fmt.Errorf("%w, and without it role changes are impossible", ErrUnreachable)
	errForceChanged     = errors.New("cluster record has changed concurrently: check the status, and retry if " +
		"still needed")
	errForceTime = errors.New("coordinator did not write the record in time")
)

// ErrOtherLives is returned if the other node's lease has not expired: it runs, or did a moment ago.
var ErrOtherLives = errors.New("other node is alive: its lease in the coordinator has not expired. Let it resume " +
	"its role; or stop it, if it is broken, wait until its lease has expired, and try again")

// ForceAsked requests that this node becomes active although it may lack records. Nothing is done if the record is no
// longer the one of Config, for which the operator has seen the possible loss.
type ForceAsked struct {
	ID     string
	Only   bool // dry run
	Config uint64
	// End is the last record of this node's log, and Committed the last one it knows to be committed.
	End        lsn.Position
	Committed  uint64
	At         time.Time
	By, Reason string
}

// ForceEnded is the response to ForceAsked.
type ForceEnded struct {
	ID      string
	Failure error
}

func (ForceAsked) event()  {}
func (ForceEnded) effect() {}

type forcing struct {
	id        string
	forced    Forced
	deadline  time.Duration
	abandoned bool // no caller waits for it, but its swap may still be applied
}

func (f *Forced) settled() *Forced {
	if f == nil || f.Settled {
		return f
	}
	f = new(*f)
	f.Settled = true
	return f
}

func (m *machine) forceAsked(e ForceAsked) {
	if err := m.checkForce(e.Config); err != nil {
		m.do(ForceEnded{ID: e.ID, Failure: fmt.Errorf("%w: %w", ErrForce, err)})
		return
	}
	if e.Only {
		m.do(ForceEnded{ID: e.ID})
		return
	}
	f := Forced{
		At: e.At, By: e.By, Reason: e.Reason, Node: m.self.ID, Term: m.rec.Term + 1,
		After: GuaranteedLSN(m.rec, e.End, e.Committed),
	}
	if old := m.rec.Forced; old != nil && !old.Settled {
		// The other node may have a tail from before that one.
		f.After = min(f.After, old.After)
	}
	m.forces = forcing{id: e.ID, forced: f, deadline: m.now + m.set.SwitchoverTimeout}
}

// GuaranteedLSN returns the last LSN up to which a node's log matches the pair's acknowledged history. In the current
// term that is the whole log: this node received it in order from the only writer. The end of an older log may never
// have been committed, and other records may have been acknowledged instead.
func GuaranteedLSN(rec Record, end lsn.Position, committed uint64) uint64 {
	if end.Term == rec.Term {
		return end.LSN
	}
	return min(end.LSN, committed)
}

func (s *State) checkForce(config uint64) error {
	switch {
	case s.exclusionError() != nil:
		return s.exclusionError()
	case !s.known || s.problem != "":
		return errForceRecord
	case s.mode == modeAct:
		return errForceActive
	case s.forces != forcing{} || s.adopts.id != "" || s.swapping != "" || s.unknown || s.ask.id != "":
		return errForceBusy
	case !s.reachable || !s.liveKnown:
		return errForceCoordinator
	case s.rec.Config != config:
		return errForceChanged
	case s.eligible() && s.rec.Paused != nil:
		return errForcePaused
	case s.eligible():
		return errForceInSync
	case s.follow.connected:
		return errForceConnected
	case s.otherLives():
		return ErrOtherLives
	default:
		return nil
	}
}

func (s *State) otherLives() bool {
	_, ok := s.otherLive()
	return ok
}

func (s *State) otherLive() (Live, bool) {
	return find(s.live, func(l Live) bool { return l.Node.ID != s.self.ID && l.Node.ID != uuid.Nil })
}

// force reports whether a forced failover is in progress, and advances it.
func (m *machine) force() bool {
	f := &m.forces
	switch {
	case *f == forcing{}:
		return false
	case f.abandoned:
		// Its swap may still be applied. Writing the unchanged record again resolves that.
		if len(m.pending) == 0 {
			*f, m.candidate = forcing{}, false
			return false
		}
		if m.canSwap() {
			m.propose(m.rec)
		}
	case m.now >= f.deadline:
		m.abortForce(errForceTime)
	case !m.candidate && (m.otherLives() || m.follow.connected):
		m.abortForce(ErrOtherLives)
	case !m.canSwap():
	default:
		m.standByForce()
	}
	return true
}

func (m *machine) standByForce() {
	f := m.forces.forced
	if !m.candidate {
		m.candidate, m.why = true, "an operator forces this node active"
		m.change = change{code: CodeForced, term: f.Term}
		m.warn("FORCED FAILOVER by %s: this node becomes active although it may lack records; transactions "+
			"acknowledged after LSN %d may be lost",
			f.By, f.After)
	}
	m.stopFollowing()
	m.raiseFence(Fence{Config: m.rec.Config, Term: m.rec.Term + 1})
	me := m.me()
	if m.ident.MayHaveLost {
		// INV-6: the incarnation after the loss is accepted, which happens only after the swap
		me.Incarnation++
	}
	next := m.rec
	next.Term, next.Active, next.InSync = f.Term, m.self.ID, []Member{me}
	next.MinInSync, next.Switchover, next.Forced = m.minInSync(), nil, &f
	// Records before the old mark may be discarded.
	next.Mark = Mark{Pair: m.rec.PairID, By: f.Term, Term: m.ident.End.Term, LSN: m.ident.End.LSN}
	m.propose(next)
}

func (m *machine) abortForce(why error) {
	if m.refusal != "" {
		why = fmt.Errorf("%w: %s", why, m.refusal)
	}
	err := fmt.Errorf("%w: %w", ErrForce, why)
	if len(m.pending) > 0 {
		err = fmt.Errorf("%w: %w", err, ErrUnknownOutcome)
	}
	m.do(ForceEnded{ID: m.forces.id, Failure: err})
	m.forces = forcing{abandoned: true}
}

func (m *machine) forceSettled() {
	f := m.forces
	m.forces = forcing{}
	if f.id == "" {
		return
	}
	var err error
	if m.rec.Forced == nil || *m.rec.Forced != f.forced {
		err = fmt.Errorf("%w: %w", ErrForce, errForceChanged)
	}
	m.do(ForceEnded{ID: f.id, Failure: err})
	if err == nil && m.ident.MayHaveLost {
		m.do(ClearLoss{}) // IdentityChanged follows, then the role
	}
}
