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

const (
	// DefaultMoveBytes is how much a shrink moves when nothing else is asked for.
	DefaultMoveBytes = 64 << 20
	// moveRoundBytes is how much is moved while the pager waits.
	moveRoundBytes = 512 << 10
)

// ShrinkOptions say how to shrink page.db.
type ShrinkOptions struct {
	// MoveBytes of messages at most are moved from the end of the file into gaps, so that a few pages at the end do not
	// keep all the space before them. 0 stands for DefaultMoveBytes, a negative number for none.
	MoveBytes int64
}

// ShrinkPlan is what a shrink would do.
type ShrinkPlan struct {
	// FileBytes of page.db now, and what the pages in use would take without a gap.
	FileBytes uint64 `json:"file_bytes"`
	UsedBytes uint64 `json:"used_bytes"`
	// GainBytes is about what a shrink would give back; MoveBytes it would move for that.
	GainBytes uint64 `json:"gain_bytes"`
	MoveBytes uint64 `json:"move_bytes"`
	// NeedBytes that it needs for itself: none, it uses the gaps. AvailableBytes are free on the disk.
	NeedBytes      uint64 `json:"need_bytes"`
	AvailableBytes uint64 `json:"available_bytes"`
}

// ShrinkResult is what a shrink did.
type ShrinkResult struct {
	// FileBytesBefore and FileBytesAfter of page.db.
	FileBytesBefore uint64 `json:"file_bytes_before"`
	FileBytesAfter  uint64 `json:"file_bytes_after"`
	// MovedBytes of messages were moved from the end into gaps.
	MovedBytes uint64 `json:"moved_bytes"`
	// Held is true when a snapshot or a scan still reads pages at the end: a later shrink may give more back.
	Held bool `json:"held"`
}

// PlanShrink writes a checkpoint, as Shrink does, and finds out what Shrink would give back. Online: it reads the index
// of messages, and no transaction waits.
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

// bytesUpTo is the size of a file with so many pages.
func bytesUpTo(pages uint64, pageSize int) uint64 {
	return uint64(page.OffsetOf(page.No(pages)+1, pageSize))
}

// Shrink gives the free end of page.db back to the file system. Online: no transaction waits for it. What lies at the
// end (the tree, the map of used pages, a bounded number of messages) is moved into gaps further in front before; a
// compact (Rewrite) does that for the whole file.
//
// It returns a MaintenanceError while a rewrite is under way, and ErrCanceled when ctx ends; then page.db is as large
// as it was.
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
		r.Held, err = m.e.CutEnd(ctx)
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

// shrinkFailed makes a failed write final (INV-7), as the pager does; a full disk, a damaged page and the end of a
// context are none.
func (m *Maintenance) shrinkFailed(err error) error {
	switch {
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %w", ErrCanceled, err)
	case errors.Is(err, page.ErrFull), errors.Is(err, syscall.ENOSPC), errors.Is(err, page.ErrDamaged),
		m.e.Usable() != nil:
		return err
	}
	return m.e.Fail(fmt.Errorf("shrink page.db: %w", err))
}

// tailRuns are the runs of messages at the end of the file that are worth moving, and where the others end.
type tailRuns struct {
	runs  []index.Entry // a heap, the one that is furthest in front first
	bytes uint64
	end   page.No // the last page of the runs that stay
}

func (t *tailRuns) Len() int           { return len(t.runs) }
func (t *tailRuns) Less(i, j int) bool { return t.runs[i].Run.First < t.runs[j].Run.First }
func (t *tailRuns) Swap(i, j int)      { t.runs[i], t.runs[j] = t.runs[j], t.runs[i] }
func (t *tailRuns) Push(x any)         { t.runs = append(t.runs, x.(index.Entry)) } // only here

// Pop takes the last one out, for package heap.
func (t *tailRuns) Pop() any {
	e := t.runs[len(t.runs)-1]
	t.runs = t.runs[:len(t.runs)-1]
	return e
}

// findTail looks for the runs behind the page where the file would end if it had no gaps.
func findTail(ctx context.Context, c *checkpoint.Checkpoint, o ShrinkOptions) (*tailRuns, error) {
	limit := uint64(max(o.MoveBytes, 0))
	if o.MoveBytes == 0 {
		limit = DefaultMoveBytes
	}
	from, size := page.No(c.Meta().UsedPages), uint64(c.Meta().PageSize)
	t := &tailRuns{}
	stays := func(e *index.Entry) { t.end = max(t.end, e.Run.End()-1) }
	err := c.Runs(ctx, checkpoint.WalkOptions{IndexOnly: true}, func(e *index.Entry, _ []byte, _ error) error {
		if e.Run.End()-1 <= from {
			stays(e)
			return nil
		}
		heap.Push(t, *e)
		for t.bytes += uint64(e.Run.Pages) * size; t.bytes > limit; {
			first := heap.Pop(t).(index.Entry) // see Push
			t.bytes -= uint64(first.Run.Pages) * size
			stays(&first)
		}
		return nil
	})
	return t, err
}

// moveTail moves runs of messages from the end of the file into gaps, the last ones first, some at a time.
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
	c.Close() // or nothing that is moved could be used again
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
			bytes += int(order[round].Run.Pages) * file.PageSize()
		}
		n, more, err := m.e.MoveRuns(file, order[round:])
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
