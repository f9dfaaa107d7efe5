// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"github.com/lockstep-mq/lockstep/store/txn"
)

// Queue is one queue. See the package comment for when it may be used.
//
// There can be very many, most of them idle: what an idle one does not need stands elsewhere.
type Queue struct {
	id       uint64
	name     string
	config   *txn.Config // noConfig if there is none
	nextSeq  uint64
	subs     []*Sub // by id; a hidden one at the end if there is a retention, see retention.go
	messages uint64 // alive
	bytes    uint64 // of those
	digest   uint64
	sizes    sizeSet
	tail     tail

	handedOut uint64   // sequences below were handed out by Collect, or were in pages at the start
	leaving   *leaving // nil if there is nothing
	*extras            // noExtras if there are none

	tailNewer, tailOlder *Queue // list of the queues that have a tail

	nextSub uint32
	pending uint32 // where in State.pending it may be
	// slow is the place in subs where the search for a subscription that still needs a message begins: the one that
	// answered last is likely to answer again. Only a matter of speed.
	slow    uint16
	dirty   bool
	loaded  bool // the Loader saw its record
	deleted bool
	touched bool
}

// extras are what few queues have.
type extras struct {
	forwards *forwards // nil if it has none
	lanes    *laneSet  // nil unless it has priorities
	delayed  *delaySet // nil if there is nothing
	// Messages that were given up, ever: that no consumer could deal with while there was no dead-letter queue, for each
	// subscription; and that expired and were not moved to a dead-letter queue.
	dropped, expired uint64
	// policies are what subscriptions have for themselves, by their numbers; most have nothing, and are not in it.
	policies map[uint32]policy
}

// noExtras is what all other queues share. It never changes.
var noExtras extras //nolint:gochecknoglobals // a constant, but for its address

// own gives the extras to be changed.
func (q *Queue) own() *extras {
	if q.extras == &noExtras {
		q.extras = new(extras)
	}
	return q.extras
}

// Dropped is the number of messages, each counted for each subscription that needed it, that no consumer could deal
// with and that there was no dead-letter queue for. Expired is the number of messages that expired and were not moved
// to a dead-letter queue.
func (q *Queue) Dropped() (dropped, expired uint64) { return q.dropped, q.expired }

// leaving is what the page file has to give up at the next checkpoint.
type leaving struct {
	keys  [][]byte // of subscriptions that were deleted
	sizes []uint64 // stored chunks that were dropped
	// chunks that were dropped after messages died in them that were handed out; see sizeChunk for the others
	died []chunkRange
}

func (q *Queue) leave() *leaving {
	if q.leaving == nil {
		q.leaving = new(leaving)
	}
	return q.leaving
}

// Sub is one subscription of a queue. See the package comment for when it may be used.
type Sub struct {
	q      *Queue
	id     uint32
	dirty  bool
	stored bool
	loaded bool
	name   uint8  // length of the name
	text   string // the name and, behind it, the filter: most have none, and need no memory for it
	start  uint64
	acks   ackSet
	counts *countSet // nil if there is nothing
	// reserved by prepared transactions; nil if nothing is
	reserved *reservedSet
}

// policy is what a subscription has for itself of what its queue's configuration says.
type policy struct {
	own    txn.ConfigMask
	values txn.Config
}

// chunkRange is an inclusive range of chunks.
type chunkRange struct{ first, last uint64 }

// ID is the queue's number, at least 1, never reused.
func (q *Queue) ID() uint64 { return q.id }

// Name of the queue.
func (q *Queue) Name() string { return q.name }

// Config is what can be altered.
func (q *Queue) Config() txn.Config { return *q.config }

// NextSequence is the sequence that the next message will get.
func (q *Queue) NextSequence() uint64 { return q.nextSeq }

// Messages is the number of messages that some subscription has still to acknowledge, or that are retained.
func (q *Queue) Messages() uint64 { return q.messages }

// Bytes of those messages, as stored. They are exact in a queue that keeps sizes, see txn.Config.ExactBytes. In other
// queues, when messages of different sizes were acknowledged out of a group of 64, the remaining ones are counted with
// the group's average.
func (q *Queue) Bytes() uint64 { return q.bytes }

// Digest is a rolling hash of everything that was ever applied to the queue.
func (q *Queue) Digest() uint64 { return q.digest }

// SubCount is the number of subscriptions.
func (q *Queue) SubCount() int { return len(q.clients()) }

// Subs iterates over the subscriptions in the order of their numbers.
func (q *Queue) Subs(yield func(*Sub) bool) {
	for _, s := range q.clients() {
		if !yield(s) {
			return
		}
	}
}

// Sub gives a subscription by its number; nil if there is none.
func (q *Queue) Sub(id uint32) *Sub {
	// A short list in order of number: the usual queue has one subscription, number 1.
	if i := int(id) - 1; i >= 0 && i < len(q.subs) && q.subs[i].id == id {
		return q.subs[i]
	}
	for _, s := range q.clients() {
		if s.id == id {
			return s
		}
	}
	return nil
}

// SubByName gives a subscription by its name; nil if there is none.
func (q *Queue) SubByName(name string) *Sub {
	for _, s := range q.clients() {
		if s.Name() == name {
			return s
		}
	}
	return nil
}

// ID is the subscription's number in its queue, at least 1, never reused.
func (s *Sub) ID() uint32 { return s.id }

// Name of the subscription.
func (s *Sub) Name() string { return s.text[:s.name] }

// Filter is the expression that its messages have to match; "" if it gets all of them.
func (s *Sub) Filter() string { return s.text[s.name:] }

// Options are its filter, and what it has for itself of what its queue's configuration says.
func (s *Sub) Options() txn.SubscriptionOptions {
	o := txn.SubscriptionOptions{Filter: s.Filter()}
	p := s.q.policies[s.id]
	o.Own, o.Policy = p.own, p.values
	return o
}

// Config is its queue's configuration, with what the subscription has for itself.
func (s *Sub) Config() txn.Config {
	p, ok := s.q.policies[s.id]
	if !ok {
		return *s.q.config
	}
	return s.q.config.With(p.values, p.own)
}

// deadLetter is the queue that the subscription names for itself; txn.NoQueue for none.
func (s *Sub) deadLetter() uint64 {
	return s.q.policies[s.id].values.DeadLetter
}

// setOptions sets name and options.
func (s *Sub) setOptions(name string, o txn.SubscriptionOptions) {
	s.text, s.name = name+o.Filter, uint8(len(name))
	if o.Own == 0 {
		delete(s.q.policies, s.id)
		return
	}
	q := s.q.own()
	if q.policies == nil {
		q.policies = make(map[uint32]policy)
	}
	q.policies[s.id] = policy{own: o.Own, values: o.Policy}
}

// Queue is the subscription's queue.
func (s *Sub) Queue() *Queue { return s.q }

// Start is the sequence below which everything was acknowledged when the subscription was made, or the one that it was
// moved back to.
func (s *Sub) Start() uint64 { return s.start }

// Floor: every sequence below it is acknowledged.
func (s *Sub) Floor() uint64 { return s.acks.floor }

// Backlog is the number of messages that are not acknowledged.
func (s *Sub) Backlog() uint64 { return s.q.nextSeq - s.acks.floor - s.acks.above }

// Acked tells whether a published sequence is acknowledged.
func (s *Sub) Acked(seq uint64) bool { return s.acks.has(seq) }

// NextUnacked gives the first sequence from from on that is not acknowledged; the queue's NextSequence when there is
// none.
func (s *Sub) NextUnacked(from uint64) uint64 { return s.acks.next(from, s.q.nextSeq) }

// DeliveryCount tells how many times a message that is not acknowledged was released.
func (s *Sub) DeliveryCount(seq uint64) uint32 { return s.counts.get(seq) }

// TailFirst is the sequence of the first message that is in memory; the queue's NextSequence when there is none. All
// messages alive before it are in pages.
func (q *Queue) TailFirst() uint64 {
	if q.tail.n == 0 {
		return q.nextSeq
	}
	return q.tail.first
}

// TailRecord gives a message that is in memory. ok is false when it is not: then it is dead, or in pages.
func (q *Queue) TailRecord(seq uint64) (rec []byte, ok bool) {
	if e := q.tail.entry(seq); e != nil && *e != nil {
		return *e, true
	}
	return nil, false
}

// Dead tells whether no subscription needs a published sequence any more.
func (q *Queue) Dead(seq uint64) bool {
	return q.deadWord(seq>>chunkBits, int(seq&chunkMask)>>6)>>(seq&63)&1 == 1
}

// AllDead tells whether no subscription needs any of the published sequences first to first+span-1, as of now.
func (q *Queue) AllDead(first, span uint64) bool {
	return span == 0 || q.NextAlive(first) >= first+span
}

// NextAlive gives the first sequence from from on that some subscription has still to acknowledge; the queue's
// NextSequence when there is none.
func (q *Queue) NextAlive(from uint64) uint64 {
	z := &q.sizes
	if len(z.slots) == 0 {
		return max(q.nextSeq, from)
	}
	// Outside of the slots nothing is alive.
	end := min((z.base+uint64(len(z.slots)))<<chunkBits, q.nextSeq)
	for seq := max(from, z.base<<chunkBits, 1); seq < end; {
		chunk := seq >> chunkBits
		if z.chunk(chunk) == nil {
			seq = (chunk + 1) << chunkBits
			continue
		}
		w := int(seq&chunkMask) >> 6
		if alive := (published(chunk, w, q.nextSeq) &^ q.deadWord(chunk, w)) >> (seq & 63); alive != 0 {
			return seq + uint64(trailingZeros(alive))
		}
		seq = (seq | 63) + 1
	}
	return max(q.nextSeq, from)
}

// deadWord gives 64 bits of a chunk: set for those that no subscription needs. Bits of sequences that are not published
// mean nothing.
func (q *Queue) deadWord(chunk uint64, w int) uint64 {
	c := q.sizes.chunk(chunk)
	if c == nil {
		return ^uint64(0)
	}
	switch c.group(w).alive() {
	case 0:
		return ^uint64(0)
	case 64:
		return 0
	}
	return q.ackedByAll(nil, chunk, w)
}

// ackedByAll gives the bits that all subscriptions but except have acknowledged.
func (q *Queue) ackedByAll(except *Sub, chunk uint64, w int) uint64 {
	v := ^uint64(0)
	for _, s := range q.subs {
		if s == except {
			continue
		}
		if v &= s.acks.word(chunk, w); v == 0 {
			break
		}
	}
	return v
}

// othersAcked is ackedByAll for the hot path of Apply: it asks the subscription first that is likely to say no.
func (q *Queue) othersAcked(except *Sub, chunk uint64, w int, want uint64) uint64 {
	n := len(q.subs)
	for k := range n {
		i := int(q.slow) + k
		if i >= n {
			i -= n
		}
		s := q.subs[i]
		if s == except {
			continue
		}
		if want &= s.acks.word(chunk, w); want == 0 {
			q.slow = uint16(i)
			return 0
		}
	}
	return want
}

// markDead takes messages out of the counts that no subscription needs any more. The bits of mask were alive.
func (s *State) markDead(q *Queue, chunk uint64, w int, mask uint64) {
	n := ones(mask)
	if q.delayed != nil {
		s.undelay(q, chunk, w, mask)
	}
	first := wordFirst(chunk, w)
	c := q.sizes.chunk(chunk)
	if first+uint64(trailingZeros(mask)) < q.handedOut {
		c.died |= 1 << w
	}
	died := c.died != 0
	bytes, empty := q.sizes.remove(&s.sizePool, chunk, w, mask)
	if empty {
		if died {
			q.markDied(chunk)
		}
		q.sizes.trim(func(stored uint64) {
			l := q.leave()
			l.sizes = append(l.sizes, stored)
		})
		if q.lanes != nil {
			q.lanes.drop(chunk)
		}
	}
	q.messages -= uint64(n)
	q.bytes -= bytes
	s.messages -= uint64(n)
	s.bytes -= bytes
	if first+63 < q.tail.first {
		return
	}
	for ; mask != 0; mask &= mask - 1 {
		s.tailBytes -= q.tail.drop(first + uint64(trailingZeros(mask)))
	}
}

// markDied remembers that the store has to look for pages that are not needed any more, in a chunk that was dropped.
// Chunks mostly die in order.
func (q *Queue) markDied(chunk uint64) {
	l := q.leave()
	if n := len(l.died); n > 0 {
		last := &l.died[n-1]
		if chunk >= last.first && chunk <= last.last {
			return
		}
		if chunk == last.last+1 {
			last.last = chunk
			return
		}
	}
	l.died = append(l.died, chunkRange{chunk, chunk})
}
