// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"github.com/lockstep-mq/lockstep/store/txn"
)

// Queue is one queue. The package comment describes the required lock.
//
// A store can have very many queues, most of them idle. Data that an idle queue does not need is in extras, which is
// allocated on demand.
type Queue struct {
	id       uint64
	name     string
	config   *settings // &noConfig if default
	nextSeq  uint64
	subs     []*Sub // ordered by id; with a retention, the hidden subscription is last (see retention.go)
	messages uint64
	bytes    uint64
	digest   uint64
	sizes    sizeSet
	tail     tail

	collected uint64    // messages with lower sequences were collected or loaded
	removals  *removals // may be nil
	*extras             // &noExtras until own allocates it

	tailNewer, tailOlder *Queue // list of the queues with a non-empty tail

	nextSub uint32
	pending uint32 // possible index in State.pending
	// slow is the index in subs of the subscription that was last found to need a message. The next search begins
	// there.
	slow    uint16
	dirty   bool
	loaded  bool // the Loader has received its record
	deleted bool
	touched bool
}

type extras struct {
	forwards         *forwards      // may be nil
	pauses           *pauses        // may be nil
	ids              *idSet         // may be nil
	lanes            *priorityIndex // nil without priorities
	delayed          *delaySet      // may be nil
	dropped, expired uint64
	epoch            uint64 // of the last OpOwn or OpTakeMoved; 0 for none
	// move is the move of a fenced or incoming queue; otherwise nil.
	move *move
	// staged contains the imported subscriptions of an incoming queue that is not complete, ordered by id.
	staged []*Sub
	// policies contains the overrides of subscriptions, by subscription number.
	policies map[uint32]policy
}

// noExtras is shared by all queues without extras. It must not be modified.
var noExtras extras //nolint:gochecknoglobals // a constant, but for its address

func (q *Queue) own() *extras {
	if q.extras == &noExtras {
		q.extras = new(extras)
	}
	return q.extras
}

// Dropped returns the numbers of discarded messages. dropped counts messages that were discarded for lack of a
// dead-letter queue, once per subscription. expired counts expired messages that were not moved to a dead-letter queue.
func (q *Queue) Dropped() (dropped, expired uint64) { return q.dropped, q.expired }

// removals is the data that the next checkpoint removes from the page file.
type removals struct {
	keys  [][]byte // of deleted subscriptions
	sizes []uint64 // dropped size chunks that are stored
	// died contains dropped chunks in which collected messages became dead; for other chunks, see sizeChunk.died.
	died []chunkRange
}

func (q *Queue) ownRemovals() *removals {
	if q.removals == nil {
		q.removals = new(removals)
	}
	return q.removals
}

// Sub is one subscription of a queue. The package comment describes the required lock.
type Sub struct {
	q        *Queue
	id       uint32
	dirty    bool
	stored   bool
	loaded   bool
	name     uint8  // length of the name
	text     string // name followed by the filter, which is usually empty
	start    uint64
	acks     ackSet
	counts   *countSet // may be nil
	reserved *reservedSet
}

// policy is the part of the queue's configuration that a subscription overrides.
type policy struct {
	own    txn.ConfigMask
	values txn.Config
}

// chunkRange is an inclusive range of chunks.
type chunkRange struct{ first, last uint64 }

// ID returns the queue's number, which is at least 1 and never reused.
func (q *Queue) ID() uint64 { return q.id }

// Name returns the name of the queue.
func (q *Queue) Name() string { return q.name }

// Config returns the queue's effective configuration.
func (q *Queue) Config() txn.Config { return q.config.Config }

// NextSequence returns the sequence of the next message.
func (q *Queue) NextSequence() uint64 { return q.nextSeq }

// Messages returns the number of live messages, which are retained or not yet acknowledged by all subscriptions.
func (q *Queue) Messages() uint64 { return q.messages }

// Bytes returns the stored bytes of the live messages. The number is exact if the queue has kept sizes
// (txn.Config.ExactBytes) since these messages were published. Otherwise, if only some messages of a group of 64 are
// live, each of them counts with the average size of the group.
func (q *Queue) Bytes() uint64 { return q.bytes }

// Digest returns a rolling hash of the operations applied to the queue and of their results.
func (q *Queue) Digest() uint64 { return q.digest }

// SubCount returns the number of subscriptions, without the hidden subscription of a retention.
func (q *Queue) SubCount() int { return len(q.clients()) }

// Subs iterates over the subscriptions in the order of their numbers, without the hidden subscription of a retention.
func (q *Queue) Subs(yield func(*Sub) bool) {
	for _, s := range q.clients() {
		if !yield(s) {
			return
		}
	}
}

// Sub returns a subscription by number, or nil if it does not exist.
func (q *Queue) Sub(id uint32) *Sub {
	// The list is short and ordered by number. Most queues have one subscription, with number 1.
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

// SubByName returns a subscription by name, or nil if it does not exist.
func (q *Queue) SubByName(name string) *Sub {
	for _, s := range q.clients() {
		if s.Name() == name {
			return s
		}
	}
	return nil
}

// ID returns the subscription's number, which is at least 1 and never reused in its queue.
func (s *Sub) ID() uint32 { return s.id }

// Name returns the name of the subscription.
func (s *Sub) Name() string { return s.text[:s.name] }

// Filter returns the filter expression; "" selects all messages.
func (s *Sub) Filter() string { return s.text[s.name:] }

// Options returns the filter of the subscription, and the fields of the queue's configuration that it overrides.
func (s *Sub) Options() txn.SubscriptionOptions {
	o := txn.SubscriptionOptions{Filter: s.Filter()}
	p := s.q.policies[s.id]
	o.Own, o.Policy = p.own, p.values
	return o
}

// Config returns the queue's configuration with the subscription's overrides, within the limits of policies.
func (s *Sub) Config() txn.Config {
	p, ok := s.q.policies[s.id]
	if !ok {
		return s.q.config.Config
	}
	c := s.q.config.With(p.values, p.own)
	if most := s.q.config.mostDeliveries; most != 0 && (c.MaxDeliveries == 0 || c.MaxDeliveries > most) {
		c.MaxDeliveries = most
	}
	return c
}

func (s *Sub) deadLetter() uint64 {
	return s.q.policies[s.id].values.DeadLetter
}

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

// Queue returns the subscription's queue.
func (s *Sub) Queue() *Queue { return s.q }

// Start returns the Floor of the subscription when it was created, or the lowest Floor that a seek has set since
// then, if that is lower.
func (s *Sub) Start() uint64 { return s.start }

// Floor returns the sequence below which all messages are acknowledged.
func (s *Sub) Floor() uint64 { return s.acks.floor }

// Backlog returns the number of unacknowledged messages.
func (s *Sub) Backlog() uint64 { return s.q.nextSeq - s.acks.floor - s.acks.above }

// Acked reports whether a published sequence is acknowledged.
func (s *Sub) Acked(seq uint64) bool { return s.acks.has(seq) }

// NextUnacked returns the first unacknowledged sequence at or after from, or the queue's NextSequence.
func (s *Sub) NextUnacked(from uint64) uint64 { return s.acks.next(from, s.q.nextSeq) }

// DeliveryCount returns the number of times that an unacknowledged message was released since the last seek of the
// subscription.
func (s *Sub) DeliveryCount(seq uint64) uint32 { return s.counts.get(seq) }

// TailRecord returns a message from memory. If ok is false, the message is dead, in pages, or not published yet.
func (q *Queue) TailRecord(seq uint64) (rec []byte, ok bool) {
	if e := q.tail.entry(seq); e != nil && *e != nil {
		return *e, true
	}
	return nil, false
}

// Dead reports whether no subscription needs a published sequence.
func (q *Queue) Dead(seq uint64) bool {
	return q.deadWord(seq>>chunkBits, int(seq&chunkMask)>>6)>>(seq&63)&1 == 1
}

// AllDead reports whether no subscription needs any of the published sequences first to first+span-1.
func (q *Queue) AllDead(first, span uint64) bool {
	return span == 0 || q.NextAlive(first) >= first+span
}

// NextAlive returns the first sequence at or after from that some subscription has not acknowledged. If no such
// sequence exists, it returns the higher of from and NextSequence.
func (q *Queue) NextAlive(from uint64) uint64 {
	z := &q.sizes
	if len(z.slots) == 0 {
		return max(q.nextSeq, from)
	}
	// Only chunks with slots have live messages.
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

// deadWord returns word w of a chunk's bitmap of dead sequences. The bits of unpublished sequences are undefined.
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

func (q *Queue) ackedByAll(except *Sub, chunk uint64, w int) uint64 {
	return ackedByAll(q.subs, except, chunk, w)
}

func ackedByAll(subs []*Sub, except *Sub, chunk uint64, w int) uint64 {
	v := ^uint64(0)
	for _, s := range subs {
		if s == except {
			continue
		}
		if v &= s.acks.word(chunk, w); v == 0 {
			break
		}
	}
	return v
}

// othersAcked returns the messages of want that all subscriptions other than except have acknowledged.
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

// markDead removes the messages in mask, of word w of a chunk, from the counts and the tail. Before the call, all of
// them must be live, and no subscription may need them.
func (s *State) markDead(q *Queue, chunk uint64, w int, mask uint64) {
	n := ones(mask)
	if q.delayed != nil {
		s.undelay(q, chunk, w, mask)
	}
	first := wordFirst(chunk, w)
	c := q.sizes.chunk(chunk)
	if first+uint64(trailingZeros(mask)) < q.collected {
		c.died |= 1 << w
	}
	died := c.died != 0
	bytes, empty := q.sizes.remove(&s.sizePool, chunk, w, mask)
	if empty {
		if died {
			q.markDied(chunk)
		}
		q.sizes.trim(func(stored uint64) {
			l := q.ownRemovals()
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

// markDied records that the store must search a dropped chunk for unneeded pages. Chunks are mostly dropped in order.
func (q *Queue) markDied(chunk uint64) {
	l := q.ownRemovals()
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
