// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"encoding/binary"
	"fmt"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// Kinds of the state's keys in the tree. Numbers in keys are big endian, so that keys sort in numeric order. The
// number in an x key is the logical number of a record. store/FORMAT.md describes the values.
//
//	a queue(8) sub(4) chunk(8)   acknowledgements above the subscription's floor
//	b queue(8) chunk(8)          live messages and bytes of a chunk; sizes of the messages
//	d queue(8) sub(4) chunk(8)   delivery counts
//	e queue(8) first(8) hash(16) an accepted message ID: not loaded into memory
//	f queue(8)                   forwards of a queue
//	g queue(8)                   generations of the message IDs of a queue
//	h queue(8) chunk(8)          delayed messages
//	i queue(8) first(8)          message index: see package index
//	k key                        an internal entry
//	l queue(8) chunk(8)          priorities of the messages of a chunk
//	m                            the state as a whole
//	o                            the membership of the pair in a fleet
//	p id                         a producer
//	q queue(8)                   a queue
//	r                            the site role of the pair
//	s queue(8) sub(4)            a subscription
//	t time(8) queue(8) seq(8) kind(1)   the schedule index: not loaded into memory
//	u queue(8)                   pauses of a queue and its subscriptions
//	w epoch(8)                   a move of queues to or from another pair
//	x kind number(8)             a prepared transaction, or the outcome of one
//	x kind number(8) part(4)     a part of a prepared transaction
//	y pattern                    a policy
//	z                            the version of the access table
//	z kind(1) name               an entry of the access table
const (
	keyAcks       = 'a'
	keySizes      = 'b'
	keyCounts     = 'd'
	keyIDs        = 'e'
	keyForwards   = 'f'
	keyIDSet      = 'g'
	keyDelayed    = 'h'
	keyIndex      = 'i'
	keyMeta       = 'k'
	keyPriorities = 'l'
	keyState      = 'm'
	keyFleet      = 'o'
	keyProducer   = 'p'
	keyQueue      = 'q'
	keySite       = 'r'
	keySub        = 's'
	keySchedule   = 't'
	keyPauses     = 'u'
	keyMove       = 'w'
	keyPrepared   = 'x'
	keyPolicy     = 'y'
	keyAccess     = 'z'
)

// valueVersion is the first byte of the values of f, g, k, m, o, p, q, r, s, u, w, y and z, and of x except for parts,
// unless a constant below applies.
const valueVersion = 1

// optionsVersion is the first byte of the value of an s key with options. Releases before 0.2.0 reject it.
const optionsVersion = 2

// ownedVersion is the first byte of the value of a q key with an ownership epoch, which is the second field.
const ownedVersion = 2

// importVersion is the first byte of the value of an o key with epochs of moves.
const importVersion = 2

// KeyRange is the range of keys from From, inclusive, to To, exclusive.
type KeyRange struct{ From, To []byte }

// QueueKeys returns the key ranges to remove with a queue, except for the message index and the schedule index.
func QueueKeys(id uint64) []KeyRange {
	kinds := []byte{
		keyAcks, keySizes, keyCounts, keyForwards, keyDelayed, keyPriorities, keyQueue, keySub, keyPauses,
		keyIDs, keyIDSet,
	}
	ranges := make([]KeyRange, len(kinds))
	for i, k := range kinds {
		ranges[i] = KeyRange{From: queueKey(nil, k, id), To: queueKey(nil, k, id+1)}
	}
	return ranges
}

func queueKey(dst []byte, kind byte, id uint64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, kind), id)
}

func subKey(dst []byte, kind byte, q uint64, sub uint32) []byte {
	return binary.BigEndian.AppendUint32(queueKey(dst, kind, q), sub)
}

func chunkKey(dst []byte, kind byte, q uint64, sub uint32, chunk uint64) []byte {
	return binary.BigEndian.AppendUint64(subKey(dst, kind, q, sub), chunk)
}

func sizesKey(dst []byte, q, chunk uint64) []byte {
	return binary.BigEndian.AppendUint64(queueKey(dst, keySizes, q), chunk)
}

func delayKey(dst []byte, q, chunk uint64) []byte {
	return binary.BigEndian.AppendUint64(queueKey(dst, keyDelayed, q), chunk)
}

func producerKey(dst []byte, id string) []byte { return append(append(dst, keyProducer), id...) }

func (s *State) appendState(dst []byte) []byte {
	dst = append(dst, valueVersion)
	dst = binary.AppendUvarint(dst, s.nextQueue)
	dst = binary.AppendUvarint(dst, s.producers.forgotten)
	return binary.LittleEndian.AppendUint64(dst, s.digest)
}

func (q *Queue) appendValue(dst []byte) []byte {
	if q.epoch == 0 {
		dst = append(dst, valueVersion)
	} else {
		dst = binary.AppendUvarint(append(dst, ownedVersion), q.epoch)
	}
	dst = appendString(dst, q.name)
	dst = txn.AppendOwnConfig(dst, *q.config.ownConfig(), q.config.fields)
	dst = binary.AppendUvarint(dst, q.nextSeq)
	dst = binary.AppendUvarint(dst, uint64(q.nextSub))
	dst = binary.AppendUvarint(dst, q.messages)
	dst = binary.AppendUvarint(dst, q.bytes)
	dst = binary.LittleEndian.AppendUint64(dst, q.digest)
	if dropped, expired := q.Dropped(); dropped|expired != 0 { // not in the format before 0.2.0
		dst = binary.AppendUvarint(binary.AppendUvarint(dst, dropped), expired)
	}
	return dst
}

func (s *Sub) appendValue(dst []byte) []byte {
	version, options := byte(valueVersion), s.Options()
	if options != (txn.SubscriptionOptions{}) {
		version = optionsVersion
	}
	dst = append(dst, version)
	dst = appendString(dst, s.Name())
	dst = binary.AppendUvarint(dst, s.start)
	dst = binary.AppendUvarint(dst, s.acks.floor)
	return txn.AppendSubscriptionOptions(dst, options)
}

// appendValue appends the bitmap of the chunk, or nothing for a full chunk.
func (s *ackSlot) appendValue(dst []byte) []byte {
	if s.full {
		return dst
	}
	for _, w := range s.c.words {
		dst = binary.LittleEndian.AppendUint64(dst, w)
	}
	return dst
}

// appendValue appends the encoded groups, from the first group with live messages to the last one.
func (c *sizeChunk) appendValue(dst []byte) []byte {
	from, to := 0, len(c.groups)
	for c.groups[from].alive() == 0 {
		from++
	}
	for c.groups[to-1].alive() == 0 {
		to--
	}
	dst = append(dst, c.first+byte(from))
	for i, g := range c.groups[from:to] {
		if e := c.sizesOf(int(c.first) + from + i); e != nil {
			dst = e.appendValue(append(dst, byte(g.alive())|exactSizes))
			continue
		}
		dst = append(dst, byte(g.alive()))
		if g.alive() > 0 {
			dst = binary.AppendUvarint(dst, g.bytes())
		}
	}
	return dst
}

// exactSizes is a flag in the message count of a group: the size of each message follows.
const exactSizes = 1 << 7

func (e *groupSizes) appendValue(dst []byte) []byte {
	alive := e.alive()
	dst = binary.LittleEndian.AppendUint64(dst, alive)
	for ; alive != 0; alive &= alive - 1 {
		dst = binary.AppendUvarint(dst, e.at(trailingZeros(alive)))
	}
	return dst
}

func (c *countChunk) appendValue(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(c.entries)))
	for _, e := range c.entries {
		dst = binary.AppendUvarint(dst, uint64(e.offset))
		dst = binary.AppendUvarint(dst, uint64(e.count))
	}
	return dst
}

func (p *producer) appendValue(dst []byte) []byte {
	dst = append(dst, valueVersion)
	dst = binary.AppendUvarint(dst, uint64(p.epoch))
	dst = binary.AppendUvarint(dst, p.floor)
	dst = binary.AppendUvarint(dst, p.usedLSN)
	dst = binary.AppendUvarint(dst, uint64(len(p.window())))
	sequence, lsn := p.floor, uint64(0)
	for i := range p.window() {
		k := &p.window()[i]
		dst = binary.AppendUvarint(dst, k.sequence-sequence)
		dst = binary.AppendVarint(dst, int64(k.lsn-lsn))
		sequence, lsn = k.sequence, k.lsn
		dst = append(dst, byte(k.code))
		if k.code != txn.OK {
			dst = binary.AppendUvarint(dst, uint64(k.op+1))
			continue
		}
		ops := k.more
		if ops == nil {
			ops = []txn.OpResult{k.one}
		}
		discarded := k.usage().duplicates > 0
		if discarded {
			dst[len(dst)-1] = resultWithDuplicates
		}
		dst = binary.AppendUvarint(dst, uint64(len(ops)))
		for _, o := range ops {
			if dst = appendOp(dst, o); discarded {
				dst = appendDuplicates(dst, o.Duplicates)
			}
		}
	}
	return dst
}

func appendOp(dst []byte, o txn.OpResult) []byte {
	dst = binary.AppendUvarint(dst, o.FirstSequence)
	dst = binary.AppendUvarint(dst, o.ID)
	return binary.AppendUvarint(dst, o.Changed)
}

// resultWithDuplicates is encoded instead of code 0 if a list of duplicates follows each operation of a result.
const resultWithDuplicates = 255

func appendDuplicates(dst []byte, d *txn.Duplicates) []byte {
	dst = binary.AppendUvarint(dst, uint64(d.Len()))
	if d == nil {
		return dst
	}
	last := txn.Duplicate{}
	for _, e := range *d {
		dst = binary.AppendUvarint(dst, uint64(e.Index-last.Index))
		dst = binary.AppendVarint(dst, int64(e.Sequence-last.Sequence))
		last = e
	}
	return dst
}

func (c *cursor) duplicates() *txn.Duplicates {
	n := c.uvarint(txn.MaxPublishMessages)
	if n == 0 || n > uint64(len(c.b)) {
		return nil
	}
	list := make(txn.Duplicates, n)
	last := txn.Duplicate{}
	for i := range list {
		last.Index += uint32(c.uvarint(txn.MaxPublishMessages))
		last.Sequence += uint64(c.varint())
		list[i] = last
	}
	return &list
}

func appendString(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// cursor decodes a key or value. After fail, b is empty and all methods return zero values.
type cursor struct {
	b   []byte
	err error
}

func (c *cursor) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("%w: "+format, append([]any{ErrCorrupt}, args...)...)
	}
	c.b = nil
}

func (c *cursor) take(n uint64) []byte {
	if n > uint64(len(c.b)) {
		c.fail("truncated")
		return nil
	}
	v := c.b[:n]
	c.b = c.b[n:]
	return v
}

// fixed decodes a number of n bytes.
func fixed[T byte | uint32 | uint64](c *cursor, n uint64, decode func([]byte) T) (v T) {
	if b := c.take(n); b != nil {
		v = decode(b)
	}
	return v
}

func (c *cursor) u8() byte     { return fixed(c, 1, func(b []byte) byte { return b[0] }) }
func (c *cursor) u32() uint32  { return fixed(c, 4, binary.LittleEndian.Uint32) }
func (c *cursor) u64() uint64  { return fixed(c, 8, binary.LittleEndian.Uint64) }
func (c *cursor) be32() uint32 { return fixed(c, 4, binary.BigEndian.Uint32) }
func (c *cursor) be64() uint64 { return fixed(c, 8, binary.BigEndian.Uint64) }

func (c *cursor) uvarint(limit uint64) uint64 {
	v, n := binary.Uvarint(c.b)
	if n <= 0 || v > limit {
		c.fail("truncated or oversized number")
		return 0
	}
	c.b = c.b[n:]
	return v
}

func (c *cursor) varint() int64 {
	v, n := binary.Varint(c.b)
	if n <= 0 {
		c.fail("truncated or oversized number")
		return 0
	}
	c.b = c.b[n:]
	return v
}

func (c *cursor) version() {
	if v := c.u8(); c.err == nil && v != valueVersion {
		c.err = fmt.Errorf("%w: value version %d", txn.ErrNewerVersion, v)
	}
}

func (c *cursor) end() {
	if len(c.b) > 0 {
		c.fail("%d trailing bytes", len(c.b))
	}
}
