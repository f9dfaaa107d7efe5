// SPDX-License-Identifier: Apache-2.0

// Package pager manages the page file of a store. It writes messages from memory to pages, writes checkpoints, frees
// pages, and replaces the file. The state that it writes belongs to the store, which implements Engine.
//
// Locks: Pager.mu is held by code that edits the tree or writes checkpoints. A checkpoint that has become due is
// synced without mu. Callers that need its result wait for it while they hold mu (Pager.hold, Pager.settle).
// Pager.fileMu is held for reading during page I/O by readers (Acquire), and for writing while page.db is replaced or
// closed. Long operations (check, digest, copying a snapshot) do not hold fileMu throughout. They pin a checkpoint
// (Pin). A file that Swap has replaced stays open while it is pinned. If the file is closed nevertheless, by Close or
// for the installation of a snapshot, the operation fails (StillUses). Lock order: mu, fileMu, then locks of the
// Engine.
package pager

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lockstep-mq/lockstep/store/events"
	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/tree"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

const (
	// flushRoundBytes is the approximate maximum of message bytes that one background flush removes from the tail.
	flushRoundBytes = 4 << 20
	// RestPart is a divisor: while no checkpoint is due, messages in memory may use 1/RestPart of the memory budget.
	RestPart = 4
	// maxScheduleChanges is the maximum number of schedule changes in memory before a checkpoint is due. With a small
	// memory budget, a checkpoint is due when they use 1/changesPart of the budget.
	maxScheduleChanges = 1 << 18
	changesPart        = 8
	// ScheduleChangeBytes is the maximum memory of a schedule change, which may be an added message ID.
	ScheduleChangeBytes = 128
	pagerTick           = 500 * time.Millisecond
)

// Engine is the store that uses a Pager. It manages the applied state and the log.
type Engine interface {
	Usable() error
	// Fail makes the store permanently unusable (INV-7) and returns the error for it.
	Fail(err error) error
	Unwritten() Unwritten
	// Collect returns a batch with about maxBytes of messages that are not in pages. The messages stay in memory until
	// Publish.
	Collect(maxBytes int64) *queue.Batch
	// CollectAll returns a batch of all changes after a checkpoint. at is the position of the last applied record.
	// logBytes is the size of the applied log after the checkpoint. If nothing was applied after the checkpoint and
	// force is not set, the batch is nil.
	CollectAll(checkpoint lsn.Position, force bool) (b *queue.Batch, at lsn.Position, logBytes int64)
	// Publish calls commit to publish the index, and removes the messages of b from memory. For readers, both happen
	// atomically. b may be nil.
	Publish(commit func() error, b *queue.Batch) error
	// Checkpointed is called after each checkpoint of a batch from CollectAll. logBytes is the size of the log that the
	// checkpoint contains in addition to the previous checkpoint. The log up to LSN upTo is no longer needed.
	Checkpointed(logBytes int64, upTo uint64)
	WakeRoom()
}

// Damage records corruption in page.db.
type Damage interface {
	FoundPage(no page.No, err error)
	// IndexError wraps the error of a failed read of the index, and records corruption.
	IndexError(err error) error
	// Index returns an error if corruption requires that the store be replaced; otherwise nil.
	Index() error
	// Survives reports whether the store continues without checkpoints after an error, because a page is corrupt and can
	// be repaired from the other node. Index then returns an error.
	Survives(err error) bool
}

// Unwritten is the amount of changes that no checkpoint contains.
type Unwritten struct {
	// TailBytes is the size of the messages that are not in pages. LogBytes is the size of the log records applied since
	// the last checkpoint.
	TailBytes, LogBytes int64
	ScheduleChanges     int
}

// Options configures a Pager.
type Options struct {
	FS           vfs.FS
	MemoryBudget int64
	// CheckpointBytes is the size of the log since the last checkpoint above which a checkpoint is due. Regardless of the
	// size, a checkpoint is due when too many schedule changes are in memory. It is also due after CheckpointInterval, if
	// the state has changed or pages were repaired.
	CheckpointBytes    int64
	CheckpointInterval time.Duration
	Events             func(events.Event)
	Engine             Engine
	Damage             Damage
}

// Pager manages page.db and its tree, and is the only component that edits them.
type Pager struct {
	o      Options
	engine Engine
	damage Damage

	fileMu sync.RWMutex // guards file and index against replacement: held for reading during page I/O
	file   *page.File
	index  *tree.Tree

	cacheUse atomic.Int32 // vfs.CacheUse
	diskFull atomic.Bool
	closed   atomic.Bool
	retired  retired

	wakeups  chan struct{}
	requests chan chan checkpointReply
	cancel   context.CancelFunc
	ended    chan struct{}

	mu   sync.Mutex // held to edit the tree and to write pages; guards the fields below
	last time.Time  // start of the current CheckpointInterval
	// previous is the LSN of the last complete checkpoint. The next complete checkpoint releases the log up to this
	// LSN.
	previous uint64
	todo     *work
	buf      []byte
	spans    extentSpans
	// repaired is set when pages were repaired and no checkpoint contains them yet, and by ForceCheckpoint.
	repaired bool
	// syncing is the checkpoint being synced in its own goroutine, or nil.
	syncing *syncing
	synced  chan struct{}
}

type syncing struct {
	work     *work
	repaired bool
	done     chan struct{}
	meta     page.Meta
	err      error
}

type checkpointReply struct {
	info CheckpointInfo
	err  error
}

// CheckpointInfo describes a checkpoint.
type CheckpointInfo struct {
	Checkpoint uint64
	Position   lsn.Position // position of the last record in the checkpoint
}

// New returns a pager without a page file. Use and Start must be called before other methods, except SetCacheUse and
// Close.
func New(o Options) *Pager {
	return &Pager{
		o: o, engine: o.Engine, damage: o.Damage, retired: retired{stop: make(chan struct{})},
		wakeups: make(chan struct{}, 1), requests: make(chan chan checkpointReply), ended: make(chan struct{}),
		synced: make(chan struct{}, 1),
	}
}

// Start starts the pager's goroutine.
func (p *Pager) Start() {
	p.last = time.Now()
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	go p.run(ctx)
}

// Stop stops the goroutine, and writes a last checkpoint unless failed is set. The caller must then call Close.
func (p *Pager) Stop(failed bool) error {
	p.closed.Store(true)
	p.cancel()
	<-p.ended
	p.hold()
	defer p.mu.Unlock()
	if failed {
		return nil
	}
	_, err := p.checkpointLocked()
	return err
}

// Close closes page.db and the files that it replaced.
func (p *Pager) Close() error {
	p.hold()
	defer p.mu.Unlock()
	p.fileMu.Lock()
	defer p.fileMu.Unlock()
	p.retired.close()
	if p.file == nil {
		return nil
	}
	return p.file.Close()
}

// Wake requests that the pager's goroutine check for work.
func (p *Pager) Wake() {
	select {
	case p.wakeups <- struct{}{}:
	default:
	}
}

func (p *Pager) run(ctx context.Context) {
	defer close(p.ended)
	tick := time.NewTicker(pagerTick)
	defer tick.Stop()
	wakeups := p.wakeups
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case reply := <-p.requests:
			var info CheckpointInfo
			info, err = p.checkpoint()
			reply <- checkpointReply{info, err}
		case <-p.synced:
			if err = p.settled(); err == nil {
				p.Wake() // for postponed work
			}
		case <-wakeups:
			err = p.once()
		case <-tick.C:
			err = p.once()
		}
		p.noteError(err)
		if wakeups = p.wakeups; p.diskFull.Load() || p.damage.Index() != nil {
			wakeups = nil // retry at the next tick, not whenever a writer waits for room
		}
	}
}

// ForceCheckpoint writes a checkpoint even if nothing was applied since the last one.
func (p *Pager) ForceCheckpoint(ctx context.Context) error {
	p.mu.Lock()
	p.repaired = true
	p.mu.Unlock()
	_, err := p.Checkpoint(ctx)
	return err
}

// DiskFull reports whether the disk was full at the last write.
func (p *Pager) DiskFull() bool { return p.diskFull.Load() }

// noteError handles the result of a write. An error is fatal (INV-7), unless the disk is full or the error is
// corruption that can be repaired (Damage.Survives).
func (p *Pager) noteError(err error) {
	full := errors.Is(err, page.ErrFull) || errors.Is(err, syscall.ENOSPC)
	if p.damage.Survives(err) {
		return // all messages stay in memory for now
	}
	if err != nil && !full {
		if p.engine.Usable() == nil {
			_ = p.engine.Fail(fmt.Errorf("write pages: %w", err)) // reported by events.Failed
		}
		return
	}
	if p.diskFull.Swap(full) == full {
		return
	}
	if !full {
		p.o.Events(events.DiskHasSpace{})
		return
	}
	p.o.Events(events.DiskFull{Err: err})
	p.engine.WakeRoom() // more messages may stay in memory now
}

// once performs one unit of due work.
func (p *Pager) once() error {
	var err error
	switch {
	case p.engine.Usable() != nil:
		return nil //nolint:nilerr // a failed store writes nothing
	case p.unfinished():
		err = p.flush()
	case p.checkpointDue():
		err = p.begin()
	case p.engine.Unwritten().TailBytes > p.o.MemoryBudget/RestPart:
		err = p.flush()
	default:
		return nil
	}
	if err == nil {
		p.Wake()
	}
	return err
}

func (p *Pager) unfinished() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.todo != nil
}

func (p *Pager) checkpointDue() bool {
	u := p.engine.Unwritten()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.syncing != nil {
		return false
	}
	return u.LogBytes > p.o.CheckpointBytes || u.ScheduleChanges > p.changesDue() ||
		(u.LogBytes > 0 || p.repaired) && time.Since(p.last) > p.o.CheckpointInterval
}

func (p *Pager) changesDue() int {
	return int(min(p.o.MemoryBudget/changesPart/ScheduleChangeBytes, maxScheduleChanges))
}

// work is a collected batch. It is finished before the next batch is collected.
type work struct {
	batch *queue.Batch
	// checkpoint is set if the batch contains all changes up to at: a checkpoint must follow. logBytes is the size of
	// the log applied since the last checkpoint.
	checkpoint bool
	at         lsn.Position
	logBytes   int64
	written    bool
}

func (p *Pager) flush() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.todo != nil {
		return p.finish()
	}
	p.todo = &work{batch: p.engine.Collect(flushRoundBytes)}
	return p.finish()
}

func (p *Pager) begin() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _, err := p.beginLocked()
	return err
}

// hold locks mu and then waits for a checkpoint in progress. It handles the error of that checkpoint.
func (p *Pager) hold() {
	p.mu.Lock()
	if _, err := p.settle(); err != nil {
		p.noteError(err)
	}
}

func (p *Pager) settled() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.syncing == nil {
		return nil // another caller has handled it
	}
	select {
	case <-p.syncing.done:
		_, err := p.settle()
		return err
	default:
		return nil
	}
}

func (p *Pager) checkpoint() (CheckpointInfo, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.checkpointLocked()
}

func (p *Pager) checkpointLocked() (CheckpointInfo, error) {
	if _, err := p.settle(); err != nil {
		return CheckpointInfo{}, err
	}
	if p.todo != nil { // a failed checkpoint does not contain the records applied since then
		if err := p.finish(); err != nil {
			return CheckpointInfo{}, err
		}
		if _, err := p.settle(); err != nil {
			return CheckpointInfo{}, err
		}
	}
	info, begun, err := p.beginLocked()
	if err != nil || !begun {
		return info, err
	}
	return p.settle()
}

// beginLocked starts a checkpoint, or returns the last one if nothing has changed since then. The caller must hold
// mu, and no checkpoint may be in progress.
func (p *Pager) beginLocked() (last CheckpointInfo, begun bool, err error) {
	if p.todo != nil {
		if err := p.finish(); err != nil || p.syncing != nil {
			return CheckpointInfo{}, err == nil, err
		}
	}
	meta := p.file.Meta()
	batch, at, logBytes := p.engine.CollectAll(meta.Position, p.repaired)
	if batch == nil {
		p.last = time.Now()
		return CheckpointInfo{Checkpoint: meta.Checkpoint, Position: meta.Position}, false, nil
	}
	p.todo = &work{batch: batch, checkpoint: true, at: at, logBytes: logBytes}
	return CheckpointInfo{}, true, p.finish()
}

func (p *Pager) finish() error {
	w := p.todo
	if !w.written {
		if err := p.write(w.batch); err != nil {
			return err
		}
		w.written, w.batch = true, nil
	}
	if w.checkpoint {
		root, err := p.index.Flush()
		if err != nil {
			return fmt.Errorf("checkpoint at %v: write the tree: %w", w.at, err)
		}
		pending, err := p.file.BeginCheckpoint(page.Meta{Position: w.at, Root: root, CreatedMS: time.Now().UnixMilli()})
		if err != nil {
			return fmt.Errorf("checkpoint at %v: %w", w.at, err)
		}
		p.sync(w, pending)
	}
	p.todo = nil
	return nil
}

func (p *Pager) sync(w *work, pending *page.PendingCheckpoint) {
	c := &syncing{work: w, repaired: p.repaired, done: make(chan struct{})}
	p.syncing, p.repaired = c, false
	go func() {
		began := time.Now()
		if c.meta, c.err = pending.Finish(); c.err == nil {
			p.o.Events(events.CheckpointWritten{Number: c.meta.Checkpoint, Position: w.at, Took: time.Since(began)})
		}
		close(c.done)
		select {
		case p.synced <- struct{}{}:
		default:
		}
	}()
}

// settle waits for the checkpoint that is being synced, if any, and handles its result. The caller must hold mu.
// After an error, the previous checkpoint is still the last checkpoint, and the failed checkpoint is still due.
func (p *Pager) settle() (CheckpointInfo, error) {
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
	p.engine.Checkpointed(c.work.logBytes, p.previous)
	p.previous, p.last = c.work.at.LSN, time.Now()
	return CheckpointInfo{Checkpoint: c.meta.Checkpoint, Position: c.work.at}, nil
}

// write writes the batch's messages to pages and the rest to the tree, and publishes both atomically. After an error
// nothing is changed.
func (p *Pager) write(b *queue.Batch) error {
	entries, err := p.writeTails(b.Tails)
	if err != nil {
		return err
	}
	freed, err := p.edit(entries, b)
	if err != nil {
		for i := range entries {
			p.file.Free(entries[i].Extent) // a retry writes them again
		}
		return err
	}
	for _, ext := range freed {
		p.file.Free(ext) // new readers no longer find it
	}
	return nil
}

func (p *Pager) edit(entries []index.Entry, b *queue.Batch) ([]page.Extent, error) {
	edit := p.index.Edit()
	defer edit.Discard()
	spans := p.spans.in(p.index)
	key, value := make([]byte, 0, index.KeyBytes), make([]byte, 0, 32)
	for i := range entries {
		key = index.AppendKey(key[:0], entries[i].Queue, entries[i].First)
		value = entries[i].AppendValue(value[:0])
		if err := edit.Put(key, value); err != nil {
			return nil, fmt.Errorf("index an extent: %w", err)
		}
		spans.wrote(&entries[i])
	}
	freed, err := p.editTree(edit, b)
	if err != nil {
		return nil, err
	}
	if err := p.engine.Publish(edit.Commit, b); err != nil {
		return nil, fmt.Errorf("publish the index: %w", err)
	}
	return freed, nil
}

// Checkpoint makes all changes that are already applied durable in page.db. If ctx ends first, the checkpoint may
// still be written. If the error wraps page.ErrFull or syscall.ENOSPC, the disk is full, and the store continues
// without the checkpoint. Any other failed write is final (INV-7), unless Damage.Survives accepts the error.
func (p *Pager) Checkpoint(ctx context.Context) (CheckpointInfo, error) {
	if err := p.engine.Usable(); err != nil {
		return CheckpointInfo{}, err
	}
	reply := make(chan checkpointReply, 1)
	select {
	case p.requests <- reply:
	case <-p.ended:
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
