// SPDX-License-Identifier: Apache-2.0

package rewrite

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/events"
	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/page"
)

// DefaultMoveBytes is the default of ShrinkOptions.MoveBytes.
const DefaultMoveBytes = 64 << 20

// moveRoundBytes is the approximate number of bytes moved in one round, during which the pager waits.
const moveRoundBytes = 512 << 10

// ShrinkOptions configures a shrink.
type ShrinkOptions struct {
	// MoveBytes is the maximum number of message bytes moved from the end of the file into gaps; 0 selects
	// DefaultMoveBytes. A negative value moves no messages. The file is then only truncated after its last message.
	MoveBytes int64
}

// ShrinkPlan describes a shrink.
type ShrinkPlan struct {
	// FileBytes is the size of the current page.db. UsedBytes is the size that it would have without gaps.
	FileBytes uint64 `json:"file_bytes"`
	UsedBytes uint64 `json:"used_bytes"`
	// GainBytes is the approximate number of bytes that a shrink would free. MoveBytes is the number of message bytes
	// that it would move.
	GainBytes      uint64 `json:"gain_bytes"`
	MoveBytes      uint64 `json:"move_bytes"`
	AvailableBytes uint64 `json:"available_bytes"`
}

// ShrinkResult is the result of a shrink.
type ShrinkResult struct {
	FileBytesBefore uint64 `json:"file_bytes_before"`
	FileBytesAfter  uint64 `json:"file_bytes_after"`
	MovedBytes      uint64 `json:"moved_bytes"`
	// Held reports whether a reader, such as a snapshot or a scan, may still hold freed pages. A later shrink may then
	// free more.
	Held bool `json:"held"`
}

// PlanShrink writes a checkpoint and computes the number of bytes that Shrink would free.
func (m *Maintenance) PlanShrink(ctx context.Context, o ShrinkOptions) (plan ShrinkPlan, err error) {
	err = m.e.Read(ctx, func(c *checkpoint.Checkpoint) error {
		tail, err := findTail(ctx, c, o)
		if err != nil {
			return fmt.Errorf("plan a shrink: %w", err)
		}
		meta := c.Meta()
		plan.MoveBytes, plan.UsedBytes = tail.bytes, bytesUpTo(meta.UsedPages, meta.PageSize)
		if plan.FileBytes, _, plan.AvailableBytes, err = diskFigures(m.o.FS, m.o.Dir); err != nil {
			return err
		}
		after := bytesUpTo(max(uint64(tail.end), meta.UsedPages), meta.PageSize)
		plan.GainBytes = max(plan.FileBytes, after) - after
		return nil
	})
	if err != nil {
		return ShrinkPlan{}, err
	}
	return plan, nil
}

func bytesUpTo(pages uint64, pageSize int) uint64 {
	return uint64(page.OffsetOf(page.No(pages)+1, pageSize))
}

// Shrink returns the free end of page.db to the filesystem. It first moves the content at the end (the tree, the
// bitmap of used pages, a bounded number of messages) into gaps before it.
//
// It returns a MaintenanceError while another operation is running, and ErrCanceled if ctx ends; the size of page.db
// is then unchanged.
func (m *Maintenance) Shrink(ctx context.Context, o ShrinkOptions) (ShrinkResult, error) {
	if err := m.e.Usable(); err != nil {
		return ShrinkResult{}, err
	}
	ctx, u, err := m.begin(ctx, "shrink")
	if err != nil {
		return ShrinkResult{}, fmt.Errorf("shrink: %w", err)
	}
	defer m.end(u)
	var r ShrinkResult
	if r.FileBytesBefore, _, _, err = diskFigures(m.o.FS, m.o.Dir); err != nil {
		return r, fmt.Errorf("shrink: %w", err)
	}
	if r.MovedBytes, err = m.moveTail(ctx, o); err == nil {
		r.Held, err = m.e.TruncateEnd(ctx)
	}
	if err != nil {
		return r, fmt.Errorf("shrink: %w", m.shrinkFailed(err))
	}
	if r.FileBytesAfter, _, _, err = diskFigures(m.o.FS, m.o.Dir); err != nil {
		return r, fmt.Errorf("shrink: %w", err)
	}
	m.o.Events(events.Shrunk{BytesBefore: r.FileBytesBefore, Bytes: r.FileBytesAfter, Moved: r.MovedBytes})
	return r, nil
}

// shrinkFailed returns the error of a failed shrink. It makes the store unusable after a failed write (INV-7), but
// not if the disk is full, a page is corrupt or the context ended.
func (m *Maintenance) shrinkFailed(err error) error {
	switch {
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %w", ErrCanceled, err)
	case errors.Is(err, page.ErrFull), errors.Is(err, syscall.ENOSPC), errors.Is(err, page.ErrCorrupt),
		m.e.Usable() != nil:
		return err
	}
	return m.e.Fail(fmt.Errorf("shrink page.db: %w", err))
}

// tailExtents contains the message extents to move from the end of the file, as a heap with the lowest page first.
type tailExtents struct {
	extents []index.Entry
	bytes   uint64
	end     page.No
}

func (t *tailExtents) Len() int { return len(t.extents) }
func (t *tailExtents) Less(i, j int) bool {
	return t.extents[i].Extent.First < t.extents[j].Extent.First
}
func (t *tailExtents) Swap(i, j int) { t.extents[i], t.extents[j] = t.extents[j], t.extents[i] }
func (t *tailExtents) Push(x any)    { t.extents = append(t.extents, x.(index.Entry)) } // only called with index.Entry

func (t *tailExtents) Pop() any {
	e := t.extents[len(t.extents)-1]
	t.extents = t.extents[:len(t.extents)-1]
	return e
}

// findTail returns the extents after the page at which a file without gaps would end. If their total size exceeds
// o.MoveBytes, it returns only the last of them.
func findTail(ctx context.Context, c *checkpoint.Checkpoint, o ShrinkOptions) (*tailExtents, error) {
	limit := uint64(max(o.MoveBytes, 0))
	if o.MoveBytes == 0 {
		limit = DefaultMoveBytes
	}
	from, size := page.No(c.Meta().UsedPages), uint64(c.Meta().PageSize)
	t := &tailExtents{}
	stays := func(e *index.Entry) { t.end = max(t.end, e.Extent.End()-1) }
	err := c.Extents(ctx, checkpoint.WalkOptions{IndexOnly: true}, func(e *index.Entry, _ []byte, _ error) error {
		if e.Extent.End()-1 <= from {
			stays(e)
			return nil
		}
		heap.Push(t, *e)
		for t.bytes += uint64(e.Extent.Pages) * size; t.bytes > limit; {
			first := heap.Pop(t).(index.Entry) // see Push
			t.bytes -= uint64(first.Extent.Pages) * size
			stays(&first)
		}
		return nil
	})
	return t, err
}

// moveTail moves message extents from the end of the file into gaps, in rounds, starting with the last extent. It
// returns the number of bytes moved.
func (m *Maintenance) moveTail(ctx context.Context, o ShrinkOptions) (uint64, error) {
	if err := m.e.MakeGaps(); err != nil {
		return 0, err
	}
	file, pin, err := m.e.Pin()
	if err != nil {
		return 0, err
	}
	c := checkpoint.Open(file, pin, checkpoint.Options{CacheBytes: m.o.CacheBytes, Pace: m.e.Pace(ctx, 0)})
	tail, err := findTail(ctx, c, o)
	c.Close() // release the pin, so that the moved pages can be reused
	if err != nil {
		return 0, err
	}
	var order []index.Entry
	for tail.Len() > 0 {
		order = append(order, heap.Pop(tail).(index.Entry)) // see Push
	}
	pace := m.e.Pace(ctx, 0)
	var moved uint64
	for len(order) > 0 {
		if err := ctx.Err(); err != nil {
			return moved, err
		}
		round, bytes := len(order), 0
		for round > 0 && bytes < moveRoundBytes {
			round--
			bytes += int(order[round].Extent.Pages) * file.PageSize()
		}
		n, more, err := m.e.MoveExtents(file, order[round:])
		moved += n
		if err != nil || !more {
			return moved, err
		}
		order = order[:round]
		if err := pace.Did(ctx, bytes); err != nil {
			return moved, fmt.Errorf("move messages: %w", err)
		}
	}
	return moved, nil
}
