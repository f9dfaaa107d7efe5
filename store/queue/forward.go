// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"errors"
	"hash/crc32"
	"slices"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// forwards contains the forwarding rules of a queue. The rules are immutable; a change replaces them.
type forwards struct {
	rules         []txn.Forward
	dirty, stored bool
}

// Forwards returns the forwarding rules of the queue. The caller may retain them, but must not modify them.
func (q *Queue) Forwards() []txn.Forward {
	if q.forwards == nil {
		return nil
	}
	return q.forwards.rules
}

type publishedBefore struct {
	queue uint64
	count int
	raw   []byte
	first uint64 // sequence of the first message; set when the publish is applied
	kept  bool   // at least one subscription needs the messages
	// duplicates are the messages of the publish that were not stored; set when the publish is applied.
	duplicates txn.Duplicates
}

// checkSetForwards verifies that a queue may have these rules. A queue with rules must not be a target of other
// rules. Each target must exist, must not be the queue itself, must not be fenced, must have no rules, and must occur
// only once.
func (s *State) checkSetForwards(q *Queue, o *txn.Op) txn.Code {
	rules, err := txn.DecodeForwards(o.Raw)
	if err != nil {
		return codeOf(err)
	}
	if len(rules) > 0 && s.forwardsTo[q.id] > 0 {
		return txn.ErrForwardChain
	}
	for i, r := range rules {
		target := s.queues.get(r.Target)
		switch {
		case target == nil:
			return txn.ErrQueueNotFound
		case target.checkServed() != txn.OK:
			return txn.ErrMoved
		case target == q, len(target.Forwards()) > 0:
			return txn.ErrForwardChain
		case slices.ContainsFunc(rules[:i], func(other txn.Forward) bool { return other.Target == r.Target }):
			return txn.ErrForwardTwice
		}
	}
	return txn.OK
}

func (s *State) setForwards(q *Queue, o *txn.Op) {
	rules, err := txn.DecodeForwards(o.Raw)
	if err != nil {
		panic("queue: forwards are no longer valid: " + err.Error())
	}
	s.putForwards(q, rules)
	q.digest = mix(q.digest, uint64(crc32.Checksum(o.Raw, s.crc)))
}

func (s *State) putForwards(q *Queue, rules []txn.Forward) {
	s.countForwards(q, -1)
	stored := q.forwards != nil && q.forwards.stored
	switch {
	case len(rules) > 0 || stored:
		q.own().forwards = &forwards{rules: rules, dirty: true, stored: stored}
	case q.forwards != nil:
		q.own().forwards = nil
	}
	s.countForwards(q, 1)
}

func (s *State) countForwards(q *Queue, more int) {
	for _, r := range q.Forwards() {
		addReferences(s.forwardsTo, r.Target, more)
	}
}

// checkForward verifies a forward of the preceding publish. A forward to a deleted queue is valid and has no effect.
func (s *State) checkForward(o *txn.Op) txn.Code {
	p := &s.published
	if p.count == 0 || p.queue != o.Queue || o.Queue == o.Target {
		return txn.ErrMalformed
	}
	messages, bytes := 0, 0
	target := s.queues.get(o.Target)
	err := p.forwarded(o, func(_ int, rec []byte) {
		messages++
		bytes += len(rec)
		if target != nil {
			s.findID(target, rec)
		}
	})
	if err != nil {
		return codeOf(err)
	}
	if target != nil {
		if code := target.checkServed(); code != txn.OK {
			return code
		}
		if target.publishPaused() {
			return txn.ErrQueuePaused
		}
		return s.checkRoom(target, messages, bytes)
	}
	return txn.OK
}

var errNotPublished = errors.New("forward of a message that is not in the preceding publish")

func (p *publishedBefore) forwarded(o *txn.Op, visit func(index int, rec []byte)) error {
	rest, at := p.raw, 0
	for i := range o.Forwarded(p.count) {
		if i >= p.count {
			return errNotPublished
		}
		var rec []byte
		for ; at <= i; at++ {
			var err error
			if rec, rest, err = txn.NextRecord(rest); err != nil {
				return err
			}
		}
		visit(i, rec)
	}
	return nil
}

// forward applies an OpForward: it publishes the selected messages of the preceding publish to the target, except for
// duplicates. It skips messages that q has discarded as duplicates. If o.Move is set, it also acknowledges the
// messages in q for all subscriptions.
func (s *State) forward(q *Queue, o *txn.Op) {
	target := s.queues.get(o.Target)
	if target == nil {
		return
	}
	s.mark(target)
	s.touch(target)
	target.digest = mix(mix(target.digest, uint64(o.Code)), target.nextSeq)
	p := &s.published
	err := p.forwarded(o, func(i int, rec []byte) {
		seq, stored := p.duplicates.SequenceOf(p.first, i)
		if !stored {
			return // the source queue has discarded it
		}
		target.digest = mix(target.digest, uint64(crc32.Checksum(rec, s.crc)))
		duplicate := false
		if target.config.DedupWindow != 0 {
			_, duplicate = s.isDuplicate(target, rec)
		}
		if !duplicate {
			s.append(target, rec, 0)
		}
		if o.Move && p.kept {
			for _, sub := range q.subs {
				s.ack(sub, seq, seq)
			}
		}
	})
	if err != nil {
		panic("queue: forward is no longer valid: " + err.Error())
	}
}

func forwardsKey(dst []byte, q uint64) []byte { return queueKey(dst, keyForwards, q) }

func (f *forwards) appendValue(dst []byte) []byte {
	return txn.AppendForwards(append(dst, valueVersion), f.rules)
}

func (c *collector) forwards(queues []*Queue) {
	for _, q := range queues {
		f := q.forwards
		if f == nil || !f.dirty {
			continue
		}
		if len(f.rules) > 0 {
			c.put(forwardsKey(c.key(), q.id), f.appendValue)
			f.dirty, f.stored = false, true
			continue
		}
		if f.stored {
			c.batch.Deletes = append(c.batch.Deletes, forwardsKey(nil, q.id))
		}
		q.own().forwards = nil
	}
}

func (l *Loader) forwards(k, v *cursor) {
	l.getQueue(k).own().forwards = &forwards{rules: v.forwardRules(), stored: true}
}

func (c *cursor) forwardRules() []txn.Forward {
	c.version()
	rules, err := txn.DecodeForwards(c.b)
	if c.b = nil; err != nil || len(rules) == 0 {
		c.fail("invalid forwards: %v", err)
	}
	return rules
}

func (s *State) checkForwards(q *Queue, bad func(format string, args ...any)) {
	for _, r := range q.Forwards() {
		if target := s.queues.get(r.Target); target == nil || target == q || len(target.Forwards()) > 0 {
			bad("queue %d %.40q forwards to queue %d, which is missing or has forwards", q.id, q.name, r.Target)
		}
	}
}
