package store

import (
	"bytes"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/tree"
)

const (
	// DefaultMoveBytes is how much a shrink moves when nothing else is asked for.
	DefaultMoveBytes = 64 << 20
	// moveRoundBytes is how much is moved while the pager waits.
	moveRoundBytes = 512 << 10
	// moveNodes bounds how many nodes of the tree a shrink moves, for they are in memory meanwhile.
	moveNodes = 4096
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
	// Held is true when somebody (a snapshot, a scan) still reads pages at the end: a later shrink may give more back.
	Held bool `json:"held"`
}

// PlanShrink writes a checkpoint, as Shrink does, and finds out what Shrink would give back. Online: it reads the index
// of messages, and no transaction waits.
func (s *Store) PlanShrink(ctx context.Context, o ShrinkOptions) (ShrinkPlan, error) {
	if err := s.checkpointIfRoom(ctx); err != nil {
		return ShrinkPlan{}, err
	}
	file, pin, err := s.pinFile()
	if err != nil {
		return ShrinkPlan{}, err
	}
	defer pin.Release()
	tail, err := s.findTail(ctx, file, pin, o)
	if err != nil {
		return ShrinkPlan{}, fmt.Errorf("plan a shrink: %w", err)
	}
	meta := pin.Meta()
	plan := ShrinkPlan{
		UsedBytes: uint64(page.OffsetOf(page.No(meta.UsedPages)+1, file.PageSize())), MoveBytes: tail.bytes,
	}
	if plan.FileBytes, _, plan.AvailableBytes, err = diskFigures(s.o.FS, s.o.Dir); err != nil {
		return ShrinkPlan{}, err
	}
	end := max(uint64(tail.end), meta.UsedPages)
	after := uint64(page.OffsetOf(page.No(end)+1, file.PageSize()))
	plan.GainBytes = max(plan.FileBytes, after) - after
	return plan, nil
}

// Shrink gives the free end of page.db back to the file system. Online: no transaction waits for it. What lies at the
// end (the tree, the map of used pages, a bounded number of messages) is moved into gaps further in front before; a
// compact (Rewrite) does that for the whole file.
//
// It returns a MaintenanceError while a rewrite is under way, and ErrCanceled when ctx ends; then page.db is as large
// as it was.
func (s *Store) Shrink(ctx context.Context, o ShrinkOptions) (ShrinkResult, error) {
	if err := s.usable(); err != nil {
		return ShrinkResult{}, err
	}
	ctx, u, err := s.maint.begin(ctx, "shrink")
	if err != nil {
		return ShrinkResult{}, fmt.Errorf("shrink: %w", err)
	}
	defer s.maint.end(u)
	var r ShrinkResult
	if r.FileBytesBefore, _, _, err = diskFigures(s.o.FS, s.o.Dir); err != nil {
		return r, fmt.Errorf("shrink: %w", err)
	}
	if r.MovedBytes, err = s.moveTail(ctx, o); err == nil {
		r.Held, err = s.cutTail(ctx)
	}
	if err != nil {
		return r, fmt.Errorf("shrink: %w", s.shrinkFailed(err))
	}
	if r.FileBytesAfter, _, _, err = diskFigures(s.o.FS, s.o.Dir); err != nil {
		return r, fmt.Errorf("shrink: %w", err)
	}
	s.o.Logger.Info("page.db was shrunk", zap.Uint64("bytes_before", r.FileBytesBefore),
		zap.Uint64("bytes", r.FileBytesAfter),
		zap.Uint64("moved", r.MovedBytes))
	return r, nil
}

// shrinkFailed makes a failed write final (INV-7), as the pager does; a full disk, a damaged page and the end of a
// context are none.
func (s *Store) shrinkFailed(err error) error {
	switch {
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %w", ErrCanceled, err)
	case errors.Is(err, page.ErrFull), errors.Is(err, syscall.ENOSPC), errors.Is(err, page.ErrDamaged),
		s.usable() != nil:
		return err
	}
	s.fail(fmt.Errorf("shrink page.db: %w", err))
	return fmt.Errorf("%w: %w", ErrFailed, err)
}

// tailRuns are the runs of messages at the end of the file that are worth moving, and where the others end.
type tailRuns struct {
	runs  []indexEntry // a heap, the one that is furthest in front first
	bytes uint64
	end   page.No // the last page of the runs that stay
}

func (t *tailRuns) Len() int           { return len(t.runs) }
func (t *tailRuns) Less(i, j int) bool { return t.runs[i].run.First < t.runs[j].run.First }
func (t *tailRuns) Swap(i, j int)      { t.runs[i], t.runs[j] = t.runs[j], t.runs[i] }
func (t *tailRuns) Push(x any)         { t.runs = append(t.runs, x.(indexEntry)) } // only here

// Pop takes the last one out, for package heap.
func (t *tailRuns) Pop() any {
	e := t.runs[len(t.runs)-1]
	t.runs = t.runs[:len(t.runs)-1]
	return e
}

// findTail looks for the runs behind the page where the file would end if it had no gaps.
func (s *Store) findTail(ctx context.Context, file *page.File, pin *page.Pin, o ShrinkOptions) (*tailRuns, error) {
	limit := uint64(max(o.MoveBytes, 0))
	if o.MoveBytes == 0 {
		limit = DefaultMoveBytes
	}
	from, size := page.No(pin.Meta().UsedPages), uint64(file.PageSize())
	t := &tailRuns{}
	stays := func(e indexEntry) { t.end = max(t.end, e.run.End()-1) }
	view := tree.New(file, pin.Meta().Root, tree.Options{CacheBytes: s.o.MemoryBudget / 32}).View()
	pace := s.Pace(ctx, 0)
	err := copyEntries(ctx, view, []byte{indexLetter}, []byte{indexLetter + 1}, func(key, value []byte) error {
		if err := pace.Did(ctx, len(key)+len(value)); err != nil {
			return err
		}
		e, err := decodeIndexEntry(key, value)
		if err != nil {
			return err
		}
		if e.run.End()-1 <= from {
			stays(e)
			return nil
		}
		heap.Push(t, e)
		for t.bytes += uint64(e.run.Pages) * size; t.bytes > limit; {
			first := heap.Pop(t).(indexEntry) // see Push
			t.bytes -= uint64(first.run.Pages) * size
			stays(first)
		}
		return nil
	})
	return t, err
}

// moveTail moves runs of messages from the end of the file into gaps, the last ones first, some at a time.
func (s *Store) moveTail(ctx context.Context, o ShrinkOptions) (uint64, error) {
	if err := s.pager.makeGaps(); err != nil {
		return 0, err
	}
	file, pin, err := s.pinFile()
	if err != nil {
		return 0, err
	}
	tail, err := s.findTail(ctx, file, pin, o)
	pin.Release() // or nothing that is moved could be used again
	if err != nil {
		return 0, err
	}
	var order []indexEntry
	for tail.Len() > 0 {
		order = append(order, heap.Pop(tail).(indexEntry)) // see Push
	}
	pace := s.Pace(ctx, 0)
	var moved uint64
	for len(order) > 0 {
		if err := ctx.Err(); err != nil {
			return moved, err
		}
		round, bytes := len(order), 0
		for round > 0 && bytes < moveRoundBytes {
			round--
			bytes += int(order[round].run.Pages) * file.PageSize()
		}
		n, more, err := s.pager.move(file, order[round:])
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

// move copies runs into gaps and lets the index refer to them there. more is false when there are no more gaps.
func (p *pager) move(file *page.File, runs []indexEntry) (moved uint64, more bool, err error) {
	p.hold()
	defer p.mu.Unlock()
	s := p.s
	if err := s.usable(); err != nil {
		return 0, false, err
	}
	if s.file != file || p.todo != nil {
		return 0, false, nil // replaced meanwhile, or the disk is full
	}
	edit := s.index.Edit()
	defer edit.Discard()
	var taken, left []page.Run
	give := func(runs []page.Run) {
		for _, r := range runs {
			file.Free(r)
		}
	}
	more = true
	for i := len(runs) - 1; i >= 0 && more && err == nil; i-- {
		var to page.Run
		if to, more, err = p.moveRun(edit, &runs[i]); err == nil && !to.IsZero() {
			taken, left = append(taken, to), append(left, runs[i].run)
			moved += uint64(to.Pages) * uint64(file.PageSize())
		}
	}
	if err == nil {
		s.mu.Lock()
		err = edit.Commit()
		s.mu.Unlock()
	}
	if err != nil {
		give(taken)
		return 0, false, fmt.Errorf("move messages: %w", err)
	}
	give(left) // only now does no new reader find them
	return moved, more, nil
}

// moveRun copies one run, if the index still has it and there is a gap in front of it.
func (p *pager) moveRun(edit *tree.Edit, e *indexEntry) (to page.Run, more bool, err error) {
	file := p.s.file
	key := appendIndexKey(nil, e.queue, e.first)
	value, ok, err := edit.Get(key)
	if err != nil {
		return to, false, err
	}
	if !ok || !bytes.Equal(value, e.appendValue(nil)) {
		return to, true, nil // consumed meanwhile
	}
	buf := make([]byte, int(e.run.Pages)*file.PageSize())
	kind, payload, err := file.ReadRun(e.run, buf)
	if err != nil {
		return to, true, nil //nolint:nilerr // damaged: it stays, for whoever may repair it
	}
	file.AllocLow()
	if to, err = file.Alloc(e.run.Pages); err != nil {
		return page.Run{}, false, err
	}
	if to.First > e.run.First {
		file.Free(to)
		return page.Run{}, false, nil
	}
	if err = file.WriteRun(to, kind, payload); err == nil {
		moved := *e
		moved.run = to
		err = edit.Put(key, moved.appendValue(nil))
	}
	if err != nil {
		file.Free(to)
		return page.Run{}, false, err
	}
	return to, true, nil
}

// cutTail moves what lies at the end and is not messages, makes checkpoints until nothing refers to what was left
// behind, and cuts the file off.
func (s *Store) cutTail(ctx context.Context) (held bool, err error) {
	p := &s.pager
	p.hold()
	defer p.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if err := s.usable(); err != nil {
		return false, err
	}
	if err := p.makeGapsLocked(); err != nil {
		return false, err
	}
	from := page.No(s.file.Stats().Used)
	if err := p.moveNodes(from); err != nil {
		return false, err
	}
	// The first one leaves the pages at the end, the second one makes the slot that still refers to them forget.
	for range 2 {
		s.file.AllocLow()
		s.file.SinkBitmap(from)
		if err := p.sameAgain(); err != nil {
			return false, err
		}
		if err := ctx.Err(); err != nil {
			return false, err
		}
	}
	if _, err := s.file.Trim(); err != nil {
		return false, fmt.Errorf("cut page.db off: %w", err)
	}
	st := s.file.Stats()
	return st.Pins+st.Guards > 0 && st.Pending > 0, nil
}

// makeGaps writes a checkpoint, and then the same again: only then can be used what the first one has no more use for.
func (p *pager) makeGaps() error {
	p.hold()
	defer p.mu.Unlock()
	if err := p.s.usable(); err != nil {
		return err
	}
	return p.makeGapsLocked()
}

func (p *pager) makeGapsLocked() error {
	if _, err := p.checkpointLocked(); err != nil {
		return err
	}
	return p.sameAgain()
}

// moveNodes moves nodes of the tree.
func (p *pager) moveNodes(from page.No) error {
	edit := p.s.index.Edit()
	defer edit.Discard()
	if _, err := edit.MoveNodes(from, moveNodes); err != nil {
		return fmt.Errorf("move the tree: %w", err)
	}
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	if err := edit.Commit(); err != nil {
		return fmt.Errorf("move the tree: %w", err)
	}
	return nil
}

// sameAgain writes a checkpoint with the content of the last one, and whatever was moved. mu is held since that one.
func (p *pager) sameAgain() error {
	s := p.s
	root, err := s.index.Flush()
	if err != nil {
		return fmt.Errorf("write the tree: %w", err)
	}
	meta := s.file.Meta()
	if _, err := s.file.Checkpoint(page.Meta{
		Position: meta.Position, Root: root, CreatedMS: time.Now().UnixMilli(),
		AppData: meta.AppData,
	}); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}
