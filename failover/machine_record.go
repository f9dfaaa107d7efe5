// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store/mutate"
)

func (m *machine) observed(e Observed) {
	if e.Reachable && !m.reachable {
		m.retryAt = m.now
	}
	m.reachable, m.leaseUntil, m.hint = e.Reachable, e.LeaseUntil, e.Problem
	m.coordinatorConditions = e.Conditions
	if e.LiveKnown {
		m.live, m.liveKnown = e.Live, true
	}
	if m.proc.beside = (Live{}); e.Duplicate != nil && !e.Duplicate.Stale {
		m.proc.beside = e.Duplicate.Live
	}
	switch {
	case e.RecordErr != nil:
		m.refuse(e.RecordErr)
	case e.Record != nil:
		m.adopt(*e.Record, e.Revision)
	case e.Missing && m.known:
		m.load()
	}
}

func (m *machine) loaded(e Loaded) {
	m.loading = false
	switch {
	case e.Err == nil:
		m.reachable, m.needLoad = true, false
		m.marked(e.Mark)
		if m.known && e.Record.Config < m.rec.Config {
			// Either the watch was faster than this read, or the coordinator was restored to an older state. After a restore,
			// every swap conflicts, and role changes are suspended until an operator intervenes (INV-9).
			m.problem = fmt.Sprintf("coordinator has config %d, this node has %d", e.Record.Config, m.rec.Config)
			m.retryLater()
			return
		}
		m.unknown = false
		m.adopt(e.Record, e.Revision)
	case errors.Is(e.Err, ErrNoRecord):
		m.reachable, m.needLoad = true, false
		m.marked(e.Mark)
		m.recordMissing()
	case errors.Is(e.Err, ErrRecordVersion), errors.Is(e.Err, ErrRecordInvalid):
		m.reachable, m.needLoad = true, false
		m.refuse(e.Err)
		m.retryLater()
	default:
		m.reachable = false
		m.retryLater()
	}
}

func (m *machine) recordMissing() {
	switch {
	case m.known:
		m.problem = "cluster record is missing in the coordinator"
		m.retryLater()
	case m.ident.PairID == uuid.Nil && m.ident.Quarantine != "" && !mutate.Off("INV-9-quarantined-store-is-new"):
		m.wait(fmt.Errorf("%w, and the pair of this node is unknown: its identity was corrupt or missing, and its previous "+
			"data is in %s. Restore the coordinator's data, or run 'lockstep pair adopt' on the other node", ErrRecordLost,
			m.ident.Quarantine))
	case !m.ident.Empty() && !m.ident.Restored && !mutate.Off("INV-9-missing-record-is-recreated"):
		// INV-9: without the record, no node can determine which store is complete.
		m.wait(fmt.Errorf("%w (store %s, fence %s, log end %s): check the coordinator's address and key prefix, restore its "+
			"data, or, if the record is permanently lost, run 'lockstep pair adopt'", ErrRecordLost, m.ident.Store,
			m.ident.Fence, m.ident.End))
	default:
		m.missing, m.unknown, m.refused = true, false, nil // a restored store may have waited until the record was deleted
	}
}

// refuse records that the stored record is unusable. A node that has no record yet stops.
func (m *machine) refuse(err error) {
	if !m.known {
		m.halt(err)
		return
	}
	m.problem = err.Error()
}

func (m *machine) adopt(rec Record, rev Revision) {
	if m.halted || m.known && rec.Config < m.rec.Config {
		return
	}
	if m.known && rec.PairID != m.rec.PairID {
		m.problem = fmt.Sprintf("coordinator's record belongs to pair %s, this node to pair %s", rec.PairID, m.rec.PairID)
		return
	}
	if m.known && rec.Config == m.rec.Config {
		if rec.OpID != m.rec.OpID {
			m.problem = fmt.Sprintf("coordinator has a different record of config %d than this node", rec.Config)
			return
		}
		if rev != m.rev {
			m.rev, m.pending, m.unanswered = rev, nil, nil
		}
		m.problem = ""
		return
	}
	if !m.known && !m.admit(rec) {
		return
	}
	if !m.known && !m.wrote(rec) {
		m.bootTerm = rec.Term
	}
	if !m.wrote(rec) {
		m.change.term = 0
	}
	m.clearPreviousGeneration(rec)
	wasEligible := m.known && m.eligible()
	m.known, m.missing, m.problem, m.refused = true, false, "", nil
	m.rec, m.rev = rec, rev
	// All pending swaps expected the previous revision. Each one is this record, or can no longer be applied.
	m.pending, m.unanswered, m.unknown, m.needLoad, m.refusal = nil, nil, false, false, ""
	m.retryAt = m.now
	m.candidate = false
	m.compareGeneration()
	if !wasEligible && m.mode == modeFollow && m.follow.active.ID == rec.Active && m.eligible() {
		m.admitted()
	}
	m.forceSettled()
	if m.request.id != "" && rec.Switchover != nil && rec.Switchover.ID == m.request.id {
		m.request.seen = true
	}
}

func (m *machine) wrote(rec Record) bool {
	return slices.ContainsFunc(m.pending, func(p Record) bool { return p.OpID == rec.OpID })
}

// begun reports whether this node created the pair of rec with a restored store, but stopped before it persisted
// the pair ID.
func (m *machine) begun(rec Record) bool {
	own, ok := rec.Member(m.self.ID)
	return ok && m.ident.Restored && own.Is(m.ident.Member().WithGeneration(own.Generation))
}

// admit reports whether the first record of this process is consistent with its store. If it is, a store without a pair
// joins the pair of the record. Otherwise the machine halts or waits.
func (m *machine) admit(rec Record) bool {
	switch {
	case m.ident.PairID != uuid.Nil && m.ident.PairID != rec.PairID:
		m.halt(fmt.Errorf("%w: store has pair %s, coordinator has pair %s: check the coordinator's address and key prefix, "+
			"and the data directory", ErrOtherPair, m.ident.PairID, rec.PairID))
	case m.ident.PairID == uuid.Nil && m.ident.Restored && !m.begun(rec) && m.ident.Quarantine == "":
		// An empty node was started first, and created the pair. This node waits instead of stopping.
		m.wait(fmt.Errorf("%w: store has records up to %s, active of pair %s is node %s. To serve the backup instead of "+
			"the messages of the pair, follow \"Start a pair from a restored store\" in docs/how-to/back-up-and-restore.md; to "+
			"join the pair, start this node with an empty data directory", ErrRestored, m.ident.End, rec.PairID, rec.Active))
	case m.ident.PairID == uuid.Nil && !m.ident.Empty() && !m.begun(rec) && m.ident.Quarantine == "":
		m.halt(fmt.Errorf("%w: store has records up to %s, but was never part of pair %s, which lacks them: to join the "+
			"pair, keep this data directory, and start this node with another, empty one", ErrOtherPair, m.ident.End,
			rec.PairID))
	case rec.Config < m.bootFence.Config && !mutate.Off("INV-9-older-record-is-accepted"):
		m.wait(fmt.Errorf("%w: record has config %d, this node has %d: the coordinator was restored from an old copy; "+
			"restore a newer one, or, if none exists, run 'lockstep pair adopt'", ErrRecordOld, rec.Config,
			m.bootFence.Config)) // INV-9
	default:
		if m.ident.PairID == uuid.Nil {
			m.do(JoinPair{Pair: rec.PairID})
			m.ident.PairID = rec.PairID
		}
		return true
	}
	return false
}

func (m *machine) swapped(e Swapped) {
	if m.swapping == e.OpID {
		m.swapping = ""
	}
	defer m.adoptionSwapped(e.OpID, e.Err)
	i := slices.IndexFunc(m.pending, func(p Record) bool { return p.OpID == e.OpID })
	if i < 0 {
		return // already resolved by a record at another revision
	}
	switch {
	case e.Err == nil:
		m.reachable = true
		m.adopt(m.pending[i], e.Revision)
	case errors.Is(e.Err, ErrConflict):
		m.reachable, m.needLoad = true, true
	case errors.Is(e.Err, ErrRefused):
		// An earlier attempt of the same swap may still be in flight.
		m.reachable = true
		if !slices.Contains(m.unanswered, e.OpID) {
			m.pending = slices.Delete(slices.Clone(m.pending), i, i+1)
		}
		m.refusal, m.refusedUntil = e.Err.Error(), m.now+m.set.RefusedDelay
	default:
		// INV-8: the swap stays pending. A later read of the old revision does not prove that the swap will not be applied.
		m.unknown, m.needLoad, m.reachable = true, true, false
		if !slices.Contains(m.unanswered, e.OpID) {
			m.unanswered = append(slices.Clone(m.unanswered), e.OpID)
		}
	}
}

func (m *machine) load() {
	m.needLoad = true
	if m.loading || m.swapping != "" || m.now < m.retryAt {
		return
	}
	m.loading = true
	m.do(LoadRecord{})
}

func (m *machine) retryLater() {
	m.needLoad = true
	m.retryAt = m.now + m.set.RetryDelay
}

// canSwap reports whether a swap may be sent now. If the coordinator may be unreachable, it requests a read first.
func (m *machine) canSwap() bool {
	if m.swapping != "" || m.loading || m.needLoad || m.refusal != "" && m.now < m.refusedUntil {
		return false
	}
	if !m.reachable || m.unknown || m.problem != "" {
		m.needLoad = true
		return false
	}
	return true
}

// propose sends a swap of the known record; the caller must have checked canSwap. A repeated proposal keeps its OpID.
func (m *machine) propose(next Record) {
	next.Version = RecordVersion
	next.Config = m.rec.Config + 1
	next.Nodes = m.describe(next)
	if mark := m.highWater(); next.Mark.Less(mark) && mark.LSN > 0 {
		next.Mark = mark
	}
	next.OpID = ""
	i := slices.IndexFunc(m.pending, func(p Record) bool { return sameProposal(p, next) })
	if i >= 0 {
		next = m.pending[i]
	} else {
		next.OpID = fmt.Sprintf("%s/%d/%d", m.process, next.Config, len(m.pending))
		m.pending = append(slices.Clone(m.pending), next)
	}
	m.swapping = next.OpID
	m.do(SwapRecord{Expect: m.rev, Next: next})
}

func sameProposal(a, b Record) bool {
	sw := a.Switchover == b.Switchover || a.Switchover != nil && b.Switchover != nil && *a.Switchover == *b.Switchover
	forced := a.Forced == b.Forced || a.Forced != nil && b.Forced != nil && *a.Forced == *b.Forced
	return sw && forced && a.PairID == b.PairID && a.Config == b.Config && a.Term == b.Term && a.Active == b.Active &&
		a.Mark == b.Mark && a.MinInSync == b.MinInSync && slices.Equal(a.InSync, b.InSync) &&
		slices.Equal(a.Nodes, b.Nodes)
}

// describe returns the descriptions of this node and, if known, of one other node, preferably the in-sync one, for
// Record.Nodes.
func (m *machine) describe(next Record) []NodeInfo {
	nodes := []NodeInfo{m.self}
	var other uuid.UUID
	if o, ok := next.Other(m.self.ID); ok {
		other = o.Node
	} else if next.Active != m.self.ID {
		other = next.Active
	} else {
		for _, n := range m.rec.Nodes {
			if n.ID != m.self.ID {
				other = n.ID
			}
		}
	}
	if n, ok := describeNode(m.rec, m.live, other); ok && other != uuid.Nil {
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b NodeInfo) int { return slices.Compare(a.ID[:], b.ID[:]) })
	return nodes
}

// create proposes the first record of a pair. The store is empty or restored.
func (m *machine) create() {
	if !m.canSwap() || !m.liveKnown || m.proc.duplicate != (Live{}) {
		return
	}
	m.claim()
	m.propose(Record{
		PairID: m.newPair, Term: m.ident.End.Term + 1, Active: m.self.ID, InSync: []Member{m.me()},
		MinInSync: m.set.MinInSync,
	})
}
