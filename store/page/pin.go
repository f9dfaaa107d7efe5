// SPDX-License-Identifier: Apache-2.0

package page

import (
	"iter"
	"sync/atomic"
)

// Pin protects a durable checkpoint from being overwritten.
type Pin struct {
	file *File
	meta Meta
	done atomic.Bool
}

// Pin pins the last durable checkpoint. Until Release, its pages are not reused even if they are freed.
func (f *File) Pin() *Pin {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.readers.add(f.readers.pins, func() uint64 { return f.durable.Checkpoint })
	return &Pin{file: f, meta: f.durable}
}

// Meta returns the description of the pinned checkpoint.
func (p *Pin) Meta() Meta { return p.meta }

// Release releases the pin. It is idempotent.
func (p *Pin) Release() {
	if p.done.CompareAndSwap(false, true) {
		p.file.readers.remove(p.file.readers.pins, p.meta.Checkpoint)
	}
}

// UsedExtents iterates over the used pages of a pinned checkpoint in ascending order. Adjacent pages are combined
// into one Extent with Born 0 and at most MaxExtentPages pages. After an error the iteration ends.
func (f *File) UsedExtents(pin *Pin) iter.Seq2[Extent, error] {
	return func(yield func(Extent, error) bool) {
		b := bitmapReader{f: f, meta: pin.meta}
		size := f.geo.chunkPages()
		var from, to uint64 // the current range, which may be continued; zero-based
		for i := range f.geo.chunksFor(pin.meta.Pages) {
			words, _, err := b.chunk(int(i))
			if err != nil {
				yield(Extent{}, err)
				return
			}
			if words == nil {
				continue
			}
			for at := nextBit(words, 0, size); at < size; {
				end := nextClear(words, at, size)
				if from == to || to != i*size+at || to-from+end-at > MaxExtentPages {
					if to > from && !yield(extent(from, to), nil) {
						return
					}
					from = i*size + at
				}
				to = i*size + end
				at = nextBit(words, end, size)
			}
		}
		if to > from {
			yield(extent(from, to), nil)
		}
	}
}

func extent(from, to uint64) Extent { return Extent{First: No(from + 1), Pages: uint32(to - from)} }

// OwnExtents returns the extents of a pinned checkpoint's bitmap and directory. These and the extents reachable from
// Meta.Root contain all pages in use.
func (f *File) OwnExtents(pin *Pin) ([]Extent, error) {
	var extents []Extent
	for _, l := range pin.meta.leaves {
		if l != (ref{}) {
			extents = append(extents, l.extent())
		}
	}
	b := bitmapReader{f: f, meta: pin.meta}
	for i := range f.geo.chunksFor(pin.meta.Pages) {
		at, err := b.ref(int(i))
		if err != nil {
			return extents, err
		}
		if at != (ref{}) {
			extents = append(extents, at.extent())
		}
	}
	return extents, nil
}

// bitmapReader reads a checkpoint's bitmap sequentially. It caches the current directory page.
type bitmapReader struct {
	f    *File
	meta Meta
	leaf int // directory page in refs, if refs is not nil
	refs []ref
}

func (b *bitmapReader) ref(chunk int) (ref, error) {
	perLeaf := int(b.f.geo.leafChunks())
	leaf := chunk / perLeaf
	at := b.meta.leaves[leaf]
	if at == (ref{}) {
		return ref{}, nil
	}
	if b.refs == nil || b.leaf != leaf {
		payload, err := b.read(at, KindBitmapDir)
		if err != nil {
			return ref{}, err
		}
		refs, err := decodeLeaf(payload, min(perLeaf, int(b.f.geo.chunksFor(b.meta.Pages))-leaf*perLeaf), b.meta.Pages)
		if err != nil {
			return ref{}, b.f.explain(err, at.page, b.f.geo.offset(at.page))
		}
		b.leaf, b.refs = leaf, refs
	}
	return b.refs[chunk%perLeaf], nil
}

func (b *bitmapReader) chunk(chunk int) ([]uint64, ref, error) {
	at, err := b.ref(chunk)
	if err != nil || at == (ref{}) {
		return nil, ref{}, err
	}
	payload, err := b.read(at, KindBitmap)
	if err != nil {
		return nil, ref{}, err
	}
	size := b.f.geo.chunkPages()
	words, err := decodeChunk(payload, b.f.geo, min(size, b.meta.Pages-uint64(chunk)*size))
	if err != nil {
		return nil, ref{}, b.f.explain(err, at.page, b.f.geo.offset(at.page))
	}
	return words, at, nil
}

func (b *bitmapReader) read(at ref, want Kind) ([]byte, error) {
	kind, payload, err := b.f.ReadExtent(at.extent(), nil)
	if err == nil && kind != want {
		err = b.f.explain(&CorruptError{Reason: "found a " + kind.String() + ", expected a " + want.String()},
			at.page,
			b.f.geo.offset(at.page))
	}
	if err != nil {
		return nil, err
	}
	return payload, nil
}
