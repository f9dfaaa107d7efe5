// SPDX-License-Identifier: Apache-2.0

package pager

import (
	"context"
	"fmt"

	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/throttle"
)

const pageMapCacheBytes = 4 << 20

// PageRegion describes the pages in a region of page.db.
type PageRegion struct {
	page.Region

	// Index counts the live pages of the tree. Bitmap counts the live pages of the bitmap of used pages. The other live
	// pages contain messages.
	Index, Bitmap uint64
}

// Messages returns the number of pages that contain messages.
func (r *PageRegion) Messages() uint64 { return r.Live - r.Index - r.Bitmap }

// Free returns the number of pages that can be used immediately.
func (r *PageRegion) Free() uint64 { return r.Pages - r.Live - r.Held }

// PageMap describes the use of the pages of page.db.
type PageMap struct {
	PageSize int
	// Regions have the same number of pages, except for the last one. Total is their sum.
	Regions  []PageRegion
	Total    PageRegion
	FreeTail uint64
	Readers  int // number of pins
}

// PageMap returns the use of the pages of page.db, in at most the given number of regions, which must be at least 1.
// The result is not a consistent snapshot: index pages of a checkpoint in progress count as messages. It returns
// ErrReplaced if page.db was replaced and closed in the meantime.
func (p *Pager) PageMap(ctx context.Context, regions int, pace *throttle.Pacer) (PageMap, error) {
	file, pin, err := p.Pin()
	if err != nil {
		return PageMap{}, err
	}
	each := max((file.Stats().Pages+uint64(regions)-1)/uint64(max(regions, 1)), 1)
	index, bitmap := make(map[uint64]uint64), make(map[uint64]uint64)
	c := checkpoint.Open(file, pin, checkpoint.Options{CacheBytes: pageMapCacheBytes, Pace: pace})
	err = c.OwnExtents(ctx, func(extents []page.Extent, own bool) {
		to := index
		if own {
			to = bitmap
		}
		for _, r := range file.Live(extents) {
			countPages(to, r, each)
		}
	})
	c.Close() // before counting: its own pin must not count as a reader
	if err := p.StillUses(file); err != nil {
		return PageMap{}, err
	}
	if err != nil {
		return PageMap{}, fmt.Errorf("page map: %w", err)
	}
	m := PageMap{PageSize: file.PageSize(), FreeTail: file.FreeTail(), Readers: file.Stats().Pins}
	m.Total.First = 1
	for r := range file.Regions(each) {
		at := uint64(r.First-1) / each
		one := PageRegion{Region: r, Bitmap: min(bitmap[at], r.Live)}
		one.Index = min(index[at], r.Live-one.Bitmap)
		if len(m.Regions) == regions { // the file has grown concurrently
			m.Regions[regions-1].add(&one)
		} else {
			m.Regions = append(m.Regions, one)
		}
		m.Total.add(&one)
	}
	return m, nil
}

func countPages(to map[uint64]uint64, r page.Extent, each uint64) {
	for at, end := uint64(r.First-1), uint64(r.First-1)+uint64(r.Pages); at < end; {
		i := at / each
		n := min(end, (i+1)*each) - at
		to[i] += n
		at += n
	}
}

func (r *PageRegion) add(other *PageRegion) {
	r.Pages += other.Pages
	r.Live += other.Live
	r.Held += other.Held
	r.HeldByReaders += other.HeldByReaders
	r.Index += other.Index
	r.Bitmap += other.Bitmap
}
