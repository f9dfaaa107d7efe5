// SPDX-License-Identifier: Apache-2.0

package historycheck

import (
	"slices"
	"time"
)

// operations compares the responses to the applications' transactions, acknowledgements, purges, queue creations and
// queue deletions with the final state. The method publishes checks the responses to publishes.
func (c *checker) operations() {
	byQueue := map[string][]*Operation{}
	for i := range c.h.Operations {
		o := &c.h.Operations[i]
		if o.Kind == KindTxn {
			c.wholeOrNothing(o)
		}
		byQueue[o.Queue] = append(byQueue[o.Queue], o)
	}
	left := map[string]map[uint64]bool{}
	for _, l := range c.h.Left {
		if left[l.Queue] == nil {
			left[l.Queue] = map[uint64]bool{}
		}
		left[l.Queue][l.Sequence] = true
	}
	for queue, ops := range byQueue {
		switch ops[0].Kind {
		case KindTxn, KindAck:
			if queue != "" {
				c.inputs(queue, ops, left[queue])
			}
		case KindPurge:
			c.purges(queue, ops, left[queue])
		case KindCreate, KindDelete:
			c.lives(queue, ops)
		case KindPublish:
		}
	}
	c.settled()
}

// wholeOrNothing checks that all parts of a transaction are stored, or none.
func (c *checker) wholeOrNothing(o *Operation) {
	if n := c.parts(o); n > 0 && n < len(o.Parts) {
		c.report(RulePartly, "the transaction with messages %v was %s, but %d of them are stored", o.Parts, o.Outcome,
			n)
	}
}

// parts counts the stored messages of a transaction.
func (c *checker) parts(o *Operation) (stored int) {
	for _, id := range o.Parts {
		if len(c.context[id]) > 0 {
			stored++
		}
	}
	return stored
}

// inputs checks that a message is acknowledged if and only if an acknowledgement or a transaction acknowledged it.
func (c *checker) inputs(queue string, ops []*Operation, left map[uint64]bool) {
	by := map[uint64][]*Operation{}
	for _, o := range ops {
		if o.Input != 0 {
			by[o.Input] = append(by[o.Input], o)
		}
	}
	for _, s := range c.h.Final {
		if s.Queue != queue {
			continue
		}
		could := false
		for _, o := range by[s.Sequence] {
			switch {
			case o.Kind == KindTxn && c.parts(o) > 0 && left[s.Sequence]:
				c.report(RulePartly, "the transaction with messages %v is stored, but sequence %d of %s, which it "+
					"acknowledges, is not acknowledged",
					o.Parts, s.Sequence, queue)
			case o.Kind == KindAck && o.Outcome == Acked && left[s.Sequence]:
				c.report(RuleRedelivered, "sequence %d of %s was acknowledged at %v, but is delivered at the end",
					s.Sequence, queue, o.Done)
			}
			could = could || o.Kind == KindTxn && c.parts(o) > 0 || o.Kind == KindAck && o.Outcome != Refused
		}
		if !could && !left[s.Sequence] {
			c.report(RuleSettled, "sequence %d of %s (%v) is acknowledged, but %d attempts to acknowledge it were not committed",
				s.Sequence, queue, s.ID, len(by[s.Sequence]))
		}
	}
}

// purges checks that each confirmed purge removed the existing messages once, and returned their number.
func (c *checker) purges(queue string, ops []*Operation, left map[uint64]bool) {
	confirmed, unknown := uint64(0), 0
	var last *Operation
	for _, o := range ops {
		switch o.Outcome {
		case Acked:
			confirmed += o.Count
			if last == nil || o.Sent > last.Sent {
				last = o
			}
		case Unknown:
			unknown++
		case Refused:
		}
	}
	purged, firstLeft, lastPurged := uint64(0), ^uint64(0), uint64(0)
	for _, s := range c.h.Final {
		switch {
		case s.Queue != queue:
		case left[s.Sequence]:
			firstLeft = min(firstLeft, s.Sequence)
		default:
			purged++
			lastPurged = max(lastPurged, s.Sequence)
		}
	}
	if confirmed > purged || unknown == 0 && confirmed < purged {
		c.report(RuleEffects, "%s: %d messages are purged, confirmed purges reported %d, and %d had an "+
			"unknown outcome",
			queue, purged, confirmed, unknown)
	}
	if firstLeft < lastPurged {
		c.report(RulePartly, "%s: sequence %d is purged, but %d is not", queue, lastPurged, firstLeft)
	}
	if last == nil {
		return
	}
	for id, p := range c.sent {
		if p.Queue == queue && p.Outcome == Acked && p.Done < last.Sent && left[p.Sequence] {
			c.report(RuleLost, "%s: a purge was confirmed, but %v, which was acknowledged at %v before, is still stored",
				queue, id, p.Done)
		}
	}
}

// lives checks that creations and deletions of a queue can have alternated, and that the existence of the queue at the
// end agrees with them.
func (c *checker) lives(queue string, ops []*Operation) {
	// between returns the minimum and the maximum number of operations of a kind that were applied by a time.
	between := func(kind Kind, at time.Duration) (least, most int) {
		for _, o := range ops {
			if o.Kind != kind || o.Outcome == Refused {
				continue
			}
			if o.Outcome == Acked && o.Done <= at {
				least++
			}
			if o.Sent <= at {
				most++
			}
		}
		return least, most
	}
	const end = time.Duration(1<<63 - 1)
	check := func(at time.Duration, label string) {
		made, mayMade := between(KindCreate, at)
		gone, mayGone := between(KindDelete, at)
		// The queue was deleted as often as it was created, or once less.
		if mayMade < gone || mayGone < made-1 {
			c.report(RuleEffects, "%s, %s: created %d to %d times, and deleted %d to %d times", queue, label, made, mayMade,
				gone, mayGone)
		}
	}
	for _, o := range ops {
		if o.Outcome == Acked {
			check(o.Done, "at "+o.Done.String())
		}
	}
	made, mayMade := between(KindCreate, end)
	gone, mayGone := between(KindDelete, end)
	there := 0
	if c.h.Exists[queue] {
		there = 1
	}
	if made-mayGone > there || mayMade-gone < there {
		c.report(RuleEffects, "%s exists %d times at the end, created %d to %d times and deleted %d to %d times", queue,
			there, made, mayMade, gone, mayGone)
	}
}

// settled limits the fraction of unknown outcomes. Otherwise, a client that never returns an outcome would violate no
// rule.
func (c *checker) settled() {
	const (
		few  = 200 // with fewer operations, a single long fault may cause all unknown outcomes
		most = 80  // percent
	)
	unknown := 0
	for _, o := range c.h.Operations {
		if o.Outcome == Unknown {
			unknown++
		}
	}
	if n := len(c.h.Operations); n >= few && unknown*100 > n*most {
		c.report(RuleUnknown, "%d of %d operations have an unknown outcome", unknown, n)
	}
}

// acksSent checks that a consumer has acknowledged each message that a drained subscription no longer delivers. A
// delivery that was requeued, or discarded with its stream, is not sufficient. acksSent also checks that each
// confirmed acknowledgement was sent.
func (c *checker) acksSent() {
	type cursor struct {
		position
		sub string
	}
	sent := map[cursor]bool{}
	for _, a := range c.h.AcksSent {
		sent[cursor{position{a.Queue, a.Sequence}, a.Sub}] = true
	}
	for _, s := range c.h.Final {
		for _, drained := range c.h.Drained {
			sub, ok := subOf(drained, s.Queue)
			if ok && !sent[cursor{position{s.Queue, s.Sequence}, sub}] {
				c.report(RuleSettled, "%s: sequence %d (%v) is acknowledged, but no acknowledgement of it was ever "+
					"sent", drained, s.Sequence, s.ID)
			}
		}
	}
	for _, a := range c.h.Acks {
		if !sent[cursor{position{a.Queue, a.Sequence}, a.Sub}] {
			c.report(RuleSettled, "%s/%s: the acknowledgement of sequence %d was confirmed, but never sent", a.Queue,
				a.Sub, a.Sequence)
		}
	}
}

// deliveryOrder checks that a consumer receives messages without a group in the order of their sequences. Exceptions
// are requeued messages, even if the requeue was not committed. Messages that were reserved for another stream of
// the subscription, which ended before it received them, are also exceptions.
func (c *checker) deliveryOrder() {
	type arrival struct{ stream, sequence uint64 }
	last := map[uint64]Delivery{}
	seen := map[arrival]bool{}
	streams := map[string][]Stream{}
	for _, s := range c.h.Streams {
		name := s.Queue + "/" + s.Sub
		streams[name] = append(streams[name], s)
	}
	for _, d := range c.h.Deliveries {
		a := arrival{d.Stream, d.Sequence}
		if d.Stream == 0 || d.Repeated || seen[a] {
			continue
		}
		if p := c.sent[d.ID]; p != nil && p.Group != "" {
			continue
		}
		seen[a] = true
		if before, ok := last[d.Stream]; ok && before.Sequence >= d.Sequence &&
			!shared(streams[d.Queue+"/"+d.Sub], d.At) {
			c.report(RuleOrder, "%s/%s: sequence %d was delivered at %v, after %d to the same consumer", d.Queue, d.Sub,
				d.Sequence, d.At, before.Sequence)
		}
		last[d.Stream] = d
	}
}

// detached is how long a node may take to detect the end of a stream, and to reassign its messages.
const detached = 2 * time.Second

// shared reports whether the newest stream at the given time may have overlapped with another stream of the
// subscription on the node.
func shared(streams []Stream, at time.Duration) bool {
	var own *Stream
	for i := range streams {
		if s := &streams[i]; s.Began <= at && (own == nil || s.Began > own.Began) {
			own = s
		}
	}
	for i := range streams {
		if s := &streams[i]; s != own && s.Began <= at && (s.Ended == 0 || s.Ended+detached >= own.Began) {
			return true
		}
	}
	return false
}

// terms checks, for publishes with a known term, that at most one process acknowledges at any time. Only one node may
// acknowledge in each term. After an acknowledgement in a term, later requests must not be acknowledged in a lower
// term.
func (c *checker) terms() {
	byDone := []*Publish{}
	node := map[uint64]*Publish{}
	for i := range c.h.Parts {
		p := &c.h.Parts[i]
		if p.Term == 0 || p.Outcome != Acked {
			continue
		}
		byDone = append(byDone, p)
		if other := node[p.Term]; other != nil && other.Address != p.Address {
			c.report(RuleTwoTerms, "%v was acknowledged by %s and %v by %s, both in term %d", other.ID, other.Address,
				p.ID, p.Address, p.Term)
		}
		node[p.Term] = p
	}
	bySent := slices.Clone(byDone)
	slices.SortFunc(byDone, func(a, b *Publish) int { return int(a.Done - b.Done) })
	slices.SortFunc(bySent, func(a, b *Publish) int { return int(a.Sent - b.Sent) })
	next := 0
	var highest *Publish
	for _, p := range bySent {
		for ; next < len(byDone) && byDone[next].Done < p.Sent; next++ {
			if highest == nil || byDone[next].Term > highest.Term {
				highest = byDone[next]
			}
		}
		if highest != nil && highest.Term > p.Term {
			c.report(RuleTwoTerms, "%v was sent at %v and acknowledged by %s in term %d, but %s had acknowledged %v "+
				"in term %d at %v",
				p.ID, p.Sent, p.Address, p.Term, highest.Address, highest.ID, highest.Term, highest.Done)
		}
	}
}
