// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// Check verifies the invariants of a State and returns the violations. It reads every chunk of every queue.
func (s *State) Check() []string {
	var problems []string
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	var messages, bytes, delayed uint64
	var tailBytes int64
	for q := range s.Queues {
		if own := q.config.ownConfig(); s.checkConfig(q, q.name, own, q.config.fields, 0) != txn.OK {
			bad("queue %d %.40q: dead-letter queue %d is missing or creates a cycle", q.id, q.name, own.DeadLetter)
		}
		if s.policiesOf(q, q.name).settings(q.config.ownConfig(), q.config.fields).Config != q.config.Config {
			bad("queue %d %.40q: effective configuration does not match its policies", q.id, q.name)
		}
		for _, sub := range q.subs {
			if s.checkDeadLetter(q, sub.deadLetter()) != txn.OK {
				bad("queue %d %.40q: subscription %d: dead-letter queue %d is missing or creates a cycle", q.id,
					q.name, sub.id, sub.deadLetter())
			}
		}
		if q.config.Retains() != (q.retention() != nil) {
			bad("queue %d %.40q: hidden subscription does not match the retention", q.id, q.name)
		}
		s.checkForwards(q, bad)
		s.checkPauses(q, bad)
		s.checkEpoch(q, bad)
		if (q.config.TemporaryGrace != 0 && q.move == nil) != (s.temporary[q.id] == q) {
			bad("queue %d %.40q: list of temporary queues does not match the configuration", q.id, q.name)
		}
	}
	for q := range s.stored {
		q.check(bad)
		messages += q.messages
		bytes += q.bytes
		tailBytes += q.tail.bytes
		delayed += q.DelayedMessages()
	}
	if delayed != s.delayed {
		bad("queues have %d delayed messages, counted %d", delayed, s.delayed)
	}
	if messages != s.messages || bytes != s.bytes {
		bad("queues have %d messages of %d bytes, counted %d of %d", messages, bytes, s.messages, s.bytes)
	}
	if tailBytes != s.tailBytes {
		bad("queues have %d bytes in memory, counted %d", tailBytes, s.tailBytes)
	}
	s.site.check(s.applied, bad)
	s.fleet.check(bad)
	s.checkMoves(bad)
	s.producers.check(bad)
	s.prepared.check(s, bad)
	s.access.check(bad)
	s.policies.check(s, bad)
	return problems
}

func (q *Queue) check(report func(string, ...any)) {
	bad := func(format string, args ...any) {
		report("queue %d %.40q: "+format, append([]any{q.id, q.name}, args...)...)
	}
	var messages, bytes uint64
	for i := range q.sizes.slots {
		c := q.sizes.slots[i].c
		if c == nil {
			continue
		}
		chunk, n := q.sizes.base+uint64(i), 0
		for w := range chunkWords {
			alive := published(chunk, w, q.nextSeq) &^ q.ackedByAll(nil, chunk, w)
			counted := c.group(w)
			if uint64(ones(alive)) != counted.alive() {
				bad("%d messages from %d on are live, counted %d", ones(alive), wordFirst(chunk, w),
					counted.alive())
			}
			if e := c.sizesOf(w); e != nil && (!q.keepsSizes() || e.alive() != alive || e.sum() != counted.bytes()) {
				bad("sizes of the messages from %d on do not match the live messages", wordFirst(chunk, w))
			}
			n += int(counted.alive())
			bytes += counted.bytes()
		}
		if n != int(c.n) || n == 0 {
			bad("chunk %d has %d messages, counted %d", chunk, n, c.n)
		}
		messages += uint64(n)
	}
	if messages != q.messages || bytes != q.bytes {
		bad("%d messages of %d bytes, counted %d of %d", messages, bytes, q.messages, q.bytes)
	}
	if len(q.subs) == 0 && q.messages > 0 {
		bad("messages without a subscription")
	}
	for _, sub := range q.subs {
		sub.check(bad)
	}
	if q.lanes != nil {
		q.lanes.check(q, bad)
	}
	q.checkDelayed(bad)
	q.checkIDs(bad)
	q.checkTail(bad)
}

func (s *Sub) check(bad func(string, ...any)) {
	above := uint64(0)
	for i := range s.acks.slots {
		slot := &s.acks.slots[i]
		chunk := s.acks.base + uint64(i)
		switch {
		case slot.full:
			above += ChunkSize
			continue
		case slot.c == nil:
			continue
		}
		n := 0
		for w, v := range slot.c.words {
			if v&^published(chunk, w, s.q.nextSeq) != 0 {
				bad("subscription %d has acknowledged unpublished messages", s.id)
			}
			n += ones(v)
		}
		if n != slot.c.n || n == 0 || n == ChunkSize {
			bad("subscription %d has %d acknowledgements in chunk %d, counted %d", s.id, n, chunk, slot.c.n)
		}
		above += uint64(n)
	}
	if above != s.acks.above || s.acks.floor > s.q.nextSeq || above > s.q.nextSeq-s.acks.floor {
		bad("subscription %d has %d acknowledgements above its floor %d, counted %d", s.id, above, s.acks.floor,
			s.acks.above)
	}
	if s.acks.floor < s.q.nextSeq && s.acks.has(s.acks.floor) {
		bad("floor %d of subscription %d is acknowledged", s.acks.floor, s.id)
	}
	for chunk, c := range s.counts.all {
		for _, e := range c.entries {
			if seq := chunk<<chunkBits + uint64(e.offset); seq >= s.q.nextSeq || s.Acked(seq) {
				bad("subscription %d has a delivery count for message %d, which it does not need", s.id, seq)
			}
		}
	}
}

func (q *Queue) checkTail(bad func(string, ...any)) {
	t := &q.tail
	if t.n > 0 && t.first+uint64(t.n) != q.nextSeq {
		bad("messages in memory are %d to %d, the next one is %d", t.first, t.first+uint64(t.n)-1, q.nextSeq)
	}
	bytes := int64(0)
	for i := range t.n {
		seq := t.first + uint64(i)
		var rec []byte
		if e := t.entry(seq); e != nil {
			rec = *e
		}
		if rec != nil {
			bytes += cost(rec)
		}
		if dead := q.Dead(seq); rec == nil && !dead || rec != nil && dead && seq >= t.shared {
			bad("message %d: dead %v, in memory %v", seq, dead, rec != nil)
		}
	}
	if bytes != t.bytes {
		bad("%d bytes are in memory, counted %d", bytes, t.bytes)
	}
	for seq := q.NextAlive(q.collected); seq < q.nextSeq; seq = q.NextAlive(seq + 1) {
		if _, ok := q.TailRecord(seq); !ok {
			bad("message %d is neither in memory nor in pages", seq)
			break
		}
	}
}

func (ps *producers) check(bad func(string, ...any)) {
	n, used := 0, usage{}
	hasResults := false
	for p := ps.oldest; p != nil; p = p.newer {
		n++
		used.add(p.used)
		hasResults = hasResults || p == ps.oldestWithResults
		if hasResults != (len(p.window()) > 0) {
			bad("producer %.40x has %d results", p.id, len(p.window()))
		}
		if p.newer != nil && p.newer.usedLSN <= p.usedLSN {
			bad("producer %.40x was used after a newer one", p.id)
		}
	}
	if n != len(ps.byID) || used != ps.total {
		bad("%d producers with %+v results, counted %d with %+v", n, used, len(ps.byID), ps.total)
	}
}
