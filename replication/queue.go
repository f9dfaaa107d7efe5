// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/store/crc"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// itemOverheadBytes is added to the payload size of a queued transaction, to limit the number of small transactions.
const itemOverheadBytes = 128

const minBufferBytes = 1 << 10

// moveBytes is the size from which a batch is closed when its buffer is full, instead of being copied to a larger one.
const moveBytes = 128 << 10

// Done receives the outcome of a transaction. It is called exactly once per accepted transaction, and must not block or
// call Submit. The callee owns the result.
//
// A nil error means that the transaction is committed (INV-2) and applied on this node; the result may still report a
// rejection. These calls are made in commit order, one at a time, by the goroutine that applies. An error is reported
// by the goroutine that calls Configure or Stop, or in which the primary fails, possibly concurrently with other
// outcomes.
type Done func(r *txn.Result, err error)

type group struct {
	batch
	// waiters has one entry per record; nil for records without a waiter.
	waiters []Done
	// weight is the group's part of the queue's capacity.
	weight int64
	// next is the index of the first pending record.
	next int
}

// queue contains the transactions from Submit to completion: those waiting for the committer, already encoded as log
// frames, and those in flight. One lock guards both.
type queue struct {
	term       uint64
	batchBytes int
	// timed enables the recording of batch start times.
	timed bool
	// wake is signaled when the first transaction arrives, and again when a batch is full.
	wake chan struct{}
	// idle is signaled when no transaction is queued or in flight.
	idle chan struct{}

	mu      sync.Mutex // guards all below
	waiting []*group
	flight  []*group
	// end is the position of the last encoded record.
	end lsn.Position
	// refuse, if not nil, is the error for new transactions.
	refuse error
	// gate, if not nil, blocks new transactions until it is closed.
	gate chan struct{}
	// typical is a moving average of batch sizes, from which the size of the next buffer is derived.
	typical int
	free    []*group
}

func newQueue(term uint64, batchBytes int, end lsn.Position) *queue {
	return &queue{
		term: term, batchBytes: batchBytes, end: end,
		wake: make(chan struct{}, 1), idle: make(chan struct{}, 1),
	}
}

func (q *queue) refused() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.refuse
}

// add encodes records into the open batch. It waits while transactions are held.
func (q *queue) add(ctx context.Context, kind wal.Kind, items []Item, weight int64) error {
	for {
		q.mu.Lock()
		switch {
		case q.refuse != nil:
			err := q.refuse
			q.mu.Unlock()
			return err
		case q.gate == nil:
			for i := range items {
				q.encode(kind, &items[i])
				if items[i].Span != nil {
					g := q.waiting[len(q.waiting)-1]
					g.trace = g.trace.with(items[i].Span)
				}
			}
			q.waiting[len(q.waiting)-1].weight += weight // for all items: the last one is completed last
			q.mu.Unlock()
			return nil
		}
		gate := q.gate
		q.mu.Unlock()
		select {
		case <-gate:
		case <-ctx.Done():
			return fmt.Errorf("%w: waiting for a switchover: %w", ErrBlocked, ctx.Err())
		}
	}
}

// encode appends the frame of item to the open batch. mu is held.
func (q *queue) encode(kind wal.Kind, item *Item) {
	size := item.bytes()
	first := len(q.waiting) == 0
	var g *group
	if !first {
		g = q.waiting[len(q.waiting)-1]
	}
	if g == nil || len(g.frames)+size > q.batchBytes ||
		len(g.frames) >= moveBytes && len(g.frames)+wal.FrameBytes(size) > cap(g.frames) {
		g = q.newGroup(size)
		q.waiting = append(q.waiting, g)
	}
	if len(item.Refs) == 0 {
		crc.Copied(size)
		g.frames, q.end = wal.AppendFrame(g.frames, q.end, q.term, kind, item.Payload)
	} else {
		g.frames, q.end = appendReferring(g.frames, q.end, q.term, kind, item, size)
	}
	g.end = q.end
	g.waiters = append(g.waiters, item.Done)
	if first || len(g.frames) >= q.batchBytes {
		signal(q.wake)
	}
}

// appendReferring is like wal.AppendFrame, but for a transaction with referenced bodies. It copies the bodies
// directly into the buffer that the log, the stream and the memory tail share, and reuses the checksums computed on
// receipt.
func appendReferring(
	dst []byte, prev lsn.Position, term uint64, kind wal.Kind, item *Item, size int,
) ([]byte, lsn.Position) {
	start, at, sum := len(dst), 0, uint32(0)
	dst = wal.BeginFrame(slices.Grow(dst, wal.FrameBytes(size)))
	for i := range item.Refs {
		ref := &item.Refs[i]
		piece := item.Payload[at:ref.At]
		crc.Copied(len(ref.Data))
		dst = append(append(dst, piece...), ref.Data...)
		sum = crc.Join(crc.Update(sum, piece), ref.Sum, len(ref.Data))
		at = ref.At
	}
	dst = append(dst, item.Payload[at:]...)
	return wal.EndFrameWith(dst, start, prev, term, kind, crc.Update(sum, item.Payload[at:]))
}

func (q *queue) newGroup(payload int) *group {
	var g *group
	if n := len(q.free); n > 0 {
		g, q.free = q.free[n-1], q.free[:n-1]
	} else {
		g = &group{}
	}
	// The buffer lives as long as its messages are in memory: do not keep an oversized buffer.
	size := max(payload+2*itemOverheadBytes, q.typical+q.typical/4, minBufferBytes)
	g.batch = batch{frames: make([]byte, 0, size), prev: q.end, end: q.end}
	if q.timed {
		g.began = time.Now()
	}
	return g
}

// take moves queued groups into flight and appends their batches to dst.
func (q *queue) take(dst []batch) []batch {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, g := range q.waiting {
		// A very large transaction does not predict the next batch size.
		q.typical += (min(len(g.frames), q.batchBytes) - q.typical) / 4
		dst = append(dst, g.batch)
		g.frames = nil // now shared by log, stream and tail
	}
	q.flight = append(q.flight, q.waiting...)
	clear(q.waiting)
	q.waiting = q.waiting[:0]
	return dst
}

// complete returns the waiter of record n, or nil, and the capacity to release. Records are completed in order.
func (q *queue) complete(n uint64) (done Done, free int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.flight) > 0 {
		g := q.flight[0]
		if n <= g.prev.LSN {
			return nil, free // a record of an earlier term
		}
		if n <= g.end.LSN {
			g.next = int(n - g.prev.LSN)
			done, g.waiters[g.next-1] = g.waiters[g.next-1], nil
			if n == g.end.LSN {
				free += q.pop()
			}
			return done, free
		}
		free += q.pop()
	}
	return nil, free
}

// pop removes the first group in flight and returns its weight. All its records must be completed. mu is held.
func (q *queue) pop() int64 {
	g := q.flight[0]
	q.flight[0] = nil
	q.flight = q.flight[1:]
	if len(q.flight) == 0 {
		q.flight = nil
		if len(q.waiting) == 0 {
			signal(q.idle)
		}
	}
	weight := g.weight
	clear(g.waiters)
	*g = group{waiters: g.waiters[:0]}
	if len(q.free) < 4 {
		q.free = append(q.free, g)
	}
	return weight
}

// block rejects new and held transactions with refuse, and removes all waiters, but not the records. logged are the
// waiters of records in flight, unlogged those of records not yet passed to the committer.
func (q *queue) block(refuse error) (logged, unlogged []Done, free int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.refuse = refuse
	logged, freeA := takeWaiters(q.flight)
	unlogged, freeB := takeWaiters(q.waiting)
	if q.gate != nil {
		close(q.gate)
		q.gate = nil
	}
	return logged, unlogged, freeA + freeB
}

func takeWaiters(groups []*group) (waiters []Done, free int64) {
	for _, g := range groups {
		for i, w := range g.waiters {
			if w != nil {
				waiters = append(waiters, w)
				g.waiters[i] = nil
			}
		}
		free += g.weight
		g.weight = 0
	}
	return waiters, free
}

func (q *queue) unblock() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.refuse = nil
}

func (q *queue) hold() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.gate == nil {
		q.gate = make(chan struct{})
	}
}

func (q *queue) resume() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.gate != nil {
		close(q.gate)
		q.gate = nil
	}
}

// empty reports whether no record is queued or in flight, and returns the position of the last encoded record.
func (q *queue) empty() (bool, lsn.Position) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting) == 0 && len(q.flight) == 0, q.end
}
