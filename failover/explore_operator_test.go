// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// This file is what operators do in the model: they pause and resume the pair, force a failover, have a node adopt the
// pair after the coordinator has lost its record; and what they have set: which node is preferred.

// failbackDelay in worlds with a preferred node.
const failbackDelay = 30 * time.Second

// settings of the nodes. Node b is the preferred one, if there is one.
func (w *world) settings(i int) Settings {
	if !w.preferB {
		return Settings{}
	}
	return Settings{Preferred: i == 1, FailbackDelay: failbackDelay}
}

// info describes a node as its liveness key does.
func (w *world) info(i int) NodeInfo {
	n := nodeOf(w.hosts[i].node)
	n.Address, n.Features = hostAddresses[i], KnownFeatures()
	n.Preferred = w.preferB && i == 1
	return n
}

// operatorActions lists what operators can do now.
func (w *world) operatorActions(as []action) []action {
	if w.rec != nil && w.left.pause > 0 {
		as = append(as, action{"pause", 0, 0})
	}
	if w.rec != nil && w.rec.Paused != nil {
		as = append(as, action{"resume", 0, 0})
	}
	if w.rec != nil && w.left.lose > 0 && w.hosts[0].pair == testPair && w.hosts[1].pair == testPair {
		as = append(as, action{"lose-record", 0, 0})
	}
	for i := range testNodes {
		n := &w.hosts[i]
		if !n.up {
			continue
		}
		// The server asks the other node first, which a lease cannot replace: the lease of a node that has just been
		// started may be news yet.
		if w.left.force > 0 && n.st.forcible(n.st.rec.Config) == nil && (!w.hosts[1-i].up || w.blind) {
			as = append(as, action{"force", i, 0})
		}
		if w.left.blind > 0 && w.rec != nil && w.hosts[1-i].up && len(n.st.live) > 1 {
			as = append(as, action{"lease-ends", i, 0})
		}
		if w.rec == nil && w.rev > 0 && (n.st.known && n.st.trouble == "" || !n.st.reachable) {
			as = append(as, action{"observe-missing", i, 0})
		}
		if w.rec == nil && w.left.adopt > 0 && w.mayAdopt(i) {
			as = append(as, action{"adopt", i, 0})
		}
	}
	return as
}

// mayAdopt is what the server finds out before an adoption: the other node does not act, and its log is not ahead. What
// a node that is down holds, the operator knows.
func (w *world) mayAdopt(i int) bool {
	n, o := &w.hosts[i], &w.hosts[1-i]
	if n.st.adopts.id != "" || n.swap != nil || n.loss || o.loss {
		return false // INV-6: what an operator does then loses something, or has lost it already
	}
	own, theirs := n.identity().End, o.identity().End
	if n.primary != nil {
		if n.st.unknown || n.st.hand.phase != handNone {
			return false
		}
		return theirs.Term <= own.Term
	}
	return !n.st.known && o.primary == nil &&
		(theirs.Term < own.Term || theirs.Term == own.Term && theirs.LSN <= own.LSN)
}

func (w *world) actOperator(a action) error {
	n, o := &w.hosts[a.node], &w.hosts[1-a.node]
	switch a.kind {
	case "pause", "resume":
		next := w.rec.Clone()
		next.Config++
		next.Paused = nil
		if a.kind == "pause" {
			w.left.pause--
			next.Paused = &Pause{}
		}
		next.OpID = fmt.Sprintf("%s%d", a.kind, next.Config)
		w.rec = &next
		w.rev++
	case "force":
		w.left.force--
		e := ForceAsked{ID: fmt.Sprintf("f%d", w.left.force), Config: n.st.rec.Config, End: n.identity().End}
		// What it has applied: a prefix of what was acknowledged.
		e.Committed = uint64(commonPrefix(n.log, w.committed))
		return w.feed(a.node, e)
	case "lease-ends":
		w.left.blind--
		w.blind = true
		rec := *w.rec
		live := []Live{{Node: w.info(a.node), Process: n.process(a.node)}}
		return w.feed(a.node, Observed{Observation: Observation{
			Record: &rec, Revision: w.rev, Reachable: true,
			LiveKnown: true, Live: live,
		}})
	case "lose-record":
		// The coordinator was wiped: what was under way never gets an answer.
		w.left.lose--
		w.rec, w.inflight = nil, nil
		w.rev++
		for i := range testNodes {
			if w.hosts[i].swap == nil {
				continue
			}
			opID := w.hosts[i].swap.Next.OpID
			w.hosts[i].swap = nil
			if err := w.feed(i, Swapped{OpID: opID, Err: ErrUnknownOutcome}); err != nil {
				return err
			}
		}
	case "observe-missing":
		return w.feed(a.node, Observed{Observation: Observation{
			Missing: true, Reachable: true, LiveKnown: true,
			Live: w.liveNodes(),
		}})
	case "adopt":
		w.left.adopt--
		e := AdoptAsked{ID: fmt.Sprintf("a%d", w.left.adopt), AcceptLoss: false}
		e.Above = Fence{Config: o.fence.Config, Term: max(o.fence.Term, o.identity().End.Term)}
		if o.up && o.st.known {
			e.Above = Fence{Config: max(e.Above.Config, o.st.rec.Config), Term: max(e.Above.Term, o.st.rec.Term)}
		}
		return w.feed(a.node, e)
	default:
		return violated("action %s is not known to the model", a)
	}
	return nil
}

// liveNodes are those whose lease has not ended.
func (w *world) liveNodes() (live []Live) {
	for j := range w.hosts {
		if w.hosts[j].up && w.hosts[j].announced && !w.hosts[j].hidden {
			live = append(live, Live{Node: w.info(j), Process: w.hosts[j].process(j)})
		}
	}
	return live
}

// isForced tells whether a record makes a node active by force.
func isForced(r Record) bool {
	return r.Forced != nil && r.Forced.Term == r.Term && r.Forced.Node == r.Active
}

// force takes note of a forced failover that was done: what only the other node has acknowledged is lost, and nothing
// else.
func (w *world) force(i int, next Record) error {
	n := &w.hosts[i]
	kept := commonPrefix(n.log, w.committed)
	// (One that has lost bytes of its own is another matter, of which the operator was told, too.)
	if lost := len(w.committed) - kept; lost > 0 && !n.loss && next.InSync[0] == w.member(i) &&
		uint64(kept) < next.Forced.After {
		return violated("the operator was told that nothing up to %d is lost; node %d has %v, and %v was acknowledged",
			next.Forced.After, i, n.log, w.committed)
	}
	w.committed = slices.Clone(w.committed[:kept])
	w.forcedTerm = next.Term
	return nil
}

// isVoid tells whether what node i acknowledges is lost already: it was replaced by force, and does not know it yet.
// That must not be possible unless its lease had ended although it ran.
func (w *world) isVoid(i int) (bool, error) {
	if p := w.hosts[i].primary; p == nil || p.term >= w.forcedTerm {
		return false, nil
	}
	if !w.blind {
		return false, violated("node %d acknowledges in term %d after a forced failover began term %d", i,
			w.hosts[i].primary.term, w.forcedTerm)
	}
	return true, nil
}

// blindWorld has an active a that goes on alone; the link between the nodes is cut, and b, which lacks something, is
// not in sync.
func blindWorld(t *testing.T) world {
	t.Helper()
	w := soloWorld(t)
	w.left.write = 1
	w, err := w.do(action{"write", 0, 0})
	require.NoError(t, err)
	require.NoError(t, w.restart(1))
	return settle(t, w, func(w *world) bool {
		return w.hosts[1].follow != nil && !w.hosts[1].follow.connected && w.hosts[1].st.liveKnown
	})
}

// goneWorld is lostWorld, and a does not come back.
func goneWorld(t *testing.T) world {
	t.Helper()
	w := lostWorld(t)
	w.gone = true
	return w
}

// operatorHelps does what an operator has to do before a pair can recover by itself.
func operatorHelps(t *testing.T, w world) world {
	t.Helper()
	if w.rec == nil && (w.hosts[0].loss || w.hosts[1].loss) {
		return w // perhaps no store is complete
	}
	if w.rec == nil && !w.mayAdopt(0) && !w.mayAdopt(1) {
		// Both run, and each refuses because of the other. Started again, both wait, and can be compared.
		for i := range testNodes {
			w.crash(i, len(w.hosts[i].log))
		}
		for i := range testNodes {
			require.NoError(t, w.restart(i))
		}
	}
	if w.rec == nil {
		w = settle(t, w, func(w *world) bool { return w.rec != nil || w.mayAdopt(0) || w.mayAdopt(1) })
	}
	for i := range testNodes {
		if w.rec == nil && w.mayAdopt(i) {
			w.left.adopt = 1
			var err error
			w, err = w.do(action{"adopt", i, 0})
			require.NoError(t, err)
			w = settle(t, w, func(w *world) bool { return w.rec != nil })
		}
	}
	if w.rec.Paused != nil {
		w, err := w.do(action{"resume", 0, 0})
		require.NoError(t, err)
		return w
	}
	return w
}
