// SPDX-License-Identifier: Apache-2.0

package failover

import "slices"

// closeFollowerSides marks the connections of followers to the active on host i as broken. The followers have not
// detected it yet.
func (w *world) closeFollowerSides(i int) {
	for j := range w.hosts {
		if f := w.hosts[j].follow; f != nil && f.to == i && f.connected {
			g := *f
			g.alive = false
			w.hosts[j].follow = &g
		}
	}
}

// closePrimarySide marks the connection of host i as broken at its active, which has not detected it yet.
func (w *world) closePrimarySide(i int) {
	o := &w.hosts[w.hosts[i].follow.to]
	if p := o.primary; p != nil && p.open && p.from == i {
		q := *p
		q.alive = false
		o.primary = &q
	}
}

// connect connects follower i to the active.
func (w *world) connect(i int) error {
	n := &w.hosts[i]
	o := &w.hosts[n.follow.to]
	p := *o.primary
	f := *n.follow
	if cause := w.refusal(i); cause != 0 {
		w.refuse(i, cause)
		return nil
	}
	if n.fence.Less(Fence{Config: p.cfg.Config, Term: p.term}) {
		n.fence = Fence{Config: p.cfg.Config, Term: p.term} // INV-1
	}
	if p.open {
		o.post(StandbyLost{Node: p.session.Node, Cause: LostReset})
		if q := &w.hosts[p.from]; p.from != i && q.follow != nil && q.follow.to == f.to && q.follow.connected {
			g := *q.follow
			g.alive = false
			q.follow = &g
		}
	}
	common := commonPrefix(n.log, o.log)
	if err := w.cut(i, common); err != nil {
		return err
	}
	f.connected, f.alive, f.cause = true, true, 0
	p.open, p.alive, p.acked, p.sent, p.caught, p.synced = true, true, common, common, false, false
	w.lacks(i, p.commit)
	p.session, p.from = w.member(i), i
	n.follow, o.primary = &f, &p
	n.post(FollowerConnected{Config: p.cfg.Config, Term: p.term})
	o.post(StandbyConnected{Member: p.session})
	return nil
}

// cut truncates the log in host i after the first keep records. No acknowledged record may be truncated.
func (w *world) cut(i, keep int) error {
	n := &w.hosts[i]
	if c := commonPrefix(n.log, w.committed); keep < c {
		if w.copies.moved && keep >= n.keeps() {
			return errUndetectable // the last acknowledged record, which this disk does not know to be committed
		}
		return violated("host %d truncates %v to %d records, but %v was acknowledged", i, n.log, keep, w.committed)
	}
	n.log = slices.Clone(n.log[:keep])
	n.durable, n.known = min(n.durable, keep), min(n.known, keep)
	return nil
}

// lacks posts FollowerIncomplete to follower i if records that the active has committed are missing on the
// follower.
func (w *world) lacks(i, commit int) {
	n := &w.hosts[i]
	if p := w.hosts[n.follow.to].primary; len(n.log) < commit {
		n.post(FollowerIncomplete{Config: p.cfg.Config, Common: uint64(len(n.log)), Committed: uint64(commit)})
	}
}

// replicate sends all records of the active to follower i, which sends its ack.
func (w *world) replicate(i int) {
	n := &w.hosts[i]
	o := &w.hosts[n.follow.to]
	p := *o.primary
	if !n.fence.Admits(p.cfg.Config, p.term) {
		w.breakLink(i, LostRejected)
		return
	}
	if n.fence.Less(Fence{Config: p.cfg.Config, Term: p.term}) {
		n.fence = Fence{Config: p.cfg.Config, Term: p.term}
	}
	w.lacks(i, p.commit)
	n.known = max(n.known, min(p.commit, len(n.log))) // the written block contains the committed position
	n.log = slices.Clone(o.log)
	n.durable = len(n.log)
	p.sent = len(n.log)
	o.primary = &p
}

// breakLink breaks the connection; the follower detects it immediately, the active later.
func (w *world) breakLink(i int, cause LostCause) {
	n := &w.hosts[i]
	f := *n.follow
	f.connected, f.alive, f.cause = false, false, cause
	n.follow = &f
	n.post(FollowerLost{Cause: cause})
	w.closePrimarySide(i)
}

func commonPrefix(a, b []entry) int {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	return i
}

// sessionEvents posts the active's events about its standby. It is called after each action.
func (w *world) sessionEvents(i int) {
	n := &w.hosts[i]
	if n.primary == nil || !n.primary.open {
		return
	}
	p := *n.primary
	if !p.caught && p.acked == len(n.log) {
		p.caught = true
		n.post(StandbyCaughtUp{Member: p.session})
	}
	if p.caught && !p.synced && p.cfg.RequireStandby && p.cfg.Standby == p.session && p.acked >= p.commit {
		p.synced = true
		n.post(StandbySynced{Member: p.session, Requirement: p.cfg.Requirement})
	}
	n.primary = &p
}

// commitPoint returns the length of the log that the node could commit now.
func (n *whost) commitPoint() int {
	p := n.primary
	switch {
	case p == nil || !p.cfg.Serve:
		return 0
	case !p.cfg.RequireStandby:
		return len(n.log)
	case p.open && p.session == p.cfg.Standby:
		return min(len(n.log), p.acked)
	default:
		return 0
	}
}

// commit acknowledges everything up to the commit point.
func (w *world) commit(i int) error {
	n := &w.hosts[i]
	discarded, err := w.acksDiscarded(i)
	if err != nil {
		return err
	}
	p := *n.primary
	p.commit = n.commitPoint()
	n.durable = max(n.durable, p.commit)
	n.primary = &p
	prefix := n.log[:p.commit]
	if discarded {
		return nil
	}
	if c := commonPrefix(prefix, w.committed); c < len(prefix) && c < len(w.committed) {
		return violated("INV-2: node %d acknowledges %v, but %v was acknowledged before", i, prefix, w.committed)
	}
	if len(prefix) > len(w.committed) {
		w.committed = slices.Clone(prefix)
	}
	return nil
}
