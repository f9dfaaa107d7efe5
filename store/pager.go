// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/lockstep-mq/lockstep/store/events"
	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/tree"
)

const (
	// flushRoundBytes is the amount of messages that one background flush round takes out of the tail.
	flushRoundBytes = 4 << 20
	// pagerRest is the divisor of the memory budget left to messages in memory while no checkpoint is due.
	pagerRest = 4
	// pagerTick is the interval at which the pager checks the time.
	pagerTick = 500 * time.Millisecond
)

// pager is the goroutine that writes old tail messages to pages and writes checkpoints. Only the pager edits the
// tree.
type pager struct {
	s       *Store
	wakeups chan struct{}
	ask     chan chan checkpointReply
	cancel  context.CancelFunc
	ended   chan struct{} // closed when the goroutine has ended

	mu   sync.Mutex // guards the page file, the tree's edits and the fields below, against Close and Install
	last time.Time  // time of the last checkpoint
	// previous is the LSN of the checkpoint before the last one. The log is kept from there, so that a corrupt meta
	// slot loses nothing.
	previous uint64
	todo     *work
	buf      []byte
	spans    runSpans
	// repaired is set when pages were repaired and no checkpoint contains that yet.
	repaired bool
	// syncing is a checkpoint that is being synced in its own goroutine; nil if none. Tail messages are still written
	// to pages in the meantime. At full load the disk is busy with checkpoints most of the time, and the tail would
	// fill up.
	syncing *syncing
	synced  chan struct{} // signalled when syncing has finished
}

// syncing is a checkpoint that is being made durable.
type syncing struct {
	work *work
	// repaired is the value of pager.repaired when the sync began.
	repaired bool
	// done is closed when meta or err is set.
	done chan struct{}
	meta page.Meta
	err  error
}

type checkpointReply struct {
	info CheckpointInfo
	err  error
}

// CheckpointInfo describes a checkpoint.
type CheckpointInfo struct {
	// Checkpoint is its number.
	Checkpoint uint64
	// Position is the last record that it contains.
	Position lsn.Position
}

func (p *pager) start(s *Store) {
	p.s, p.wakeups, p.ask, p.ended = s, make(chan struct{}, 1), make(chan chan checkpointReply), make(chan struct{})
	p.synced = make(chan struct{}, 1)
	p.last, p.previous = time.Now(), s.file.Meta().Position.LSN
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	go p.run(ctx)
}

// stop ends the goroutine and waits for it.
func (p *pager) stop() {
	p.cancel()
	<-p.ended
}

func (p *pager) wake() {
	select {
	case p.wakeups <- struct{}{}:
	default: // already awake
	}
}

func (p *pager) run(ctx context.Context) {
	defer close(p.ended)
	tick := time.NewTicker(pagerTick)
	defer tick.Stop()
	wakeups := p.wakeups
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case reply := <-p.ask:
			var info CheckpointInfo
			info, err = p.checkpoint()
			reply <- checkpointReply{info, err}
		case <-p.synced:
			if err = p.settled(); err == nil {
				p.wake() // for postponed work
			}
		case <-wakeups:
			err = p.once()
		case <-tick.C:
			err = p.once()
		}
		p.noteError(err)
		if wakeups = p.wakeups; p.s.noSpace.Load() || p.s.IndexDamage() != nil {
			wakeups = nil // retry at the next tick, not whenever a writer waits for room
		}
	}
}

// noteRepair forces the next checkpoint even if nothing was applied since the last one.
func (p *pager) noteRepair() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.repaired = true
}

// noteError makes an I/O error fatal (INV-7), except for a full disk, which is resolved by deleting files.
func (p *pager) noteError(err error) {
	full := errors.Is(err, page.ErrFull) || errors.Is(err, syscall.ENOSPC)
	if p.damaged(err) {
		return
	}
	if err != nil && !full {
		if p.s.Usable() == nil {
			p.s.fail(fmt.Errorf("write pages: %w", err))
		}
		return
	}
	if p.s.noSpace.Swap(full) == full {
		return
	}
	if !full {
		p.s.o.Events(events.DiskHasSpace{})
		return
	}
	p.s.o.Events(events.DiskFull{Err: err})
	p.s.wakeRoom() // the limit is higher now, see tailLimit
}

// damaged reports whether an error concerns a corrupt page that another node may help to repair. In that case all
// messages stay in memory for now.
func (p *pager) damaged(err error) bool {
	if !errors.Is(err, page.ErrDamaged) && !errors.Is(err, ErrIndexDamaged) || p.s.damage.source.Load() == nil {
		return false
	}
	if p.s.IndexDamage() == nil {
		_ = p.s.noteIndex(err) // returned by IndexDamage from now on
	}
	return true
}

// once does one unit of work that is due. Further work waits for the next round, so that a steady stream of one kind
// does not delay another kind, or callers that request a checkpoint.
func (p *pager) once() error {
	var err error
	switch {
	case p.s.Usable() != nil:
		return nil //nolint:nilerr // a failed store writes nothing more; what is left at the end is up to Close
	case p.unfinished():
		err = p.flush()
	case p.checkpointDue():
		err = p.begin()
	case p.tailBytes() > p.s.o.MemoryBudget/pagerRest:
		err = p.flush()
	default:
		return nil
	}
	if err == nil {
		p.wake()
	}
	return err
}

// unfinished reports whether an error interrupted the work.
func (p *pager) unfinished() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.todo != nil
}

func (p *pager) scheduleChanges() int {
	p.s.mu.RLock()
	defer p.s.mu.RUnlock()
	return p.s.state.ScheduleChanges()
}

func (p *pager) tailBytes() int64 {
	p.s.mu.RLock()
	defer p.s.mu.RUnlock()
	return p.s.state.TailBytes()
}

func (p *pager) checkpointDue() bool {
	n, changes := p.s.sinceCheckpoint.Load(), p.scheduleChanges()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.syncing != nil {
		return false
	}
	return n > p.s.o.CheckpointBytes || changes > maxScheduleChanges ||
		(n > 0 || p.repaired) && time.Since(p.last) > p.s.o.CheckpointInterval
}

// work is a batch that was taken out of the state. It is finished before the next batch is taken, so that a transient
// error (a full disk) loses nothing.
type work struct {
	batch *queue.Batch
	// checkpoint is true when the batch contains everything up to at, and must end in a checkpoint.
	checkpoint bool
	at         lsn.Position
	// logBytes is the log applied since the last checkpoint when the batch was taken.
	logBytes int64
	// written is set when the batch is in pages and tree.
	written bool
}

// flush writes some of the oldest tail messages to pages, or finishes interrupted work.
func (p *pager) flush() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.todo != nil {
		return p.finish()
	}
	p.s.mu.Lock()
	p.todo = &work{batch: p.s.state.Collect(flushRoundBytes, false)}
	p.s.mu.Unlock()
	return p.finish()
}

// begin starts a checkpoint of everything applied up to now, and does not wait for its sync.
func (p *pager) begin() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _, err := p.beginLocked()
	return err
}

// hold locks mu for callers that need a stable last checkpoint: no checkpoint is in progress when it returns, and
// none begins before mu.Unlock. An error of the checkpoint that was in progress is handled by the pager: it is fatal,
// or the checkpoint is still due.
func (p *pager) hold() {
	p.mu.Lock()
	if _, err := p.settle(); err != nil {
		p.noteError(err)
	}
}

// settled processes a finished checkpoint, if any.
func (p *pager) settled() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.syncing == nil {
		return nil // another caller was faster
	}
	select {
	case <-p.syncing.done:
		_, err := p.settle()
		return err
	default:
		return nil
	}
}

// checkpoint makes everything applied up to now durable in page.db.
func (p *pager) checkpoint() (CheckpointInfo, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.checkpointLocked()
}

// checkpointLocked is like checkpoint, with mu held.
func (p *pager) checkpointLocked() (CheckpointInfo, error) {
	if _, err := p.settle(); err != nil {
		return CheckpointInfo{}, err
	}
	info, begun, err := p.beginLocked()
	if err != nil || !begun {
		return info, err
	}
	return p.settle()
}

// beginLocked starts a checkpoint. If the last one already contains everything, it returns that one instead. mu is
// held, and no checkpoint is in progress.
func (p *pager) beginLocked() (last CheckpointInfo, begun bool, err error) {
	if p.todo != nil {
		if err := p.finish(); err != nil || p.syncing != nil {
			return CheckpointInfo{}, err == nil, err
		}
	}
	s := p.s
	s.mu.Lock()
	at, meta := s.applied, s.file.Meta()
	if at == meta.Position && !p.repaired {
		s.sinceCheckpoint.Store(0)
		s.mu.Unlock()
		p.last = time.Now()
		return CheckpointInfo{Checkpoint: meta.Checkpoint, Position: meta.Position}, false, nil
	}
	p.todo = &work{batch: s.state.Collect(0, true), checkpoint: true, at: at, logBytes: s.sinceCheckpoint.Load()}
	s.mu.Unlock()
	return CheckpointInfo{}, true, p.finish()
}

// finish completes the work in progress. A checkpoint is then being synced.
func (p *pager) finish() error {
	w, s := p.todo, p.s
	s.lanes.expire()
	if !w.written {
		if err := p.write(w.batch); err != nil {
			return err
		}
		w.written, w.batch = true, nil
	}
	if w.checkpoint {
		root, err := s.index.Flush()
		if err != nil {
			return fmt.Errorf("checkpoint at %v: write the tree: %w", w.at, err)
		}
		pending, err := s.file.BeginCheckpoint(page.Meta{Position: w.at, Root: root, CreatedMS: time.Now().UnixMilli()})
		if err != nil {
			return fmt.Errorf("checkpoint at %v: %w", w.at, err)
		}
		p.sync(w, pending)
	}
	p.todo = nil
	return nil
}

// sync makes a checkpoint durable in a goroutine that settle waits for.
func (p *pager) sync(w *work, pending *page.PendingCheckpoint) {
	c := &syncing{work: w, repaired: p.repaired, done: make(chan struct{})}
	p.syncing, p.repaired = c, false
	go func() {
		began := time.Now()
		if c.meta, c.err = pending.Finish(); c.err == nil {
			p.s.o.Events(events.CheckpointWritten{Number: c.meta.Checkpoint, Position: w.at, Took: time.Since(began)})
		}
		close(c.done)
		select {
		case p.synced <- struct{}{}:
		default: // a signal is already pending
		}
	}()
}

// settle waits for the checkpoint that is being synced, if any, and handles its result. mu is held. After an error
// the previous checkpoint is still the last one, and another one is due.
func (p *pager) settle() (CheckpointInfo, error) {
	c := p.syncing
	if c == nil {
		return CheckpointInfo{}, nil
	}
	<-c.done
	p.syncing = nil
	if c.err != nil {
		p.repaired = p.repaired || c.repaired
		return CheckpointInfo{}, fmt.Errorf("checkpoint at %v: %w", c.work.at, c.err)
	}
	p.s.sinceCheckpoint.Add(-c.work.logBytes)
	p.s.log.Release(p.previous)
	p.previous, p.last = c.work.at.LSN, time.Now()
	return CheckpointInfo{Checkpoint: c.meta.Checkpoint, Position: c.work.at}, nil
}

// write writes the batch's messages to pages and the rest to the tree, and publishes both in one step. After an error
// nothing is changed.
func (p *pager) write(b *queue.Batch) error {
	entries, err := p.writeTails(b.Tails)
	if err != nil {
		return err
	}
	freed, err := p.edit(entries, b)
	if err != nil {
		for i := range entries {
			p.s.file.Free(entries[i].Run) // a retry writes them again
		}
		return err
	}
	for _, run := range freed {
		p.s.file.Free(run) // from here on no new reader finds it
	}
	return nil
}

// edit changes the tree and publishes it. It returns the extents that are no longer referenced.
func (p *pager) edit(entries []index.Entry, b *queue.Batch) ([]page.Run, error) {
	edit := p.s.index.Edit()
	defer edit.Discard()
	spans := p.spans.in(p.s.index)
	key, value := make([]byte, 0, index.KeyBytes), make([]byte, 0, 32)
	for i := range entries {
		key = index.AppendKey(key[:0], entries[i].Queue, entries[i].First)
		value = entries[i].AppendValue(value[:0])
		if err := edit.Put(key, value); err != nil {
			return nil, fmt.Errorf("index a run: %w", err)
		}
		spans.wrote(&entries[i])
	}
	freed, err := p.editTree(edit, b)
	if err != nil {
		return nil, err
	}
	return freed, p.publish(edit, b)
}

// publish makes the messages in their pages visible to readers and removes them from memory, in one step.
func (p *pager) publish(edit *tree.Edit, b *queue.Batch) error {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	if err := edit.Commit(); err != nil {
		return fmt.Errorf("publish the index: %w", err)
	}
	tail := p.s.state.TailBytes()
	for i := range b.Tails {
		p.s.state.Flushed(b.Tails[i].Queue, b.Tails[i].Last())
	}
	p.s.written += tail - p.s.state.TailBytes()
	if b.Everything {
		p.s.state.ScheduleWritten()
	}
	p.s.room.Broadcast()
	return nil
}

// Checkpoint makes everything applied so far durable in page.db before it returns. If ctx ends first it returns that
// error, and the checkpoint may still be written. It returns an error that wraps page.ErrFull or syscall.ENOSPC when
// the disk is full; the store continues without the checkpoint. Any other failed write is final (INV-7).
func (s *Store) Checkpoint(ctx context.Context) (CheckpointInfo, error) {
	if err := s.Usable(); err != nil {
		return CheckpointInfo{}, err
	}
	reply := make(chan checkpointReply, 1)
	select {
	case s.pager.ask <- reply:
	case <-s.pager.ended:
		return CheckpointInfo{}, ErrClosed
	case <-ctx.Done():
		return CheckpointInfo{}, fmt.Errorf("wait for the pager: %w", ctx.Err())
	}
	select {
	case r := <-reply:
		return r.info, r.err
	case <-ctx.Done():
		return CheckpointInfo{}, fmt.Errorf("wait for the checkpoint: %w", ctx.Err())
	}
}
