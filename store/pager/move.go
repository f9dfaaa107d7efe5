// SPDX-License-Identifier: Apache-2.0

package pager

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/tree"
)

const maxMovedNodes = 4096

// MoveExtents moves extents to free space before them, starting with the last entry, and updates the index. It
// returns the number of bytes moved. more is false if the caller must stop: no free space is left before the extents,
// file was replaced, or a batch is not completely written.
func (p *Pager) MoveExtents(file *page.File, entries []index.Entry) (moved uint64, more bool, err error) {
	p.hold()
	defer p.mu.Unlock()
	if err := p.engine.Usable(); err != nil {
		return 0, false, err
	}
	if p.file != file || p.todo != nil {
		return 0, false, nil // replaced concurrently, or the disk is full
	}
	edit := p.index.Edit()
	defer edit.Discard()
	var taken, left []page.Extent
	free := func(extents []page.Extent) {
		for _, r := range extents {
			file.Free(r)
		}
	}
	more = true
	for i := len(entries) - 1; i >= 0 && more && err == nil; i-- {
		var to page.Extent
		if to, more, err = p.moveExtent(edit, &entries[i]); err == nil && !to.IsZero() {
			taken, left = append(taken, to), append(left, entries[i].Extent)
			moved += uint64(to.Pages) * uint64(file.PageSize())
		}
	}
	if err == nil {
		err = p.engine.Publish(edit.Commit, nil)
	}
	if err != nil {
		free(taken)
		return 0, false, fmt.Errorf("move messages: %w", err)
	}
	free(left) // new readers no longer find them
	return moved, more, nil
}

// moveExtent copies one extent into free space before it. The result to is zero if the extent is no longer in the
// index, is unreadable, or has no free space before it. In the last case, more is false.
func (p *Pager) moveExtent(edit *tree.Edit, e *index.Entry) (to page.Extent, more bool, err error) {
	file := p.file
	key := index.AppendKey(nil, e.Queue, e.First)
	value, ok, err := edit.Get(key)
	if err != nil {
		return to, false, err
	}
	if !ok || !bytes.Equal(value, e.AppendValue(nil)) {
		return to, true, nil // consumed concurrently
	}
	buf := make([]byte, int(e.Extent.Pages)*file.PageSize())
	kind, payload, err := file.ReadExtent(e.Extent, buf)
	if err != nil {
		return to, true, nil //nolint:nilerr // corrupt: left for the repair
	}
	file.AllocLow()
	if to, err = file.Alloc(e.Extent.Pages); err != nil {
		return page.Extent{}, false, err
	}
	if to.First > e.Extent.First {
		file.Free(to)
		return page.Extent{}, false, nil
	}
	if err = file.WriteExtent(to, kind, payload); err == nil {
		moved := *e
		moved.Extent = to
		err = edit.Put(key, moved.AppendValue(nil))
	}
	if err != nil {
		file.Free(to)
		return page.Extent{}, false, err
	}
	return to, true, nil
}

// TruncateEnd moves the tree and the bitmap away from the end of page.db, writes checkpoints until the old pages are
// unreferenced, and truncates the file. held reports whether readers may still hold freed pages.
func (p *Pager) TruncateEnd(ctx context.Context) (held bool, err error) {
	p.hold()
	defer p.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if err := p.engine.Usable(); err != nil {
		return false, err
	}
	if err := p.makeGapsLocked(); err != nil {
		return false, err
	}
	from := page.No(p.file.Stats().Used)
	if err := p.moveNodes(from); err != nil {
		return false, err
	}
	// The first checkpoint moves the pages. The second one overwrites the meta slot that still refers to the old pages.
	for range 2 {
		p.file.AllocLow()
		p.file.RelocateBitmap(from)
		if err := p.repeatCheckpoint(); err != nil {
			return false, err
		}
		if err := ctx.Err(); err != nil {
			return false, err
		}
	}
	if _, err := p.file.Trim(); err != nil {
		return false, fmt.Errorf("truncate page.db: %w", err)
	}
	st := p.file.Stats()
	return st.Pins+st.Guards > 0 && st.Pending > 0, nil
}

// MakeGaps writes a checkpoint, and then an identical one. Pages freed by the first one can then be reused.
func (p *Pager) MakeGaps() error {
	p.hold()
	defer p.mu.Unlock()
	if err := p.engine.Usable(); err != nil {
		return err
	}
	return p.makeGapsLocked()
}

func (p *Pager) makeGapsLocked() error {
	if _, err := p.checkpointLocked(); err != nil {
		return err
	}
	return p.repeatCheckpoint()
}

func (p *Pager) moveNodes(from page.No) error {
	edit := p.index.Edit()
	defer edit.Discard()
	if _, err := edit.MoveNodes(from, maxMovedNodes); err != nil {
		return fmt.Errorf("move the tree: %w", err)
	}
	if err := p.engine.Publish(edit.Commit, nil); err != nil {
		return fmt.Errorf("move the tree: %w", err)
	}
	return nil
}

// repeatCheckpoint writes another checkpoint with the content of the last one. The content may be at other pages
// (moveNodes). mu must have been held since that checkpoint.
func (p *Pager) repeatCheckpoint() error {
	root, err := p.index.Flush()
	if err != nil {
		return fmt.Errorf("write the tree: %w", err)
	}
	meta := p.file.Meta()
	if _, err := p.file.Checkpoint(page.Meta{
		Position: meta.Position, Root: root, CreatedMS: time.Now().UnixMilli(),
		AppData: meta.AppData,
	}); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}
