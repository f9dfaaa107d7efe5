// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"crypto/sha256"
	"fmt"
	"time"
)

// This file computes the key of a world: worlds with the same key behave identically.

// key identifies a world. Times are included as remaining durations.
func (w *world) key() [16]byte {
	b := make([]byte, 0, 1024)
	b = fmt.Appendf(b, "%d %v %v %d %v %t%d%t|", w.rev, w.committed, w.left, w.writes, w.usedTerms, w.preferB,
		w.forcedTerm, w.blind)
	b = fmt.Appendf(b, "M%v|", w.mark)
	if w.rec != nil {
		b = appendRecord(b, *w.rec)
	}
	for _, e := range w.inflight {
		b = fmt.Appendf(b, "~%d %d", e.host, e.Expect)
		b = appendRecord(b, e.Next)
	}
	b = w.copies.appendKey(b)
	for i := range w.hosts {
		n := &w.hosts[i]
		if n.bare {
			continue
		}
		b = fmt.Appendf(b, "%d%t%t%v", n.known, n.copied, n.woken, n.reached)
		b = fmt.Appendf(b, "%t", n.asked)
		b = fmt.Appendf(b, "|N%t%d%v%v%t%t%v%d%t%v %d %d %d%d", n.up, n.starts, n.log, n.fence, n.loss, n.load,
			n.queue, n.drain, n.held, n.told.Fence, n.durable, n.inc, n.node, n.store)
		b = fmt.Appendf(b, "%t%s%s%s", n.announced, n.asks, n.generation, n.claimed)
		if n.swap != nil {
			b = appendRecord(fmt.Appendf(b, "s%d", n.swap.Expect), n.swap.Next)
		}
		if n.primary != nil {
			b = fmt.Appendf(b, "p%v", *n.primary)
		}
		if n.follow != nil {
			b = fmt.Appendf(b, "f%v", *n.follow)
		}
		if n.up {
			b = n.st.appendKey(b)
		}
	}
	sum := sha256.Sum256(b)
	return [16]byte(sum[:16])
}

func appendRecord(b []byte, r Record) []byte {
	b = fmt.Appendf(b, "{%d %d %d %s", r.Config, r.Term, nodeIndex(r.Active), r.OpID)
	for _, m := range r.InSync {
		b = fmt.Appendf(b, " %d/%d/%s", nodeIndex(m.Node), m.Incarnation, m.Generation)
	}
	if r.Switchover != nil {
		b = fmt.Appendf(b, " %s", r.Switchover.ID)
	}
	if r.Forced != nil {
		b = fmt.Appendf(b, " F%d %d %t", r.Forced.Term, r.Forced.After, r.Forced.Settled)
	}
	b = fmt.Appendf(b, " M%d/%d/%d", r.Mark.By, r.Mark.Term, r.Mark.LSN)
	if r.Paused != nil {
		b = append(b, 'P')
	}
	return append(b, '}')
}

// appendKey adds everything in s that affects its behavior.
func (s *State) appendKey(b []byte) []byte {
	left := func(t time.Duration) time.Duration {
		if t == never {
			return never
		}
		return max(0, t-s.now)
	}
	b = fmt.Appendf(b, "S%t%t%d%q%t%d", s.known, s.missing, s.rev, s.problem, s.reachable, s.bootTerm)
	b = appendRecord(b, s.rec)
	for _, p := range s.pending {
		b = appendRecord(b, p)
	}
	b = fmt.Appendf(b, "%s %t%t%t%d m%d u%d %t%t", s.swapping, s.loading, s.needLoad, s.unknown, left(s.retryAt),
		s.mode, s.usedTerm,
		s.candidate, s.fenced)
	b = fmt.Appendf(b, "F%t%t%d %d %d", s.follow.connected, s.follow.ever, s.follow.cause,
		left(s.follow.since+s.set.FailoverTimeout),
		left(s.started+s.set.StartupWait))
	b = fmt.Appendf(b, "l%v", s.follow.incomplete)
	b = fmt.Appendf(b, "A%d %t %d %d %v", s.act.term, s.act.ready, s.act.standby, left(s.act.dropAt), s.act.sent)
	if s.act.blocked != never {
		b = fmt.Appendf(b, "b%d", left(s.act.blocked+s.set.RefuseAfter))
	}
	b = fmt.Appendf(b, "H%d%s%d %s", s.hand.phase, s.hand.id, left(s.hand.deadline), s.hand.declined)
	b = fmt.Appendf(b, "Q%s%t%d L%d", s.request.id, s.request.seen, left(s.request.deadline), len(s.live))
	b = fmt.Appendf(b, "W%s%t%d B%d", s.forces.id, s.forces.abandoned, left(s.forces.deadline), left(s.act.transferAt))
	r := &s.proc
	b = fmt.Appendf(b, "R%t%t%t%q%q%v%t%t%v%s%s%t%d%v", r.claimed, r.named, r.logGrown, r.superseded, r.rolledBack, r.mark,
		r.markKnown, r.announced, r.duplicate,
		r.copyOf, r.gone, r.checkingDuplicate, left(r.duplicateCheckAt), s.handshake)
	b = fmt.Appendf(b, "c%t%v%v%q%v", r.compared, r.boot, r.queried, r.missing, r.beside)
	b = fmt.Appendf(b, "O%s%d%t", s.adopts.id, s.adopts.rev, s.refused != nil)
	return b
}
