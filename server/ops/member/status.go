// SPDX-License-Identifier: Apache-2.0

package member

import (
	"errors"
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/fleet"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/queue"
)

// Status is the state of the membership of this pair, as known to this node.
type Status struct {
	// Pair is the setting fleet.pair.
	Pair string
	// Log is the membership in the log of the pair.
	Log queue.FleetState
	// Directory is the state of the copy of the directory, and Pairs the number of registered pairs in it.
	Directory fleet.Status
	Pairs     int
	// Active reports whether this node is the active of its pair, and its site is neither a replica nor a stopped
	// primary. Otherwise, the fields below are not set.
	Active bool
	// Left reports whether Leave has ended the registration in this term, or the pair has left since the start of this
	// process. The pair joins again after the node has been restarted.
	Left bool
	// Err is the error of the last attempt to join, or to update the directory. It is nil if that attempt was successful,
	// or if none has ended in this term.
	Err error
	// Reconciled is the time of the last successful comparison of the directory with the log in this term; zero if there
	// was none.
	Reconciled time.Time
	// Conflicts are the queues of this pair that other pairs own, sorted by name.
	Conflicts []fleet.Conflict
}

// Status returns the current status.
func (m *Manager) Status() Status {
	st := Status{
		Pair: m.o.Pair, Log: query.Fleet(m.o.Store), Directory: fleet.Status{Problem: fleet.ErrUnavailable},
	}
	if d := m.Directory(); d != nil {
		st.Directory, st.Pairs = d.Status(), len(d.Pairs())
	}
	serves := m.serves()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.primary != nil && serves {
		st.Active, st.Left = true, m.left || m.member && !st.Log.Member()
		st.Err, st.Reconciled, st.Conflicts = m.err, m.reconciled, m.conflicts
	}
	return st
}

// Problems contains the reasons for conditions. An empty reason means that the condition does not exist.
type Problems struct {
	// Unavailable is set if etcd does not respond, or the copy of the directory is not current.
	Unavailable string
	// Lost is set if the directory was lost or restored from an older copy, or is being rebuilt. It is also set if the
	// directory lacks this pair or contains malformed values, or if this pair was removed from the fleet.
	Lost string
	// Conflict is set if another pair owns queues of this pair, or has its name.
	Conflict string
	// Mismatch is set if the membership in the log differs from the settings of this node.
	Mismatch string
}

// Problems returns the reasons for the conditions that the status causes.
func (s *Status) Problems() (p Problems) {
	d := &s.Directory
	switch {
	case !d.Current:
		p.Unavailable = "etcd does not respond"
	case errors.Is(s.Err, fleet.ErrUnavailable):
		p.Unavailable = s.Err.Error()
	}
	if d.Current && s.Log.Member() {
		p.Lost = s.lost()
	}
	var conflict *fleet.ConflictError
	switch {
	case errors.As(s.Err, &conflict), errors.Is(s.Err, fleet.ErrPairExists):
		p.Conflict = s.Err.Error()
	case len(s.Conflicts) > 0:
		p.Conflict = (&fleet.ConflictError{Conflicts: s.Conflicts}).Error()
	}
	switch {
	case s.Log.Member() && s.Log.Pair != s.Pair:
		p.Mismatch = fmt.Sprintf("fleet.pair is %s, but the pair is a member as %s", s.Pair, s.Log.Pair)
	case s.Active && s.Left && !s.Log.Member():
		p.Mismatch = fmt.Sprintf("fleet.pair is %s, but the pair has left the fleet; remove the setting, or restart the "+
			"node to join again", s.Pair)
	case s.Active && !s.Log.Member() && s.Err != nil && p.Conflict == "" && p.Unavailable == "":
		p.Mismatch = fmt.Sprintf("fleet.pair is %s, but the pair has not joined a fleet: %v", s.Pair, s.Err)
	}
	return p
}

func (s *Status) lost() string {
	d := &s.Directory
	switch {
	case d.Problem != nil && !errors.Is(d.Problem, fleet.ErrNotMember): // also fleet.ErrForgotten
		return d.Problem.Error()
	case errors.Is(s.Err, errNotRegistered), errors.Is(s.Err, fleet.ErrLost), errors.Is(s.Err, fleet.ErrRestored),
		errors.Is(s.Err, fleet.ErrRebuilding):
		return s.Err.Error()
	case len(d.Malformed) > 0:
		return fmt.Sprintf("%d malformed values: %v", len(d.Malformed), d.Malformed[0])
	}
	return ""
}
