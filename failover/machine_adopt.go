// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
)

// Adoption rebuilds a cluster record that the coordinator has lost, or that was restored to an older state (INV-9).
// In both cases a starting node waits for an operator.

// AdoptRequested requests that this node rewrites the cluster record. The caller has verified that the record is
// missing or old. It has also verified that the other node has no additional records, unless WithoutOther is set. The
// swap fails if the coordinator's record has changed since that check.
type AdoptRequested struct {
	ID string
	// Found is the coordinator's record, and Revision its revision. Both are zero if the coordinator has no record.
	Found    Record
	Revision Revision
	// Above is a lower bound: the config of the new record is higher, and also its term unless this node is active.
	Above Fence
	// AcceptLoss reports whether the operator accepts that acknowledged transactions may be missing on this node
	// (INV-6).
	AcceptLoss bool
	// WithoutOther reports whether the other node could not be queried, and the operator confirms that it has no
	// additional records or is lost. The record must contain this decision (INV-13).
	WithoutOther bool
	At           time.Time
}

// AdoptEnded is the response to AdoptRequested.
type AdoptEnded struct {
	ID      string
	Failure error
}

func (AdoptRequested) event() {}
func (AdoptEnded) effect()    {}

type adopting struct {
	id   string
	next Record // OpID is empty until the record is sent
	rev  Revision
}

// wait makes a starting node wait for an operator. The node continues to poll the record.
func (m *machine) wait(err error) {
	m.refused, m.unknown, m.missing = err, false, false
	m.needLoad = true
	m.retryAt = m.now + m.set.RefusedDelay
}

func (m *machine) adoptRequested(e AdoptRequested) {
	next, err := m.adoption(e)
	if err != nil {
		m.do(AdoptEnded{ID: e.ID, Failure: fmt.Errorf("%w: %w", ErrAdopt, err)})
		return
	}
	m.adopts = adopting{id: e.ID, next: next, rev: e.Revision}
	if m.ident.MayHaveLost {
		m.warn("acknowledged transactions may be lost: an operator decided to continue with this store")
		m.do(ClearLoss{}) // IdentityChanged follows, with a new incarnation
	}
}

func (m *machine) adoption(e AdoptRequested) (Record, error) {
	own := m.ident.Fence
	if m.known {
		own.Config = max(own.Config, m.rec.Config)
	}
	switch {
	case m.exclusionError() != nil:
		return Record{}, m.exclusionError()
	case m.adopts.id != "":
		return Record{}, errAdoptBusy
	case m.ident.PairID == uuid.Nil:
		return Record{}, errAdoptNoPair
	case e.Revision != 0 && e.Found.PairID != m.ident.PairID:
		return Record{}, fmt.Errorf("%w: store has pair %s, record has pair %s", ErrOtherPair, m.ident.PairID, e.Found.PairID)
	case e.Revision != 0 && e.Found.Config >= own.Config:
		return Record{}, fmt.Errorf("%w: record has config %d, this node has %d", errAdoptFine, e.Found.Config, own.Config)
	case m.known && !m.leads():
		return Record{}, errAdoptStandby
	case m.known && m.unknown && e.Revision == 0:
		return Record{}, errAdoptUnknown
	case m.known && (m.swapping != "" || m.unknown || m.hand.phase != handoverNone):
		return Record{}, errAdoptBusy
	case m.ident.MayHaveLost && !e.AcceptLoss:
		return Record{}, errAdoptLoss
	}
	var marked Fence // the mark outlives the record, and an adoption starts a new term
	if m.proc.mark.Pair == m.ident.PairID {
		marked.Term = m.proc.mark.By
	}
	fence := AdoptedFence(e.Found, m.ident.End, own, e.Above, marked)
	next := Record{PairID: m.ident.PairID, Active: m.self.ID, MinInSync: m.set.MinInSync}
	if m.known {
		// This node is still the active: write the same record again.
		next = m.rec.Clone()
		next.Switchover, next.OpID = nil, ""
	} else {
		next.Term = fence.Term
		next.Forced = m.discardByAdoption(e, next.Term)
	}
	next.Version, next.Config = RecordVersion, fence.Config
	return next, nil
}

// discardByAdoption returns the range of the other node's records that an adoption without that node discards. It
// begins after the last record that this node knows to be committed, or earlier if a previous forced failover is not
// settled. Without WithoutOther, discardByAdoption returns nil.
func (m *machine) discardByAdoption(e AdoptRequested, term uint64) *Forced {
	if !e.WithoutOther {
		return nil
	}
	f := &Forced{
		At: e.At, By: "lockstep pair adopt", Reason: "rebuilt the cluster record without a response from the other node",
		Node:  m.self.ID,
		Term:  term,
		After: min(m.ident.Committed, m.ident.End.LSN),
	}
	if old := e.Found.Forced; old != nil && !old.Settled {
		f.After = min(f.After, old.After)
	}
	return f
}

func (m *machine) sendAdoption() {
	a := &m.adopts
	if a.id == "" || a.next.OpID != "" || m.ident.MayHaveLost || m.swapping != "" || m.loading {
		return
	}
	if !m.known {
		m.change = change{code: CodeAdopted, term: a.next.Term}
		m.claim()
		a.next.InSync = []Member{m.me()}
		a.next.Mark = Mark{Pair: a.next.PairID, By: a.next.Term, Term: m.ident.End.Term, LSN: m.ident.End.LSN}
	}
	a.next.Nodes = m.describe(a.next)
	for _, l := range m.live {
		if len(a.next.Nodes) == 1 && l.Node.ID != m.self.ID {
			a.next.Nodes = append(slices.Clone(a.next.Nodes), l.Node)
		}
	}
	a.next.OpID = fmt.Sprintf("%s/adopt/%d/%s", m.process, a.next.Config, a.id)
	m.pending = append(slices.Clone(m.pending), a.next)
	m.swapping = a.next.OpID
	if m.known {
		m.rev = a.rev
	}
	m.do(SwapRecord{Expect: a.rev, Next: a.next})
}

func (m *machine) adoptionSwapped(opID string, err error) {
	if m.adopts.id == "" || m.adopts.next.OpID != opID {
		return
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrAdopt, err)
	}
	m.do(AdoptEnded{ID: m.adopts.id, Failure: err})
	m.adopts = adopting{}
}
