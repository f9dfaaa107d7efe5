// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"hash/crc32"
	"maps"
	"math/bits"
	"slices"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// State is the complete state machine. The package comment describes the required lock.
//
// Check verifies these and other invariants: The counts of a queue are the sums of its size chunks. A message counts
// as live if and only if some subscription has not acknowledged it. A non-empty tail ends with the queue's last
// message. Every live message is in the tail, was returned by Collect, or was loaded.
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
	policies  policyTable
	prepared  preparedSet
	site      site
	fleet     fleet
	moves     moveSet

	messages  uint64
	bytes     uint64
	tailBytes int64
	delayed   uint64
	schedule  schedule
	ids       idReads

	counts     Counts
	countAfter uint64

	filters       uint64              // see Filters
	deadLettersTo map[uint64]int      // references to a queue as dead-letter queue
	forwardsTo    map[uint64]int      // rules that forward to a queue
	temporary     map[uint64]*Queue   // temporary queues
	ttls          map[uint64]int64    // of the queues with a TTL
	expiring      map[uint64]struct{} // queues with a retention or OverflowDeadLetterHead
	paused        map[uint64]struct{} // queues with a pause

	touched []*Queue
	dirty   []*Queue
	deleted []uint64

	tailOldest, tailNewest *Queue
	tailQueues             int // number of queues in the list

	crc      *crc32.Table
	ackPool  pool[ackChunk]
	sizePool sizePools
	reader   txn.Reader
	newly    words
	opSlab   []txn.OpResult

	// Of the current transaction:
	counted        bool            // the transaction is included in counts
	sums           txn.RecordSums  // of the current publish
	overflowed     uint64          // messages dropped from the head of a queue
	expired        uint64          // expired messages
	duplicates     uint64          // messages discarded as duplicates
	duplicateBytes uint64          // bytes of the discarded messages of publishes
	pending        []pending       // additions to queues with a limit
	published      publishedBefore // the publish to which the next OpForward refers
	added          int             // operations without a result: forwards, and an OpOwn before an OpCreateQueue
}

type pending struct {
	q               *Queue
	messages, bytes uint64
}

// New returns an empty state, with Applied 0.
func New() *State {
	s := &State{
		limits:    defaultLimits(),
		nextQueue: 1,
		byName:    make(map[string]*Queue),
		crc:       crc32.MakeTable(crc32.Castagnoli),
		prepared: preparedSet{
			byXID: make(map[string]*Prepared), holds: make(map[uint64]*hold), decided: make(map[string]*Outcome),
		},
		deadLettersTo: make(map[uint64]int),
		forwardsTo:    make(map[uint64]int),
		temporary:     make(map[uint64]*Queue),
		ttls:          make(map[uint64]int64),
		expiring:      make(map[uint64]struct{}),
		paused:        make(map[uint64]struct{}),
		moves:         newMoveSet(),
	}
	s.setLimits(s.limits)
	s.schedule.soonest = NeverMS
	s.producers.byID = make(map[string]*producer)
	s.meta.entryTable = newEntryTable[string]()
	s.access.entryTable = newEntryTable[accessName]()
	s.policies.entryTable = newEntryTable[string]()
	return s
}

func (s *State) setLimits(l limits) { s.limits, s.producers.limits = l, l }

// Applied returns the LSN of the last applied record.
func (s *State) Applied() uint64 { return s.applied }

// Digest returns a rolling hash of the logical numbers and result codes of the transactions, and of the operations
// that are not on a queue. Queue.Digest covers the operations on queues. Nodes of a pair with the same Applied have
// the same Digest.
func (s *State) Digest() uint64 { return s.digest }

// QueueCount returns the number of queues, without incoming queues.
func (s *State) QueueCount() int { return s.queues.n }

// Messages returns the number of live messages in all queues, including incoming queues.
func (s *State) Messages() uint64 { return s.messages }

// Bytes returns the stored bytes of the live messages in all queues, including incoming queues.
func (s *State) Bytes() uint64 { return s.bytes }

// TailBytes returns the approximate memory used by messages that are not in pages yet.
func (s *State) TailBytes() int64 { return s.tailBytes }

// Queue returns a queue by number, or nil if it does not exist. It also returns incoming queues, which QueueByName does
// not return.
func (s *State) Queue(id uint64) *Queue {
	if q := s.queues.get(id); q != nil {
		return q
	}
	return s.moves.incoming[id]
}

// QueueByName returns a queue by name, or nil if it does not exist. It does not return incoming queues.
func (s *State) QueueByName(name string) *Queue { return s.byName[name] }

// List appends at most limit queues to dst, in name order. Their names begin with prefix and sort after the given
// name.
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

// Queues iterates over all queues in name order, without incoming queues.
func (s *State) Queues(yield func(*Queue) bool) { s.names.from("", yield) }

// Temporary returns the temporary queues that are not fenced, ordered by number.
func (s *State) Temporary() []*Queue {
	queues := make([]*Queue, 0, len(s.temporary))
	for _, id := range slices.Sorted(maps.Keys(s.temporary)) {
		queues = append(queues, s.temporary[id])
	}
	return queues
}

// TakeTouched appends to dst the numbers of the queues touched since the last call. Operations that can make messages
// deliverable to an existing subscription, such as a publish or a seek, touch the queue. So do changes such as
// altering, pausing or deleting the queue.
//
// TakeTouched adds MetaQueue if an internal entry changed, AccessQueue if the access table changed, and FleetQueue if
// the pair joined or left a fleet, or if a move changed other than by the progress of its import. It adds
// OverflowQueue if a touched queue exceeds its limits and the active must move the excess.
func (s *State) TakeTouched(dst []uint64) []uint64 {
	for _, q := range s.touched {
		q.touched = false
		dst = append(dst, q.id)
		if q.config.Overflow == txn.OverflowDeadLetterHead && !q.within(0, 0, 0, 0) {
			dst = append(dst, OverflowQueue)
		}
	}
	clear(s.touched)
	s.touched = s.touched[:0]
	if s.meta.touched {
		s.meta.touched = false
		dst = append(dst, MetaQueue)
	}
	if s.access.touched {
		s.access.touched = false
		dst = append(dst, AccessQueue)
	}
	if s.fleet.touched {
		s.fleet.touched = false
		dst = append(dst, FleetQueue)
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

func (s *State) trimTail(q *Queue) {
	if q.tail.n == 0 {
		return
	}
	s.tailBytes -= q.tail.trim()
	if q.tail.n == 0 {
		s.unlinkTail(q)
	}
}

// mix adds a number to a rolling hash. Each step is invertible, so different hashes remain different if the same
// numbers are added.
func mix(h, v uint64) uint64 {
	h = (bits.RotateLeft64(h, 23) ^ v) * 0x9e3779b97f4a7c15
	return h ^ h>>32
}

func trailingZeros(v uint64) int { return bits.TrailingZeros64(v) }
