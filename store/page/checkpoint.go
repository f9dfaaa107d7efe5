// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"fmt"
	"slices"
)

const writeBytes = 1 << 20

// Checkpoint makes all earlier allocations, writes and frees durable as one checkpoint. It uses Position, Root,
// CreatedMS and AppData of m; Root must be allocated and written, or zero.
//
// It syncs the pages before it writes the meta slot that refers to them: a crash leaves the previous checkpoint or
// this one.
//
// Concurrent allocations, writes and frees belong to the next checkpoint. After ErrFull or a failed page write, the
// previous checkpoint stays durable and a retry can succeed. A failed sync or write of a meta slot is final
// (ErrFailed).
func (f *File) Checkpoint(m Meta) (Meta, error) {
	p, err := f.BeginCheckpoint(m)
	if err != nil {
		return Meta{}, err
	}
	return p.Finish()
}

// BeginCheckpoint determines the content of a checkpoint, and writes nothing. Until Finish returns, other
// checkpoints, ReadHead, Trim and Close block.
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

// PendingCheckpoint is a checkpoint with fixed content that is not yet durable.
type PendingCheckpoint struct {
	f    *File
	plan *plan
}

// Finish makes the checkpoint durable. It must be called once, from any goroutine.
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
	f.evictFresh(p.fresh)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.older, f.durable, f.slot = f.durable.Checkpoint, p.meta, 1-p.slot
	f.releaseFreedLocked()
	return p.meta, nil
}

type plan struct {
	meta   Meta
	slot   int
	writes []write
	chunks []int // bitmap chunks to write
	leaves []int
	fresh  []byteRange
}

type write struct {
	first No
	buf   []byte
}

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
	if err := f.writable(); err != nil { // an extent was freed twice: the bitmap cannot be trusted
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

// relocate moves each changed bitmap chunk, and each directory page that refers to one, to a new position. This
// changes the bitmap again, and relocate repeats the step.
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
		extents, err := f.allocLocked(nil, sizes, uint64(len(moved)))
		if err != nil {
			for _, r := range extents {
				f.freeLocked(r)
			}
			return fmt.Errorf("%d pages of bitmap: %w", len(moved), err)
		}
		for i, at := range moved {
			if *at != (ref{}) {
				f.freeLocked(at.extent())
			}
			*at = ref{page: extents[i].First, born: building}
		}
	}
}

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
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.at.page, b.at.page) })
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
		buf, err := AppendExtent(last.buf, f.geo.pageSize, part.at.extent(), part.kind, payload)
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

// abandon marks the parts of the bitmap in p as dirty again after a failed write.
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
