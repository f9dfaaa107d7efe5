// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"cmp"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"

	"github.com/lockstep-mq/lockstep/store/mutate"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// preparedSet contains the undecided prepared transactions and the retained outcomes of decided transactions.
type preparedSet struct {
	byXID    map[string]*Prepared
	holds    map[uint64]*hold // by queue
	bytes    int              // total payload bytes
	outcomes []*Outcome       // oldest first
	decided  map[string]*Outcome

	dirty []*Prepared // prepared since the last Collect
	fresh []*Outcome  // decided since the last Collect
	gone  [][]byte    // keys in the tree that are no longer needed
}

// hold is the space that prepared transactions reserve in one queue, and the number of their operations on it.
type hold struct {
	messages, bytes uint64 // to be published
	ops             int    // operations on the queue
}

// Prepared is an undecided prepared transaction. The package comment describes the required lock.
type Prepared struct {
	xid      string
	number   uint64
	timeMS   int64
	payload  []byte // a copy, so that the log record is not retained
	messages uint64
	acks     uint64
	stored   bool
}

// XID returns the transaction name assigned by the transaction coordinator.
func (p *Prepared) XID() string { return p.xid }

// Number returns the logical number of the record that prepared the transaction.
func (p *Prepared) Number() uint64 { return p.number }

// TimeMS returns the time at which the active prepared the transaction, in milliseconds since 1970.
func (p *Prepared) TimeMS() int64 { return p.timeMS }

// Messages returns the number of messages that the transaction publishes on commit, without forwards.
func (p *Prepared) Messages() uint64 { return p.messages }

// Acks returns the number of messages that the transaction reserves, to acknowledge them on commit, once per
// subscription.
func (p *Prepared) Acks() uint64 { return p.acks }

// Bytes returns the number of payload bytes retained for the transaction.
func (p *Prepared) Bytes() int { return len(p.payload) }

// Ops iterates over the OpPublish, OpAck and OpTake operations; it skips forwards. Each operation is valid until the
// next iteration.
func (p *Prepared) Ops(yield func(*txn.Op) bool) {
	var r txn.Reader
	if txn.Inner(&r, p.payload) != nil {
		return // the payload was valid when it was prepared or loaded
	}
	for range r.Ops() {
		o, err := r.Next()
		if err != nil || o.Code != txn.OpForward && !yield(o) {
			return
		}
	}
}

// Outcome is the decision on a prepared transaction.
type Outcome struct {
	XID string
	// Number is the logical number of the record with the decision.
	Number uint64
	// TimeMS is the time of the decision on the active, in milliseconds since 1970.
	TimeMS    int64
	Committed bool
	By        txn.Decider

	stored bool
}

// Bits of the txn.OpResult.ID of an OpCommitPrepared or OpRollbackPrepared.
const (
	outcomeCommitted = 1
	outcomeByShift   = 1
)

func (o *Outcome) resultID() uint64 { return b2u(o.Committed) | uint64(o.By)<<outcomeByShift }

// OutcomeOf decodes the result of an OpCommitPrepared or OpRollbackPrepared. The result of a retry contains the
// earlier decision.
func OutcomeOf(r *txn.OpResult) (committed bool, by txn.Decider) {
	return r.ID&outcomeCommitted != 0, txn.Decider(r.ID >> outcomeByShift)
}

// Prepared returns an undecided prepared transaction, or nil if it does not exist.
func (s *State) Prepared(xid string) *Prepared { return s.prepared.byXID[xid] }

// AllPrepared returns the undecided prepared transactions, oldest first.
func (s *State) AllPrepared() []*Prepared {
	return slices.SortedFunc(maps.Values(s.prepared.byXID), func(a, b *Prepared) int {
		return cmp.Compare(a.number, b.number)
	})
}

// PreparedCount returns the number of undecided prepared transactions.
func (s *State) PreparedCount() int { return len(s.prepared.byXID) }

// PreparedBytes returns the number of payload bytes of the undecided prepared transactions.
func (s *State) PreparedBytes() int { return s.prepared.bytes }

// Outcome returns the outcome of a decided transaction, or nil if it is unknown or no longer retained.
func (s *State) Outcome(xid string) *Outcome { return s.prepared.decided[xid] }

func (s *State) held(q *Queue) hold {
	if h := s.prepared.holds[q.id]; h != nil {
		return *h
	}
	return hold{}
}

// checkPrepare verifies that the transaction can be prepared and that its later commit cannot be rejected.
func (s *State) checkPrepare(o *txn.Op) txn.Code {
	if s.Prepared(string(o.Name)) != nil || s.Outcome(string(o.Name)) != nil {
		return txn.ErrXIDInUse
	}
	if s.PreparedCount() >= s.limits.prepared || s.PreparedBytes()+len(o.Raw) > s.limits.preparedBytes {
		return txn.ErrTooManyPrepared
	}
	var inner txn.Reader
	if err := txn.Inner(&inner, o.Raw); err != nil {
		return codeOf(err)
	}
	taken := 0
	for range inner.Ops() {
		op, err := inner.Next()
		if err != nil {
			return codeOf(err)
		}
		q := s.queues.get(op.Queue)
		if q == nil {
			return txn.ErrQueueNotFound
		}
		if code := q.checkServed(); code != txn.OK {
			return code
		}
		if op.Code != txn.OpForward {
			s.published.count = 0
		}
		sub := q.Sub(op.Sub)
		var code txn.Code
		switch {
		case op.Code == txn.OpForward:
			code = s.checkForward(op)
		case op.Code == txn.OpPublish:
			code = s.checkPublish(q, op)
		case sub == nil:
			code = txn.ErrSubscriptionNotFound
		default:
			code = s.checkTake(op, sub, &taken)
		}
		if code != txn.OK {
			return code
		}
	}
	return txn.OK
}

// checkTake verifies that all messages are unacknowledged and not reserved by a prepared transaction, and that the
// transaction takes at most MaxTaken messages.
func (s *State) checkTake(o *txn.Op, sub *Sub, taken *int) txn.Code {
	for r := range o.Ranges {
		if r.Last >= sub.q.nextSeq {
			return txn.ErrBeyondEnd
		}
		if r.Last-r.First >= uint64(s.limits.taken-*taken) {
			return txn.ErrTooLarge
		}
		*taken += int(r.Last-r.First) + 1
		for seq := r.First; seq <= r.Last; seq++ {
			switch {
			case mutate.Off("INV-16-what-is-acknowledged-is-taken"):
			case sub.acks.has(seq):
				return txn.ErrAlreadyAcknowledged
			case sub.reserved.has(seq):
				return txn.ErrReserved
			}
		}
	}
	return txn.OK
}

// checkDecide verifies a commit or rollback. For a decided transaction, it accepts only the same decision.
func (s *State) checkDecide(o *txn.Op) txn.Code {
	xid := string(o.Name)
	if p := s.Prepared(xid); p != nil {
		if o.Number != 0 && o.Number != p.number {
			return txn.ErrXIDNotFound
		}
		if o.Code == txn.OpCommitPrepared {
			s.findPreparedIDs(p)
		}
		return txn.OK
	}
	out := s.Outcome(xid)
	commit := o.Code == txn.OpCommitPrepared
	switch {
	case out == nil:
		return txn.ErrXIDNotFound
	case out.Committed == commit:
		return txn.OK
	case commit && out.By.Heuristic():
		return txn.ErrHeuristicRollback
	case commit:
		return txn.ErrRolledBack
	case out.By.Heuristic():
		return txn.ErrHeuristicCommit
	}
	return txn.ErrCommitted
}

func (s *State) changePrepared(o *txn.Op, logical uint64, r *txn.OpResult) {
	timeMS := s.reader.TimeMS()
	s.digest = mix(mix(mix(s.digest, uint64(o.Code)), uint64(crc32.Checksum(o.Name, s.crc))),
		uint64(crc32.Checksum(o.Raw, s.crc))<<32|uint64(o.By))
	if o.Code == txn.OpPrepare {
		p := &Prepared{xid: string(o.Name), number: logical, timeMS: timeMS, payload: slices.Clone(o.Raw)}
		s.hold(p)
		s.prepared.dirty = append(s.prepared.dirty, p)
		r.ID, r.Changed = logical, p.messages+p.acks
		return
	}
	p := s.Prepared(string(o.Name))
	if p == nil { // a retry
		r.ID = s.Outcome(string(o.Name)).resultID()
		return
	}
	out := &Outcome{
		XID: p.xid, Number: logical, TimeMS: timeMS, Committed: o.Code == txn.OpCommitPrepared, By: o.By,
	}
	s.releasePrepared(p)
	if out.Committed || mutate.Off("INV-16-a-rollback-publishes") {
		s.commitPrepared(p, timeMS, r)
	} else {
		s.rollbackPrepared(p, r)
	}
	s.addOutcome(out)
	r.ID = out.resultID()
}

// hold reserves the messages that p acknowledges, and space for the messages that p publishes.
func (s *State) hold(p *Prepared) {
	ps := &s.prepared
	ps.byXID[p.xid] = p
	ps.bytes += len(p.payload)
	for o := range p.Ops {
		h := ps.holds[o.Queue]
		if h == nil {
			h = new(hold)
			ps.holds[o.Queue] = h
		}
		h.ops++
		if o.Code == txn.OpPublish {
			h.messages += uint64(o.Count)
			h.bytes += uint64(len(o.Raw))
			p.messages += uint64(o.Count)
			continue
		}
		sub := s.queues.get(o.Queue).Sub(o.Sub)
		if sub.reserved == nil {
			sub.reserved = newReservedSet()
		}
		for r := range o.Ranges {
			for seq := r.First; seq <= r.Last; seq++ {
				p.acks += sub.reserved.add(seq)
			}
		}
	}
}

func (s *State) releasePrepared(p *Prepared) {
	ps := &s.prepared
	if !mutate.Off("INV-16-a-commit-is-applied-twice") {
		delete(ps.byXID, p.xid)
		ps.bytes -= len(p.payload)
	}
	for o := range p.Ops {
		if h := ps.holds[o.Queue]; h != nil {
			if h.ops--; h.ops == 0 {
				delete(ps.holds, o.Queue)
			}
			if o.Code == txn.OpPublish {
				h.messages -= uint64(o.Count)
				h.bytes -= uint64(len(o.Raw))
			}
		}
		if o.Code == txn.OpPublish {
			continue
		}
		sub := s.queues.get(o.Queue).Sub(o.Sub)
		for r := range o.Ranges {
			for seq := r.First; seq <= r.Last; seq++ {
				sub.reserved.remove(seq)
			}
		}
		if sub.reserved != nil && sub.reserved.n == 0 {
			sub.reserved = nil
		}
	}
	if p.stored {
		ps.gone = append(ps.gone, p.keys()...)
	}
	ps.dirty = slices.DeleteFunc(ps.dirty, func(d *Prepared) bool { return d == p })
}

// commitPrepared applies a prepared transaction. It sets the publish time of the messages to the commit time, to keep
// queues ordered by publish time.
func (s *State) commitPrepared(p *Prepared, timeMS int64, r *txn.OpResult) {
	var inner txn.Reader
	if err := txn.Inner(&inner, txn.WithTimestamp(p.payload, timeMS)); err != nil {
		panic(fmt.Sprintf("queue: transaction %d was valid when it was prepared: %v", p.number, err))
	}
	for range inner.Ops() {
		o, err := inner.Next()
		if err != nil {
			panic(fmt.Sprintf("queue: transaction %d was valid when it was prepared: %v", p.number, err))
		}
		if o.Code == txn.OpForward {
			s.forward(s.queues.get(o.Queue), o)
			continue
		}
		var one txn.OpResult
		s.changeOp(o, &one)
		if s.counted {
			s.counts.count(o, &one)
		}
		r.Changed += one.Changed
	}
}

// rollbackPrepared touches the queues with messages that p reserved.
func (s *State) rollbackPrepared(p *Prepared, r *txn.OpResult) {
	for o := range p.Ops {
		if o.Code != txn.OpPublish {
			s.touch(s.queues.get(o.Queue))
		}
	}
	r.Changed = p.acks
}

func (s *State) addOutcome(out *Outcome) {
	ps := &s.prepared
	ps.outcomes, ps.fresh = append(ps.outcomes, out), append(ps.fresh, out)
	ps.decided[out.XID] = out
	if len(ps.outcomes) <= s.limits.outcomes {
		return
	}
	oldest := ps.outcomes[0]
	ps.outcomes[0] = nil
	ps.outcomes = ps.outcomes[1:]
	delete(ps.decided, oldest.XID)
	if oldest.stored {
		ps.gone = append(ps.gone, xKey(nil, keyOutcome, oldest.Number))
	}
	ps.fresh = slices.DeleteFunc(ps.fresh, func(o *Outcome) bool { return o == oldest })
}

// reservedSet is the set of messages of one subscription that prepared transactions acknowledge on commit. nil is an
// empty set.
type reservedSet struct {
	chunks map[uint64]*reservedChunk
	n      uint64
}

type reservedChunk struct {
	words

	n int
}

func newReservedSet() *reservedSet { return &reservedSet{chunks: make(map[uint64]*reservedChunk)} }

func (r *reservedSet) has(seq uint64) bool {
	if r == nil {
		return false
	}
	c := r.chunks[seq>>chunkBits]
	return c != nil && c.words[seq&chunkMask>>6]>>(seq&63)&1 == 1
}

// add adds a message. It returns 1, or 0 if the message was already in the set.
func (r *reservedSet) add(seq uint64) uint64 {
	if r.has(seq) {
		return 0
	}
	c := r.chunks[seq>>chunkBits]
	if c == nil {
		c = new(reservedChunk)
		r.chunks[seq>>chunkBits] = c
	}
	c.words[seq&chunkMask>>6] |= 1 << (seq & 63)
	c.n++
	r.n++
	return 1
}

func (r *reservedSet) remove(seq uint64) {
	if !r.has(seq) {
		return
	}
	c := r.chunks[seq>>chunkBits]
	c.words[seq&chunkMask>>6] &^= 1 << (seq & 63)
	r.n--
	if c.n--; c.n == 0 {
		delete(r.chunks, seq>>chunkBits)
	}
}

// past returns the first sequence at or after seq that is not in the set, or the first sequence of the next group
// of 64.
func (r *reservedSet) past(seq uint64) uint64 {
	c := r.chunks[seq>>chunkBits]
	if c == nil {
		return seq
	}
	return seq + uint64(trailingZeros(^(c.words[seq&chunkMask>>6] >> (seq & 63))))
}

// Reserved reports whether a prepared transaction reserves the message, to acknowledge it for the subscription on
// commit.
func (s *Sub) Reserved(seq uint64) bool { return s.reserved.has(seq) }

// NextDeliverable is like NextUnacked, but skips delayed messages and messages reserved by prepared transactions.
func (s *Sub) NextDeliverable(from uint64) uint64 {
	if s.reserved == nil && s.q.delayed == nil {
		return s.NextUnacked(from)
	}
	return s.deliverable(from, s.NextUnacked)
}

func (s *Sub) deliverable(from uint64, unacked func(from uint64) uint64) uint64 {
	seq, delayed := unacked(from), s.q.delayed
	for (delayed != nil || s.reserved != nil) && seq < s.q.nextSeq {
		next := seq
		if s.reserved.has(seq) {
			next = s.reserved.past(seq)
		} else if delayed != nil {
			next = delayed.nextFree(seq)
		}
		if next == seq {
			break
		}
		seq = unacked(next)
	}
	return seq
}
