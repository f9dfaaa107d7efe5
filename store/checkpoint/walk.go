// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

const (
	// walkBytes is the maximum size of one read of several extents, into one of walkBuffers buffers. A larger extent is
	// read alone.
	walkBytes   = 1 << 20
	walkBuffers = 4
	// walkGapBytes is the maximum gap between two extents that are read together.
	walkGapBytes = 64 << 10
	// walkPacedBytes and walkPacedBuffers apply while the walk is throttled.
	walkPacedBytes   = 256 << 10
	walkPacedBuffers = 2
)

// WalkOptions configures Checkpoint.Extents. Skip and Broken are called by a different goroutine than fn.
type WalkOptions struct {
	IndexOnly bool // skip the payloads of all extents
	// Skip, if not nil, reports whether to skip an extent's payload, which is then nil.
	Skip func(e *index.Entry) bool
	// Broken, if not nil, is called if a part of the index is unreadable. The walk then continues with the next queue. If
	// Broken is nil, the error ends the walk.
	Broken func(queueID uint64, err error)
}

func (o *WalkOptions) skips(e *index.Entry) bool { return o.IndexOnly || o.Skip != nil && o.Skip(e) }

type walk struct {
	WalkOptions
	c      *Checkpoint
	queues []uint64
}

func (w *walk) bytes() int64 {
	if w.c.pace.Unhindered() {
		return walkBytes
	}
	return walkPacedBytes
}

type walkPart struct {
	buf     []byte
	extents []walkExtent
	err     error
}

type walkExtent struct {
	entry   index.Entry
	offset  int // in buf; negative if skipped
	payload []byte
	err     error
}

// Extents calls fn for each message extent, in order of queue and sequence. payload is valid until fn returns; err is
// the error of the read. The first error of fn ends the walk. Another goroutine reads and verifies extents ahead; while
// the walk is throttled, only one part ahead, because two busy goroutines can occupy all processors.
func (c *Checkpoint) Extents(
	ctx context.Context, o WalkOptions, fn func(e *index.Entry, payload []byte, err error) error,
) error {
	w := walk{WalkOptions: o, c: c}
	if o.Broken != nil {
		state, err := c.State()
		if err != nil {
			return err
		}
		for q := range state.Queues {
			w.queues = append(w.queues, q.ID())
		}
		for q := range state.Incoming {
			w.queues = append(w.queues, q.ID())
		}
		slices.Sort(w.queues)
	}
	ctx, cancel := context.WithCancel(ctx)
	full, empty := make(chan *walkPart, walkBuffers+1), make(chan *walkPart, walkBuffers)
	spare := make([]*walkPart, walkBuffers)
	for i := range spare {
		spare[i] = &walkPart{}
	}
	w.release(&spare, empty)
	var reader sync.WaitGroup
	reader.Go(func() {
		defer close(full)
		w.read(ctx, full, empty)
	})
	defer reader.Wait()
	defer cancel()
	for part := range full {
		for i := range part.extents {
			r := &part.extents[i]
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("walk store: %w", err)
			}
			if err := fn(&r.entry, r.payload, r.err); err != nil {
				return err
			}
			if err := c.pace.Did(ctx, len(r.payload)+index.KeyBytes); err != nil {
				return fmt.Errorf("walk store: %w", err)
			}
		}
		if part.err != nil {
			return fmt.Errorf("walk store: %w", part.err)
		}
		spare = append(spare, part)
		w.release(&spare, empty)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("walk store: %w", err)
	}
	return nil
}

// release returns processed parts to the reader. While the walk is throttled, it keeps all but walkPacedBuffers.
func (w *walk) release(spare *[]*walkPart, empty chan<- *walkPart) {
	keep := 0
	if !w.c.pace.Unhindered() {
		keep = walkBuffers - walkPacedBuffers
	}
	for n := len(*spare); n > keep; n = len(*spare) {
		empty <- (*spare)[n-1]
		*spare = (*spare)[:n-1]
	}
}

// read sends the extents in parts, until the end of the index, an error that Broken does not handle, or the end of ctx.
func (w *walk) read(ctx context.Context, full chan<- *walkPart, empty <-chan *walkPart) {
	p := partReader{w: w, ctx: ctx, full: full, empty: empty}
	p.limit = w.bytes()
	if w.Broken == nil {
		p.finish(p.scan([]byte{index.Letter}, []byte{index.Letter + 1}))
		return
	}
	for _, id := range w.queues {
		from, to := index.KeyRange(id)
		if err := p.scan(from, to); err != nil {
			if ctx.Err() != nil {
				break
			}
			w.Broken(id, err)
		}
	}
	p.finish(nil)
}

type partReader struct {
	w     *walk
	ctx   context.Context //nolint:containedctx // lives for one call of walk.read
	full  chan<- *walkPart
	empty <-chan *walkPart
	limit int64
	part  *walkPart
	first page.No
	next  page.No
	entry index.Entry // argument of add
}

func (p *partReader) scan(from, to []byte) error {
	it := p.w.c.view.Scan(from, to)
	for it.Next() {
		var err error
		if p.entry, err = index.Decode(it.Key(), it.Value()); err != nil {
			return err
		}
		if err := p.add(&p.entry); err != nil {
			return err
		}
	}
	return it.Err()
}

func (p *partReader) add(e *index.Entry) error {
	size := p.w.c.file.PageSize()
	if p.w.skips(e) {
		if err := p.room(p.part != nil && int64(len(p.part.extents)) >= p.limit/64); err != nil {
			return err
		}
		p.part.extents = append(p.part.extents, walkExtent{entry: *e, offset: -1})
		return nil
	}
	fits := p.next != 0 && e.Extent.First >= p.next && int64(e.Extent.First-p.next)*int64(size) <= walkGapBytes &&
		int64(e.Extent.End()-p.first)*int64(size) <= p.limit
	if err := p.room(p.next != 0 && !fits); err != nil {
		return err
	}
	if p.next == 0 {
		p.first = e.Extent.First
	}
	p.part.extents = append(p.part.extents, walkExtent{entry: *e, offset: int(e.Extent.First-p.first) * size})
	p.next = e.Extent.End()
	return nil
}

// room ensures that p.part is not nil. If full is set, it first sends the current part.
func (p *partReader) room(full bool) error {
	if full {
		p.send()
	}
	if p.part != nil {
		return nil
	}
	select {
	case p.part = <-p.empty:
		p.part.extents, p.part.err = p.part.extents[:0], nil
		p.limit = p.w.bytes()
		p.first, p.next = 0, 0
		return nil
	case <-p.ctx.Done():
		return p.ctx.Err()
	}
}

func (p *partReader) send() {
	part := p.part
	p.part = nil
	part.load(p.w.c.file, p.first, p.next)
	p.full <- part // never blocks: full has capacity for all parts
}

func (p *partReader) finish(err error) {
	if p.part == nil && err != nil {
		p.part = &walkPart{}
	}
	if p.part == nil {
		return
	}
	p.part.err = err
	select {
	case <-p.ctx.Done():
	default:
		p.send()
	}
}

// load reads the pages [first, next) with one read and verifies the extents in them. If the read fails, load reads
// each extent separately.
func (p *walkPart) load(file *page.File, first, next page.No) {
	if next == 0 {
		return
	}
	size := file.PageSize()
	n := int(next-first) * size
	if room := n + page.UncachedRoom; cap(p.buf) < room || cap(p.buf) > 4*walkBytes {
		p.buf = vfs.AlignedBlock(max(room, walkBytes+page.UncachedRoom))
	}
	buf, whole := file.ReadOnce(first, n, p.buf)
	if whole != nil {
		buf = p.buf
	}
	for i := range p.extents {
		r := &p.extents[i]
		if r.offset < 0 {
			continue
		}
		end := r.offset + int(r.entry.Extent.Pages)*size
		if whole == nil {
			_, r.payload, r.err = file.DecodeExtent(r.entry.Extent, buf[r.offset:end:end])
		} else {
			_, r.payload, r.err = file.ReadExtent(r.entry.Extent, buf[r.offset:end:end])
		}
	}
}

const ownBatch = 4096

// OwnExtents calls fn with batches of extents without messages: first the extents of the tree, then, with bitmap set,
// the extents of the bitmap of used pages. fn may modify the slice, but must not retain it. The leaves of the tree and
// the bitmap pages are not read.
func (c *Checkpoint) OwnExtents(ctx context.Context, fn func(extents []page.Extent, bitmap bool)) error {
	batch := make([]page.Extent, 0, ownBatch)
	err := c.view.WalkExtents(func(ext page.Extent, level int) error {
		if batch = append(batch, ext); len(batch) == cap(batch) {
			fn(batch, false)
			batch = batch[:0]
		}
		if level == 0 {
			return ctx.Err()
		}
		return c.pace.Did(ctx, int(ext.Pages)*c.file.PageSize())
	})
	if err != nil {
		return fmt.Errorf("walk index: %w", err)
	}
	fn(batch, false)
	own, err := c.file.OwnExtents(c.pin)
	if err != nil {
		return fmt.Errorf("read bitmap of used pages: %w", err)
	}
	fn(own, true)
	return nil
}
