// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"encoding/binary"
	"hash/crc32"
	"maps"
	"math"
	"slices"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// pauses contains the pauses of a queue and of its subscriptions, by subscription number; 0 is the queue itself.
type pauses struct {
	bySub         map[uint32]txn.Pause
	dirty, stored bool
}

// Pause returns the pause of the queue itself; the zero value if it is not paused.
func (q *Queue) Pause() txn.Pause { return q.pauseOf(0) }

// Pause returns the pause of the subscription itself, regardless of the pause of its queue.
func (s *Sub) Pause() txn.Pause { return s.q.pauseOf(s.id) }

// Paused reports whether the delivery of the subscription is paused, by its own pause or by the pause of its queue.
// The delivery of a fenced or incoming queue is paused.
func (s *Sub) Paused() bool {
	return s.q.move != nil || s.q.pauses != nil && (s.Pause().Deliver || s.q.Pause().Deliver)
}

func (q *Queue) pauseOf(sub uint32) (p txn.Pause) {
	if q.pauses != nil {
		p = q.pauses.bySub[sub]
	}
	return p
}

func (q *Queue) publishPaused() bool { return q.pauses != nil && q.Pause().Publish }

// PausedQueues returns the number of queues that are paused or have a paused subscription.
func (s *State) PausedQueues() int { return len(s.paused) }

// Paused iterates over the queues that are paused or have a paused subscription, in no particular order.
func (s *State) Paused(yield func(*Queue) bool) {
	for id := range s.paused {
		if !yield(s.queues.get(id)) {
			return
		}
	}
}

func (s *State) pause(q *Queue, o *txn.Op) {
	now := q.pauseOf(o.Sub)
	p, resume := o.Pause()
	if resume {
		now.Publish, now.Deliver = now.Publish && !p.Publish, now.Deliver && !p.Deliver
	} else {
		now = txn.Pause{
			Publish: now.Publish || p.Publish, Deliver: now.Deliver || p.Deliver,
			TimeMS: uint64(s.reader.TimeMS()), By: p.By, Reason: p.Reason,
		}
	}
	s.touch(q) // dispatchers must re-evaluate the queue
	s.setPause(q, o.Sub, now)
	q.digest = mix(q.digest, uint64(crc32.Checksum(o.Raw, s.crc)))
}

func (s *State) setPause(q *Queue, sub uint32, p txn.Pause) {
	if !p.Paused() && q.pauseOf(sub) == (txn.Pause{}) {
		return
	}
	x := q.own()
	if x.pauses == nil {
		x.pauses = &pauses{bySub: make(map[uint32]txn.Pause)}
	}
	x.pauses.dirty = true
	if p.Paused() {
		x.pauses.bySub[sub] = p
	} else {
		delete(x.pauses.bySub, sub)
	}
	s.countPaused(q)
}

func (s *State) countPaused(q *Queue) {
	if q.pauses != nil && len(q.pauses.bySub) > 0 && !q.deleted {
		s.paused[q.id] = struct{}{}
	} else {
		delete(s.paused, q.id)
	}
}

func pausesKey(dst []byte, q uint64) []byte { return queueKey(dst, keyPauses, q) }

func (p *pauses) appendValue(dst []byte) []byte {
	dst = binary.AppendUvarint(append(dst, valueVersion), uint64(len(p.bySub)))
	for _, sub := range slices.Sorted(maps.Keys(p.bySub)) {
		pause := p.bySub[sub]
		dst = txn.AppendPause(binary.AppendUvarint(dst, uint64(sub)), pause)
		dst = binary.AppendUvarint(dst, pause.TimeMS)
	}
	return dst
}

func (c *collector) pauses(queues []*Queue) {
	for _, q := range queues {
		p := q.pauses
		if p == nil || !p.dirty {
			continue
		}
		if len(p.bySub) > 0 {
			c.put(pausesKey(c.key(), q.id), p.appendValue)
			p.dirty, p.stored = false, true
			continue
		}
		if p.stored {
			c.batch.Deletes = append(c.batch.Deletes, pausesKey(nil, q.id))
		}
		q.own().pauses = nil
	}
}

func (l *Loader) pauses(k, v *cursor) {
	l.getQueue(k).own().pauses = &pauses{bySub: v.pauseList(), stored: true}
}

func (c *cursor) pauseList() map[uint32]txn.Pause {
	c.version()
	n := c.uvarint(txn.MaxSubscriptions + 1)
	bySub := make(map[uint32]txn.Pause, n)
	for last := -1; n > 0 && c.err == nil; n-- {
		sub := uint32(c.uvarint(math.MaxUint32))
		pause, rest, err := txn.DecodePause(c.b)
		if err != nil {
			c.err = err
			return bySub
		}
		c.b = rest
		pause.TimeMS = c.uvarint(txn.MaxTimeMS)
		if int(sub) <= last || !pause.Paused() || sub != 0 && pause.Publish {
			c.fail("invalid pause")
		}
		bySub[sub], last = pause, int(sub)
	}
	if c.err == nil && len(bySub) == 0 {
		c.fail("list of pauses is empty")
	}
	return bySub
}

func (s *State) checkPauses(q *Queue, bad func(format string, args ...any)) {
	_, counted := s.paused[q.id]
	if counted != (q.pauses != nil && len(q.pauses.bySub) > 0) {
		bad("queue %d %.40q: list of paused queues does not match its pauses", q.id, q.name)
	}
	if q.pauses == nil {
		return
	}
	for sub := range q.pauses.bySub {
		if sub != 0 && q.Sub(sub) == nil {
			bad("queue %d %.40q: subscription %d is paused and does not exist", q.id, q.name, sub)
		}
	}
}
