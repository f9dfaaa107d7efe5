// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/mutate"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// applyStep is the maximum number of records applied between two updates of the applied LSN.
const applyStep = 4096

// Submit accepts a transaction, encoded by package txn, and calls done when its outcome is known. The transactions of
// one caller commit in call order. payload may be reused when Submit returns.
//
// Submit blocks while too many transactions are pending, during a switchover, and during HoldWrites; ctx limits only
// this wait. If Submit returns an error, such as ErrNotActive, ErrBlocked, ErrTooLarge or the context's error, done is
// not called and nothing was logged.
func (p *Primary) Submit(ctx context.Context, payload []byte, done Done) error {
	return p.SubmitAll(ctx, []Item{{Payload: payload, Done: done}})
}

// Item is a transaction and its completion callback.
type Item struct {
	// Payload is the transaction without the bodies in Refs. SubmitAll copies both. Offsets of Refs are relative to
	// Payload.
	Payload []byte
	Refs    []txn.Ref
	Done    Done
	// Span is the span of the transaction; nil if it is not traced.
	Span Span
	// Site marks a transaction replicated from another site, or a change of the role of this site. See RestrictToSite.
	Site bool
	// Exempt marks a transaction that Primary.HoldWrites does not delay.
	Exempt bool
}

func (i *Item) bytes() int {
	n := len(i.Payload)
	for k := range i.Refs {
		n += len(i.Refs[k].Data)
	}
	return n
}

// SubmitAll submits several transactions that arrived together. Each transaction has a separate outcome. If
// SubmitAll returns an error, none was logged.
func (p *Primary) SubmitAll(ctx context.Context, items []Item) error {
	if held := p.held.Load(); held != nil {
		if err := held.wait(ctx, items, p.stopped); err != nil {
			return err
		}
	}
	weight, restricted := int64(0), p.restricted.Load()
	for i := range items {
		if restricted != nil && !items[i].Site {
			return *restricted
		}
		size := items[i].bytes()
		if size > p.o.MaxTxnBytes {
			return fmt.Errorf("%w: %d bytes, limit %d", ErrTooLarge, size, p.o.MaxTxnBytes)
		}
		weight += int64(size) + itemOverheadBytes
	}
	if err := p.queue.refused(); err != nil {
		return err
	}
	weight = min(weight, p.o.QueueBytes)
	if err := p.capacity.Acquire(ctx, weight); err != nil {
		return fmt.Errorf("too many pending transactions: %w", err)
	}
	err := p.queue.add(ctx, wal.KindTxn, items, weight)
	if err != nil {
		p.capacity.Release(weight)
	}
	return err
}

// CommitResult is the outcome of a transaction, as passed to Done.
type CommitResult struct {
	Result *txn.Result
	Err    error
}

// waiter is a reusable channel with a Done that sends the outcome to the channel.
type waiter struct {
	ch   chan CommitResult
	done Done
}

func newWaiter() *waiter {
	w := &waiter{ch: make(chan CommitResult, 1)}
	w.done = func(r *txn.Result, err error) { w.ch <- CommitResult{r, err} }
	return w
}

// Commit submits a transaction and waits for its outcome. If ctx ends after the transaction was accepted, the error
// wraps ErrOutcomeUnknown and the context's error.
func (p *Primary) Commit(ctx context.Context, payload []byte) (*txn.Result, error) {
	return p.commitItem(ctx, Item{Payload: payload, Span: p.spanOf(ctx)})
}

// CommitExempt is like Commit, for a transaction that HoldWrites does not delay.
func (p *Primary) CommitExempt(ctx context.Context, payload []byte) (*txn.Result, error) {
	return p.commitItem(ctx, Item{Payload: payload, Span: p.spanOf(ctx), Exempt: true})
}

func (p *Primary) commitItem(ctx context.Context, item Item) (*txn.Result, error) {
	w, _ := p.waiters.Get().(*waiter)
	item.Done = w.done
	if err := p.SubmitAll(ctx, []Item{item}); err != nil {
		p.waiters.Put(w)
		return nil, err
	}
	select {
	case o := <-w.ch:
		p.waiters.Put(w)
		return o.Result, o.Err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", ErrOutcomeUnknown, ctx.Err()) // the transaction still references the waiter
	}
}

// runCommitter appends to the log until a failure or the end of the role. No other goroutine appends (decision 0028).
func (p *Primary) runCommitter(ctx context.Context) {
	var batches []batch
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.queue.wake:
		}
		p.awaitMore(ctx)
		for !p.isStopped() {
			batches = p.queue.take(batches[:0])
			if len(batches) == 0 {
				break
			}
			err := p.commitBatches(batches)
			clear(batches)
			if err != nil {
				p.fail(err)
				return
			}
		}
	}
}

func (p *Primary) awaitMore(ctx context.Context) {
	if p.o.CommitDelay <= 0 {
		return
	}
	t := time.NewTimer(p.o.CommitDelay)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-p.queue.wake: // a batch is full
		signal(p.queue.wake)
	case <-t.C:
	}
}

// commitBatches passes the batches to the standby's session first. Then it writes each batch and syncs once for all
// of them.
func (p *Primary) commitBatches(batches []batch) error {
	if p.o.Tracer != nil {
		p.beginTraces(batches)
	}
	for _, b := range batches {
		p.tail.publish(b)
	}
	p.recordStarts(batches)
	p.enqueueForStandby(batches)
	p.io.begin()
	defer p.io.end()
	for _, b := range batches {
		write := b.trace.part("log write")
		err := p.o.Store.Append(b.frames, b.end)
		if write != nil {
			write.End(time.Now(), err)
		}
		if err != nil {
			return fmt.Errorf("commit: %w", err)
		}
		p.tail.appended(b.end.LSN)
	}
	syncs := partsOf(batches, "log sync")
	err := p.o.Store.Sync()
	endAll(syncs, err)
	if err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	p.mu.Lock()
	p.durable = batches[len(batches)-1].end.LSN
	p.advance()
	p.mu.Unlock()
	return nil
}

// advance sets the commit LSN to the LSN of the last record that is durable on every required node (INV-2). The
// commit LSN never decreases. advance has no effect while the node must not commit. mu is held.
func (p *Primary) advance() {
	if !p.cfg.Serve || p.ended {
		return
	}
	n := p.durable
	if p.cfg.RequireStandby && !mutate.Off("INV-2-commits-without-standby-ack") {
		n = min(n, p.standbyDurable)
	}
	if n <= p.commit.Load() {
		return
	}
	p.commit.Store(n)
	p.o.Store.NoteCommitted(n)
	p.measure(n)
	if len(p.traces) > 0 {
		p.traceCommitted(n)
	}
	signal(p.applyWake)
	if s := p.session; s != nil && !s.polls.Load() {
		signal(s.wake)
	}
}

// runApplier applies committed records and completes their transactions, until a failure or the end of the role. No
// other goroutine applies records.
func (p *Primary) runApplier(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.applyWake:
		}
		if err := p.applyCommitted(); err != nil {
			p.fail(fmt.Errorf("apply committed records: %w", err))
			return
		}
	}
}

// applyCommitted applies records up to the commit LSN, in steps of at most applyStep.
func (p *Primary) applyCommitted() error {
	for p.applied.Load() < p.commit.Load() && !p.isStopped() {
		step := min(p.commit.Load(), p.applied.Load()+applyStep)
		err := p.o.Store.ApplyUntil(p.stopped, step, p.complete)
		if errors.Is(err, store.ErrInterrupted) {
			return nil
		}
		if err != nil {
			return err
		}
		p.applied.Store(step)
		p.advanced.notify()
		p.tail.release(step)
		if p.tracing.Load() {
			p.traceApplied(step)
		}
		if !p.ready && step >= p.termStart {
			p.ready = true
			p.events.post(ActiveReady{})
		}
	}
	signal(p.progress)
	return nil
}

func (p *Primary) complete(n uint64, r *txn.Result) {
	done, free := p.queue.complete(n)
	if done != nil {
		// The result is valid only during this call (store.Apply), but the callee may retain it (Done).
		kept := *r
		done(&kept, nil)
	}
	if free > 0 {
		p.capacity.Release(free)
	}
}

// abandon fails all pending transactions. Those already passed to the committer fail with ErrOutcomeUnknown, the
// others with unlogged. New transactions fail with refuse.
func (p *Primary) abandon(refuse, unlogged error) {
	logged, never, free := p.queue.block(refuse)
	if free > 0 {
		p.capacity.Release(free)
	}
	unknown := outcomeUnknown(refuse)
	for _, done := range logged {
		done(nil, unknown)
	}
	for _, done := range never {
		done(nil, unlogged)
	}
}

// outcomeUnknown returns an error that wraps ErrOutcomeUnknown. It includes the reason as text only: if the reason
// were wrapped, its sentinel would state that nothing was logged.
func outcomeUnknown(reason error) error {
	return fmt.Errorf("%w (%s)", ErrOutcomeUnknown, reason.Error())
}

// fail ends the role after a failure of the store (INV-7).
func (p *Primary) fail(err error) {
	p.mu.Lock()
	already := p.ended
	p.ended = true
	if p.session != nil {
		p.session.end(errStopped)
	}
	p.mu.Unlock()
	if already {
		return
	}
	refuse := fmt.Errorf("%w: %w", ErrNotActive, err)
	p.endTraces(refuse)
	// If the applier failed, the committer may still log queued transactions.
	p.abandon(refuse, outcomeUnknown(refuse))
	p.events.post(Failed{Err: err})
}

// errStopped ends the sessions of a primary that is stopping or has failed.
var errStopped = errors.New("active is stopping")
