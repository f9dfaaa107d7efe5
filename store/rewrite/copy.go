// SPDX-License-Identifier: Apache-2.0

package rewrite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/throttle"
	"github.com/lockstep-mq/lockstep/store/tree"
)

const spaceEveryBytes = 8 << 20

// copy writes the new file under its temporary name and makes it durable.
func (rw *rewrite) copy(ctx context.Context, plan Plan) (page.Meta, error) {
	old := rw.from.Meta()
	var err error
	rw.builder, err = page.NewBuilder(rw.fs, rw.path(datadir.NewFileName), page.BuildOptions{
		PageSize: plan.PageSize, StoreID: rw.file.StoreID(), Checkpoint: old.Checkpoint + 1,
		FileBytes: int64(plan.NeedBytes),
	})
	if err != nil {
		return page.Meta{}, rw.spaceError(plan, err)
	}
	c := copier{
		rw: rw, b: rw.builder, room: index.Room(plan.PageSize), live: rw.e.Live(),
		pace:  rw.e.Governed(rw.o.BytesPerSecond),
		index: index.Writer{Bulk: tree.NewBulk(rw.builder, tree.Options{})},
	}
	rw.meter.Expect(plan.Messages, plan.MessageBytes)
	rw.meter.Phase("copy", old.UsedPages)
	root, err := c.copyAll(ctx)
	if err != nil {
		return page.Meta{}, rw.spaceError(plan, err)
	}
	rw.result.Messages, rw.result.MessageBytes, rw.result.DroppedMessages = c.messages, c.bytes, c.dropped
	if err := ctx.Err(); err != nil {
		return page.Meta{}, err
	}
	rw.meter.Phase("finish", 0)
	meta, err := rw.builder.Finish(page.Meta{
		Position: old.Position, Root: root, CreatedMS: time.Now().UnixMilli(), AppData: old.AppData,
	})
	if err != nil {
		return page.Meta{}, rw.spaceError(plan, err)
	}
	return meta, nil
}

func (rw *rewrite) spaceError(plan Plan, err error) error {
	if !errors.Is(err, page.ErrFull) {
		return err
	}
	space := &SpaceError{NeedBytes: plan.NeedBytes, ReserveBytes: plan.ReserveBytes}
	if usage, uerr := rw.fs.Usage(rw.m.o.Dir); uerr == nil {
		space.AvailableBytes = usage.AvailableBytes
	}
	return fmt.Errorf("%w: %w", space, err)
}

type copier struct {
	index.Packing
	rw    *rewrite
	b     *page.Builder
	out   index.ExtentBuilder // in the builder's buffer
	room  int
	live  checkpoint.Liveness
	alive checkpoint.AliveSet
	index index.Writer
	pace  *throttle.Pacer

	messages, bytes, dropped uint64
	uncheckedBytes           uint64
}

func (c *copier) copyAll(ctx context.Context) (page.Extent, error) {
	from := c.rw.from
	from.SetPace(c.pace)
	put := func(key, value []byte) error {
		if err := c.index.Bulk.Put(key, value); err != nil {
			return err
		}
		return c.pace.Did(ctx, 0)
	}
	if err := from.CopyTree(ctx, nil, []byte{index.Letter}, put); err != nil {
		return page.Extent{}, err
	}
	err := from.Extents(ctx, checkpoint.WalkOptions{}, func(e *index.Entry, payload []byte, err error) error {
		return c.extent(e, payload, err)
	})
	if err != nil {
		return page.Extent{}, err
	}
	if err := c.endExtent(); err != nil {
		return page.Extent{}, err
	}
	if want := c.live.Messages(); c.messages != want {
		return page.Extent{}, fmt.Errorf("%w: expected %d messages, found %d; page.db is unchanged",
			index.ErrDataLoss,
			want, c.messages)
	}
	if err := from.CopyTree(ctx, []byte{index.Letter + 1}, nil, put); err != nil {
		return page.Extent{}, err
	}
	root, err := c.index.Bulk.Finish()
	if err != nil {
		return page.Extent{}, fmt.Errorf("write tree: %w", err)
	}
	return root, nil
}

func (c *copier) extent(e *index.Entry, payload []byte, err error) error {
	if err == nil {
		err = c.live.Of(e, &c.alive)
	}
	if err != nil {
		return fmt.Errorf("%w: queue %d, sequences %d to %d: %w; page.db is unchanged", index.ErrDataLoss, e.Queue,
			e.First,
			e.Last(), err)
	}
	r, err := index.NewExtentReader(payload)
	if err == nil && (r.Queue != e.Queue || r.First != e.First || uint64(r.Left) != e.Count) {
		err = fmt.Errorf("%w: page %d does not match the index", index.ErrDataLoss, e.Extent.First)
	}
	var messages, bytes uint64
	for err == nil {
		var seq uint64
		var record []byte
		var ok bool
		if seq, record, ok, err = r.Next(); err != nil || !ok {
			break
		}
		if !c.alive.Has(seq) {
			c.dropped++
			continue
		}
		messages++
		bytes += uint64(len(record))
		err = c.message(e.Queue, seq, record)
	}
	if err == nil && messages != c.alive.Count() {
		err = fmt.Errorf("%w: queue %d, sequences %d to %d: expected %d messages, found %d; page.db is unchanged",
			index.ErrDataLoss, e.Queue, e.First, e.Last(), c.alive.Count(), messages)
	}
	if err != nil {
		return err
	}
	c.messages += messages
	c.bytes += bytes
	c.rw.meter.Did(uint64(e.Extent.Pages), messages, bytes)
	return c.checkSpace(bytes)
}

// checkSpace returns a SpaceError if less than half of the space reserved for the log is free. It checks once per
// spaceEveryBytes of copied data.
func (c *copier) checkSpace(bytes uint64) error {
	if c.uncheckedBytes += bytes; c.uncheckedBytes < spaceEveryBytes {
		return nil
	}
	c.uncheckedBytes = 0
	if err := c.rw.e.Usable(); err != nil {
		return err
	}
	usage, err := c.rw.fs.Usage(c.rw.m.o.Dir)
	if err != nil {
		return fmt.Errorf("get free space: %w", err)
	}
	if reserve := c.rw.o.ReserveBytes / 2; usage.AvailableBytes < reserve { // the new file is already allocated
		return &SpaceError{ReserveBytes: reserve, AvailableBytes: usage.AvailableBytes}
	}
	return nil
}

func (c *copier) message(queueID, seq uint64, record []byte) error {
	if !c.Takes(queueID, seq, len(record), c.room) {
		if err := c.endExtent(); err != nil {
			return err
		}
		c.Begin(queueID, seq)
		buf := c.b.Begin()
		c.out.Begin(buf, len(buf), queueID)
	}
	c.out.Add(seq, record)
	c.Add(seq, len(record))
	return nil
}

func (c *copier) endExtent() error {
	if c.Count == 0 {
		return nil
	}
	c.out.Finish()
	ext, err := c.b.End(c.out.Buf, index.ExtentKind(uint64(c.Count), page.PagesFor(c.b.PageSize(), c.Size)))
	if err != nil {
		return fmt.Errorf("write messages: %w", err)
	}
	e := c.Entry(ext)
	c.Count = 0
	if err := c.index.Put(e); err != nil {
		return fmt.Errorf("write index: %w", err)
	}
	return nil
}
