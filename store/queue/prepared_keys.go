// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// Kinds of keys that begin with keyPrepared. The logical number of a record follows.
const (
	keyPreparedHead = 'h' // number of the preparing record: header
	keyOutcome      = 'o' // number of the deciding record: outcome
	keyPreparedPart = 'p' // number of the preparing record, and a part number: bytes of the part
)

// preparedPart is the length of all parts except the last one.
const preparedPart = 512 << 10

func xKey(dst []byte, kind byte, number uint64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, keyPrepared, kind), number)
}

func partKey(dst []byte, number uint64, part int) []byte {
	return binary.BigEndian.AppendUint32(xKey(dst, keyPreparedPart, number), uint32(part))
}

func (p *Prepared) parts(yield func(i int, piece []byte) bool) {
	i := 0
	for piece := range slices.Chunk(p.payload, preparedPart) {
		if !yield(i, piece) {
			return
		}
		i++
	}
}

func (p *Prepared) keys() [][]byte {
	keys := [][]byte{xKey(nil, keyPreparedHead, p.number)}
	for i := range p.parts {
		keys = append(keys, partKey(nil, p.number, i))
	}
	return keys
}

func (p *Prepared) appendValue(dst []byte) []byte {
	dst = appendString(append(dst, valueVersion), p.xid)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(p.timeMS))
	dst = binary.AppendUvarint(dst, uint64(len(p.payload)))
	return binary.LittleEndian.AppendUint32(dst, crc32.Checksum(p.payload, crc32.MakeTable(crc32.Castagnoli)))
}

func (o *Outcome) appendValue(dst []byte) []byte {
	dst = appendString(append(dst, valueVersion), o.XID)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(o.TimeMS))
	return append(dst, byte(b2u(o.Committed)), byte(o.By))
}

func (c *collector) prepared(ps *preparedSet) {
	c.batch.Deletes = append(c.batch.Deletes, ps.gone...)
	slices.SortFunc(ps.dirty, func(a, b *Prepared) int { return cmp.Compare(a.number, b.number) })
	for _, p := range ps.dirty {
		c.put(xKey(c.key(), keyPreparedHead, p.number), p.appendValue)
		p.stored = true
	}
	for _, o := range ps.fresh { // in the order of their records
		c.put(xKey(c.key(), keyOutcome, o.Number), o.appendValue)
		o.stored = true
	}
	for _, p := range ps.dirty {
		for i, piece := range p.parts {
			c.batch.Puts = append(c.batch.Puts, KV{Key: partKey(nil, p.number, i), Value: piece})
		}
	}
	ps.gone, ps.dirty, ps.fresh = nil, nil, nil
}

func (ps *preparedSet) all(add func(key []byte, value func([]byte) []byte)) {
	for _, p := range ps.byXID {
		add(xKey(nil, keyPreparedHead, p.number), p.appendValue)
		for i, piece := range p.parts {
			add(partKey(nil, p.number, i), func(dst []byte) []byte { return append(dst, piece...) })
		}
	}
	for _, o := range ps.outcomes {
		add(xKey(nil, keyOutcome, o.Number), o.appendValue)
	}
}

// loading is a partially loaded prepared transaction.
type loading struct {
	p      Prepared
	length uint64
	sum    uint32
	parts  map[uint32][]byte
	headed bool
}

func (l *Loader) prepared(k, v *cursor) {
	kind, number := k.u8(), k.be64()
	if k.err == nil && number == 0 {
		k.fail("prepared transaction with LSN 0")
	}
	switch kind {
	case keyPreparedHead:
		ld := l.loading(number)
		ld.headed = true
		v.version()
		ld.p.xid = v.xid()
		ld.p.timeMS = int64(v.u64())
		ld.length = v.uvarint(txn.MaxPreparedBytes)
		ld.sum = v.u32()
	case keyPreparedPart:
		ld := l.loading(number)
		ld.parts[k.be32()] = slices.Clone(v.b)
		v.b = nil
	case keyOutcome:
		v.version()
		o := &Outcome{Number: number, stored: true, XID: v.xid(), TimeMS: int64(v.u64())}
		committed := v.u8()
		o.Committed, o.By = committed == 1, txn.Decider(v.u8())
		ps := &l.s.prepared
		if v.err == nil && (committed > 1 || o.By > txn.ByTimeout || ps.decided[o.XID] != nil) {
			v.fail("invalid or duplicate outcome")
			return
		}
		ps.outcomes = append(ps.outcomes, o)
		ps.decided[o.XID] = o
	default:
		k.fail("prepared transaction: unknown kind of key %q", kind)
	}
}

func (l *Loader) loading(number uint64) *loading {
	if l.preparing == nil {
		l.preparing = make(map[uint64]*loading)
	}
	ld := l.preparing[number]
	if ld == nil {
		ld = &loading{p: Prepared{number: number, stored: true}, parts: make(map[uint32][]byte)}
		l.preparing[number] = ld
	}
	return ld
}

// finishPrepared assembles the transactions from their parts, and reserves the messages and space. All queues must
// be loaded.
func (l *Loader) finishPrepared() error {
	slices.SortFunc(l.s.prepared.outcomes, func(a, b *Outcome) int { return cmp.Compare(a.Number, b.Number) })
	for _, number := range slices.Sorted(maps.Keys(l.preparing)) {
		ld := l.preparing[number]
		p := &ld.p
		p.payload = make([]byte, 0, ld.length)
		for i := range uint32(len(ld.parts)) {
			p.payload = append(p.payload, ld.parts[i]...)
		}
		if !ld.headed || uint64(len(p.payload)) != ld.length ||
			crc32.Checksum(p.payload, l.s.crc) != ld.sum {
			return fmt.Errorf("%w: transaction %.40q, prepared by record %d, is incomplete", ErrCorrupt, p.xid, number)
		}
		if err := l.s.checkLoaded(p); err != nil {
			return err
		}
		l.s.hold(p)
	}
	l.preparing = nil
	return nil
}

// checkLoaded verifies that the name of p is unique, that its queues and subscriptions exist, and that no other
// transaction reserves its messages.
func (s *State) checkLoaded(p *Prepared) error {
	bad := func(what string) error {
		return fmt.Errorf("%w: transaction %.40q, prepared by record %d: %s", ErrCorrupt, p.xid, p.number, what)
	}
	var r txn.Reader
	if err := txn.Inner(&r, p.payload); err != nil {
		return bad(err.Error())
	}
	if s.Prepared(p.xid) != nil || s.Outcome(p.xid) != nil {
		return bad("duplicate name")
	}
	taken := 0
	for o := range p.Ops {
		q := s.queues.get(o.Queue)
		switch {
		case q == nil:
			return bad("queue not found")
		case o.Code == txn.OpPublish:
			if err := o.CheckRecords(); err != nil {
				return bad(err.Error())
			}
			continue
		}
		sub := q.Sub(o.Sub)
		if sub == nil {
			return bad("subscription not found")
		}
		// A message may have been acknowledged after the prepare.
		if code := s.checkTake(o, sub, &taken); code != txn.OK && code != txn.ErrAlreadyAcknowledged {
			return bad(code.Error())
		}
	}
	return nil
}

func (ps *preparedSet) check(s *State, bad func(string, ...any)) {
	holds := make(map[uint64]hold)
	reserved := make(map[*Sub]uint64)
	size := 0
	for xid, p := range ps.byXID {
		if size += len(p.payload); xid != p.xid || ps.decided[xid] != nil {
			bad("transaction %.40q is both prepared and decided, or a duplicate", xid)
		}
		for o := range p.Ops {
			h := holds[o.Queue]
			h.ops++
			q := s.queues.get(o.Queue)
			switch {
			case q == nil:
				bad("transaction %.40q refers to missing queue %d", xid, o.Queue)
			case o.Code == txn.OpPublish:
				h.messages += uint64(o.Count)
				h.bytes += uint64(len(o.Raw))
			case q.Sub(o.Sub) == nil:
				bad("transaction %.40q refers to missing subscription %d of queue %d", xid, o.Sub, o.Queue)
			default:
				for r := range o.Ranges {
					for seq := r.First; seq <= r.Last; seq++ {
						if !q.Sub(o.Sub).reserved.has(seq) {
							bad("message %d of queue %d is not reserved by transaction %.40q", seq, o.Queue, xid)
						}
					}
				}
				reserved[q.Sub(o.Sub)] = 0
			}
			holds[o.Queue] = h
		}
	}
	for sub := range reserved {
		reserved[sub] = sub.reservedCount()
	}
	have := make(map[uint64]hold)
	for id, h := range ps.holds {
		have[id] = *h
	}
	if size != ps.bytes || !maps.Equal(holds, have) {
		bad("prepared transactions have %d bytes and reserve %v, counted %d and %v", size, holds, ps.bytes, have)
	}
	var total, acks uint64
	for _, n := range reserved {
		total += n
	}
	for _, p := range ps.byXID {
		acks += p.acks
	}
	if total != acks || len(ps.outcomes) != len(ps.decided) {
		bad("prepared transactions reserve %d messages, %d are reserved; %d outcomes, %d by name", acks, total,
			len(ps.outcomes), len(ps.decided))
	}
}

func (s *Sub) reservedCount() uint64 {
	if s.reserved == nil {
		return 0
	}
	return s.reserved.n
}

func (c *cursor) xid() string {
	xid := string(c.take(c.uvarint(txn.MaxXIDBytes)))
	if c.err == nil && txn.CheckXID(xid) != nil {
		c.fail("invalid xid")
	}
	return xid
}
