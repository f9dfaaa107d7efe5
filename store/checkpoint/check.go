// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const maxProblems = 1000

// Report is the result of Check.
type Report struct {
	// Problems describes the first 1000 inconsistencies; empty if the store is valid.
	Problems   []string
	Messages   uint64
	Pages      uint64
	Checkpoint uint64
	LSN        uint64
}

// Check verifies the checkpoint. Each page must be free or referenced exactly once. Each referenced page and each
// message must be decodable. No message that a subscription needs may be missing. The schedule and the message IDs
// must match the state. Check reports inconsistencies in Report.Problems. An error means that the check could not be
// completed. progress, if not nil, is called with numbers of pages.
func (c *Checkpoint) Check(ctx context.Context, progress func(done, total uint64)) (Report, error) {
	state, err := c.State()
	if errors.Is(err, index.ErrDataLoss) {
		return Report{Problems: []string{err.Error()}}, nil
	}
	if err != nil {
		return Report{}, err
	}
	k := checker{p: c, state: state, progress: progress, seen: newPageSet(c.meta.Pages)}
	k.report.Checkpoint, k.report.LSN = c.meta.Checkpoint, c.meta.Position.LSN
	err = k.walk(ctx)
	return k.report, err
}

const progressPages = 256 // pages between two calls of progress

type checker struct {
	p        *Checkpoint
	state    *queue.State
	report   Report
	progress func(done, total uint64)
	seen     pageSet
	// queue is the ID of the current queue, and next is its first sequence that is not checked yet.
	queue uint64
	next  uint64
}

func (c *checker) problem(format string, args ...any) {
	if len(c.report.Problems) < maxProblems {
		c.report.Problems = append(c.report.Problems, fmt.Sprintf(format, args...))
	}
}

func (c *checker) walk(ctx context.Context) error {
	err := c.p.view.WalkExtents(func(ext page.Extent, level int) error {
		c.mark(ext, fmt.Sprintf("tree node at level %d", level))
		return c.p.pace.Did(ctx, int(ext.Pages)*c.p.file.PageSize())
	})
	if ctx.Err() != nil {
		return fmt.Errorf("check tree: %w", ctx.Err())
	}
	if err != nil {
		c.problem("tree: %v", err)
	}
	own, err := c.p.file.OwnExtents(c.p.pin)
	if err != nil {
		c.problem("bitmap of used pages: %v", err)
	}
	for _, ext := range own {
		c.mark(ext, "bitmap of used pages")
	}
	if err := c.schedule(ctx); err != nil {
		return err
	}
	if err := c.messageIDs(ctx); err != nil {
		return err
	}
	if err := c.p.Extents(ctx, WalkOptions{}, c.extent); err != nil {
		return err
	}
	c.endQueue()
	c.queues(c.emptyQueue)
	return c.compareFree(ctx)
}

func (c *checker) mark(ext page.Extent, what string) {
	before := c.report.Pages
	c.report.Pages += uint64(ext.Pages)
	if c.progress != nil && c.report.Pages/progressPages > before/progressPages {
		c.progress(c.report.Pages, c.p.meta.UsedPages)
	}
	for i := range page.No(ext.Pages) {
		switch no := ext.First + i; {
		case uint64(no) > c.p.meta.Pages:
			c.problem("page %d (%s) is beyond the end of the file", no, what)
		case !c.seen.add(no):
			c.problem("page %d (%s) is referenced twice", no, what)
		}
	}
}

func (c *checker) extent(e *index.Entry, payload []byte, err error) error {
	c.mark(e.Extent, fmt.Sprintf("queue %d, sequences %d to %d", e.Queue, e.First, e.Last()))
	if e.Queue != c.queue {
		c.endQueue()
		c.queue, c.next = e.Queue, 1
	}
	if err != nil {
		c.problem("queue %d, sequences %d to %d: %v", e.Queue, e.First, e.Last(), err)
		c.next = e.Last() + 1
		return nil
	}
	q := c.state.Queue(e.Queue)
	if q == nil {
		c.problem("page %d belongs to missing queue %d", e.Extent.First, e.Queue)
		return nil
	}
	if q.AllDead(e.First, e.Span) {
		c.problem("page %d contains sequences %d to %d of queue %d, which no subscription needs", e.Extent.First,
			e.First,
			e.Last(), e.Queue)
	}
	r, err := index.NewExtentReader(payload)
	if err != nil {
		c.problem("page %d: %v", e.Extent.First, err)
		return nil
	}
	if r.Queue != e.Queue || r.First != e.First || uint64(r.Left) != e.Count {
		c.problem("page %d does not match the index (queue %d, sequence %d, %d messages)", e.Extent.First,
			e.Queue, e.First, e.Count)
		return nil
	}
	for {
		seq, record, more, err := r.Next()
		if err != nil {
			c.problem("page %d: %v", e.Extent.First, err)
			break
		}
		if !more {
			break
		}
		if want := q.NextAlive(c.next); want < seq {
			c.problem("queue %d: sequence %d is missing", e.Queue, want)
		}
		if _, err := txn.DecodeMessage(record); err != nil {
			c.problem("queue %d, sequence %d: %v", e.Queue, seq, err)
		}
		c.next = seq + 1
		c.report.Messages++
	}
	if c.next-1 > e.Last() {
		c.problem("page %d contains sequences beyond %d", e.Extent.First, e.Last())
	}
	return nil
}

func (c *checker) endQueue() {
	if c.queue == 0 {
		return
	}
	if q := c.state.Queue(c.queue); q != nil {
		c.missing(q, c.next)
	}
}

func (c *checker) missing(q *queue.Queue, from uint64) {
	if want := q.NextAlive(from); want < q.NextSequence() {
		c.problem("queue %d: sequence %d is missing", q.ID(), want)
	}
}

// queues calls visit with all queues, including incoming queues.
func (c *checker) queues(visit func(q *queue.Queue)) {
	for q := range c.state.Queues {
		visit(q)
	}
	for q := range c.state.Incoming {
		visit(q)
	}
}

// emptyQueue verifies, for a queue without pages, that no subscription needs a message.
func (c *checker) emptyQueue(q *queue.Queue) {
	from, to := index.KeyRange(q.ID())
	if it := c.p.view.Scan(from, to); !it.Next() {
		c.missing(q, 1)
	}
}

// compareFree verifies that exactly the unreferenced pages are free.
func (c *checker) compareFree(ctx context.Context) error {
	used := newPageSet(c.p.meta.Pages)
	for ext, err := range c.p.file.UsedExtents(c.p.pin) {
		if err != nil {
			c.problem("bitmap of used pages: %v", err)
			return nil
		}
		for i := range page.No(ext.Pages) {
			used.add(ext.First + i)
		}
	}
	for no := page.No(1); uint64(no) <= c.p.meta.Pages; no++ {
		switch refd, inUse := c.seen.has(no), used.has(no); {
		case refd && !inUse:
			c.problem("page %d is in use and marked free", no)
		case !refd && inUse:
			c.problem("page %d is marked in use and not referenced", no)
		}
		if no%(1<<14) == 0 {
			if err := c.p.pace.Did(ctx, 0); err != nil {
				return fmt.Errorf("compare with bitmap of used pages: %w", err)
			}
		}
	}
	if c.progress != nil {
		c.progress(c.report.Pages, c.report.Pages)
	}
	return nil
}

type pageSet []uint64

func newPageSet(pages uint64) pageSet { return make(pageSet, pages/64+1) }

func (s pageSet) has(n page.No) bool {
	return int(n/64) < len(s) && s[n/64]&(1<<(n%64)) != 0
}

func (s pageSet) add(n page.No) bool {
	if int(n/64) >= len(s) || s.has(n) {
		return false
	}
	s[n/64] |= 1 << (n % 64)
	return true
}

// schedule verifies that each delayed message is in the schedule. Entries of a deleted message or queue are
// permitted.
func (c *checker) schedule(ctx context.Context) error {
	found := make(map[uint64]uint64) // number of entries by queue
	keys := queue.ScheduleKeys()
	err := c.p.CopyTree(ctx, keys.From, keys.To, func(key, value []byte) error {
		e, err := queue.ParseScheduleKey(key)
		if err != nil || len(value) > 0 {
			c.problem("schedule: key %x, value %x: %v", key, value, err)
			return nil
		}
		q := c.state.Queue(e.Queue)
		if q == nil {
			return nil
		}
		if e.Sequence == 0 || e.Sequence >= q.NextSequence() {
			c.problem("schedule: sequence %d of queue %d is not published yet", e.Sequence, e.Queue)
			return nil
		}
		if e.Kind == txn.DueDeliver && q.Delayed(e.Sequence) {
			found[e.Queue]++
		}
		return nil
	})
	if ctx.Err() != nil {
		return err
	}
	if err != nil {
		c.problem("schedule: %v", err)
	}
	c.queues(func(q *queue.Queue) {
		if have, want := found[q.ID()], q.DelayedMessages(); have != want {
			c.problem("queue %d: %d messages are delayed, %d of them are in the schedule", q.ID(), want, have)
		}
	})
	return nil
}

// messageIDs verifies that each message ID belongs to a generation of its queue.
func (c *checker) messageIDs(ctx context.Context) error {
	keys := queue.IDKeys()
	err := c.p.CopyTree(ctx, keys.From, keys.To, func(key, value []byte) error {
		if err := c.state.CheckID(key, value); err != nil {
			c.problem("message IDs: %v", err)
		}
		return nil
	})
	if ctx.Err() != nil {
		return err
	}
	if err != nil {
		c.problem("message IDs: %v", err)
	}
	return nil
}
