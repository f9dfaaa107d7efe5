// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
)

// This file is what becomes of disks in the model: a disk is copied in the state that a power cut would leave it in, a
// copy is put into any host, two disks change their places, one is empty; and a virtual machine goes on from an old
// snapshot of disk and memory.

// diskMoves are the actions of this file.
var diskMoves = []string{"image", "seal", "place", "swap-disks", "empty", "wake-old"}

// copies is what this file keeps in a world.
type copies struct {
	image  *wdisk // never changed in place
	memory *whost // the process over that disk, if one ran; never changed in place
	of     int    // host that they are from
	starts [3]int // processes that were started in each host
	moved  bool   // a disk is not where, or not what, it was
}

func (c *copies) appendKey(b []byte) []byte {
	if c.image == nil {
		return b
	}
	b = fmt.Appendf(b, "I%d%t%d %v %s%s", c.of, c.moved, c.image.node, c.image.log, c.image.run, c.image.claimed)
	if c.memory != nil {
		b = c.memory.st.appendKey(b)
	}
	return b
}

// errExcused ends a path on which something is lost that no node can keep: the only copy was put back by less than what
// the coordinator knows, or no node that has more was there.
var errExcused = errors.New("no node can know better")

// ends tells whether the outcome of a swap ends the path.
func ends(err error) bool { return errors.Is(err, errViolated) || errors.Is(err, errExcused) }

// nodeOf is a node by its index: the two of the pair, and those that begin with an empty disk.
func nodeOf(k int) NodeInfo {
	if k < len(testNodes) {
		return testNodes[k]
	}
	return NodeInfo{ID: uuid.UUID{0xc0 + byte(k)}, Name: string(rune('a' + k))}
}

func storeOf(k int) uuid.UUID {
	if k < len(testStores) {
		return testStores[k]
	}
	return uuid.UUID{0xd0 + byte(k)}
}

// whole tells whether a disk has all that was acknowledged.
func (w *world) whole(d *wdisk) bool { return commonPrefix(d.log, w.committed) == len(w.committed) }

// belongs tells whether a disk is of a store that is in sync, whatever the run.
func belongs(rec *Record, d *wdisk) bool {
	return rec != nil && slices.ContainsFunc(rec.InSync, func(m Member) bool {
		return m.Node == d.nodeID() && m.Store == storeOf(d.store) && m.Incarnation == 1+d.inc
	})
}

// diskActions lists what can become of disks now.
func (w *world) diskActions(as []action) []action {
	c := &w.copies
	for i := range w.hosts {
		n := &w.hosts[i]
		if !n.bare && w.left.image > 0 && w.rec != nil {
			as = append(as, action{"image", i, len(n.log)})
			if n.up && n.durable < len(n.log) {
				as = append(as, action{"image", i, n.durable})
			}
		}
		if n.up && w.heard(i) > n.known && w.left.seal > 0 {
			as = append(as, action{"seal", i, 0})
		}
		if !n.up && c.image != nil && w.left.place > 0 && w.mayReplace(i, c.image) {
			as = append(as, action{"place", i, 0})
		}
		if !n.up && !n.bare && w.left.empty > 0 && w.mayReplace(i, &wdisk{}) {
			as = append(as, action{"empty", i, 0})
		}
		if m := c.memory; m != nil && c.of == i && w.left.resume > 0 && m.st.rev == w.rev && m.swap == nil &&
			w.mayWake(i) {
			as = append(as, action{"wake-old", i, 0})
		}
	}
	if w.left.swap > 0 && len(w.inflight) == 0 && !w.hosts[0].up && !w.hosts[1].up {
		as = append(as, action{"swap-disks", 0, 0})
	}
	return as
}

// mayReplace tells whether the disk in a host may become another one without a loss that no node could notice: one that
// is whole is left, or the coordinator knows that the new one is not.
func (w *world) mayReplace(i int, by *wdisk) bool {
	if len(w.inflight) > 0 {
		return false // it may be that only the new disk is in sync in a moment
	}
	left := *w
	left.hosts[i].wdisk, left.hosts[i].bare = *by, false
	for j := range left.hosts {
		if d := &left.hosts[j]; !d.bare && belongs(w.rec, &d.wdisk) && w.whole(&d.wdisk) {
			return true
		}
	}
	return !w.highMark().Reached(by.identity().End) && len(by.log) > 0
}

// mayWake tells whether a machine may go on from its snapshot: only the other node can tell it that it is old.
func (w *world) mayWake(i int) bool {
	return slices.ContainsFunc(w.hosts[:], func(n whost) bool {
		return !n.bare && n.node != w.copies.image.node && belongs(w.rec, &n.wdisk) && w.whole(&n.wdisk)
	}) && w.mayReplace(i, w.copies.image)
}

// highMark is what the coordinator knows.
func (w *world) highMark() Mark {
	if w.rec != nil && w.rec.Mark.Pair == w.rec.PairID && w.mark.Less(w.rec.Mark) {
		return w.rec.Mark
	}
	return w.mark
}

// heard is how far the process of a host knows the log to be committed.
func (w *world) heard(i int) int {
	n := &w.hosts[i]
	switch {
	case n.primary != nil:
		return n.primary.commit
	case n.follow != nil && n.follow.connected && n.follow.alive && w.hosts[n.follow.to].primary != nil:
		return min(w.hosts[n.follow.to].primary.commit, len(n.log))
	default:
		return n.known
	}
}

func (w *world) actDisk(a action) error {
	i := a.node
	n, c := &w.hosts[i], &w.copies
	switch a.kind {
	case "image":
		w.left.image--
		d := n.wdisk
		d.log = slices.Clone(n.log[:a.arg])
		d.known = min(d.known, a.arg)
		c.image, c.memory, c.of = &d, nil, i
		if n.up {
			m := *n
			m.log, m.known = d.log, d.known
			c.memory = &m
		}
	case "seal":
		w.left.seal--
		n.known = w.heard(i)
	case "place":
		w.left.place--
		w.put(i, *c.image)
	case "swap-disks":
		w.left.swap--
		d := w.hosts[1].wdisk
		w.put(1, w.hosts[0].wdisk)
		w.put(0, d)
	case "empty":
		w.left.empty--
		k := len(testNodes) + int(w.left.empty)
		w.put(i, wdisk{node: k, store: k})
	case "wake-old":
		w.left.resume--
		w.resume(i)
	}
	return nil
}

// put puts a disk into a host that is down.
func (w *world) put(i int, d wdisk) {
	n := &w.hosts[i]
	d.copied, d.durable = true, 0
	n.wdisk, n.bare = d, false
	w.copies.moved = true
}

// resume lets a machine go on from its snapshot, with the memory of then. Its connections are broken.
func (w *world) resume(i int) {
	if n := &w.hosts[i]; n.up {
		w.crash(i, len(n.log))
	}
	n := *w.copies.memory
	n.copied, n.woken, n.reached = true, true, [3]int{}
	if n.follow != nil {
		f := *n.follow
		f.alive = false
		n.follow = &f
	}
	if n.primary != nil {
		p := *n.primary
		p.alive = false
		n.primary = &p
	}
	w.hosts[i] = n
	w.copies.moved = true
}

// losing looks at a record that is about to be written: do only stores remain in sync that lack something that was
// acknowledged?
func (w *world) losing(e wswap) error {
	by, next := e.host, e.Next
	_, in := next.Member(w.hosts[by].nodeID())
	if isForced(next) || len(w.committed) == 0 || !in {
		return nil // (one that leaves takes nothing)
	}
	for i := range w.hosts {
		n := &w.hosts[i]
		if !n.bare && w.whole(&n.wdisk) && slices.ContainsFunc(next.InSync, n.named) {
			return nil
		}
	}
	if !w.copies.moved {
		return nil // a loss (INV-6); check looks at it
	}
	for i := range w.hosts {
		n := &w.hosts[i]
		if n.up && e.reached[i] == n.starts && n.node != w.hosts[by].node && belongs(w.rec, &n.wdisk) &&
			w.whole(&n.wdisk) {
			return violated("INV-13: host %d writes %v, in which no store has %v; it could have asked host %d, which "+
				"has it", by, next.InSync, w.committed, i)
		}
	}
	asked := e.asked || w.hosts[by].woken || w.rec.Active != w.hosts[by].nodeID()
	for i := range w.hosts {
		if n := &w.hosts[i]; !asked && n.up && n.node != w.hosts[by].node && belongs(w.rec, &n.wdisk) &&
			w.whole(&n.wdisk) {
			return violated("INV-13: host %d takes the role again, without having asked; host %d has %v", by, i,
				w.committed)
		}
	}
	if d := &w.hosts[by].wdisk; !w.hosts[by].woken && !e.mark.Reached(d.identity().End) {
		return violated("INV-12: host %d takes the role with a log that ends at %s; the mark was %s", by,
			d.identity().End, e.mark)
	}
	return errExcused
}

// refusal says why the active that a follower reaches does not take it, or it does not take that one; 0 if they go on
// together.
func (w *world) refusal(i int) LostCause {
	n := &w.hosts[i]
	o := &w.hosts[n.follow.to]
	p := o.primary
	requires := func(m Member) bool { return p.cfg.RequireStandby && p.cfg.Standby == m }
	switch {
	case !n.fence.Admits(p.cfg.Config, p.term), n.nodeID() == o.nodeID():
		return LostRejected
	case p.open && p.alive && p.session.Node != n.nodeID() && (!requires(w.member(i)) || requires(p.session)):
		return LostRejected
	case n.keeps() > commonPrefix(n.log, o.log):
		return LostBehind // INV-13
	case requires(w.member(i)) && commonPrefix(n.log, o.log) < p.commit:
		return LostRejected // it had acknowledged more
	default:
		return 0
	}
}

// reach notes that the process in a host has had an answer from the one in another.
func (w *world) reach(i, o int) {
	if w.hosts[o].up {
		w.hosts[i].reached[o] = w.hosts[o].starts
	}
}

// keeps is how much of its log a follower lets no active cut: all that it knows to be committed, but for what a forced
// failover made void.
func (n *whost) keeps() int {
	if f := n.st.rec.Forced; f != nil && n.known > 0 && uint64(n.log[n.known-1].term) < f.Term {
		return min(n.known, int(f.After))
	}
	return n.known
}

// learn notes whom the process in a host has heard of with a report of its data plane.
func (w *world) learn(i int, ev DataEvent) {
	n := &w.hosts[i]
	var member Member
	switch e := ev.(type) {
	case FollowerLacks:
		if n.follow != nil {
			w.reach(i, n.follow.to)
		}
		return
	case StandbyConnected:
		member = e.Member
	case StandbyAhead:
		member = e.Member
	default:
		return
	}
	for o := range w.hosts {
		if f := w.hosts[o].follow; f != nil && f.to == i && w.member(o) == member {
			w.reach(i, o)
		}
	}
}

// refuse tells both sides.
func (w *world) refuse(i int, cause LostCause) {
	n := &w.hosts[i]
	o := &w.hosts[n.follow.to]
	f := *n.follow
	f.cause = cause
	n.follow = &f
	if c := o.primary.cfg; c.RequireStandby && c.Standby == w.member(i) &&
		commonPrefix(n.log, o.log) < o.primary.commit {
		n.post(FollowerLacks{})
	}
	n.post(FollowerLost{Cause: cause})
	switch {
	case cause == LostBehind:
		o.post(StandbyAhead{Member: w.member(i), End: n.identity().End, Committed: n.identity().Committed})
	case !n.fence.Admits(o.primary.cfg.Config, o.primary.term):
		o.post(StandbyLost{Node: n.nodeID(), Cause: LostAhead})
	case n.nodeID() != o.nodeID() && !o.primary.open:
		o.post(StandbyLost{Node: n.nodeID(), Cause: LostRejected})
	}
}

// clearCopied forgets that a disk was put into its host when the record names its run and it has everything.
func (w *world) clearCopied() {
	for i := range w.hosts {
		n := &w.hosts[i]
		if !n.copied || !n.up || w.rec == nil || !w.whole(&n.wdisk) {
			continue
		}
		if me, ok := w.rec.Member(n.nodeID()); ok && me == n.st.me() && me.Run == n.st.run.id {
			n.copied = false
		}
	}
}
