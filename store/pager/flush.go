// SPDX-License-Identifier: Apache-2.0

package pager

import (
	"fmt"

	"github.com/lockstep-mq/lockstep/store/crc"
	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/tree"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

const writeBufferBytes = 1 << 20

// extentWriter builds extents in their on-disk form. After about each megabyte it allocates the pages of all buffered
// extents together, and writes each range of adjacent pages with one write.
type extentWriter struct {
	file    *page.File
	buf     []byte
	staged  []stagedExtent
	pages   []uint32
	entries []index.Entry
	// record is the length of the last added message. sum is the CRC32C of that message if it is known and the message
	// is the first one of an extent; otherwise 0.
	record int
	sum    uint32
}

type stagedExtent struct {
	offset, payload int // start in buf, length of the payload
	entry           index.Entry
	// record is the length of the last message's record. sum is the CRC32C of that record, or 0 if the sum is unknown or
	// if the extent has several messages.
	record int
	sum    uint32
}

// writeTails writes messages to new extents and returns their index entries. After an error it frees all its
// allocations.
func (p *Pager) writeTails(tails []queue.TailRun) ([]index.Entry, error) {
	if p.buf == nil {
		p.buf = vfs.AlignedBlock(2 * writeBufferBytes) // aligned for direct I/O
	}
	w := extentWriter{file: p.file, buf: p.buf[:0]}
	var err error
	for i := range tails {
		if err = w.writeTail(&tails[i]); err != nil {
			break
		}
	}
	if err == nil {
		err = w.flush()
	}
	if cap(w.buf) > cap(p.buf) {
		p.buf = nil // do not retain the memory of a very large message
	}
	if err != nil {
		for i := range w.entries {
			p.file.Free(w.entries[i].Extent)
		}
		return nil, fmt.Errorf("write messages to pages: %w", err)
	}
	return w.entries, nil
}

// writeTail packs the messages of one queue into extents of up to index.Room bytes. A larger message gets its own
// extent.
func (w *extentWriter) writeTail(t *queue.TailRun) error {
	room := index.Room(w.file.PageSize())
	var b index.ExtentBuilder
	for i, record := range t.Records {
		if record == nil {
			continue // consumed before it was written
		}
		seq := t.First + uint64(i)
		if b.Count > 0 && (b.SizeWith(seq, record) > room || seq-b.First >= queue.MaxExtentSpan) {
			if err := w.end(&b); err != nil {
				return err
			}
		}
		if b.Count == 0 && len(record) > max(writeBufferBytes, room) {
			if err := w.writeLarge(t.Queue, seq, record, t.Sum(i)); err != nil {
				return err
			}
			continue
		}
		if w.record, w.sum = len(record), 0; b.Count == 0 {
			w.sum = t.Sum(i)
			w.begin(&b, t.Queue)
		}
		crc.Copied(len(record))
		b.Add(seq, record)
	}
	if b.Count == 0 {
		return nil
	}
	return w.end(&b)
}

// writeLarge writes a message into its own extent without copying it. sum is the record's CRC32C, or 0 if it is
// unknown.
func (w *extentWriter) writeLarge(queueID, seq uint64, record []byte, sum uint32) error {
	if err := w.flush(); err != nil { // entries must be in message order
		return err
	}
	var b index.ExtentBuilder
	w.begin(&b, queueID)
	b.Add(seq, nil)
	b.Finish()
	w.buf = b.Buf[:0]
	payload := b.Size() + len(record)
	pages := w.file.PagesFor(payload)
	extents, err := w.file.AllocExtents([]uint32{pages})
	if err != nil {
		return fmt.Errorf("allocate: %w", err)
	}
	w.entries = append(w.entries, index.Entry{
		Queue: queueID, First: seq, Span: 1, Count: 1, Bytes: uint64(payload - index.ExtentHeaderBytes), Extent: extents[0],
	})
	if sum == 0 {
		sum = crc.Of(record)
	}
	page.SealExtentWith(b.Buf, extents[0], index.ExtentKind(1, pages), payload, len(record), sum)
	padding := make([]byte, int(pages)*w.file.PageSize()-len(b.Buf)-len(record))
	if err := w.file.WritePieces(extents[0], b.Buf, record, padding); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

func (w *extentWriter) begin(b *index.ExtentBuilder, queueID uint64) {
	start := len(w.buf)
	w.buf = append(w.buf, make([]byte, page.ExtentHeaderBytes)...)
	b.Begin(w.buf, start+page.ExtentHeaderBytes, queueID)
}

func (w *extentWriter) end(b *index.ExtentBuilder) error {
	b.Finish()
	w.buf = b.Buf
	payload := b.Size()
	pages := w.file.PagesFor(payload)
	offset := b.Start - page.ExtentHeaderBytes
	w.staged = append(w.staged, stagedExtent{offset: offset, payload: payload, entry: index.Entry{
		Queue: b.Queue, First: b.First, Span: b.Last - b.First + 1,
		Count: uint64(b.Count), Bytes: uint64(payload - index.ExtentHeaderBytes),
	}, record: w.record, sum: w.sum})
	w.pages = append(w.pages, pages)
	whole := offset + int(pages)*w.file.PageSize()
	w.buf = append(w.buf, make([]byte, whole-len(w.buf))...)
	b.Count = 0
	if len(w.buf) < writeBufferBytes {
		return nil
	}
	return w.flush()
}

func (w *extentWriter) flush() error {
	if len(w.staged) == 0 {
		return nil
	}
	extents, err := w.file.AllocExtents(w.pages)
	if err != nil {
		return fmt.Errorf("allocate: %w", err)
	}
	begin := 0 // index of the first of the current adjacent extents
	for i := range w.staged {
		st := &w.staged[i]
		st.entry.Extent = extents[i]
		w.entries = append(w.entries, st.entry)
		kind := index.ExtentKind(st.entry.Count, extents[i].Pages)
		end := st.offset + int(extents[i].Pages)*w.file.PageSize()
		if st.sum != 0 {
			page.SealExtentWith(w.buf[st.offset:end], extents[i], kind, st.payload, st.record, st.sum)
			continue
		}
		page.SealExtent(w.buf[st.offset:end], extents[i], kind, st.payload)
	}
	for i := range w.staged {
		if i+1 < len(w.staged) && extents[i+1].First == extents[i].End() {
			continue
		}
		from, to := w.staged[begin].offset, len(w.buf)
		if i+1 < len(w.staged) {
			to = w.staged[i+1].offset
		}
		if err := w.file.WriteExtents(extents[begin].First, w.buf[from:to]); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		begin = i + 1
	}
	w.buf, w.staged, w.pages = w.buf[:0], w.staged[:0], w.pages[:0]
	return nil
}

// editTree applies all changes of a batch except new messages to the tree. It returns the extents that are no longer
// referenced.
func (p *Pager) editTree(edit *tree.Edit, b *queue.Batch) ([]page.Extent, error) {
	var freed []page.Extent
	for _, key := range b.Deletes {
		if _, err := edit.Delete(key); err != nil {
			return nil, fmt.Errorf("write the tree: %w", err)
		}
	}
	for _, kv := range b.Puts {
		if err := edit.Put(kv.Key, kv.Value); err != nil {
			return nil, fmt.Errorf("write the tree: %w", err)
		}
	}
	err := editSchedule(edit, &b.Schedule)
	if err != nil {
		return nil, err
	}
	if err := editIDs(edit, b); err != nil {
		return nil, err
	}
	p.spans.removeQueues(b.DeletedQueues)
	for _, id := range b.DeletedQueues {
		if freed, err = dropQueue(edit, id, freed); err != nil {
			return nil, err
		}
	}
	return dropDead(edit, p.spans.in(p.index), b.Dead, freed)
}

// editIDs writes new message IDs, and removes expired message IDs.
func editIDs(edit *tree.Edit, b *queue.Batch) error {
	for i := range b.IDs {
		for key, value := range b.IDs[i].Puts {
			if err := edit.Put(key, value); err != nil {
				return fmt.Errorf("write message IDs: %w", err)
			}
		}
	}
	for _, r := range b.DeleteRanges {
		if err := edit.DeleteRange(r.From, r.To); err != nil {
			return fmt.Errorf("remove message IDs: %w", err)
		}
	}
	return nil
}

func dropQueue(edit *tree.Edit, id uint64, freed []page.Extent) ([]page.Extent, error) {
	from, to := index.KeyRange(id)
	it := edit.Scan(from, to)
	for it.Next() {
		e, err := index.Decode(it.Key(), it.Value())
		if err != nil {
			return nil, err
		}
		freed = append(freed, e.Extent)
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("read the index of deleted queue %d: %w", id, err)
	}
	for _, r := range append(queue.QueueKeys(id), queue.KeyRange{From: from, To: to}) {
		if err := edit.DeleteRange(r.From, r.To); err != nil {
			return nil, fmt.Errorf("remove deleted queue %d: %w", id, err)
		}
	}
	return freed, nil
}

func dropDead(edit *tree.Edit, spans *extentSpans, ranges []queue.DeadRange, freed []page.Extent) (
	[]page.Extent, error,
) {
	// All ranges share an iterator.
	d := deadExtents{edit: edit, it: edit.Scan(nil, nil), freed: freed}
	for i := range ranges {
		if err := d.drop(spans, ranges[i]); err != nil {
			return nil, err
		}
	}
	err := d.remove()
	return d.freed, err
}

// drop collects the dead extents in a range, and updates the cached spans. It does not modify the batch.
func (d *deadExtents) drop(spans *extentSpans, r queue.DeadRange) error {
	chunk, single := r.Single()
	known := spans.get(r.Queue, chunk)
	if single && known != nil && !r.Prune((*[queue.GroupsOfChunk]uint8)(known)) {
		return nil
	}
	found := false
	for first, last := range r.Parts {
		n := d.total
		spans.lookups++
		if err := d.find(&r, first, last); err != nil {
			return err
		}
		found = found || d.total > n
	}
	for dead := range r.DeadChunks {
		spans.remove(r.Queue, dead)
	}
	if single && known == nil && !found { // nothing found: load the spans to avoid the next search
		return d.loadSpans(spans, r.Queue, chunk)
	}
	return nil
}

func (d *deadExtents) loadSpans(spans *extentSpans, queueID, chunk uint64) error {
	known := new(groupSpans)
	first, end := chunk*queue.ChunkSize, (chunk+1)*queue.ChunkSize
	_, to := index.KeyRange(queueID)
	if end != 0 {
		to = index.AppendKey(nil, queueID, end)
	}
	d.it.SeekFloor(index.AppendKey(nil, queueID, first), to)
	for d.it.Next() {
		e, ok, err := index.EntryOf(d.it.Key(), d.it.Value(), true, queueID)
		if err != nil {
			return err
		}
		if ok && e.Last() >= first {
			known.note(chunk, &e)
		}
	}
	if err := d.it.Err(); err != nil {
		return fmt.Errorf("read the index: %w", err)
	}
	spans.chunks[spanKey{queueID, chunk}] = known
	return nil
}

// maxDead limits the number of index entries that are collected before they are removed.
const maxDead = 1 << 14

// deadExtents collects and removes the index entries of dead extents.
type deadExtents struct {
	edit  *tree.Edit
	it    *tree.Iterator
	dead  []index.Entry
	freed []page.Extent
	total int
}

func (d *deadExtents) find(r *queue.DeadRange, first, last uint64) error {
	_, to := index.KeyRange(r.Queue)
	if last != ^uint64(0) {
		to = index.AppendKey(nil, r.Queue, last+1)
	}
	d.it.SeekFloor(index.AppendKey(nil, r.Queue, first), to) // the extent that contains first may begin before it
	for d.it.Next() {
		e, ok, err := index.EntryOf(d.it.Key(), d.it.Value(), true, r.Queue)
		if err != nil {
			return err
		}
		if !ok || e.Last() < first || !r.AllDead(e.First, e.Span) {
			continue
		}
		d.total++
		if d.dead = append(d.dead, e); len(d.dead) < maxDead {
			continue
		}
		if err := d.remove(); err != nil {
			return err
		}
		d.it.SeekFloor(index.AppendKey(nil, r.Queue, e.First), to)
	}
	if err := d.it.Err(); err != nil {
		return fmt.Errorf("read the index: %w", err)
	}
	return nil
}

// remove removes the collected entries. An entry may occur twice.
func (d *deadExtents) remove() error {
	var key []byte
	for i := range d.dead {
		key = index.AppendKey(key[:0], d.dead[i].Queue, d.dead[i].First)
		found, err := d.edit.Delete(key)
		if err != nil {
			return fmt.Errorf("remove index entries: %w", err)
		}
		if found {
			d.freed = append(d.freed, d.dead[i].Extent)
		}
	}
	d.dead, d.it = d.dead[:0], d.edit.Scan(nil, nil)
	return nil
}
