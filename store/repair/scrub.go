// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/lockstep-mq/lockstep/store/events"
	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/pager"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/throttle"
	"github.com/lockstep-mq/lockstep/store/tree"
	"github.com/lockstep-mq/lockstep/store/wal"
)

const (
	// scrubBytes is the approximate number of bytes that a scrub reads under one pin.
	scrubBytes = 256 << 10
	// scrubCacheBytes limits the cached tree nodes.
	scrubCacheBytes = 64 << 10
)

// ScrubResult summarizes a scrub.
type ScrubResult struct {
	Pages, LogBytes          uint64
	DamagedPages, DamagedLog uint64
}

// Scrub reads every used page and the whole log with pace, and repairs corruption. It does not bypass the operating
// system's page cache. Status, Damaged and Index report the remaining corruption. If Scrub returns an error, the result
// covers the part that was read.
func (r *Repairer) Scrub(ctx context.Context, pace *throttle.Pacer) (ScrubResult, error) {
	sc := scrub{r: r, pace: pace}
	err := sc.pages(ctx)
	if lerr := sc.log(ctx); err == nil {
		err = lerr
	}
	if err == nil {
		r.count(func(st *Status) { st.Scrubs++; st.LastScrub = time.Now() })
	}
	return sc.result, err
}

type scrub struct {
	r      *Repairer
	pace   *throttle.Pacer
	result ScrubResult
	buf    []byte
}

func (sc *scrub) did(ctx context.Context, pages uint64, bytes int) error {
	sc.result.Pages += pages
	sc.r.count(func(st *Status) { st.ScrubbedPages += pages })
	if err := sc.pause(ctx, bytes); err != nil {
		return fmt.Errorf("scrub: %w", err)
	}
	return nil
}

// pause paces the scrub. It checks ctx even if the pacer does not pause.
func (sc *scrub) pause(ctx context.Context, bytes int) error {
	if err := sc.pace.Did(ctx, bytes); err != nil {
		return err
	}
	return ctx.Err()
}

func (sc *scrub) pages(ctx context.Context) error {
	if err := sc.head(ctx); err != nil {
		return err
	}
	if err := sc.own(ctx); err != nil {
		return err
	}
	for key := []byte{}; key != nil; {
		next, pages, bad, err := sc.scrubTree(ctx, key)
		if err != nil {
			return err
		}
		for _, b := range bad {
			sc.result.DamagedPages++
			if err := sc.r.repair(ctx, b, true); err != nil && ctx.Err() != nil {
				return fmt.Errorf("scrub: %w", ctx.Err())
			}
		}
		if err := sc.did(ctx, pages, int(pages)*sc.r.pageSize()); err != nil {
			return err
		}
		key = next
	}
	return nil
}

func (r *Repairer) pageSize() int {
	defer r.pages.Release()
	return r.pages.Acquire().File.PageSize()
}

// head checks the header and the meta slots. If one of them is corrupt, it writes two checkpoints.
func (sc *scrub) head(ctx context.Context) error {
	r := sc.r
	damage, err := r.readHead()
	if err != nil {
		return fmt.Errorf("scrub: %w", err)
	}
	if damage == nil {
		return nil
	}
	sc.found(damage)
	for range 2 {
		if err := r.pages.ForceCheckpoint(ctx); err != nil {
			return err
		}
	}
	r.count(func(st *Status) { st.RepairedPages++ })
	return nil
}

func (r *Repairer) readHead() (damage, err error) {
	pages := r.pages.Acquire()
	defer r.pages.Release()
	if err := r.engine.Usable(); err != nil {
		return nil, err
	}
	return pages.File.ReadHead()
}

func (sc *scrub) found(damage error) {
	sc.result.DamagedPages++
	sc.r.count(func(st *Status) { st.FoundPages++ })
	sc.r.events(events.PageCorrupt{Err: damage})
}

// own checks the bitmap of used pages. If parts are corrupt, it writes a checkpoint.
func (sc *scrub) own(ctx context.Context) error {
	file, pin, err := sc.r.pages.Pin()
	if err != nil {
		return err
	}
	defer pin.Release()
	rewritten, err := sc.ownExtents(ctx, file, pin)
	if err != nil || rewritten == 0 {
		return err
	}
	if err := sc.r.pages.ForceCheckpoint(ctx); err != nil {
		return err
	}
	sc.r.count(func(st *Status) { st.RepairedPages += rewritten })
	return nil
}

func (sc *scrub) ownExtents(ctx context.Context, file *page.File, pin *page.Pin) (rewritten uint64, err error) {
	extents, err := file.OwnExtents(pin)
	in := &page.CorruptError{}
	// The next scrub checks the pages to which a corrupt directory page refers.
	if errors.As(err, &in) && file.RelocateOwn(in.Page) {
		sc.found(err)
		rewritten, err = 1, nil
	}
	if err != nil {
		return rewritten, sc.readError(file, err)
	}
	for _, ext := range extents {
		if ext.First == in.Page {
			continue
		}
		_, _, err := file.ReadExtent(ext, sc.buffer(file, ext))
		if errors.Is(err, page.ErrCorrupt) {
			if file.RelocateOwn(ext.First) { // otherwise it was moved concurrently
				sc.found(err)
				rewritten++
			}
		} else if err != nil {
			return rewritten, sc.readError(file, err)
		}
		if err := sc.did(ctx, uint64(ext.Pages), int(ext.Pages)*file.PageSize()); err != nil {
			return rewritten, err
		}
	}
	return rewritten, nil
}

func (sc *scrub) buffer(file *page.File, ext page.Extent) []byte {
	n := int(ext.Pages) * file.PageSize()
	if cap(sc.buf) < n {
		sc.buf = make([]byte, n)
	}
	return sc.buf[:n]
}

// readError returns the error of StillUses if file can no longer be read; otherwise it wraps err.
func (sc *scrub) readError(file *page.File, err error) error {
	if invalid := sc.r.pages.StillUses(file); invalid != nil {
		return invalid
	}
	return fmt.Errorf("scrub: %w", err)
}

// scrubTree reads a part of the tree, starting at a key, and the messages to which it refers, under one pin. next is
// the key to continue from, or nil at the end. bad contains corrupt messages. Any other corruption is returned as an
// error.
func (sc *scrub) scrubTree(
	ctx context.Context, from []byte,
) (next []byte, pages uint64, bad []*CorruptError, err error) {
	file, pin, err := sc.r.pages.Pin()
	if err != nil {
		return nil, 0, nil, err
	}
	defer pin.Release()
	defer func() {
		if sc.buf != nil && cap(sc.buf) > 4*scrubBytes {
			sc.buf = nil
		}
	}()
	counted := &countingPager{File: file}
	it := tree.New(counted, pin.Meta().Root, tree.Options{CacheBytes: scrubCacheBytes}).View().Scan(from, nil)
	size := uint64(file.PageSize())
	for it.Next() {
		if (pages+counted.pages)*size >= scrubBytes || ctx.Err() != nil {
			return append([]byte{}, it.Key()...), pages + counted.pages, bad, nil
		}
		if it.Key()[0] != index.Letter {
			continue
		}
		e, err := index.Decode(it.Key(), it.Value())
		if err != nil {
			return nil, pages, bad, sc.r.recordIndex(err)
		}
		_, _, err = file.ReadExtent(e.Extent, sc.buffer(file, e.Extent))
		pages += uint64(e.Extent.Pages)
		if err == nil {
			continue
		}
		if !Unreadable(err) {
			return nil, pages, bad, sc.readError(file, err)
		}
		if b := sc.r.wantedIn(&e, err); b != nil {
			bad = append(bad, b)
		}
	}
	err = it.Err()
	if gone := sc.r.pages.StillUses(file); err != nil && gone != nil {
		return nil, pages, bad, gone
	}
	if err != nil {
		sc.result.DamagedPages++
		return nil, pages, bad, sc.r.IndexError(err)
	}
	return nil, pages + counted.pages, bad, nil
}

func (r *Repairer) wantedIn(e *index.Entry, why error) *CorruptError {
	var wanted []uint64
	r.engine.View(func(state *queue.State) { wanted = alive(state.Queue(e.Queue), e.First, e.Last()) })
	if len(wanted) == 0 {
		return nil
	}
	return &CorruptError{Queue: e.Queue, Sequences: wanted, Err: why}
}

type countingPager struct {
	*page.File
	pages uint64
}

func (c *countingPager) ReadExtent(ext page.Extent, buf []byte) (page.Kind, []byte, error) {
	c.pages += uint64(ext.Pages)
	return c.File.ReadExtent(ext, buf)
}

// log reads the whole log. It discards the log up to a corrupt record if checkpoints contain the record, and
// continues after it.
func (sc *scrub) log(ctx context.Context) error {
	in, err := sc.r.wal.ReadFrom(max(sc.r.wal.First(), 1))
	var size int
	for err == nil {
		var frames []byte
		if frames, _, _, err = in.ReadBatch(scrubBytes); err == nil {
			size = len(frames)
			sc.result.LogBytes += uint64(size)
			sc.r.count(func(st *Status) { st.ScrubbedLogBytes += uint64(size) })
			err = sc.pause(ctx, size)
		}
	}
	switch {
	case errors.Is(err, wal.ErrCorrupt):
		sc.result.DamagedLog++
		sc.r.NoteLogError(err)
		first := sc.r.wal.First()
		if err := sc.r.dropDamagedLog(ctx); err != nil || sc.r.wal.First() <= first {
			return err
		}
		return sc.log(ctx) // continue with the records after the corrupt one
	case errors.Is(err, io.EOF), errors.Is(err, wal.ErrTrimmed), errors.Is(err, wal.ErrTruncated),
		errors.Is(err, wal.ErrNotInLog):
		return nil // the end of the log, or records were trimmed before they were read
	case errors.Is(err, wal.ErrClosed):
		return pager.ErrClosed
	}
	return fmt.Errorf("scrub the log: %w", err)
}

// dropDamagedLog discards the log up to a corrupt record if the record is applied. It first writes checkpoints until
// two of them contain the record.
func (r *Repairer) dropDamagedLog(ctx context.Context) error {
	at := r.corruptLSN()
	if at == 0 || r.engine.Applied().LSN < at {
		return nil
	}
	if r.wal.First() <= at {
		for r.wal.Released() < at { // the log is retained from the second-last checkpoint on
			if err := r.pages.ForceCheckpoint(ctx); err != nil {
				return err
			}
		}
		r.wal.Discard(at)
	}
	if r.wal.First() <= at {
		return nil // the record is in the current segment; retry later
	}
	if r.logDiscarded(at) {
		r.events(events.LogDiscarded{UpTo: at})
	}
	return nil
}
