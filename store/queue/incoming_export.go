// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// ExportedState iterates over the state of a queue as pairs for txn.OpImportState, in order, from the first pair after
// the given key on. It excludes the entries of message IDs, which follow as the last pairs (ExportedID). The queue
// should be fenced; otherwise, the pairs of different calls may not match. The pairs of a fenced queue and of the
// complete incoming queue in the other pair are equal.
func (s *State) ExportedState(q *Queue, after []byte) func(yield func(txn.StatePair) bool) {
	return func(yield func(txn.StatePair) bool) {
		e := exporter{after: after, yield: yield}
		e.put([]byte{keyQueue}, q.exported().appendValue)
		for _, sub := range q.subs {
			e.put(binary.BigEndian.AppendUint32([]byte{keySub}, sub.id), sub.appendValue)
		}
		for _, sub := range q.subs {
			e.acks(sub)
		}
		for _, sub := range q.subs {
			for _, chunk := range sub.counts.sorted() {
				e.put(subChunkKey(keyCounts, sub.id, chunk), sub.counts.chunks[chunk].appendValue)
			}
		}
		if q.pauses != nil && len(q.pauses.bySub) > 0 {
			e.put([]byte{keyPauses}, q.pauses.appendValue)
		}
		for _, chunk := range q.delayed.sorted() {
			e.put(binary.BigEndian.AppendUint64([]byte{keyDelayed}, chunk), q.delayed.chunks[chunk].appendValue)
		}
		if len(q.Forwards()) > 0 {
			e.put([]byte{keyForwards}, q.forwards.appendValue)
		}
		if q.ids != nil && !q.ids.empty() {
			e.put([]byte{keyIDSet}, q.ids.appendValue)
		}
	}
}

// Exportable reports whether the state of a queue does not change while it belongs to the move with this epoch: the
// queue is fenced, or it is incoming and complete.
func (s *State) Exportable(q *Queue, epoch uint64) bool {
	return q.move != nil && q.move.epoch == epoch && (q.fenced() || q.moved().complete)
}

// exporter yields the pairs after a key until yield returns false.
type exporter struct {
	after []byte
	yield func(txn.StatePair) bool
	done  bool
}

func (e *exporter) put(key []byte, value func(dst []byte) []byte) {
	if !e.done && afterKey(key, e.after) {
		e.done = !e.yield(txn.StatePair{Key: key, Value: value(nil)})
	}
}

func (e *exporter) acks(sub *Sub) {
	for i := range sub.acks.slots {
		if slot := &sub.acks.slots[i]; slot.full || slot.c != nil {
			e.put(subChunkKey(keyAcks, sub.id, sub.acks.base+uint64(i)), slot.appendValue)
		}
	}
}

func subChunkKey(kind byte, sub uint32, chunk uint64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32([]byte{kind}, sub), chunk)
}

func (q *Queue) exported() *importedQueue {
	x := &importedQueue{
		name: q.name, config: *q.config.ownConfig(), fields: q.config.fields, nextSeq: q.nextSeq, nextSub: q.nextSub,
		live: q.messages,
	}
	x.dropped, x.expired = q.Dropped()
	return x
}

// ExportedIDs returns the range of the keys in the tree that contain message IDs of the queue. If after is the key of
// an exported message ID, the range begins after it. Entries that are not in the tree yet are missing there
// (Queue.ExportedUnwritten).
func ExportedIDs(queue uint64, after []byte) KeyRange {
	r := KeyRange{From: queueKey(nil, keyIDs, queue), To: queueKey(nil, keyIDs, queue+1)}
	if len(after) > 0 && after[0] == keyIDs {
		r.From = append(append(r.From, after[1:]...), 0)
	}
	return r
}

// ExportedID returns the pair for an entry of a message ID in the tree. ok is false for an entry that the next
// checkpoint removes. The error wraps ErrCorrupt.
func (s *State) ExportedID(key, value []byte) (p txn.StatePair, ok bool, err error) {
	k := cursor{b: key}
	k.u8()
	id, first := k.be64(), k.be64()
	if q := s.Queue(id); k.err == nil && (q == nil || q.ids == nil || q.ids.generation(first) == nil) {
		return p, false, nil
	}
	if err := s.CheckID(key, value); err != nil {
		return p, false, err
	}
	return txn.StatePair{Key: append([]byte{keyIDs}, key[queueKeyBytes:]...), Value: bytes.Clone(value)}, true, nil
}

// queueKeyBytes is the length of the kind and the queue in a key.
const queueKeyBytes = 9

// UnwrittenIDs returns the number of entries of message IDs in memory, which may not be in the tree yet.
func (q *Queue) UnwrittenIDs() (n int) {
	if q.ids == nil {
		return 0
	}
	for _, g := range q.ids.generations {
		n += len(g.now) + len(g.written)
	}
	return n
}

// ExportedUnwritten returns the pairs for the message IDs in memory (UnwrittenIDs) that follow the key after, in
// order. They replace pairs with the same keys in the tree.
func (q *Queue) ExportedUnwritten(after []byte) (pairs []txn.StatePair) {
	if q.ids == nil {
		return nil
	}
	for _, g := range q.ids.generations {
		for _, entries := range [...]map[idHash]idEntry{g.now, g.written} {
			for h, e := range entries {
				key := append(binary.BigEndian.AppendUint64([]byte{keyIDs}, g.first), h[:]...)
				if afterKey(key, after) {
					pairs = append(pairs, txn.StatePair{Key: key, Value: e.appendValue(nil, g)})
				}
			}
		}
	}
	// Of equal keys, the first one is in now, since the sort is stable.
	slices.SortStableFunc(pairs, func(a, b txn.StatePair) int { return bytes.Compare(a.Key, b.Key) })
	return slices.CompactFunc(pairs, func(a, b txn.StatePair) bool { return bytes.Equal(a.Key, b.Key) })
}
