// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"errors"
	"slices"

	"github.com/google/uuid"
)

// This file models disks. A disk can be copied in the state after a power failure, and a copy can be put into any
// host. Two disks can be swapped, one can be empty, and a virtual machine can resume from an older snapshot of disk
// and memory.

// diskMoves are the actions of this file.
var diskMoves = []string{"image", "seal", "place", "swap-disks", "empty", "resume-old"}

// copies is the part of a world that this file models.
type copies struct {
	image  *wdisk // never changed in place
	memory *whost // process on that disk, if one was running; never changed in place
	of     int    // host of the image
	starts [3]int // number of process starts in each host
	moved  bool   // a disk was moved or replaced
}

func (h *worldHash) addCopies(c *copies) {
	h.add(c.image != nil, c.memory != nil)
	if c.image == nil {
		return
	}
	h.add(c.of, c.moved, c.image.node, c.image.generation, c.image.claimed)
	h.addLog(c.image.log)
	if c.memory != nil {
		h.addState(&c.memory.st)
	}
}

// errUndetectable ends a path with an undetectable loss: the only complete copy was replaced, or no node with more
// records was running.
var errUndetectable = errors.New("undetectable loss")

// ends reports whether an error ends the path.
func ends(err error) bool { return errors.Is(err, errViolated) || errors.Is(err, errUndetectable) }

// nodeOf returns a node by its index: one of the pair, or one that starts with an empty disk.
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

// complete reports whether a disk has all acknowledged records.
func (w *world) complete(d *wdisk) bool { return commonPrefix(d.log, w.committed) == len(w.committed) }

// belongs reports whether a disk belongs to an in-sync store, regardless of its generation.
func belongs(rec *Record, d *wdisk) bool {
	return rec != nil && slices.ContainsFunc(rec.InSync, func(m Member) bool {
		return m.Node == d.nodeID() && m.Store == storeOf(d.store) && m.Incarnation == 1+d.inc
	})
}

// diskActions appends the disk actions that are currently possible to as.
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
		if n.up && w.knownCommit(i) > n.known && w.left.seal > 0 {
			as = append(as, action{"seal", i, 0})
		}
		if !n.up && c.image != nil && w.left.place > 0 && w.mayReplace(i, c.image) {
			as = append(as, action{"place", i, 0})
		}
		if !n.up && !n.bare && w.left.empty > 0 && w.mayReplace(i, &wdisk{}) {
			as = append(as, action{"empty", i, 0})
		}
		if m := c.memory; m != nil && c.of == i && w.left.resume > 0 && m.st.rev == w.rev && m.swap == nil &&
			w.mayResume(i) {
			as = append(as, action{"resume-old", i, 0})
		}
	}
	if w.left.swap > 0 && len(w.inflight) == 0 && !w.hosts[0].up && !w.hosts[1].up {
		as = append(as, action{"swap-disks", 0, 0})
	}
	return as
}

// mayReplace reports whether the disk in a host may be replaced without an undetectable loss: a complete in-sync
// disk remains, or the coordinator knows that the new disk is incomplete.
func (w *world) mayReplace(i int, by *wdisk) bool {
	if len(w.inflight) > 0 {
		return false // the new disk may soon be the only one in sync
	}
	left := *w
	left.hosts[i].wdisk, left.hosts[i].bare = *by, false
	for j := range left.hosts {
		if d := &left.hosts[j]; !d.bare && belongs(w.rec, &d.wdisk) && w.complete(&d.wdisk) {
			return true
		}
	}
	return !w.highMark().Reached(by.identity().End) && len(by.log) > 0
}

// mayResume reports whether a machine may resume from its snapshot. Only the other node can detect that the snapshot
// is old.
func (w *world) mayResume(i int) bool {
	return slices.ContainsFunc(w.hosts[:], func(n whost) bool {
		return !n.bare && n.node != w.copies.image.node && belongs(w.rec, &n.wdisk) && w.complete(&n.wdisk)
	}) && w.mayReplace(i, w.copies.image)
}

// highMark returns the coordinator's highest mark.
func (w *world) highMark() Mark {
	if w.rec != nil && w.rec.Mark.Pair == w.rec.PairID && w.mark.Less(w.rec.Mark) {
		return w.rec.Mark
	}
	return w.mark
}

// knownCommit returns the committed position known to the process of a host.
func (w *world) knownCommit(i int) int {
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
		n.known = w.knownCommit(i)
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
	case "resume-old":
		w.left.resume--
		w.resume(i)
	}
	return nil
}

// put puts a disk into a stopped host.
func (w *world) put(i int, d wdisk) {
	n := &w.hosts[i]
	d.copied, d.durable = true, 0
	n.wdisk, n.bare = d, false
	w.copies.moved = true
}

// resume resumes a machine from its memory snapshot. Its connections are broken.
func (w *world) resume(i int) {
	if n := &w.hosts[i]; n.up {
		w.crash(i, len(n.log))
	}
	n := *w.copies.memory
	n.copied, n.resumed, n.reached = true, true, [3]int{}
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

// losing returns an error if a record about to be written has only incomplete stores in sync.
func (w *world) losing(e wswap) error {
	by, next := e.host, e.Next
	_, in := next.Member(w.hosts[by].nodeID())
	if isForced(next) || len(w.committed) == 0 || !in {
		return nil // a node that leaves in_sync causes no loss
	}
	for i := range w.hosts {
		n := &w.hosts[i]
		if !n.bare && w.complete(&n.wdisk) && slices.ContainsFunc(next.InSync, n.named) {
			return nil
		}
	}
	if !w.copies.moved {
		return nil // a loss (INV-6), checked by check
	}
	for i := range w.hosts {
		n := &w.hosts[i]
		if n.up && e.reached[i] == n.starts && n.node != w.hosts[by].node && belongs(w.rec, &n.wdisk) &&
			w.complete(&n.wdisk) {
			return violated("INV-13: host %d writes %v, in which no store has %v; host %d has it, but "+
				"was not queried", by, next.InSync, w.committed, i)
		}
	}
	queried := e.queried || w.hosts[by].resumed || w.rec.Active != w.hosts[by].nodeID()
	for i := range w.hosts {
		if n := &w.hosts[i]; !queried && n.up && n.node != w.hosts[by].node && belongs(w.rec, &n.wdisk) &&
			w.complete(&n.wdisk) {
			return violated("INV-13: host %d resumes the role without a query; host %d has %v", by, i,
				w.committed)
		}
	}
	if d := &w.hosts[by].wdisk; !w.hosts[by].resumed && !e.mark.Reached(d.identity().End) {
		return violated("INV-12: host %d takes the role with a log that ends at %s; the mark was %s", by,
			d.identity().End, e.mark)
	}
	return errUndetectable
}

// refusal returns why the active rejects a follower or vice versa; 0 if they connect.
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
		return LostRejected // the follower acknowledged more records
	default:
		return 0
	}
}

// reach records that the process in host i received a response from the process in host o.
func (w *world) reach(i, o int) {
	if w.hosts[o].up {
		w.hosts[i].reached[o] = w.hosts[o].starts
	}
}

// keeps returns the length of the log that a follower refuses to truncate: all records that it knows to be committed,
// except those discarded by a forced failover.
func (n *whost) keeps() int {
	if f := n.st.rec.Forced; f != nil && n.known > 0 && uint64(n.log[n.known-1].term) < f.Term {
		return min(n.known, int(f.After))
	}
	return n.known
}

// learn records which processes an event of host i's data plane proves to be running.
func (w *world) learn(i int, ev DataEvent) {
	n := &w.hosts[i]
	var member Member
	switch e := ev.(type) {
	case FollowerIncomplete:
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

// refuse reports the rejection to both sides.
func (w *world) refuse(i int, cause LostCause) {
	n := &w.hosts[i]
	o := &w.hosts[n.follow.to]
	f := *n.follow
	f.cause = cause
	n.follow = &f
	if c := o.primary.cfg; c.RequireStandby && c.Standby == w.member(i) &&
		commonPrefix(n.log, o.log) < o.primary.commit {
		n.post(FollowerIncomplete{})
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

// clearCopied clears the copied flag of a complete disk when the record lists its generation.
func (w *world) clearCopied() {
	for i := range w.hosts {
		n := &w.hosts[i]
		if !n.copied || !n.up || w.rec == nil || !w.complete(&n.wdisk) {
			continue
		}
		if me, ok := w.rec.Member(n.nodeID()); ok && me == n.st.me() && me.Generation == n.st.proc.id {
			n.copied = false
		}
	}
}
