// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"hash/crc32"
	"math/bits"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// State is the whole state machine. See the package comment for the lock it needs.
//
// Invariants, which Check verifies: a queue's counts are the sums of its size chunks; a message counts as alive exactly
// when some subscription has not acknowledged it; a queue's tail, unless it is empty, ends with its last message; every
// message alive is in the tail or was handed out by Collect.
type State struct {
	limits    limits
	applied   uint64
	nextQueue uint64
	digest    uint64
	queues    table
	byName    map[string]*Queue
	names     nameList
	producers producers
	meta      metaEntries
	access    accessTable
	prepared  *preparedSet // nil until the first transaction is prepared

	messages  uint64
	bytes     uint64
	tailBytes int64
	delayed   uint64
	expired   uint64 // by the transaction that is being applied
	schedule  schedule

	counts     Counts
	countAfter uint64

	filters       uint64         // see Filters
	deadLettersTo map[uint64]int // how many queues and subscriptions name a queue as their dead-letter queue; nil: none

	forwardsTo map[uint64]int    // how many queues forward to a queue; nil while none does
	temporary  map[uint64]*Queue // those that are deleted when they have no consumer; nil while there was none

	touched []*Queue
	dirty   []*Queue
	deleted []uint64

	tailOldest, tailNewest *Queue
	tailQueues             int // in that list

	crc      *crc32.Table
	sums     txn.RecordSums // of the publish that is being applied
	ackPool  pool[ackChunk]
	sizePool sizePools
	reader   txn.Reader
	newly    words
	opSlab   []txn.OpResult
	ttls     map[uint64]int64 // of the queues that have one; nil while there is none
	// queues that retain messages, or whose excess the active moves; nil while there is none
	swept map[uint64]struct{}
	// messages that the operation that is carried out has dropped from the head of a queue
	overflowed uint64
	pending    []pending       // what the transaction that is being checked would add to queues that have a limit
	published  publishedBefore // the publish that the operation before was
	forwarded  int             // forwards in the transaction that is being applied
}

type pending struct {
	q               *Queue
	messages, bytes uint64
}

// New gives an empty state, before the first record.
func New() *State {
	s := &State{
		limits:    defaultLimits(),
		nextQueue: 1,
		byName:    make(map[string]*Queue),
		crc:       crc32.MakeTable(crc32.Castagnoli),
	}
	s.setLimits(s.limits)
	s.schedule.soonest = NeverMS
	s.producers.byID = make(map[string]*producer)
	s.meta.byKey = make(map[string]*metaEntry)
	return s
}

func (s *State) setLimits(l limits) { s.limits, s.producers.limits = l, l }

// Applied is the LSN of the last record that was applied.
func (s *State) Applied() uint64 { return s.applied }

// Digest is a rolling hash of every transaction that was ever applied, results included: two nodes that have the same
// Applied must have the same Digest.
func (s *State) Digest() uint64 { return s.digest }

// QueueCount is the number of queues.
func (s *State) QueueCount() int { return s.queues.n }

// ProducerCount is the number of producers that are remembered.
func (s *State) ProducerCount() int { return len(s.producers.byID) }

// Messages is the sum over all queues.
func (s *State) Messages() uint64 { return s.messages }

// Bytes is the sum over all queues.
func (s *State) Bytes() uint64 { return s.bytes }

// TailBytes is the memory that messages take that are not in pages yet.
func (s *State) TailBytes() int64 { return s.tailBytes }

// Queue gives a queue by its number; nil if there is none.
func (s *State) Queue(id uint64) *Queue { return s.queues.get(id) }

// QueueByName gives a queue by its name; nil if there is none.
func (s *State) QueueByName(name string) *Queue { return s.byName[name] }

// List appends to dst up to limit queues whose names begin with prefix and come after after, in the order of their
// names.
func (s *State) List(dst []*Queue, prefix, after string, limit int) []*Queue {
	s.names.from(max(prefix, after), func(q *Queue) bool {
		if limit <= 0 || len(q.name) < len(prefix) || q.name[:len(prefix)] != prefix {
			return false
		}
		if after == "" || q.name > after {
			dst = append(dst, q)
			limit--
		}
		return true
	})
	return dst
}

// Queues iterates over all queues in the order of their names.
func (s *State) Queues(yield func(*Queue) bool) { s.names.from("", yield) }

// TakeTouched appends to dst the numbers of the queues that were published to, released in, purged, altered, deleted,
// or lost a subscription since the last call; MetaQueue, if one of the pair's own entries was set or removed;
// AccessQueue, if the access table was changed; and OverflowQueue, if one of them holds more than it is to hold, and
// the active has to move the excess.
func (s *State) TakeTouched(dst []uint64) []uint64 {
	for _, q := range s.touched {
		q.touched = false
		dst = append(dst, q.id)
		if q.config.Overflow == txn.OverflowDeadLetterHead && !q.within(0, 0, 0, 0) {
			dst = append(dst, OverflowQueue)
		}
	}
	clear(s.touched) // some of them may be deleted
	s.touched = s.touched[:0]
	if s.meta.touched {
		s.meta.touched = false
		dst = append(dst, MetaQueue)
	}
	if s.access.touched {
		s.access.touched = false
		dst = append(dst, AccessQueue)
	}
	return dst
}

func (s *State) touch(q *Queue) {
	if !q.touched {
		q.touched = true
		s.touched = append(s.touched, q)
	}
}

func (s *State) mark(q *Queue) {
	if !q.dirty {
		q.dirty = true
		s.dirty = append(s.dirty, q)
	}
}

// linkTail puts q at the end of the list of queues that have a tail.
func (s *State) linkTail(q *Queue) {
	s.tailQueues++
	q.tailNewer, q.tailOlder = nil, s.tailNewest
	if s.tailNewest != nil {
		s.tailNewest.tailNewer = q
	} else {
		s.tailOldest = q
	}
	s.tailNewest = q
}

func (s *State) unlinkTail(q *Queue) {
	s.tailQueues--
	if q.tailNewer != nil {
		q.tailNewer.tailOlder = q.tailOlder
	} else {
		s.tailNewest = q.tailOlder
	}
	if q.tailOlder != nil {
		q.tailOlder.tailNewer = q.tailNewer
	} else {
		s.tailOldest = q.tailNewer
	}
	q.tailNewer, q.tailOlder = nil, nil
}

// trimTail pops what is dead at the front of a tail.
func (s *State) trimTail(q *Queue) {
	if q.tail.n == 0 {
		return
	}
	s.tailBytes -= q.tail.trim()
	if q.tail.n == 0 {
		s.unlinkTail(q)
	}
}

// mix adds a number to a rolling hash. Each step can be undone, so that two histories that differ in one step stay
// different as long as the rest is the same.
func mix(h, v uint64) uint64 {
	h = (bits.RotateLeft64(h, 23) ^ v) * 0x9e3779b97f4a7c15
	return h ^ h>>32
}

func trailingZeros(v uint64) int { return bits.TrailingZeros64(v) }
