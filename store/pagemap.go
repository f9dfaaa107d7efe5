// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"

	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/page"
)

// pageMapCacheBytes bounds the nodes of the index that making a map holds in memory.
const pageMapCacheBytes = 4 << 20

// PageRegion tells what the pages of a part of page.db are used for.
type PageRegion struct {
	page.Region

	// Index is how many of the live pages belong to the tree, Bitmap to the map of used pages; the others hold messages.
	Index, Bitmap uint64
}

// Messages is how many pages hold messages.
func (r *PageRegion) Messages() uint64 { return r.Live - r.Index - r.Bitmap }

// Free is how many pages can be used at once.
func (r *PageRegion) Free() uint64 { return r.Pages - r.Live - r.Held }

// PageMap is the map of page.db.
type PageMap struct {
	// PageSize in bytes.
	PageSize int
	// Regions from the beginning to the end, all but the last one with the same number of pages.
	Regions []PageRegion
	// Total is all of them together.
	Total PageRegion
	// FreeTail is how many pages at the end are free.
	FreeTail uint64
	// Readers of older checkpoints.
	Readers int
}

// PageMap tells what the pages of page.db are used for, in at most that many regions, of at least one page. Online: it
// reads the inner nodes of the last checkpoint's index and no message, and holds no lock for longer than it takes to
// count the pages of a region. It is no snapshot. What a checkpoint that is under way has just written of the index
// counts as messages. ErrSnapshotGone when page.db was replaced meanwhile.
func (s *Store) PageMap(ctx context.Context, regions int) (PageMap, error) {
	file, pin, err := s.pinFile()
	if err != nil {
		return PageMap{}, err
	}
	each := max((file.Stats().Pages+uint64(regions)-1)/uint64(max(regions, 1)), 1)
	index, bitmap := make(map[uint64]uint64), make(map[uint64]uint64)
	c := checkpoint.Open(file, pin, checkpoint.Options{CacheBytes: pageMapCacheBytes, Pace: s.Pace(ctx, 0)})
	err = c.OwnRuns(ctx, func(runs []page.Run, own bool) {
		to := index
		if own {
			to = bitmap
		}
		for _, r := range file.Live(runs) {
			countPages(to, r, each)
		}
	})
	c.Close() // before the pages are counted: it is no reader of those that it would hold
	if gone := s.stillUses(file); gone != nil {
		return PageMap{}, gone
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
		if len(m.Regions) == regions { // the file has grown meanwhile
			m.Regions[regions-1].add(&one)
		} else {
			m.Regions = append(m.Regions, one)
		}
		m.Total.add(&one)
	}
	return m, nil
}

// countPages adds the pages of a run to the regions, of that many pages, in which they are.
func countPages(to map[uint64]uint64, r page.Run, each uint64) {
	for at, end := uint64(r.First-1), uint64(r.First-1)+uint64(r.Pages); at < end; {
		i := at / each
		n := min(end, (i+1)*each) - at
		to[i] += n
		at += n
	}
}

// add adds the pages of another region.
func (r *PageRegion) add(other *PageRegion) {
	r.Pages += other.Pages
	r.Live += other.Live
	r.Held += other.Held
	r.HeldByReaders += other.HeldByReaders
	r.Index += other.Index
	r.Bitmap += other.Bitmap
}
