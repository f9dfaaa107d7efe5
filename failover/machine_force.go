// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

// In a forced failover, an operator activates a node that may lack acknowledged records. This is an exception to
// INV-4; all other rules apply.

// Reasons of ErrForce.
var (
	errForceBusy   = errors.New("a change of the cluster record is in progress on this node; try again")
	errForceRecord = errors.New("this node does not have the cluster record; if the coordinator has lost it, run " +
		"lockstep pair adopt")
	errForceActive = errors.New("this node is already active")
	errForceInSync = errors.New("this node is in sync and takes over automatically; a forced failover is not needed")
	errForcePaused = errors.New("the pair is paused; this node is in sync, and takes over after lockstep " +
		"resume, without a forced failover")
	errForceConnected   = errors.New("this node is connected to the active")
	errForceCoordinator = fmt.Errorf("%w; role changes are impossible", ErrUnreachable)
	errForceChanged     = errors.New("cluster record has changed concurrently; check the status before a retry")
	errForceTime        = errors.New("cluster record was not written in time")
)

// ErrOtherLives is a reason of ErrForce: the other node is running, or was until recently. Its lease has not expired,
// or this node connected to it after the request.
var ErrOtherLives = errors.New("lease of the other node has not expired; let that node resume its role, or stop it " +
	"and retry after the lease has expired")

// ForceRequested requests that this node becomes active although records may be missing. It fails if the record's
// config is no longer Config, for which the operator has confirmed the possible loss.
type ForceRequested struct {
	ID     string
	DryRun bool
	Config uint64
	// End is the end of this node's log, and Committed the last LSN that it knows to be committed.
	End        lsn.Position
	Committed  uint64
	At         time.Time
	By, Reason string
}

// ForceEnded is the response to ForceRequested.
type ForceEnded struct {
	ID      string
	Failure error
}

func (ForceRequested) event() {}
func (ForceEnded) effect()    {}

type forcing struct {
	id        string
	forced    Forced
	deadline  time.Duration
	abandoned bool // no caller waits, but the swap may still be applied
}

func (f *Forced) settled() *Forced {
	if f == nil || f.Settled {
		return f
	}
	f = new(*f)
	f.Settled = true
	return f
}

func (m *machine) forceRequested(e ForceRequested) {
	if err := m.checkForce(e.Config); err != nil {
		m.do(ForceEnded{ID: e.ID, Failure: fmt.Errorf("%w: %w", ErrForce, err)})
		return
	}
	if e.DryRun {
		m.do(ForceEnded{ID: e.ID})
		return
	}
	f := Forced{
		At: e.At, By: e.By, Reason: e.Reason, Node: m.self.ID, Term: m.rec.Term + 1,
		After: GuaranteedLSN(m.rec, e.End, e.Committed),
	}
	if old := m.rec.Forced; old != nil && !old.Settled {
		// The other node may still have records discarded by the earlier forced failover.
		f.After = min(f.After, old.After)
	}
	m.forces = forcing{id: e.ID, forced: f, deadline: m.now + m.set.SwitchoverTimeout}
}

// GuaranteedLSN returns the LSN up to which a node's log is known to match the pair's acknowledged history. For a log
// that ends in the current term, this is its end: the node received it in order from the only writer. The end of an
// older log may never have been committed, and other records may have been acknowledged instead.
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
	case s.forces != forcing{} || s.adopts.id != "" || s.swapping != "" || s.unknown || s.request.id != "":
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
		// The swap may still be applied. Writing the unchanged record again resolves it.
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
		m.candidate, m.why = true, "forced failover to this node"
		m.change = change{code: CodeForced, term: f.Term}
		m.warn("forced failover by %s: this node becomes active; transactions acknowledged after LSN %d may be lost",
			f.By, f.After)
	}
	m.stopFollowing()
	m.raiseFence(Fence{Config: m.rec.Config, Term: m.rec.Term + 1})
	me := m.me()
	if m.ident.MayHaveLost {
		// INV-6: ClearLoss follows after the swap, and increments the incarnation
		me.Incarnation++
	}
	next := m.rec
	next.Term, next.Active, next.InSync = f.Term, m.self.ID, []Member{me}
	next.MinInSync, next.Switchover, next.Forced = m.minInSync(), nil, &f
	// The old mark may be above the end of this log.
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
