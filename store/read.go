// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/repair"
	"github.com/lockstep-mq/lockstep/store/tree"
)

const (
	readAheadBytes = 256 << 10
	// slowRead is the duration of a read above which the data was probably not cached.
	slowRead = 200 * time.Microsecond
)

// Delivery is a message as returned by Read.
type Delivery struct {
	Sequence uint64
	// DeliveryCount is queue.Sub.DeliveryCount; 0 if ReadRequest.Sub is 0.
	DeliveryCount uint32
	// Record is the stored message, for txn.DecodeMessage. It must not be modified. It is nil if the message is corrupt
	// (ReadRequest.IncludeCorrupt).
	Record []byte
}

// ReadRequest selects the messages to read.
type ReadRequest struct {
	Queue uint64
	// Sub is the ID of the subscription for which unacknowledged messages are read; 0 selects all messages that at least
	// one subscription needs.
	Sub  uint32
	From uint64
	// Before, if not 0, excludes messages with this sequence or a higher one. Callers must not combine it with Lanes.
	Before      uint64
	MaxMessages int
	// MaxBytes limits the size of the result, if not 0. The first message is returned regardless of its size. With
	// Lanes, the last message may exceed the limit.
	MaxBytes int
	// Delayed includes messages that are not yet deliverable to Sub. If Sub is 0, such messages are always included.
	Delayed bool
	// IncludeCorrupt includes corrupt messages that cannot be repaired, without their records.
	IncludeCorrupt bool
	// Lanes, if not nil, selects priority order: the highest priority first, and each priority from its position in
	// Lanes instead of From. It requires Sub and a queue with priorities. nil selects sequence order.
	Lanes *Lanes
	// Buffer is memory for the pages that are read. Each Read overwrites it. If it is nil, each Read allocates memory.
	Buffer *ReadBuffer

	lane *uint8 // only messages of this priority
}

// ReadBuffer is memory for pages that successive Reads reuse. Records that were read from pages are slices of it,
// valid until the next Read with the same buffer. It must be used by one goroutine at a time, and retains at most 4
// MiB.
type ReadBuffer struct {
	block []byte
	used  int
}

const maxReadBuffer = 4 << 20

func (b *ReadBuffer) take(n int) []byte {
	if b == nil {
		return make([]byte, n)
	}
	if len(b.block)-b.used < n {
		// Slices returned earlier stay valid: they are in the old block.
		fresh := make([]byte, max(n, min(2*len(b.block), maxReadBuffer), readAheadBytes))
		if n > maxReadBuffer {
			return fresh
		}
		b.block, b.used = fresh, 0
	}
	p := b.block[b.used : b.used+n : b.used+n]
	b.used += n
	return p
}

func (b *ReadBuffer) reset() {
	if b != nil {
		b.used = 0
	}
}

// Read appends messages to dst, in sequence order or in priority order (ReadRequest.Lanes). It returns the extended
// dst and, in sequence order, the sequence at which to continue. If it appends nothing and returns no error, no
// selected message at or after the start position is available now.
//
// Read stops before a corrupt message and returns the messages before it. If the first message is corrupt, Read tries
// to repair it from the other node, which may take time. If the repair fails and IncludeCorrupt is not set, Read
// returns a repair.CorruptError, which matches index.ErrDataLoss. The caller can continue after the last sequence in
// that error.
//
// Read returns ErrNoQueue if the queue or subscription does not exist, and index.ErrCorrupt if the location of
// messages cannot be determined. It can also return other errors, such as that of ctx.
func (s *Store) Read(ctx context.Context, req ReadRequest, dst []Delivery) ([]Delivery, uint64, error) {
	req.Buffer.reset()
	if req.Lanes != nil {
		return s.readLanes(ctx, req, dst)
	}
	return s.readRepaired(ctx, req, dst)
}

func (s *Store) readRepaired(ctx context.Context, req ReadRequest, dst []Delivery) ([]Delivery, uint64, error) {
	for before, tried := len(dst), false; ; tried = true {
		out, next, err := s.read(ctx, req, dst)
		bad, ok := errors.AsType[*repair.CorruptError](err)
		if !ok {
			return out, next, err
		}
		if len(out) > before {
			return out, next, nil
		}
		if !tried && s.repair.Repair(ctx, bad) == nil {
			continue
		}
		if !req.IncludeCorrupt || ctx.Err() != nil {
			return out, next, err
		}
		for _, seq := range bad.Sequences {
			out = append(out, Delivery{Sequence: seq})
		}
		return out, bad.Sequences[len(bad.Sequences)-1] + 1, nil
	}
}

func (s *Store) read(ctx context.Context, req ReadRequest, dst []Delivery) ([]Delivery, uint64, error) {
	pages := s.pages.Acquire()
	defer s.pages.Release()
	if err := s.Usable(); err != nil {
		return dst, req.From, err
	}
	r := reading{
		s: s, file: pages.File, index: pages.Index, req: req, dst: dst, next: max(req.From, 1),
		limit: len(dst) + max(req.MaxMessages, 1),
	}
	if req.lane != nil && req.Buffer == nil {
		r.sparse = newSparseRead()
		defer r.sparse.release()
	}
	for len(r.dst) < r.limit {
		stored, err := r.fromTail()
		if err != nil || !stored {
			return r.dst, r.next, err
		}
		err = r.fromPages(ctx)
		r.release()
		if err != nil || r.full {
			return r.dst, r.next, err
		}
	}
	return r.dst, r.next, nil
}

type wanted struct {
	seq   uint64
	count uint32
}

type reading struct {
	s     *Store
	file  *page.File
	index *tree.Tree
	req   ReadRequest
	dst   []Delivery
	next  uint64
	limit int
	bytes int
	full  bool
	// shared is set for the read of a subscription if the queue has other subscriptions.
	shared bool
	// sparse is set for reads that need few messages of each page. Pages are read into its memory, and the messages are
	// copied.
	sparse *sparseRead
	// laneBytes is the maximum size of the lane cache in bytes.
	laneBytes int64

	view  *tree.View
	guard *page.Guard
	want  []wanted
}

// fromTail appends messages from memory. If the next message is in pages, it collects the messages to fetch from
// pages, acquires a read guard and a view of the index, and returns true.
func (r *reading) fromTail() (stored bool, err error) {
	r.s.mu.RLock()
	defer r.s.mu.RUnlock()
	q := r.s.state.Queue(r.req.Queue)
	if q == nil {
		return false, fmt.Errorf("%w: queue %d", ErrNoQueue, r.req.Queue)
	}
	var sub *queue.Sub
	if r.req.Sub != 0 {
		if sub = q.Sub(r.req.Sub); sub == nil {
			return false, fmt.Errorf("%w: queue %s, subscription %d", ErrNoQueue, q.Name(), r.req.Sub)
		}
	}
	r.shared = sub != nil && q.SubCount() > 1
	r.want = r.want[:0]
	most := r.limit
	var kept *laneList
	if r.sparse != nil {
		most = maxSparse // the number of messages that fit is unknown
		r.laneBytes = r.s.laneCacheBytes(r.s.state.TailBytes())
		kept = r.s.lanes.lock(r.file, r.req.Queue, *r.req.lane)
		defer r.s.lanes.unlock(kept)
	}
	end := q.NextSequence()
	if r.req.Before != 0 {
		end = min(end, r.req.Before)
	}
	for len(r.dst)+len(r.want) < r.limit && len(r.want) < most {
		seq := r.nextWanted(q, sub)
		if seq >= end {
			break
		}
		var count uint32
		if sub != nil {
			count = sub.DeliveryCount(seq)
		}
		record, inTail := q.TailRecord(seq)
		if !inTail && kept != nil {
			record = r.s.lanes.peek(kept, seq)
		}
		if record == nil {
			r.want = append(r.want, wanted{seq: seq, count: count})
			r.next = seq + 1
			continue
		}
		if len(r.want) > 0 {
			break // first fetch the messages in pages
		}
		if !r.take(seq, count, record) {
			return false, nil
		}
		if !inTail {
			r.s.lanes.pop(kept)
		}
	}
	if len(r.want) == 0 {
		return false, nil
	}
	r.guard = r.file.ReadGuard() // acquired before the view, so that no page of the view is overwritten
	r.view = r.index.View()
	return true, nil
}

func (r *reading) nextWanted(q *queue.Queue, sub *queue.Sub) uint64 {
	switch {
	case sub == nil:
		return q.NextAlive(r.next)
	case r.req.lane != nil:
		return sub.NextDeliverableIn(*r.req.lane, r.next)
	case r.req.Delayed:
		return sub.NextUnacked(r.next)
	default:
		return sub.NextDeliverable(r.next)
	}
}

func (r *reading) take(seq uint64, count uint32, record []byte) bool {
	if r.req.MaxBytes > 0 && r.bytes > 0 && r.bytes+len(record) > r.req.MaxBytes {
		r.full = true
		return false
	}
	r.dst = append(r.dst, Delivery{Sequence: seq, DeliveryCount: count, Record: record})
	r.bytes += len(record)
	r.next = seq + 1
	return true
}

func (r *reading) release() {
	r.guard.Release()
	r.guard, r.view = nil, nil
}

func (r *reading) fromPages(ctx context.Context) error {
	next := r.want[0].seq // position if the loop ends early
	defer func() { r.next = next }()
	for len(r.want) > 0 {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("read: %w", err)
		}
		group, err := r.nextGroup(r.want[0].seq, r.want[len(r.want)-1].seq)
		if err != nil {
			return err
		}
		err = r.readGroup(group)
		if len(r.want) > 0 {
			next = r.want[0].seq
		} else {
			next = r.dst[len(r.dst)-1].Sequence + 1
		}
		if err != nil || r.full {
			return err
		}
	}
	return nil
}

// corrupt returns an error for the wanted messages up to sequence upTo, and for at least the first one.
func (r *reading) corrupt(upTo uint64, format string, args ...any) error {
	e := &repair.CorruptError{Queue: r.req.Queue, Err: fmt.Errorf(format, args...)}
	for i, w := range r.want {
		if i > 0 && w.seq > upTo {
			break
		}
		e.Sequences = append(e.Sequences, w.seq)
	}
	return e
}

// nextGroup returns the extent that contains seq, and the extents that directly follow it in the file and contain
// wanted messages. A sparse read may also include small unwanted extents (maxLaneGap).
func (r *reading) nextGroup(seq, last uint64) ([]index.Entry, error) {
	key := index.AppendKey(nil, r.req.Queue, seq)
	k, v, ok, err := r.view.SeekFloor(key)
	if err != nil {
		return nil, r.s.repair.IndexError(err)
	}
	first, found, err := index.EntryOf(k, v, ok, r.req.Queue)
	if err != nil {
		return nil, err
	}
	if !found || first.Last() < seq {
		return nil, r.corrupt(seq, "not found in any page")
	}
	// Also read a small gap between wanted extents if the lane cache has space for its messages.
	gap, most := int64(0), int64(0)
	if r.sparse != nil && r.s.lanes.bytes.Load()+readAheadBytes <= r.laneBytes {
		most = maxLaneGap
	}
	group := []index.Entry{first}
	pages := int64(first.Extent.Pages)
	it := r.view.Scan(index.AppendKey(nil, r.req.Queue, first.Last()+1), index.AppendKey(nil, r.req.Queue, last+1))
	for want := r.want; it.Next(); {
		e, err := index.Decode(it.Key(), it.Value())
		if err != nil {
			return nil, err
		}
		before := group[len(group)-1].Extent
		if e.Extent.First != before.First+page.No(before.Pages) ||
			(pages+int64(e.Extent.Pages))*int64(r.file.PageSize()) > readAheadBytes {
			break
		}
		for len(want) > 0 && want[0].seq < e.First {
			want = want[1:] // in earlier extents
		}
		if len(want) == 0 {
			break
		}
		if gap += int64(e.Extent.Pages) * int64(r.file.PageSize()); want[0].seq <= e.Last() {
			gap = 0
		} else if gap > most {
			break
		}
		pages += int64(e.Extent.Pages)
		group = append(group, e)
	}
	if err := it.Err(); err != nil {
		return nil, r.s.repair.IndexError(err)
	}
	return group, nil
}

func (r *reading) readGroup(group []index.Entry) error {
	if group = r.fromCache(group); len(group) == 0 {
		return nil
	}
	size := r.file.PageSize()
	pages := 0
	for i := range group {
		pages += int(group[i].Extent.Pages)
	}
	buf := r.buffer().take(pages * size) // records in dst are slices of it, except for sparse reads
	ahead := r.fromAhead(group, buf)
	if len(ahead) > 0 {
		group = ahead
	} else {
		err := r.readNow(group, buf)
		if r.sparse != nil && len(group) > 1 && repair.Unreadable(err) {
			return r.readGroup(group[:1]) // the unreadable extent may be a later one that is not wanted
		}
		if repair.Unreadable(err) {
			return r.corrupt(group[0].Last(), "%w", err)
		} else if err != nil {
			return fmt.Errorf("read %d pages at %d: %w", pages, group[0].Extent.First, err)
		}
	}
	for i := range group {
		e := &group[i]
		n := int(e.Extent.Pages) * size
		payload, err := r.decode(e, buf[:n:n], len(ahead) > 0)
		if err != nil && (len(r.want) == 0 || r.want[0].seq > e.Last()) {
			return nil // a read that wants the extent reports the corruption
		}
		if err != nil {
			return r.corrupt(e.Last(), "%w", err)
		}
		buf = buf[n:]
		if err := r.takeFrom(e, payload); err != nil {
			return err
		}
		if r.sparse != nil {
			r.s.lanes.keep(r.file, e, payload, *r.req.lane, r.next-1, r.laneBytes)
		}
		if r.shared && r.sparse == nil && r.req.Buffer == nil {
			r.s.extents.put(r.file, e, payload, r.s.extentCacheBytes())
		}
		if r.full {
			return nil
		}
	}
	return nil
}

// readNow reads a group of extents. After a slow read it can start the read-ahead.
func (r *reading) readNow(group []index.Entry, buf []byte) error {
	begin := time.Now()
	if err := r.file.ReadExactly(group[0].Extent.First, buf); err != nil {
		return err
	}
	if time.Since(begin) > slowRead && r.file.HasCache() && r.streams(buf) {
		r.aheadFrom(group[len(group)-1].Last() + 1)
	}
	return nil
}

// decode verifies an extent and returns its payload. If data that was read ahead is stale, decode reads the extent
// again.
func (r *reading) decode(e *index.Entry, b []byte, ahead bool) ([]byte, error) {
	if ahead {
		if _, payload, err := page.DecodeExtent(b, r.file.PageSize(), e.Extent); err == nil {
			return payload, nil
		}
		r.s.ahead.markStale(r.file, e.Extent.First)
		if err := r.file.ReadPages(e.Extent.First, b); err != nil {
			return nil, err
		}
	}
	_, payload, err := r.file.DecodeExtent(e.Extent, b)
	return payload, err
}

func (r *reading) takeFrom(e *index.Entry, payload []byte) error {
	rr, err := index.NewExtentReader(payload)
	if err != nil {
		return r.corrupt(e.Last(), "%w", err)
	}
	if rr.Queue != e.Queue || rr.First != e.First {
		return r.corrupt(e.Last(), "page %d contains queue %d, sequence %d; expected queue %d, sequence %d",
			e.Extent.First, rr.Queue, rr.First, e.Queue, e.First)
	}
	for len(r.want) > 0 && r.want[0].seq <= e.Last() {
		seq, record, ok, err := rr.Next()
		if err != nil {
			return r.corrupt(e.Last(), "%w", err)
		}
		if !ok || seq > r.want[0].seq {
			return r.corrupt(r.want[0].seq, "not found in page %d", e.Extent.First)
		}
		if seq < r.want[0].seq {
			continue
		}
		if !r.take(seq, r.want[0].count, r.sparse.copy(record)) {
			return nil
		}
		r.want = r.want[1:]
	}
	return nil
}
