// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// The state of a queue is transferred as pairs of keys and values like those in the tree. Their keys do not contain
// the number of the queue. The pairs are in the order of stateKinds and, within a kind, in key order; an
// OpImportState has pairs of one kind. Sizes and priorities of the messages are not transferred.

// stateKinds are the kinds of keys in the state of a queue, in the order of the transfer.
const stateKinds = string(rune(keyQueue)) + string(rune(keySub)) + string(rune(keyAcks)) + string(rune(keyCounts)) +
	string(rune(keyPauses)) + string(rune(keyDelayed)) + string(rune(keyForwards)) + string(rune(keyIDSet)) +
	string(rune(keyIDs))

// rankOf returns the position of the kind of a key in stateKinds; -1 for an empty key or another kind.
func rankOf(key []byte) int {
	if len(key) == 0 {
		return -1
	}
	return strings.IndexByte(stateKinds, key[0])
}

// afterKey reports whether key follows before in the order of the transfer. before may be empty.
func afterKey(key, before []byte) bool {
	rank, previous := rankOf(key), rankOf(before)
	return rank > previous || rank == previous && rank >= 0 && bytes.Compare(key, before) > 0
}

// stateCode returns the code for an error of checkPair, or OK for nil.
func stateCode(err error) txn.Code {
	if err == nil {
		return txn.OK
	}
	code := txn.ErrMalformed
	if errors.As(err, &code) {
		return code
	}
	return txn.ErrMalformed
}

func (s *State) checkImportState(o *txn.Op) txn.Code {
	q, mq := s.importing(o)
	if q == nil || !bytes.Equal(o.Name, mq.after) {
		return txn.ErrMoveChanged
	}
	if o.Last != (o.Count == 0) {
		return txn.ErrMalformed
	}
	if o.Last {
		return q.checkComplete(mq, s.limits.importChunks)
	}
	before := mq.after
	kind := byte(0)
	seen := make(map[string]bool)
	for p := range o.StatePairs {
		if rankOf(p.Key) < 0 || !afterKey(p.Key, before) || kind != 0 && p.Key[0] != kind ||
			len(mq.after) == 0 && p.Key[0] != keyQueue {
			return txn.ErrMalformed
		}
		kind, before = p.Key[0], p.Key
		if code := stateCode(q.checkPair(p, seen, s.limits.importChunks)); code != txn.OK {
			return code
		}
	}
	return txn.OK
}

// checkPair verifies a pair of the state. seen contains the names of the subscriptions in the same operation, to which
// checkPair adds. chunks is the maximum distance between chunks of the queue.
func (q *Queue) checkPair(p txn.StatePair, seen map[string]bool, chunks uint64) error {
	k, v := cursor{b: p.Key[1:]}, cursor{b: p.Value}
	switch p.Key[0] {
	case keyQueue:
		x := v.importedQueue()
		if v.err == nil && !q.accepts(&x, chunks) {
			v.fail("state of another queue")
		}
	case keySub:
		sub, _ := k.importedSub(&v, q)
		if v.err == nil && k.err == nil && (seen[sub.Name()] || len(q.staged)+len(seen) > txn.MaxSubscriptions) {
			v.fail("duplicate subscription, or too many")
		}
		seen[sub.Name()] = true
	case keyAcks:
		sub, chunk, _ := k.importedAcks(&v, q)
		if v.err == nil && k.err == nil && chunk-sub.acks.floor>>chunkBits > chunks {
			v.fail("acknowledgements too far from the floor")
		}
	case keyCounts:
		k.importedCounts(&v, q)
	case keyPauses:
		pauses := v.pauseList()
		for id := range pauses {
			if id != 0 && q.stagedSub(id) == nil {
				v.fail("pause of a missing subscription")
			}
		}
	case keyDelayed:
		k.importedDelays(&v, q)
	case keyForwards:
		v.forwardRules()
	case keyIDSet:
		d := v.idSet()
		if v.err == nil && !d.valid(q.nextSeq) {
			v.fail("invalid generations of message IDs")
		}
	case keyIDs:
		k.importedID(&v, q)
	}
	k.end()
	v.end()
	return errors.Join(k.err, v.err)
}

// importState adds the pairs of an OpImportState to an incoming queue. checkImportState has verified them.
func (s *State) importState(o *txn.Op, r *txn.OpResult) {
	q := s.moves.incoming[o.Queue]
	mq := q.moved()
	s.mark(q)
	s.moves.dirty[o.Number] = true
	q.digest = mix(mix(mix(q.digest, uint64(o.Code)), b2u(o.Last)), uint64(crc32.Checksum(o.Raw, s.crc)))
	if o.Last {
		s.dropDelaysAfter(q, mq.after)
		s.complete(q, mq)
		r.Changed = q.messages
		return
	}
	delays, last := q.delayed.sorted(), mq.after
	for p := range o.StatePairs {
		if r.Changed == 0 && rankOf(p.Key) > delayedRank {
			s.dropDelaysAfter(q, mq.after)
		}
		s.importPair(q, mq, p, delays, last)
		last = p.Key
		r.Changed++
	}
	mq.after = slices.Clone(last)
}

func (s *State) importPair(q *Queue, mq *movedQueue, p txn.StatePair, delays []uint64, before []byte) {
	k, v := cursor{b: p.Key[1:]}, cursor{b: p.Value}
	switch p.Key[0] {
	case keyQueue:
		x := v.importedQueue()
		s.importQueue(q, mq, &x)
	case keySub:
		sub, options := k.importedSub(&v, q)
		name := sub.text
		sub.setOptions(name, options)
		sub.dirty = true
		x := q.own()
		x.staged = append(x.staged, sub)
	case keyAcks:
		sub, chunk, slot := k.importedAcks(&v, q)
		n := uint64(ChunkSize)
		if slot.c != nil {
			n = uint64(slot.c.n)
		}
		slot.dirty = true
		*sub.acks.ensure(chunk, sub.acks.floor>>chunkBits) = slot
		sub.acks.above += n
		sub.dirty = true
	case keyCounts:
		sub, chunk, entries := k.importedCounts(&v, q)
		if sub.counts == nil {
			sub.counts = new(countSet)
		}
		c := sub.counts.chunk(chunk)
		c.entries, c.dirty = entries, true
		sub.dirty = true
	case keyPauses:
		q.own().pauses = &pauses{bySub: v.pauseList(), dirty: true}
	case keyDelayed:
		s.dropDelays(q, delays, nextChunk(before), k.be64(), &v)
	case keyForwards:
		q.own().forwards = &forwards{rules: v.forwardRules(), dirty: true}
	case keyIDSet:
		d := v.idSet()
		d.dirty = true
		for _, g := range d.generations {
			g.stored = false
		}
		q.own().ids, s.ids.used = d, true
	case keyIDs:
		g, h, e := k.importedID(&v, q)
		if g.now == nil {
			g.now = make(map[idHash]idEntry)
		}
		g.now[h] = e
		q.ids.dirty = true
		s.ids.unwritten++
	}
}

// importedQueue is the value of the q pair in the state of a queue. It contains no ownership epoch, byte count or
// digest.
type importedQueue struct {
	name             string
	config           txn.Config
	fields           txn.ConfigMask
	nextSeq, live    uint64
	nextSub          uint32
	dropped, expired uint64
}

func (x *importedQueue) appendValue(dst []byte) []byte {
	dst = appendString(append(dst, valueVersion), x.name)
	dst = txn.AppendOwnConfig(dst, x.config, x.fields)
	for _, v := range [...]uint64{x.nextSeq, uint64(x.nextSub), x.live, x.dropped, x.expired} {
		dst = binary.AppendUvarint(dst, v)
	}
	return dst
}

func (c *cursor) importedQueue() (x importedQueue) {
	c.version()
	x.name = string(c.take(c.uvarint(txn.MaxNameBytes)))
	if c.err != nil {
		return x
	}
	var err error
	if x.config, x.fields, c.b, err = txn.DecodeOwnConfig(c.b); err != nil {
		c.err = err
		return x
	}
	x.nextSeq, x.nextSub = c.uvarint(txn.MaxSequence+1), uint32(c.uvarint(importSub))
	x.live, x.dropped, x.expired = c.uvarint(math.MaxUint64), c.uvarint(math.MaxUint64), c.uvarint(math.MaxUint64)
	return x
}

// accepts reports whether x belongs to the queue, and to the messages that are already imported.
func (q *Queue) accepts(x *importedQueue, chunks uint64) bool {
	return x.name == q.name && x.nextSeq >= q.nextSeq && x.nextSub > 0 && (x.config.Priorities != 0) == (q.lanes != nil) &&
		q.spans(x.nextSeq, x.nextSeq-1, chunks)
}

func (s *State) importQueue(q *Queue, mq *movedQueue, x *importedQueue) {
	s.skipTo(q, x.nextSeq)
	q.nextSub, mq.live = x.nextSub, x.live
	own := q.own()
	own.dropped, own.expired = x.dropped, x.expired
	if q.config = (&settings{Config: x.config, fields: x.fields}); !q.keepsSizes() {
		q.sizes.dropSizes(&s.sizePool)
	}
}

func (q *Queue) stagedSub(id uint32) *Sub {
	i, ok := slices.BinarySearchFunc(q.staged, id, func(s *Sub, id uint32) int { return cmp.Compare(s.id, id) })
	if !ok {
		return nil
	}
	return q.staged[i]
}

// importedSub decodes a subscription. Sub.text contains only the name until setOptions is called.
func (c *cursor) importedSub(v *cursor, q *Queue) (*Sub, txn.SubscriptionOptions) {
	sub := &Sub{q: q, id: c.be32()}
	hidden := sub.id == txn.RetentionSub
	name, options := v.subscription(sub)
	switch {
	case v.err != nil || c.err != nil:
		return sub, options
	case sub.id == 0, sub.id >= q.nextSub && !hidden, sub.acks.floor > q.nextSeq, sub.start > sub.acks.floor,
		hidden != (name == ""), hidden && options != (txn.SubscriptionOptions{}):
		v.fail("invalid subscription")
	}
	for _, other := range q.staged {
		if other.Name() == name || other.id >= sub.id {
			v.fail("duplicate subscription")
		}
	}
	sub.text, sub.name = name, uint8(len(name))
	return sub, options
}

// importedAcks decodes a chunk of acknowledgements of a staged subscription.
func (c *cursor) importedAcks(v *cursor, q *Queue) (sub *Sub, chunk uint64, slot ackSlot) {
	sub, chunk = q.stagedSub(c.be32()), c.be64()
	if c.err != nil || sub == nil {
		c.fail("acknowledgements of a missing subscription")
		return nil, 0, slot
	}
	slot = v.ackChunk()
	a := &sub.acks
	if v.err != nil || chunk < a.floor>>chunkBits || chunk > (q.nextSeq-1)>>chunkBits {
		v.fail("acknowledgements outside the queue")
		return nil, 0, slot
	}
	for w := range chunkWords {
		acked := ^uint64(0)
		if slot.c != nil {
			acked = slot.c.words[w]
		}
		ok := published(chunk, w, q.nextSeq)
		if first := wordFirst(chunk, w); first <= a.floor {
			ok &^= belowMask(a.floor - first + 1) // the floor is not acknowledged
		}
		if acked&^ok != 0 {
			v.fail("acknowledgements of unpublished messages, or below the floor")
			break
		}
	}
	return sub, chunk, slot
}

func (c *cursor) importedCounts(v *cursor, q *Queue) (sub *Sub, chunk uint64, entries []countEntry) {
	sub, chunk = q.stagedSub(c.be32()), c.be64()
	if c.err != nil || sub == nil {
		c.fail("delivery counts of a missing subscription")
		return nil, 0, nil
	}
	if chunk > (q.nextSeq-1)>>chunkBits {
		v.fail("delivery counts of unpublished messages")
	}
	entries = v.countEntries()
	for _, e := range entries {
		if seq := chunk<<chunkBits + uint64(e.offset); seq == 0 || seq >= q.nextSeq || sub.Acked(seq) {
			v.fail("delivery count of an acknowledged message")
			break
		}
	}
	return sub, chunk, entries
}

// importedDelays verifies the delayed messages of a chunk. They must have been delayed when they were imported,
// according to their records.
func (c *cursor) importedDelays(v *cursor, q *Queue) {
	chunk := c.be64()
	kept := v.delayChunk()
	if c.err != nil || v.err != nil {
		return
	}
	var have *delayChunk
	if q.delayed != nil {
		have = q.delayed.chunks[chunk]
	}
	for w := range chunkWords {
		if have == nil || kept.word(w)&^have.word(w) != 0 {
			v.fail("message without a delivery time is delayed")
			return
		}
	}
}

// delayedRank is the position of delays in stateKinds.
var delayedRank = strings.IndexByte(stateKinds, keyDelayed) //nolint:gochecknoglobals // a constant

// dropDelaysAfter makes all messages in chunks after the position deliverable, unless the position is after the delays.
func (s *State) dropDelaysAfter(q *Queue, after []byte) {
	if rankOf(after) <= delayedRank {
		s.dropDelays(q, q.delayed.sorted(), nextChunk(after), math.MaxUint64, nil)
	}
}

// nextChunk returns the first chunk for which no pair of delays was imported yet.
func nextChunk(after []byte) uint64 {
	if len(after) == 0 || after[0] != keyDelayed {
		return 0
	}
	k := cursor{b: after[1:]}
	return k.be64() + 1
}

// dropDelays makes the delayed messages in the chunks first to last deliverable, except for the messages of chunk last
// that kept contains. chunks are all chunks with delayed messages, in order. kept may be nil.
func (s *State) dropDelays(q *Queue, chunks []uint64, first, last uint64, kept *cursor) {
	i, _ := slices.BinarySearch(chunks, first)
	for ; i < len(chunks) && chunks[i] <= last; i++ {
		c := q.delayed.chunks[chunks[i]]
		keep := new(delayChunk)
		if chunks[i] == last && kept != nil {
			keep = kept.delayChunk()
		}
		for w := range chunkWords {
			if drop := c.word(w) &^ keep.word(w); drop != 0 {
				s.undelay(q, chunks[i], w, drop)
			}
		}
	}
}

func (d *delaySet) sorted() []uint64 {
	if d == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(d.chunks))
}

// importedID decodes an entry of a message ID.
func (c *cursor) importedID(v *cursor, q *Queue) (g *idGeneration, h idHash, e idEntry) {
	first := c.be64()
	copy(h[:], c.take(uint64(len(h))))
	if q.ids != nil {
		g = q.ids.generation(first)
	}
	if c.err != nil || g == nil {
		c.fail("message ID of a missing generation")
		return nil, h, e
	}
	if e = v.idEntry(g); v.err == nil && (e.sequence < g.first || e.sequence >= q.nextSeq) {
		v.fail("message ID of an unpublished message")
	}
	return g, h, e
}

// checkComplete verifies that the state of an incoming queue and the messages that its subscriptions need are imported.
// chunks limits the range that it visits: a longer range cannot be complete.
func (q *Queue) checkComplete(mq *movedQueue, chunks uint64) txn.Code {
	if mq.after == nil {
		return txn.ErrMoveIncomplete
	}
	imported, live := &q.importSub().acks, uint64(0)
	first := q.nextSeq
	for _, sub := range q.staged {
		first = min(first, sub.acks.floor)
	}
	if q.nextSeq>>chunkBits-first>>chunkBits > chunks+1 {
		return txn.ErrMoveIncomplete
	}
	for chunk := first >> chunkBits; chunk<<chunkBits < q.nextSeq; chunk++ {
		for w := range chunkWords {
			needed := published(chunk, w, q.nextSeq) &^ ackedByAll(q.staged, nil, chunk, w)
			if needed&imported.word(chunk, w) != 0 {
				return txn.ErrMoveIncomplete
			}
			live += uint64(ones(needed))
		}
	}
	if live != mq.live {
		return txn.ErrMoveIncomplete
	}
	return txn.OK
}

// complete replaces the hidden subscription with the imported subscriptions.
func (s *State) complete(q *Queue, mq *movedQueue) {
	sub := q.importSub()
	q.subs = sortSubs(append(slices.Clone(q.staged), sub))
	q.own().staged = nil
	s.deleteSub(q, sub)
	q.subs = slices.Clip(q.subs)
	mq.complete = true
	s.fleet.touched = true
}
