// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// This file models operators: they pause and resume the pair, force a failover, adopt the pair after the coordinator
// has lost its record, and set a preferred node.

// failbackDelay is the failback delay in worlds with a preferred node.
const failbackDelay = 30 * time.Second

// settings returns the settings of a node. Only node b can be the preferred node.
func (w *world) settings(i int) Settings {
	if !w.preferB {
		return Settings{}
	}
	return Settings{Preferred: i == 1, FailbackDelay: failbackDelay}
}

// info returns a node's description, as in its liveness key.
func (w *world) info(i int) NodeInfo {
	n := nodeOf(w.hosts[i].node)
	n.Address, n.Features = hostAddresses[i], KnownFeatures()
	n.Preferred = w.preferB && i == 1
	return n
}

// operatorActions appends the operator actions that are currently possible to as.
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
		// The server queries the other node first. A lease is no substitute, because the lease of a node that was
		// just started may not be visible yet.
		if w.left.force > 0 && n.st.checkForce(n.st.rec.Config) == nil && (!w.hosts[1-i].up || w.blind) {
			as = append(as, action{"force", i, 0})
		}
		if w.left.blind > 0 && w.rec != nil && w.hosts[1-i].up && len(n.st.live) > 1 {
			as = append(as, action{"lease-ends", i, 0})
		}
		if w.rec == nil && w.rev > 0 && (n.st.known && n.st.problem == "" || !n.st.reachable) {
			as = append(as, action{"observe-missing", i, 0})
		}
		if w.rec == nil && w.left.adopt > 0 && w.mayAdopt(i) {
			as = append(as, action{"adopt", i, 0})
		}
	}
	return as
}

// mayAdopt implements the server's checks before an adoption: the other node is not active, and its log is not ahead.
// The operator knows the log of a stopped node.
func (w *world) mayAdopt(i int) bool {
	n, o := &w.hosts[i], &w.hosts[1-i]
	if n.st.adopts.id != "" || n.swap != nil || n.loss || o.loss {
		return false // INV-6: the operator's action causes a loss, or the loss has already happened
	}
	own, theirs := n.identity().End, o.identity().End
	if n.primary != nil {
		if n.st.unknown || n.st.hand.phase != handoverNone {
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
		e := ForceRequested{ID: fmt.Sprintf("f%d", w.left.force), Config: n.st.rec.Config, End: n.identity().End}
		// the node's applied records are a prefix of the acknowledged records
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
		// The coordinator was wiped: calls in flight never get a response.
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
		e := AdoptRequested{ID: fmt.Sprintf("a%d", w.left.adopt), AcceptLoss: false}
		e.Above = Fence{Config: o.fence.Config, Term: max(o.fence.Term, o.identity().End.Term)}
		if o.up && o.st.known {
			e.Above = Fence{Config: max(e.Above.Config, o.st.rec.Config), Term: max(e.Above.Term, o.st.rec.Term)}
		}
		return w.feed(a.node, e)
	default:
		return violated("the model does not support action %s", a)
	}
	return nil
}

// liveNodes returns the nodes with an unexpired lease.
func (w *world) liveNodes() (live []Live) {
	for j := range w.hosts {
		if w.hosts[j].up && w.hosts[j].announced && !w.hosts[j].hidden {
			live = append(live, Live{Node: w.info(j), Process: w.hosts[j].process(j)})
		}
	}
	return live
}

// isForced reports whether a record activates a node by force.
func isForced(r Record) bool {
	return r.Forced != nil && r.Forced.Term == r.Term && r.Forced.Node == r.Active
}

// force checks a completed forced failover: only records acknowledged by the other node alone may be lost.
func (w *world) force(i int, next Record) error {
	n := &w.hosts[i]
	kept := commonPrefix(n.log, w.committed)
	// A node that lost its own bytes is a separate case, which the operator has also accepted.
	if lost := len(w.committed) - kept; lost > 0 && !n.loss && next.InSync[0] == w.member(i) &&
		uint64(kept) < next.Forced.After {
		return violated("the report excludes losses up to %d; node %d has %v, acknowledged are %v",
			next.Forced.After, i, n.log, w.committed)
	}
	w.committed = slices.Clone(w.committed[:kept])
	w.forcedTerm = next.Term
	return nil
}

// acksDiscarded reports whether acknowledgements of node i are lost, because a forced failover has replaced it and it
// has not detected this. This is allowed only if its lease expired while it was running.
func (w *world) acksDiscarded(i int) (bool, error) {
	if p := w.hosts[i].primary; p == nil || p.term >= w.forcedTerm {
		return false, nil
	}
	if !w.blind {
		return false, violated("node %d acknowledges in term %d after a forced failover began term %d", i,
			w.hosts[i].primary.term, w.forcedTerm)
	}
	return true, nil
}

// blindWorld returns a world with an active a without a standby. The link between the nodes is cut. b is not in sync,
// because records are missing on it.
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

// goneWorld is like lostWorld, but a is never restarted.
func goneWorld(t *testing.T) world {
	t.Helper()
	w := lostWorld(t)
	w.gone = true
	return w
}

// recoverByOperator returns the world after the operator actions without which the pair cannot recover.
func recoverByOperator(t *testing.T, w world) world {
	t.Helper()
	if w.rec == nil && (w.hosts[0].loss || w.hosts[1].loss) {
		return w // possibly, no store is complete
	}
	if w.rec == nil && !w.mayAdopt(0) && !w.mayAdopt(1) {
		// Both nodes are running, and each one rejects the adoption because of the other. After a restart, both nodes
		// wait, and their logs can be compared.
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
