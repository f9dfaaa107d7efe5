// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// ErrCorrupt is returned if a stored key or value is invalid or missing, or if the loaded state is inconsistent.
var ErrCorrupt = errors.New("stored state is corrupt")

// Loader rebuilds a State from the keys and values that checkpoints have written to the tree.
type Loader struct {
	s       *State
	byQueue map[uint64]*Queue
	hasMain bool
	// preparing contains the partially loaded prepared transactions, by the logical number of their records. It may be
	// nil.
	preparing map[uint64]*loading
	count     int
	// maxChunks is the maximum distance between chunks of one queue. Each chunk in between requires some memory.
	maxChunks uint64
}

const defaultMaxChunks = 1 << 24

// NewLoader creates a Loader with an empty state.
func NewLoader() *Loader {
	return &Loader{s: New(), byQueue: make(map[uint64]*Queue), maxChunks: defaultMaxChunks}
}

// Put adds a key and its value; keys can be in any order. It does not retain the slices. It skips keys of the message
// index, the schedule index and message IDs. Errors wrap ErrCorrupt or a txn.Code, such as txn.ErrNewerVersion.
func (l *Loader) Put(key, value []byte) error {
	k, v := cursor{b: key}, cursor{b: value}
	l.count++
	switch kind := k.u8(); kind {
	case keyIndex, keySchedule, keyIDs:
		l.count--
		return nil
	case keyDelayed:
		l.delays(&k, &v)
	case keyAcks:
		l.acks(&k, &v)
	case keySizes:
		l.sizes(&k, &v)
	case keyCounts:
		l.counts(&k, &v)
	case keyForwards:
		l.forwards(&k, &v)
	case keyPauses:
		l.pauses(&k, &v)
	case keyIDSet:
		l.ids(&k, &v)
	case keyMeta:
		l.meta(&k, &v)
	case keyAccess:
		l.access(&k, &v)
	case keyPolicy:
		l.policy(&k, &v)
	case keyPriorities:
		l.lanes(&k, &v)
	case keyState:
		l.state(&v)
	case keyProducer:
		l.producer(&k, &v)
	case keyQueue:
		l.queue(&k, &v)
	case keyFleet:
		l.fleet(&v)
	case keyMove:
		l.move(&k, &v)
	case keySite:
		l.site(&v)
	case keySub:
		l.sub(&k, &v)
	case keyPrepared:
		l.prepared(&k, &v)
	default:
		k.fail("unknown kind of key %q", kind)
	}
	k.end()
	v.end()
	if err := errors.Join(k.err, v.err); err != nil {
		return fmt.Errorf("key %.40x: %w", key, err)
	}
	return nil
}

// Finish verifies that the loaded parts are consistent, and returns the state with the given Applied. The Loader must
// not be used afterwards. The error wraps ErrCorrupt.
func (l *Loader) Finish(applied uint64) (*State, error) {
	s := l.s
	s.applied = applied
	if l.count > 0 && !l.hasMain {
		return nil, fmt.Errorf("%w: state record missing", ErrCorrupt)
	}
	if err := l.linkMoves(); err != nil {
		return nil, err
	}
	byName := func(a, b *Queue) int { return cmp.Compare(a.name, b.name) }
	for _, q := range slices.SortedFunc(maps.Values(l.byQueue), byName) {
		if err := l.finishQueue(q); err != nil {
			return nil, fmt.Errorf("queue %d %.40q: %w", q.id, q.name, err)
		}
	}
	s.endMoves()
	if err := s.finishPolicies(); err != nil {
		return nil, err
	}
	if err := l.finishPrepared(); err != nil {
		return nil, err
	}
	if err := s.producers.finish(); err != nil {
		return nil, err
	}
	if problems := s.Check(); len(problems) > 0 {
		return nil, fmt.Errorf("%w: %s", ErrCorrupt, problems[0])
	}
	l.s = nil
	return s, nil
}

func (l *Loader) finishQueue(q *Queue) error {
	s := l.s
	switch {
	case !q.loaded:
		return fmt.Errorf("%w: record missing", ErrCorrupt)
	case q.id >= s.nextQueue:
		return fmt.Errorf("%w: queue number is not assigned yet", ErrCorrupt)
	case s.byName[q.name] != nil || s.moves.names[q.name] != nil:
		return fmt.Errorf("%w: another queue has the same name", ErrCorrupt)
	}
	slices.SortFunc(q.subs, func(a, b *Sub) int { return cmp.Compare(a.id, b.id) })
	for _, sub := range q.subs {
		hidden := sub.id == txn.RetentionSub || sub.id == importSub && q.incoming()
		if !sub.loaded || sub.id >= q.nextSub && !hidden || sub.acks.floor > q.nextSeq || sub.start > sub.acks.floor {
			return fmt.Errorf("%w: record of subscription %d is missing or invalid", ErrCorrupt, sub.id)
		}
		if !sub.place(l.maxChunks) {
			return fmt.Errorf("%w: subscription %d has acknowledged unpublished messages", ErrCorrupt, sub.id)
		}
	}
	q.subs = slices.Clip(q.subs)
	if !q.placeSizes(l.maxChunks) {
		return fmt.Errorf("%w: message counts beyond the end of the queue", ErrCorrupt)
	}
	if !q.finishPriorities() {
		return fmt.Errorf("%w: priority index of a queue without priorities", ErrCorrupt)
	}
	q.collected, q.tail.first = q.nextSeq, q.nextSeq
	s.messages += q.messages
	s.bytes += q.bytes
	if q.incoming() {
		s.moves.incoming[q.id], s.moves.names[q.name] = q, q
		q.stageSubs()
		return nil
	}
	c := q.config
	q.config = nil // its dead-letter queue was not counted as a reference
	s.setConfig(q, c)
	for _, sub := range q.subs {
		addReferences(s.deadLettersTo, sub.deadLetter(), 1)
	}
	s.addQueue(q)
	s.countForwards(q, 1)
	s.countPaused(q)
	return nil
}

// stageSubs separates the subscriptions of a loaded incoming queue from the hidden one.
func (q *Queue) stageSubs() {
	if hidden := q.importSub(); hidden != nil {
		q.own().staged = slices.DeleteFunc(q.subs, func(sub *Sub) bool { return sub == hidden })
		q.subs = []*Sub{hidden}
	}
}

func (l *Loader) getQueue(k *cursor) *Queue {
	id := k.be64()
	if id == 0 {
		k.fail("queue number 0")
	}
	q := l.byQueue[id]
	if q == nil {
		q = &Queue{id: id, extras: &noExtras}
		l.byQueue[id] = q
	}
	return q
}

func (l *Loader) getSub(k *cursor) *Sub {
	q := l.getQueue(k)
	id := k.be32()
	if id == 0 {
		k.fail("subscription number 0")
	}
	// The keys of one subscription are usually adjacent.
	for i := len(q.subs) - 1; i >= 0; i-- {
		if q.subs[i].id == id {
			return q.subs[i]
		}
	}
	sub := &Sub{q: q, id: id}
	q.subs = append(q.subs, sub)
	return sub
}

func (l *Loader) state(v *cursor) {
	v.version()
	l.s.nextQueue = v.uvarint(math.MaxUint64)
	l.s.producers.forgotten = v.uvarint(math.MaxUint64)
	l.s.digest = v.u64()
	l.hasMain = true
}

func (l *Loader) queue(k, v *cursor) {
	q := l.getQueue(k)
	if len(v.b) > 0 && v.b[0] == ownedVersion {
		v.u8()
		if q.own().epoch = v.uvarint(math.MaxUint64); v.err == nil && q.epoch == 0 {
			v.fail("missing ownership epoch")
		}
	} else {
		v.version()
	}
	q.name = string(v.take(v.uvarint(txn.MaxNameBytes)))
	if v.err != nil {
		return
	}
	config, fields, rest, err := txn.DecodeOwnConfig(v.b)
	if err != nil {
		v.err = err
		return
	}
	q.config = l.s.settingsOf(nil, q.name, &config, fields) // without policies until finishPolicies
	v.b = rest
	q.nextSeq = v.uvarint(math.MaxUint64 >> 1)
	q.nextSub = uint32(v.uvarint(math.MaxUint32))
	q.messages = v.uvarint(math.MaxUint64)
	q.bytes = v.uvarint(math.MaxUint64)
	q.digest = v.u64()
	if len(v.b) > 0 {
		x := q.own()
		x.dropped, x.expired = v.uvarint(math.MaxUint64), v.uvarint(math.MaxUint64)
		if x.dropped|x.expired == 0 {
			v.fail("zero counts")
		}
	}
	if v.err == nil && (q.nextSeq == 0 || q.nextSub == 0 || txn.CheckQueueName(q.name) != nil) {
		v.fail("invalid number or name")
	}
	q.loaded = true
}

func (l *Loader) sub(k, v *cursor) {
	sub := l.getSub(k)
	name, options := v.subscription(sub)
	if v.err != nil {
		return
	}
	sub.setOptions(name, options)
	sub.loaded, sub.stored = true, true
}

// subscription decodes the value of an s key, and sets start and floor of sub, which has an id.
func (c *cursor) subscription(sub *Sub) (name string, options txn.SubscriptionOptions) {
	hasOptions := len(c.b) > 0 && c.b[0] == optionsVersion
	if hasOptions {
		c.u8()
	} else {
		c.version()
	}
	name = string(c.take(c.uvarint(txn.MaxNameBytes)))
	sub.start = c.uvarint(math.MaxUint64)
	sub.acks.floor = c.uvarint(math.MaxUint64)
	badName := name != ""
	if sub.id != txn.RetentionSub && sub.id != importSub {
		badName = txn.CheckName(name) != nil
	}
	if c.err == nil && (sub.acks.floor == 0 || badName) {
		c.fail("invalid number or name")
	}
	if c.err == nil && hasOptions {
		options, c.err = txn.DecodeSubscriptionOptions(c.b)
		if c.b = nil; c.err == nil && options == (txn.SubscriptionOptions{}) {
			c.fail("missing subscription options")
		}
	}
	return name, options
}

// acks decodes a chunk of acknowledgements. It stores the chunk in an unordered slot and the chunk number in gone.
func (l *Loader) acks(k, v *cursor) {
	a := &l.getSub(k).acks
	chunk := k.be64()
	slot := v.ackChunk()
	slot.stored = true
	if slot.full {
		a.above += ChunkSize
	} else {
		a.above += uint64(slot.c.n)
	}
	a.slots, a.gone = append(a.slots, slot), append(a.gone, chunk)
}

// ackChunk decodes the value of an a key.
func (c *cursor) ackChunk() (slot ackSlot) {
	if len(c.b) == 0 {
		slot.full = true
		return slot
	}
	slot.c = new(ackChunk)
	for w := range slot.c.words {
		slot.c.words[w] = c.u64()
		slot.c.n += ones(slot.c.words[w])
	}
	if c.err == nil && (slot.c.n == 0 || slot.c.n == ChunkSize) {
		c.fail("invalid acknowledgement chunk")
	}
	return slot
}

// place moves the chunks to their positions. It returns false if the acknowledgements or delivery counts are invalid.
func (s *Sub) place(maxChunks uint64) bool {
	a := &s.acks
	slots, chunks := a.slots, a.gone
	a.slots, a.gone = nil, nil
	for i, chunk := range chunks {
		if chunk < a.floor>>chunkBits || chunk > (s.q.nextSeq-1)>>chunkBits || chunk-a.floor>>chunkBits > maxChunks {
			return false
		}
		slot := a.ensure(chunk, a.floor>>chunkBits)
		if slot.stored {
			return false
		}
		*slot = slots[i]
		for w := range chunkWords {
			v := ^uint64(0)
			if slot.c != nil {
				v = slot.c.words[w]
			}
			ok := published(chunk, w, s.q.nextSeq)
			if first := wordFirst(chunk, w); first < a.floor {
				ok &^= belowMask(a.floor - first)
			}
			if v&^ok != 0 {
				return false
			}
		}
	}
	for chunk := range s.counts.all {
		if chunk > (s.q.nextSeq-1)>>chunkBits {
			return false
		}
	}
	return !a.has(a.floor)
}

// sizes decodes a chunk of message sizes, and stores it in an unordered slot, like acks.
func (l *Loader) sizes(k, v *cursor) {
	q := l.getQueue(k)
	chunk := k.be64()
	c := new(sizeChunk)
	first := int(v.u8())
	last := first
	for w := first; w < chunkWords && len(v.b) > 0; w++ {
		g, alive := c.at(w), v.u8()
		exact := alive&exactSizes != 0
		if alive &^= exactSizes; alive > 64 {
			v.fail("too many messages")
		}
		switch {
		case exact:
			e := new(groupSizes)
			*g = sizeGroup(alive)*oneAlive + sizeGroup(v.groupSizes(e, int(alive)))
			c.setSizes(&l.s.sizePool, w, e)
		case alive > 0:
			*g = sizeGroup(alive)*oneAlive + sizeGroup(v.uvarint(64*txn.MaxRecordBytes))
		}
		c.n += uint16(alive)
		last = w
	}
	if v.err == nil && (c.group(first).alive() == 0 || c.group(last).alive() == 0) {
		v.fail("invalid size chunk")
	}
	q.sizes.slots = append(q.sizes.slots, sizeSlot{c: c, stored: true})
	removals := q.ownRemovals()
	removals.sizes = append(removals.sizes, chunk)
}

func (c *cursor) groupSizes(e *groupSizes, n int) (bytes uint64) {
	alive := c.u64()
	if ones(alive) != n || n == 0 {
		c.fail("sizes do not match the messages of the group")
	}
	for ; alive != 0; alive &= alive - 1 {
		size := c.uvarint(txn.MaxRecordBytes)
		if size == 0 {
			c.fail("message without a size")
			return 0
		}
		e.set(trailingZeros(alive), size)
		bytes += size
	}
	return bytes
}

func (q *Queue) placeSizes(maxChunks uint64) bool {
	z := &q.sizes
	if len(z.slots) == 0 {
		return true
	}
	slots, chunks := z.slots, q.removals.sizes
	z.slots, q.removals = nil, nil
	first := slices.Min(chunks)
	z.base = first
	for i, chunk := range chunks {
		if chunk > (q.nextSeq-1)>>chunkBits || chunk-first > maxChunks {
			return false
		}
		for uint64(len(z.slots)) <= chunk-first {
			z.slots = append(z.slots, sizeSlot{})
		}
		slot := &z.slots[chunk-first]
		if slot.c != nil {
			return false
		}
		*slot = slots[i]
	}
	return true
}

func (l *Loader) counts(k, v *cursor) {
	sub := l.getSub(k)
	if sub.counts == nil {
		sub.counts = new(countSet)
	}
	c := sub.counts.chunk(k.be64())
	c.stored = true
	c.entries = append(c.entries, v.countEntries()...)
}

// countEntries decodes the value of a d key.
func (c *cursor) countEntries() (entries []countEntry) {
	n := c.uvarint(ChunkSize)
	last := -1
	for range n {
		e := countEntry{offset: uint16(c.uvarint(chunkMask)), count: uint32(c.uvarint(math.MaxUint32))}
		if c.err == nil && (int(e.offset) <= last || e.count == 0) {
			c.fail("delivery counts out of order")
		}
		if c.err != nil {
			return entries
		}
		last = int(e.offset)
		entries = append(entries, e)
	}
	if n == 0 {
		c.fail("chunk without delivery counts")
	}
	return entries
}

func (l *Loader) producer(k, v *cursor) {
	p := &producer{id: string(k.b), stored: true}
	k.b = nil
	v.version()
	p.epoch = uint32(v.uvarint(math.MaxUint32))
	p.floor = v.uvarint(math.MaxUint64)
	p.usedLSN = v.uvarint(math.MaxUint64)
	n := v.uvarint(ProducerWindow)
	kept := cachedResult{sequence: p.floor}
	for range n {
		step := v.uvarint(math.MaxUint64)
		next := cachedResult{sequence: kept.sequence + step, lsn: kept.lsn + uint64(v.varint())}
		if v.err == nil && next.sequence <= kept.sequence {
			v.fail("results out of order")
		}
		v.result(&next)
		if v.err != nil {
			return
		}
		p.results = append(p.results, next)
		p.used.add(next.usage())
		kept = next
	}
	if p.id == "" || len(p.id) > txn.MaxProducerIDBytes || l.s.producers.byID[p.id] != nil {
		v.fail("invalid or duplicate producer id")
		return
	}
	l.s.producers.byID[p.id] = p
	l.s.producers.total.add(p.used)
}

func (c *cursor) result(k *cachedResult) {
	k.code = txn.Code(c.u8())
	discarded := k.code == resultWithDuplicates
	if discarded {
		k.code = txn.OK
	}
	if k.code != txn.OK {
		k.op = int16(c.uvarint(txn.MaxOps)) - 1
		return
	}
	k.op = -1
	n := c.uvarint(txn.MaxOps)
	if n > uint64(len(c.b)) {
		c.fail("more results than bytes")
		return
	}
	ops := make([]txn.OpResult, n)
	for i := range ops {
		ops[i] = txn.OpResult{
			FirstSequence: c.uvarint(math.MaxUint64), ID: c.uvarint(math.MaxUint64), Changed: c.uvarint(math.MaxUint64),
		}
		if discarded {
			ops[i].Duplicates = c.duplicates()
		}
	}
	switch n {
	case 0:
		c.fail("transaction without results")
	case 1:
		k.one = ops[0]
	default:
		k.more = ops
	}
}

func (ps *producers) finish() error {
	byUse := func(a, b *producer) int { return cmp.Or(cmp.Compare(a.usedLSN, b.usedLSN), cmp.Compare(a.id, b.id)) }
	for _, p := range slices.SortedFunc(maps.Values(ps.byID), byUse) {
		ps.link(p)
		switch hasResults := len(p.results) > 0; {
		case hasResults && ps.oldestWithResults == nil:
			ps.oldestWithResults = p
		case !hasResults && ps.oldestWithResults != nil:
			return fmt.Errorf("%w: producer %.40x has no results, but an older one has", ErrCorrupt, p.id)
		}
	}
	return nil
}

// All iterates over the keys and values of the state, in key order. A checkpoint writes them to the tree, in addition
// to the message index, the schedule index and message IDs.
func (s *State) All(yield func(key, value []byte) bool) {
	var keys []KV
	add := func(key []byte, value func([]byte) []byte) { keys = append(keys, KV{Key: key, Value: value(nil)}) }
	add([]byte{keyState}, s.appendState)
	for key, e := range s.meta.entries {
		add(metaKey(nil, key), e.appendValue)
	}
	s.access.all(add)
	for pattern, e := range s.policies.entries {
		add(policyKey(nil, pattern), e.appendValue)
	}
	for id, p := range s.producers.byID {
		add(producerKey(nil, id), p.appendValue)
	}
	s.prepared.all(add)
	if s.site.Role != SiteNone {
		add([]byte{keySite}, s.site.appendValue)
	}
	if s.fleet.MaxEpoch != 0 {
		add([]byte{keyFleet}, s.fleet.appendValue)
	}
	for epoch, m := range s.moves.byEpoch {
		add(moveKey(nil, epoch), m.appendValue)
	}
	for q := range s.stored {
		add(queueKey(nil, keyQueue, q.id), q.appendValue)
		if len(q.Forwards()) > 0 {
			add(forwardsKey(nil, q.id), q.forwards.appendValue)
		}
		if q.pauses != nil && len(q.pauses.bySub) > 0 {
			add(pausesKey(nil, q.id), q.pauses.appendValue)
		}
		if q.ids != nil && !q.ids.empty() {
			add(queueKey(nil, keyIDSet, q.id), q.ids.appendValue)
		}
		for i := range q.sizes.slots {
			if c := q.sizes.slots[i].c; c != nil {
				add(sizesKey(nil, q.id, q.sizes.base+uint64(i)), c.appendValue)
			}
		}
		for chunk, c := range q.delayed.all {
			add(delayKey(nil, q.id, chunk), c.appendValue)
		}
		if q.lanes != nil {
			for chunk, c := range q.lanes.chunks {
				add(prioritiesKey(nil, q.id, chunk), c.appendValue)
			}
		}
		for _, sub := range q.storedSubs() {
			add(subKey(nil, keySub, q.id, sub.id), sub.appendValue)
			for i := range sub.acks.slots {
				if slot := &sub.acks.slots[i]; slot.full || slot.c != nil {
					add(chunkKey(nil, keyAcks, q.id, sub.id, sub.acks.base+uint64(i)), slot.appendValue)
				}
			}
			for chunk, c := range sub.counts.all {
				add(chunkKey(nil, keyCounts, q.id, sub.id, chunk), c.appendValue)
			}
		}
	}
	slices.SortFunc(keys, func(a, b KV) int { return bytes.Compare(a.Key, b.Key) })
	for _, kv := range keys {
		if !yield(kv.Key, kv.Value) {
			return
		}
	}
}
