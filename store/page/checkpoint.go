// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"slices"
)

// writeBytes is how much is written at once at most.
const writeBytes = 1 << 20

// Checkpoint makes everything that was allocated, written and freed so far one durable checkpoint, and returns its
// description. Of m it takes Position, Root, CreatedMS and AppData; Root must be allocated and written, or zero.
//
// It must not return nil until the checkpoint is durable: pages first, then a meta slot that refers to them. A crash at
// any instant leaves the previous checkpoint or this one. Its cost is that of what changed: a page of bitmap for each
// part of the file (16128 pages of 2 KiB) with changes in it, two syncs, and the pages that the system has not yet
// written.
//
// Alloc, Free and writes during the call are allowed and belong to the checkpoint after it. After ErrFull, or when
// pages could not be written, the previous checkpoint stays the durable one and a later try can succeed; a failed sync
// is final (ErrFailed).
func (f *File) Checkpoint(m Meta) (Meta, error) {
	p, err := f.BeginCheckpoint(m)
	if err != nil {
		return Meta{}, err
	}
	return p.Finish()
}

// BeginCheckpoint is the first part of Checkpoint: it fixes what is in it and writes nothing. What is allocated,
// written and freed from then on belongs to the checkpoint after it. Finish must be called; until then no other
// checkpoint can begin.
func (f *File) BeginCheckpoint(m Meta) (*PendingCheckpoint, error) {
	f.checkpointing.Lock()
	err := f.writable()
	if err == nil {
		var p *plan
		if p, err = f.prepare(m); err == nil {
			return &PendingCheckpoint{f: f, plan: p}, nil
		}
		err = fmt.Errorf("checkpoint: %w", err)
	}
	f.checkpointing.Unlock()
	return nil, err
}

// PendingCheckpoint is a checkpoint that is decided and not yet durable.
type PendingCheckpoint struct {
	f    *File
	plan *plan
}

// Finish is the second part of Checkpoint. It may be called by another goroutine, once.
func (c *PendingCheckpoint) Finish() (Meta, error) {
	f, p := c.f, c.plan
	defer f.checkpointing.Unlock()
	for _, w := range p.writes {
		if err := f.write(w.buf, f.geo.offset(w.first)); err != nil {
			f.abandon(p)
			return Meta{}, fmt.Errorf("checkpoint: write the bitmap at page %d of %s: %w", w.first, f.path, err)
		}
	}
	if err := f.sync(); err != nil {
		return Meta{}, fmt.Errorf("checkpoint: %w", err)
	}
	if err := f.writeSlot(1-p.slot, p.meta); err != nil {
		return Meta{}, fmt.Errorf("checkpoint: %w", err)
	}
	f.dropFresh(p.fresh)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.older, f.durable, f.slot = f.durable.Checkpoint, p.meta, 1-p.slot
	f.sweepLocked()
	return p.meta, nil
}

// plan is a checkpoint that is decided and not yet durable.
type plan struct {
	meta   Meta
	slot   int // of the previous checkpoint
	writes []write
	chunks []int // of the bitmap, which are written
	leaves []int
	fresh  []stretch // written for it
}

// write is neighbouring pages to be written at once.
type write struct {
	first No
	buf   []byte
}

// prepare fixes what is in the checkpoint. From then on Alloc and Free work for the next one.
func (f *File) prepare(m Meta) (*plan, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if root := m.Root; !root.IsZero() && (!root.within(f.space.pages) ||
		!f.space.isLive(uint64(root.First)-1, uint64(root.Pages))) {
		return nil, fmt.Errorf("%w: the root %v is not allocated", ErrMisuse, root)
	}
	if err := f.relocate(); err != nil {
		return nil, err
	}
	if err := f.writable(); err != nil { // a run that was freed twice: the bitmap cannot be trusted
		return nil, err
	}
	m.Checkpoint = f.building.Load()
	m.PageSize, m.StoreID = f.geo.pageSize, f.storeID
	m.Pages, m.UsedPages = f.space.pages, f.space.live
	m.leaves = make([]ref, len(f.space.leaves))
	for i := range f.space.leaves {
		m.leaves[i] = f.space.leaves[i].at
	}
	p := &plan{meta: m, slot: f.slot}
	if err := f.collect(p); err != nil {
		return nil, err
	}
	f.building.Store(m.Checkpoint + 1)
	p.fresh, f.fresh = f.fresh, nil
	return p, nil
}

// relocate gives each part of the bitmap that changed a new place, and each page of the directory that refers to such a
// part. That in itself changes the bitmap: the new place is used, the old one is not. So it goes on until every part
// that changed has its new place; none is moved twice, and the new places are mostly in one part, so there are few
// rounds.
func (f *File) relocate() error {
	building, perLeaf := f.building.Load(), int(f.geo.leafChunks())
	for {
		var moved []*ref
		for i, c := range f.space.chunks {
			if c.dirty && c.at.born != building {
				moved = append(moved, &c.at)
				f.space.leaves[i/perLeaf].dirty = true
			}
		}
		for i := range f.space.leaves {
			if l := &f.space.leaves[i]; l.dirty && l.at.born != building {
				moved = append(moved, &l.at)
			}
		}
		if len(moved) == 0 {
			return nil
		}
		sizes := slices.Repeat([]uint32{1}, len(moved))
		runs, err := f.allocLocked(nil, sizes, uint64(len(moved)))
		if err != nil {
			for _, r := range runs {
				f.freeLocked(r)
			}
			return fmt.Errorf("%d pages of bitmap: %w", len(moved), err)
		}
		for i, at := range moved {
			if *at != (ref{}) {
				f.freeLocked(at.run())
			}
			*at = ref{page: runs[i].First, born: building}
		}
	}
}

// collect encodes what is to be written, in the order of the pages, and takes it to be written.
func (f *File) collect(p *plan) error {
	type part struct {
		at    ref
		kind  Kind
		index int
	}
	var parts []part
	for i, c := range f.space.chunks {
		if c.dirty {
			parts = append(parts, part{c.at, KindBitmap, i})
		}
	}
	for i, l := range f.space.leaves {
		if l.dirty {
			parts = append(parts, part{l.at, KindBitmapDir, i})
		}
	}
	slices.SortFunc(parts, func(a, b part) int { return int(int64(a.at.page) - int64(b.at.page)) })
	var payload []byte
	var next No
	for _, part := range parts {
		if part.kind == KindBitmap {
			payload = f.space.chunkPayload(payload[:0], part.index)
			p.chunks = append(p.chunks, part.index)
		} else {
			payload = f.space.leafPayload(payload[:0], part.index)
			p.leaves = append(p.leaves, part.index)
		}
		if n := len(p.writes); n == 0 || part.at.page != next || len(p.writes[n-1].buf) >= writeBytes {
			p.writes = append(p.writes, write{first: part.at.page})
		}
		last := &p.writes[len(p.writes)-1]
		buf, err := AppendRun(last.buf, f.geo.pageSize, part.at.run(), part.kind, payload)
		if err != nil {
			return err
		}
		last.buf, next = buf, part.at.page+1
	}
	for _, i := range p.chunks {
		f.space.chunks[i].dirty = false
	}
	for _, i := range p.leaves {
		f.space.leaves[i].dirty = false
	}
	return nil
}

// abandon notes that what was to be written was not. It will be part of the next checkpoint.
func (f *File) abandon(p *plan) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, i := range p.chunks {
		f.space.chunks[i].dirty = true
	}
	for _, i := range p.leaves {
		f.space.leaves[i].dirty = true
	}
}
