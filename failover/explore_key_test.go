// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"hash/maphash"
	"time"
)

// This file computes the key of a world: worlds with the same key behave identically.

var keySeed = maphash.MakeSeed()

// worldHash hashes comparable values. Formatting them instead would more than double the time of an exploration.
type worldHash struct{ maphash.Hash }

func (h *worldHash) add(values ...any) {
	for _, v := range values {
		maphash.WriteComparable(&h.Hash, v)
	}
}

func (h *worldHash) addLog(log []entry) {
	h.add(len(log))
	for _, e := range log {
		maphash.WriteComparable(&h.Hash, e)
	}
}

// key identifies a world. Times are included as remaining durations.
func (w *world) key() uint64 {
	var h worldHash
	h.SetSeed(keySeed)
	h.add(w.rev, w.left, w.writes, w.usedTerms, w.preferB, w.forcedTerm, w.blind, w.mark, w.rec != nil)
	h.addLog(w.committed)
	if w.rec != nil {
		h.addRecord(*w.rec)
	}
	h.add(len(w.inflight))
	for _, e := range w.inflight {
		h.add(e.host, e.Expect)
		h.addRecord(e.Next)
	}
	h.addCopies(&w.copies)
	for i := range w.hosts {
		n := &w.hosts[i]
		h.add(n.bare)
		if n.bare {
			continue
		}
		h.add(n.known, n.copied, n.resumed, n.reached, n.queried, n.up, n.starts, n.fence, n.loss, n.load, n.drain, n.held,
			n.fed.Fence, n.durable, n.inc, n.node, n.store, n.announced, n.query, n.generation, n.claimed,
			n.swap != nil, n.primary != nil, n.follow != nil)
		h.addLog(n.log)
		h.add(len(n.queue))
		for _, ev := range n.queue {
			h.add(ev)
		}
		if n.swap != nil {
			h.add(n.swap.Expect)
			h.addRecord(n.swap.Next)
		}
		if n.primary != nil {
			h.add(*n.primary)
		}
		if n.follow != nil {
			h.add(*n.follow)
		}
		if n.up {
			h.addState(&n.st)
		}
	}
	return h.Sum64()
}

func (h *worldHash) addRecord(r Record) {
	h.add(r.Config, r.Term, r.Active, r.OpID, len(r.InSync), r.Switchover != nil, r.Forced != nil, r.Paused != nil,
		r.Mark)
	for _, m := range r.InSync {
		h.add(m.Node, m.Incarnation, m.Generation)
	}
	if r.Switchover != nil {
		h.add(r.Switchover.ID)
	}
	if r.Forced != nil {
		h.add(r.Forced.Term, r.Forced.After, r.Forced.Settled)
	}
}

// addState adds everything in s that affects its behavior.
func (h *worldHash) addState(s *State) {
	left := func(t time.Duration) time.Duration {
		if t == never {
			return never
		}
		return max(0, t-s.now)
	}
	h.add(s.known, s.missing, s.rev, s.problem, s.reachable, s.bootTerm)
	h.addRecord(s.rec)
	h.add(len(s.pending))
	for _, p := range s.pending {
		h.addRecord(p)
	}
	h.add(s.swapping, s.loading, s.needLoad, s.unknown, left(s.retryAt), s.mode, s.usedTerm, s.candidate, s.fenced)
	f := &s.follow
	h.add(f.connected, f.ever, f.cause, left(f.since+s.set.FailoverTimeout), left(s.started+s.set.StartupWait),
		f.incomplete)
	a := &s.act
	h.add(a.term, a.ready, a.standby, left(a.dropAt), a.sent, left(a.transferAt), a.blocked != never)
	if a.blocked != never {
		h.add(left(a.blocked + s.set.RefuseAfter))
	}
	h.add(s.hand.phase, s.hand.id, left(s.hand.deadline), s.hand.declined)
	h.add(s.request.id, s.request.seen, left(s.request.deadline), len(s.live))
	h.add(s.forces.id, s.forces.abandoned, left(s.forces.deadline))
	r := &s.proc
	h.add(r.claimed, r.named, r.logGrown, r.superseded, r.rolledBack, r.mark, r.markKnown, r.announced, r.duplicate,
		r.copyOf, r.gone, r.checkingDuplicate, left(r.duplicateCheckAt), s.handshake)
	h.add(r.compared, r.boot, r.queried, r.missing, r.beside)
	h.add(s.adopts.id, s.adopts.rev, s.refused != nil)
}
