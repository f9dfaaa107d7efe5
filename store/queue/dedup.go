// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"

	"github.com/lockstep-mq/lockstep/store/mutate"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// A queue with a DedupWindow retains an entry for each message ID that it has accepted within the window (INV-23).
// The tree contains the entries under the keys 'e' queue(8) first(8) hash(16). Entries are grouped in generations,
// each of which covers a part of the window; first is the message sequence of the first entry of the generation.
//
// An entry is valid while it is within the DedupWindow and among the last DedupMax entries, if DedupMax is not 0. The
// window is measured with the times of transactions. A change of the configuration does not make an invalid entry
// valid again. A generation without a valid entry is removed as one key range when a new generation begins or, in an
// idle queue, by an entry of the schedule index.
//
// Only the entries added since the last checkpoint are in memory. Apply reads older entries from the tree while it
// checks a transaction, before it changes anything.

const (
	idParts = 4 // a generation covers 1/idParts of the window and of DedupMax
	// maxIDGenerations limits the number of generations, which can increase after changes of the window. At the limit,
	// the last generation grows instead.
	maxIDGenerations = 16
	// minIDGeneration is the minimum number of entries of a generation before DedupMax ends it.
	minIDGeneration = 1024
)

// idHash is the first half of the SHA-256 hash of a message ID.
type idHash [16]byte

// idEntry is the record of an accepted message ID.
type idEntry struct {
	sequence uint64
	timeMS   int64  // of the transaction
	number   uint64 // consecutive in the queue
}

// idSet contains the accepted message IDs of a queue.
type idSet struct {
	duplicates uint64 // discarded messages
	added      uint64 // number of the next entry
	// Entries before minMS or minNumber left the window before the last change of the configuration.
	minMS         int64
	minNumber     uint64
	generations   []*idGeneration
	removed       []KeyRange // stored generations removed since the last Collect
	dirty, stored bool
}

type idGeneration struct {
	first          uint64 // sequence of the first entry
	timeMS, lastMS int64  // times of the first and the last entry
	number, n      uint64 // number of the first entry; count of entries
	// now contains the entries added since the last Collect. written contains the entries that the last Collect
	// returned. If stored is set, the tree contains the other entries.
	now, written map[idHash]idEntry
	stored       bool
	filter       *idFilter // filter of all entries; nil if the generation was loaded or imported
}

type storedID struct {
	queue, first uint64
	hash         idHash
}

// idReads contains the tree entries of the message IDs in the current transaction.
type idReads struct {
	get   func(key []byte) (value []byte, ok bool, err error)
	found map[storedID]idEntry
	err   error

	used      bool            // any queue has or had message IDs
	unwritten int             // entries added since the last Collect
	collected []*idGeneration // generations with written entries
}

// ReadIDs sets the function that reads a key from the published tree. Apply calls it for queues with a DedupWindow.
func (s *State) ReadIDs(get func(key []byte) (value []byte, ok bool, err error)) { s.ids.get = get }

// Deduplicates reports whether any queue has message IDs, or had some since the state was created or loaded.
func (s *State) Deduplicates() bool { return s.ids.used }

// ReadError returns the error of reading message IDs from the tree during the last Apply. If it is not nil, Apply
// changed nothing.
func (s *State) ReadError() error { return s.ids.err }

// MessageIDs returns the number of message IDs that the queue retains, and the number of duplicates that it has
// discarded. Some of these IDs may have left the window.
func (q *Queue) MessageIDs() (kept, duplicates uint64) {
	if q.ids == nil {
		return 0, 0
	}
	for _, g := range q.ids.generations {
		kept += g.n
	}
	if most := q.config.DedupMax; most != 0 {
		kept = min(kept, most)
	}
	return kept, q.ids.duplicates
}

func hashID(rec []byte) (h idHash, ok bool) {
	id := txn.RecordAttribute(rec, txn.AttributeMessageID)
	if len(id) == 0 {
		return h, false
	}
	sum := sha256.Sum256(id)
	return idHash(sum[:len(h)]), true
}

// findID reads the entry of the record's message ID from the tree, if the tree may contain one.
func (s *State) findID(q *Queue, rec []byte) {
	if q.config.DedupWindow == 0 || q.ids == nil || s.ids.err != nil {
		return
	}
	h, ok := hashID(rec)
	if !ok {
		return
	}
	for _, g := range s.idGenerations(q) {
		if _, ok := g.unwritten(h); ok {
			return
		}
		if !g.stored || g.filter != nil && !g.filter.mayHave(h) {
			continue
		}
		key := storedID{q.id, g.first, h}
		if _, ok := s.ids.found[key]; ok {
			return
		}
		e, ok, err := s.readID(key, g)
		if err != nil {
			s.ids.err = fmt.Errorf("message IDs of queue %d: %w", q.id, err)
			return
		}
		if ok {
			if s.ids.found == nil {
				s.ids.found = make(map[storedID]idEntry)
			}
			s.ids.found[key] = e
			return
		}
	}
}

var errNoPages = errors.New("state without a page file")

func (s *State) readID(key storedID, g *idGeneration) (e idEntry, ok bool, err error) {
	if s.ids.get == nil {
		return e, false, errNoPages
	}
	value, ok, err := s.ids.get(appendIDKey(nil, key))
	if err != nil || !ok {
		return e, false, err
	}
	v := cursor{b: value}
	e = v.idEntry(g)
	return e, v.err == nil, v.err
}

// findPreparedIDs is findID for all messages of a prepared transaction.
func (s *State) findPreparedIDs(p *Prepared) {
	var inner txn.Reader
	if txn.Inner(&inner, p.payload) != nil {
		return
	}
	for range inner.Ops() {
		o, err := inner.Next()
		if err != nil {
			return
		}
		switch o.Code { //nolint:exhaustive // the others publish nothing
		case txn.OpPublish:
			s.published = publishedBefore{queue: o.Queue, count: o.Count, raw: o.Raw}
			s.findIDs(s.queues.get(o.Queue), o)
		case txn.OpForward:
			if target := s.queues.get(o.Target); target != nil {
				_ = s.published.forwarded(o, func(_ int, rec []byte) { s.findID(target, rec) })
			}
		}
	}
}

func (s *State) findIDs(q *Queue, o *txn.Op) {
	if q.config.DedupWindow == 0 {
		return
	}
	for rec := range o.Records {
		s.findID(q, rec)
	}
}

func (g *idGeneration) unwritten(h idHash) (e idEntry, ok bool) {
	if e, ok = g.now[h]; !ok {
		e, ok = g.written[h]
	}
	return e, ok
}

// idGenerations iterates over the generations that may have valid entries, newest first. It always includes the newest
// generation, to which an entry may be added.
func (s *State) idGenerations(q *Queue) iter.Seq2[int, *idGeneration] {
	return func(yield func(int, *idGeneration) bool) {
		list := q.ids.generations
		for i, g := range slices.Backward(list) {
			if (i == len(list)-1 || !s.outlived(q, g)) && !yield(i, g) {
				return
			}
		}
	}
}

// outlived reports whether no entry of the generation is valid.
func (s *State) outlived(q *Queue, g *idGeneration) bool {
	return !s.isValid(q, idEntry{timeMS: g.lastMS, number: g.number + g.n - 1})
}

func (s *State) isValid(q *Queue, e idEntry) bool {
	c := q.config
	return e.timeMS >= q.ids.minMS && e.number >= q.ids.minNumber && s.reader.TimeMS()-e.timeMS < int64(c.DedupWindow) &&
		(c.DedupMax == 0 || q.ids.added-e.number <= c.DedupMax)
}

// isDuplicate reports whether the queue has accepted a message with the same ID within the window, and returns the
// sequence of that message. Otherwise, it adds the ID, if any, with the next sequence of the queue.
func (s *State) isDuplicate(q *Queue, rec []byte) (sequence uint64, duplicate bool) {
	h, ok := hashID(rec)
	if !ok {
		return 0, false
	}
	s.ids.used = true
	d := q.ownIDs()
	for _, g := range s.idGenerations(q) {
		e, ok := g.unwritten(h)
		if !ok && g.stored {
			e, ok = s.ids.found[storedID{q.id, g.first, h}]
		}
		if !ok {
			continue
		}
		if !s.isValid(q, e) || mutate.Off("INV-23-duplicate-is-stored") {
			break // the entries in older generations were invalid when this one was added
		}
		d.duplicates++
		s.duplicates++
		return e.sequence, true
	}
	s.addID(q, h)
	return 0, false
}

func (q *Queue) ownIDs() *idSet {
	x := q.own()
	if x.ids == nil {
		x.ids = new(idSet)
	}
	x.ids.dirty = true
	return x.ids
}

func (s *State) addID(q *Queue, h idHash) {
	d, now := q.ids, s.reader.TimeMS()
	if s.endsGeneration(q) {
		s.removeOutlived(q)
		if len(d.generations) < maxIDGenerations {
			d.generations = append(d.generations, &idGeneration{
				first: q.nextSeq, timeMS: now, lastMS: now, number: d.added, filter: new(idFilter),
			})
			window := int64(q.config.DedupWindow)
			s.scheduleIDs(q, q.nextSeq, now+window+window/idParts+1)
		}
	}
	g := d.generations[len(d.generations)-1]
	if g.now == nil {
		g.now = make(map[idHash]idEntry)
	}
	if _, ok := g.now[h]; !ok {
		s.ids.unwritten++
	}
	g.now[h] = idEntry{sequence: q.nextSeq, timeMS: now, number: d.added}
	if g.filter != nil {
		g.filter.add(h)
	}
	g.lastMS = max(g.lastMS, now)
	g.n++
	d.added++
}

// endsGeneration reports whether the last generation is full or old enough that the next entry begins a new one. At
// maxIDGenerations, the entry is added to the last generation nevertheless.
func (s *State) endsGeneration(q *Queue) bool {
	if len(q.ids.generations) == 0 {
		return true
	}
	g, most := q.ids.generations[len(q.ids.generations)-1], q.config.DedupMax
	return (s.reader.TimeMS()-g.timeMS)*idParts >= int64(q.config.DedupWindow) ||
		most != 0 && g.n >= max(most/idParts, minIDGeneration)
}

func (s *State) scheduleIDs(q *Queue, first uint64, timeMS int64) {
	s.schedule.add(txn.Due{TimeMS: min(max(timeMS, 0), txn.MaxTimeMS), Queue: q.id, Sequence: first, Kind: txn.DueIDs})
}

func (s *State) removeOutlived(q *Queue) {
	for len(q.ids.generations) > 0 && s.outlived(q, q.ids.generations[0]) {
		s.removeOldestIDs(q)
	}
}

func (s *State) removeOldestIDs(q *Queue) {
	d := q.ids
	g := d.generations[0]
	d.generations = slices.Delete(d.generations, 0, 1)
	if g.stored || g.written != nil {
		d.removed = append(d.removed, idKeys(q.id, g.first, g.first+1))
	}
	s.ids.unwritten -= len(g.now)
	d.dirty = true
	if len(d.generations) == 0 {
		d.added, d.minMS, d.minNumber = 0, 0, 0
	}
}

// dueIDs removes the generations without a valid entry. first identifies the generation of the due schedule entry. If
// that generation remains, it is scheduled again.
func (s *State) dueIDs(q *Queue, first uint64) {
	if q == nil || q.ids == nil {
		return
	}
	s.mark(q)
	s.removeOutlived(q)
	for _, g := range q.ids.generations {
		if g.first == first { // the window is longer than before, or the clock is behind
			s.scheduleIDs(q, first, max(g.lastMS+int64(q.config.DedupWindow), s.reader.TimeMS()+1000))
		}
	}
}

// endWindow is called before a change of the configuration. It records which entries are invalid, so that they
// remain invalid.
func (s *State) endWindow(q *Queue) {
	if q.ids == nil || len(q.ids.generations) == 0 {
		return
	}
	d, c := q.ids, q.config
	d.minMS = max(d.minMS, s.reader.TimeMS()-int64(c.DedupWindow)+1)
	if c.DedupMax != 0 {
		d.minNumber = max(d.minNumber, d.added-min(d.added, c.DedupMax))
	}
	d.dirty = true
}

// removeIDs removes all message IDs and resets the number of duplicates if the queue has no DedupWindow.
func (s *State) removeIDs(q *Queue) {
	if q.ids == nil || q.config.DedupWindow != 0 {
		return
	}
	for len(q.ids.generations) > 0 {
		s.removeOldestIDs(q)
	}
	q.ids.duplicates, q.ids.dirty = 0, true
}

// IDKeys returns the key range of the message IDs of all queues.
func IDKeys() KeyRange { return KeyRange{From: []byte{keyIDs}, To: []byte{keyIDs + 1}} }

// idKeys returns the key range of a queue's generations from first (inclusive) to end (exclusive).
func idKeys(queue, first, end uint64) KeyRange {
	key := func(n uint64) []byte { return binary.BigEndian.AppendUint64(queueKey(nil, keyIDs, queue), n) }
	return KeyRange{From: key(first), To: key(end)}
}

func appendIDKey(dst []byte, k storedID) []byte {
	dst = binary.BigEndian.AppendUint64(queueKey(dst, keyIDs, k.queue), k.first)
	return append(dst, k.hash[:]...)
}

func (e *idEntry) appendValue(dst []byte, g *idGeneration) []byte {
	dst = binary.AppendUvarint(dst, e.sequence-g.first)
	dst = binary.AppendVarint(dst, e.timeMS-g.timeMS)
	return binary.AppendUvarint(dst, e.number-g.number)
}

func (c *cursor) idEntry(g *idGeneration) (e idEntry) {
	e.sequence = g.first + c.uvarint(math.MaxUint64>>1)
	e.timeMS = g.timeMS + c.varint()
	e.number = g.number + c.uvarint(math.MaxUint64>>1)
	if c.end(); c.err == nil && e.number-g.number >= g.n {
		c.fail("message ID is not in its generation")
	}
	return e
}

// CheckID verifies a key and its value in the range IDKeys. The error wraps ErrCorrupt.
func (s *State) CheckID(key, value []byte) error {
	k, v := cursor{b: key}, cursor{b: value}
	k.u8()
	id, first := k.be64(), k.be64()
	if k.take(uint64(len(idHash{}))); k.err != nil || len(k.b) > 0 {
		return fmt.Errorf("%w: key %x", ErrCorrupt, key)
	}
	if q := s.Queue(id); q != nil && q.ids != nil {
		if g := q.ids.generation(first); g != nil {
			v.idEntry(g)
			return v.err
		}
	}
	return fmt.Errorf("%w: message ID of a missing generation: key %x", ErrCorrupt, key)
}

func (d *idSet) appendValue(dst []byte) []byte {
	dst = append(dst, valueVersion)
	dst = binary.AppendUvarint(dst, d.duplicates)
	dst = binary.AppendUvarint(dst, d.added)
	dst = binary.AppendVarint(dst, d.minMS)
	dst = binary.AppendUvarint(dst, d.minNumber)
	dst = binary.AppendUvarint(dst, uint64(len(d.generations)))
	for _, g := range d.generations {
		dst = binary.AppendUvarint(dst, g.first)
		dst = binary.AppendVarint(dst, g.timeMS)
		dst = binary.AppendVarint(dst, g.lastMS-g.timeMS)
		dst = binary.AppendUvarint(dst, g.number)
		dst = binary.AppendUvarint(dst, g.n)
	}
	return dst
}

func (l *Loader) ids(k, v *cursor) {
	q, d := l.getQueue(k), v.idSet()
	d.stored = true
	q.own().ids, l.s.ids.used = d, true
}

func (c *cursor) idSet() *idSet {
	d := new(idSet)
	c.version()
	d.duplicates, d.added = c.uvarint(math.MaxUint64), c.uvarint(math.MaxUint64)
	d.minMS, d.minNumber = c.varint(), c.uvarint(math.MaxUint64)
	for range c.uvarint(maxIDGenerations) {
		g := &idGeneration{first: c.uvarint(math.MaxUint64), timeMS: c.varint(), stored: true}
		g.lastMS = g.timeMS + c.varint()
		g.number, g.n = c.uvarint(math.MaxUint64), c.uvarint(math.MaxUint64)
		d.generations = append(d.generations, g)
	}
	return d
}

// generation returns the generation that begins with the given sequence, or nil.
func (d *idSet) generation(first uint64) *idGeneration {
	for _, g := range d.generations {
		if g.first == first {
			return g
		}
	}
	return nil
}

// valid reports whether the generations are in order and without gaps, and begin below the next sequence of their
// queue.
func (d *idSet) valid(nextSeq uint64) bool {
	for i, g := range d.generations {
		end := d.added
		if i+1 < len(d.generations) {
			end = d.generations[i+1].number
		}
		if g.n == 0 || g.number+g.n != end || g.first >= nextSeq || i > 0 && g.first <= d.generations[i-1].first ||
			g.lastMS < g.timeMS {
			return false
		}
	}
	return len(d.generations) > 0 || d.added == 0
}

func (d *idSet) empty() bool { return d.duplicates == 0 && len(d.generations) == 0 }

func (q *Queue) checkIDs(bad func(string, ...any)) {
	if q.ids == nil {
		return
	}
	if q.config.DedupWindow == 0 && len(q.ids.generations) > 0 && !q.incoming() {
		bad("message IDs without a deduplication window")
	}
	if !q.ids.valid(q.nextSeq) {
		bad("%d message IDs in %d generations are not valid", q.ids.added, len(q.ids.generations))
	}
}

// IDBatch contains the message IDs of one generation that a checkpoint must write.
type IDBatch struct {
	queue   uint64
	of      idGeneration
	entries map[idHash]idEntry
}

// Puts iterates over the keys and values to set, in order. Each pair is valid until the next iteration.
func (b *IDBatch) Puts(yield func(key, value []byte) bool) {
	hashes := slices.SortedFunc(maps.Keys(b.entries), func(a, b idHash) int { return bytes.Compare(a[:], b[:]) })
	var key, value []byte
	for _, h := range hashes {
		e := b.entries[h]
		key = appendIDKey(key[:0], storedID{b.queue, b.of.first, h})
		if value = e.appendValue(value[:0], &b.of); !yield(key, value) {
			return
		}
	}
}

// idsWritten removes the entries of the last batch from memory. They must be readable from the tree.
func (s *State) idsWritten() {
	for _, g := range s.ids.collected {
		g.written, g.stored = nil, true
	}
	s.ids.collected = nil
}

func (c *collector) ids(s *State, queues []*Queue) {
	s.idsWritten()
	for _, q := range queues {
		d := q.ids
		if d == nil || !d.dirty {
			continue
		}
		c.batch.DeleteRanges = append(c.batch.DeleteRanges, d.removed...)
		d.removed = nil
		for _, g := range d.generations {
			if len(g.now) == 0 {
				continue
			}
			c.batch.IDs = append(c.batch.IDs, IDBatch{queue: q.id, of: *g, entries: g.now})
			g.written, g.now = g.now, nil
			s.ids.collected = append(s.ids.collected, g)
		}
		d.dirty = false
		switch key := queueKey(nil, keyIDSet, q.id); {
		case !d.empty():
			c.put(queueKey(c.key(), keyIDSet, q.id), d.appendValue)
			d.stored = true
		case d.stored:
			c.batch.Deletes = append(c.batch.Deletes, key)
			d.stored = false
		}
	}
	s.ids.unwritten = 0
}
