// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"errors"
	"fmt"
	"slices"
)

// action is one possible event in a world.
type action struct {
	kind string
	node int
	arg  int
}

func (a action) String() string { return fmt.Sprintf("%s(%d,%d)", a.kind, a.node, a.arg) }

// actions returns the events that are currently possible.
func (w *world) actions() []action {
	var as []action
	for i := range w.inflight {
		as = append(as, action{"late-swap", 0, i})
	}
	as = w.operatorActions(as)
	as = w.diskActions(as)
	for i := range w.hosts {
		n := &w.hosts[i]
		if n.bare || !n.up && w.gone {
			continue
		}
		if !n.up {
			as = append(as, action{"restart", i, 0})
			continue
		}
		as = w.coordinatorActions(as, i)
		as = w.streamActions(as, i)
		as = w.activeActions(as, i)
		if w.left.crash > 0 {
			as = append(as, action{"crash", i, len(n.log)})
			if n.durable < len(n.log) {
				as = append(as, action{"crash", i, n.durable})
			}
			if w.left.loss > 0 && len(n.log) > 0 {
				as = append(as, action{"crash-loss", i, len(n.log) - 1})
			}
		}
		if _, ok := n.st.Deadline(); ok && w.left.tick > 0 && n.query == "" { // responses are faster than timers
			as = append(as, action{"tick", i, 0})
		}
		if w.left.switchover > 0 && n.st.known {
			as = append(as, action{"switchover", i, 0})
		}
	}
	return as
}

func (w *world) coordinatorActions(as []action, i int) []action {
	n := &w.hosts[i]
	newer := !n.st.known || n.st.rev != w.rev || !n.st.reachable || !n.st.liveKnown || !w.blind &&
		!slices.Equal(n.st.live, w.liveNodes())
	if w.rec != nil && newer {
		as = append(as, action{"observe", i, 0})
	}
	if w.rec == nil && !n.st.liveKnown {
		as = append(as, action{"observe-live", i, 0})
	}
	if n.st.reachable && w.left.unreach > 0 {
		as = append(as, action{"unreachable", i, 0})
	}
	if n.load {
		as = append(as, action{"load", i, 0})
		if w.left.loadFail > 0 {
			as = append(as, action{"load-fail", i, 0})
		}
	}
	if n.swap != nil {
		as = append(as, action{"swap", i, 0})
		if w.left.unknown > 0 {
			as = append(as, action{"swap-unknown", i, 0})
		}
	}
	if n.query != "" {
		as = append(as, action{"handshake", i, 0})
	}
	if p := n.primary; p != nil && w.left.mark > 0 && p.commit > 0 && uint64(n.log[p.commit-1].term) == p.term {
		as = append(as, action{"mark", i, 0})
	}
	if len(n.queue) > 0 {
		as = append(as, action{"event", i, 0})
	}
	return as
}

func (w *world) streamActions(as []action, i int) []action {
	n := &w.hosts[i]
	f := n.follow
	if f == nil {
		return as
	}
	o := &w.hosts[f.to]
	if len(n.queue) > 3 || len(o.queue) > 3 {
		return as
	}
	switch {
	case f.connected && !f.alive:
		as = append(as, action{"follower-detects", i, 0})
	case f.connected:
		if o.primary != nil && (len(n.log) != len(o.log) ||
			n.fence != Fence{Config: o.primary.cfg.Config, Term: o.primary.term}) {
			as = append(as, action{"replicate", i, 0})
		}
		if w.left.cut > 0 {
			as = append(as, action{"cut", i, 0})
		}
	case !o.up && f.cause != LostRefused:
		as = append(as, action{"refused", i, 0})
	case o.up && o.primary == nil && f.cause != LostRejected:
		as = append(as, action{"rejected", i, 0})
	case o.primary != nil && (f.cause == 0 || f.cause != w.refusal(i)):
		as = append(as, action{"connect", i, 0})
	}
	return as
}

func (w *world) activeActions(as []action, i int) []action {
	n := &w.hosts[i]
	p := n.primary
	if p == nil {
		return as
	}
	if !p.ready {
		as = append(as, action{"ready", i, 0})
	}
	if p.open && p.acked < p.sent {
		as = append(as, action{"ack", i, 0})
	}
	if p.open && !p.alive {
		as = append(as, action{"active-detects", i, 0})
	}
	if p.cfg.Serve && !n.held && w.left.write > 0 {
		as = append(as, action{"write", i, 0})
	}
	if n.commitPoint() > p.commit {
		as = append(as, action{"commit", i, 0})
	}
	if n.drain != 0 {
		if p.open && p.acked == len(n.log) && p.commit == len(n.log) {
			as = append(as, action{"drained", i, 0})
		}
		if w.left.drainFail > 0 {
			as = append(as, action{"drain-fails", i, 0})
		}
	}
	return as
}

// do returns a copy of the world to which the action is applied.
func (w world) do(a action) (world, error) {
	err := w.act(a)
	if err == nil {
		for i := range w.hosts {
			w.sessionEvents(i)
		}
		err = w.check()
	}
	return w, err
}

func (w *world) act(a action) error {
	n, i := &w.hosts[a.node], a.node
	switch a.kind {
	case "late-swap":
		e := w.inflight[a.arg]
		w.inflight = slices.Delete(slices.Clone(w.inflight), a.arg, a.arg+1)
		if _, err := w.swapAt(e); ends(err) {
			return err
		}
	case "restart":
		return w.restart(i)
	case "crash", "crash-loss":
		w.left.crash--
		w.crash(i, a.arg)
		if a.kind == "crash-loss" {
			w.left.loss--
			n.loss = true
		}
	case "tick":
		w.left.tick--
		at, _ := n.st.Deadline()
		return w.stepAt(i, at, Ticked{})
	case "switchover":
		w.left.switchover--
		return w.feed(i, SwitchoverRequested{ID: fmt.Sprintf("x%d", w.left.switchover)})
	case "event":
		ev := n.queue[0]
		n.queue = slices.Clone(n.queue[1:])
		w.learn(i, ev)
		return w.feed(i, Reported{Epoch: n.st.epoch, Event: ev})
	case "follower-detects":
		f := *n.follow
		f.connected, f.cause = false, LostReset
		n.follow = &f
		n.post(FollowerLost{Cause: LostReset})
	case "replicate":
		w.replicate(i)
	case "cut":
		w.left.cut--
		w.breakLink(i, LostReset)
	case "refused", "rejected":
		f := *n.follow
		f.cause = map[string]LostCause{"refused": LostRefused, "rejected": LostRejected}[a.kind]
		n.follow = &f
		n.post(FollowerLost{Cause: f.cause})
	case "connect":
		return w.connect(i)
	default:
		if n.primary != nil {
			return w.actActive(a, n)
		}
		return w.actCoordinator(a, n)
	}
	return nil
}

func (w *world) actActive(a action, n *whost) error {
	p := *n.primary
	switch a.kind {
	case "ready":
		p.ready = true
		n.primary = &p
		n.post(ActiveReady{})
	case "ack":
		p.acked = p.sent
		n.primary = &p
	case "active-detects":
		p.open = false
		n.primary = &p
		n.post(StandbyLost{Node: p.session.Node, Cause: LostReset})
	case "write":
		w.left.write--
		w.writes++
		n.known = p.commit // recorded in the block
		n.log = append(slices.Clone(n.log), entry{term: uint8(p.term), id: w.writes})
	case "commit":
		return w.commit(a.node)
	case "drained":
		d := n.drain
		n.drain = 0
		return w.feed(a.node, DrainEnded{Drain: d})
	case "drain-fails":
		w.left.drainFail--
		d := n.drain
		n.drain = 0
		return w.feed(a.node, DrainEnded{Drain: d, Err: errors.New("too slow")})
	default:
		return w.actCoordinator(a, n)
	}
	return nil
}

func (w *world) actCoordinator(a action, n *whost) error {
	i := a.node
	switch a.kind {
	case "observe":
		rec := *w.rec
		o := Observation{Record: &rec, Revision: w.rev, Reachable: true, LiveKnown: true, Live: w.liveNodes()}
		return w.feed(i, Observed{Observation: o})
	case "observe-live":
		return w.feed(i, Observed{Observation: Observation{Reachable: true, LiveKnown: true, Live: w.liveNodes()}})
	case "unreachable":
		w.left.unreach--
		return w.feed(i, Observed{Observation: Observation{Live: n.st.live, LiveKnown: n.st.liveKnown}})
	case "load":
		n.load = false
		if w.rec == nil {
			return w.feed(i, Loaded{Err: ErrNoRecord})
		}
		return w.feed(i, Loaded{Record: *w.rec, Revision: w.rev, Mark: w.mark})
	case "handshake":
		n.queried = true
		done := HandshakeDone{Address: n.query, Gone: true, Err: ErrGone}
		if o := hostAt(n.query); o >= 0 && w.hosts[o].up {
			p := &w.hosts[o]
			w.reach(i, o)
			done = HandshakeDone{Address: n.query, Peer: Peer{
				Node: p.nodeID(), Store: storeOf(p.store), Process: p.process(o),
				End: p.identity().End,
			}}
		}
		n.query = ""
		return w.feed(i, done)
	case "mark":
		w.left.mark--
		before := w.mark
		err := w.feed(i, Committed{Term: n.primary.term, LSN: uint64(n.primary.commit)})
		if err != nil || w.mark == before {
			return err
		}
		return w.feed(i, MarkWritten{Before: before})
	case "load-fail":
		w.left.loadFail--
		n.load = false
		return w.feed(i, Loaded{Err: ErrUnreachable})
	case "swap":
		e := *n.swap
		n.swap = nil
		rev, err := w.swapAt(e)
		if ends(err) {
			return err
		}
		return w.feed(i, Swapped{OpID: e.Next.OpID, Revision: rev, Err: err})
	case "swap-unknown":
		w.left.unknown--
		e := *n.swap
		n.swap = nil
		w.inflight = append(slices.Clone(w.inflight), e)
		return w.feed(i, Swapped{OpID: e.Next.OpID, Err: ErrUnknownOutcome})
	default:
		if slices.Contains(diskMoves, a.kind) {
			return w.actDisk(a)
		}
		return w.actOperator(a)
	}
}

// regular contains the actions that occur without a failure.
var regular = []string{
	"resume", "observe-live", "observe-missing", "handshake", "event", "swap", "load", "observe", "ready", "connect",
	"replicate", "ack", "commit", "drained",
	"follower-detects", "active-detects", "rejected", "refused", "late-swap",
}
