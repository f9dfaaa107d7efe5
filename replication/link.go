// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/iolock"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/mutate"
	"github.com/lockstep-mq/lockstep/store/wal"
)

const (
	// syncBytes limits the bytes appended before a sync.
	syncBytes = 8 << 20
	// backlogBytes, plus Tuning.MaxTxnBytes, limits the bytes received and not yet written. By default, the active's
	// window is far smaller.
	backlogBytes = 256 << 20
)

// applier is the goroutine that applies the records of a link. It may outlive the link. The next link's applier waits
// for it.
type applier struct {
	done chan struct{} // closed when the goroutine has ended
	err  error         // set before done is closed
}

// link is one accepted connection of a follower. It has four goroutines: one receives and verifies, one appends,
// syncs and acknowledges, one applies, and one sends heartbeats. If commits are not synced, the receiver itself
// appends while the writer is idle.
type link struct {
	f      *Follower
	stream ActiveStream

	// The fields below are owned by the receiver. received is the position of the last verified record; partial contains
	// the fragments of an incomplete batch.
	received   lsn.Position
	partial    []byte
	required   bool
	incomplete bool // FollowerIncomplete was posted

	writeMu iolock.Mutex // held during appends; guards traces
	traces  []batch      // of the current append

	mu           sync.Mutex // guards backlog and backlogBytes
	backlog      []batch
	backlogBytes int
	writeWake    chan struct{}

	commit        atomic.Uint64 // commit LSN of the active
	durable       atomic.Uint64
	applied       atomic.Uint64
	applyWake     chan struct{}
	heartbeatWake chan struct{}

	sendMu      sync.Mutex // guards sending and the fields below
	acked       lsn.Position
	sentApplied uint64
	lastSent    time.Time
}

// follow sends the hello, aligns the log, and follows until the connection ends. worked reports whether the active
// accepted the hello.
func (f *Follower) follow(ctx context.Context, conn Conn) (worked bool, err error) {
	g, ctx := errgroup.WithContext(ctx)
	defer func() {
		if werr := g.Wait(); worked {
			err = werr
		}
		f.setLink(nil)
	}()
	f.commonLSN = nil
	hello, err := f.hello()
	if err != nil {
		return false, err
	}
	stream, err := conn.Replicate(ctx) // canceled when one of the goroutines below fails
	if err != nil {
		return false, fmt.Errorf("send hello to the active: %w", err)
	}
	l, err := f.helloResponse(stream, hello)
	if err != nil {
		return false, err
	}
	f.setLink(l)
	g.Go(func() error { return l.receive() })
	g.Go(func() error { return l.write(ctx) })
	a := f.startApplier(ctx, l)
	g.Go(func() error {
		select {
		case <-a.done:
			return a.err
		case <-ctx.Done():
			return nil
		}
	})
	g.Go(func() error { return l.sendHeartbeat(ctx) })
	return true, nil
}

func (f *Follower) startApplier(ctx context.Context, l *link) *applier {
	before, a := f.applier, &applier{done: make(chan struct{})}
	f.applier = a
	f.wg.Go(func() {
		defer close(a.done)
		if before != nil {
			if <-before.done; before.err != nil {
				a.err = before.err
				return
			}
			l.applied.Store(f.o.Store.Applied().LSN)
		}
		a.err = l.apply(ctx)
	})
	return a
}

func (f *Follower) awaitApplier(ctx context.Context) error {
	if f.applier == nil {
		return nil
	}
	select {
	case <-f.applier.done:
		return f.applier.err
	case <-ctx.Done():
		return fmt.Errorf("wait for records being applied: %w", ctx.Err())
	}
}

func (f *Follower) setLink(l *link) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.link != nil {
		f.status.ActiveCommitLSN = max(f.status.ActiveCommitLSN, f.link.commit.Load())
	}
	f.link = l
}

func (f *Follower) helloResponse(stream ActiveStream, hello *StandbyMessage) (*link, error) {
	if err := stream.Send(hello); err != nil {
		return nil, fmt.Errorf("send hello to the active: %w", err)
	}
	m, err := stream.Recv()
	if err != nil {
		return nil, fmt.Errorf("receive hello response: %w", err)
	}
	f.received.Store(true)
	w := m.HelloResponse
	if w == nil {
		return nil, fmt.Errorf("%w: first message is not a hello response", ErrProtocol)
	}
	if _, err := negotiate(w.Protocol, w.OldestProtocol, w.Features); err != nil {
		return nil, err
	}
	if err := f.admit(m.Config, m.Term); err != nil {
		return nil, err
	}
	if err := f.checkHelloResponse(w); err != nil {
		return nil, err
	}
	incomplete := f.incomplete(m, w.ResumeAfter)
	if m.HelloResponse.SnapshotRequired {
		f.recordCommon(w.ResumeAfter)
		f.recordCommit(m.CommitLSN)
		return nil, fmt.Errorf("%w: %s", errSnapshot, m.HelloResponse.Reason)
	}
	if err := f.align(m.HelloResponse.ResumeAfter); err != nil {
		return nil, err
	}
	f.connected(m.Config, m.Term)
	end := f.o.Store.End()
	l := &link{
		f: f, stream: stream, received: end, acked: end, lastSent: time.Now(),
		writeWake: make(chan struct{}, 1), applyWake: make(chan struct{}, 1), heartbeatWake: make(chan struct{}, 1),
	}
	l.incomplete = incomplete
	l.durable.Store(end.LSN)
	l.applied.Store(f.o.Store.Applied().LSN)
	l.sentApplied = l.applied.Load()
	l.committed(m.CommitLSN)
	err = l.take(m)
	return l, err
}

func (l *link) receive() error {
	for {
		m, err := l.stream.Recv()
		if err != nil {
			return fmt.Errorf("receive from active: %w", err)
		}
		l.f.received.Store(true)
		l.f.o.Store.Governor().Report(m.CommitTime)
		if err := l.f.admit(m.Config, m.Term); err != nil {
			return err
		}
		l.incomplete = l.incomplete || l.f.incomplete(m, l.received)
		if err := l.take(m); err != nil {
			return err
		}
		l.committed(m.CommitLSN)
	}
}

// incomplete reports whether the active has committed records that this log does not contain, and posts
// FollowerIncomplete in that case.
func (f *Follower) incomplete(m *ActiveMessage, has lsn.Position) bool {
	if m.CommitLSN <= has.LSN {
		return false
	}
	f.events.post(FollowerIncomplete{Config: m.Config, Common: has.LSN, Committed: m.CommitLSN})
	return true
}

func (l *link) committed(n uint64) {
	if n > l.commit.Load() {
		l.commit.Store(n)
		l.f.o.Store.NoteCommitted(n)
		signal(l.applyWake)
	}
}

func (l *link) take(m *ActiveMessage) error {
	if m.AckRequired && !l.required {
		l.f.required()
	}
	l.required = m.AckRequired
	if len(m.Records) == 0 {
		return nil
	}
	frames := m.Records
	if m.Last.IsZero() || l.partial != nil {
		most := l.f.o.MaxTxnBytes + 2*l.f.o.BatchBytes
		if len(l.partial)+len(frames) > most {
			return fmt.Errorf("%w: batch of more than %d bytes", ErrProtocol, most)
		}
		if l.partial == nil {
			// Allocate the full size of a fragmented record: growing with each fragment would double memory use.
			l.partial = make([]byte, 0, min(max(wal.FirstFrameBytes(frames), len(frames)), most))
		}
		l.partial = append(l.partial, frames...)
		if m.Last.IsZero() {
			return nil
		}
		frames, l.partial = l.partial, nil
	}
	if m.Previous != l.received {
		return fmt.Errorf("%w: records after %v received after %v", ErrProtocol, m.Previous, l.received)
	}
	at, err := verifyFrames(frames, m.Previous)
	if err != nil {
		return err
	}
	if at != m.Last || at.Term > m.Term {
		return fmt.Errorf("%w: batch ends at %v, but the active of term %d announced %v", ErrProtocol, at, m.Term,
			m.Last)
	}
	l.received = at
	l.mu.Lock()
	l.backlog = append(l.backlog, batch{
		frames: frames, prev: m.Previous, end: at, trace: l.f.startAppendSpan(m, len(frames)),
	})
	l.backlogBytes += len(frames)
	full := l.backlogBytes > backlogBytes+l.f.o.MaxTxnBytes
	l.mu.Unlock()
	if full {
		return fmt.Errorf("%w: the active sent more than %d bytes ahead of the acks", ErrProtocol, backlogBytes)
	}
	return l.writeLocal()
}

func (l *link) writeLocal() error {
	if l.f.o.Store.SyncsCommits() || !l.writeMu.TryLock() {
		signal(l.writeWake)
		return nil
	}
	defer l.writeMu.Unlock()
	_, err := l.writeSome(true)
	return err
}

func verifyFrames(frames []byte, prev lsn.Position) (lsn.Position, error) {
	for len(frames) > 0 {
		f, rest, err := wal.DecodeFrame(frames, prev)
		if err != nil {
			return prev, fmt.Errorf("%w: record after %v: %w", ErrChecksum, prev, err)
		}
		frames, prev = rest, f.Pos
	}
	return prev, nil
}

func (f *Follower) required() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.Required = true
	f.events.post(FollowerRequired{})
}

// write appends received records. Queued records share one sync and one ack, up to syncBytes.
func (l *link) write(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.writeWake:
		}
		for more := true; more && ctx.Err() == nil; {
			l.writeMu.Lock()
			var err error
			more, err = l.writeSome(false)
			l.writeMu.Unlock()
			if err != nil {
				return err
			}
		}
	}
}

// writeSome appends, syncs and acknowledges queued records, and reports whether there were any. writeMu is held.
// receiving reports whether the caller is the receiving goroutine.
func (l *link) writeSome(receiving bool) (bool, error) {
	todo := l.takeBacklog()
	if len(todo) == 0 {
		return false, nil
	}
	if err := l.f.checkSpace(size(todo)); err != nil {
		return false, err // nothing was written or acknowledged
	}
	l.f.busy.Store(receiving) // a hung disk does not mean that the active is silent
	err := l.append(todo)
	l.f.busy.Store(false)
	if err != nil {
		l.endTraces(err)
		return false, fmt.Errorf("%w: %w", errStore, err)
	}
	err = l.sendAck(todo[len(todo)-1].end)
	l.endTraces(err)
	if err != nil {
		return false, err
	}
	signal(l.applyWake)
	return true, nil
}

func size(batches []batch) int {
	n := 0
	for i := range batches {
		n += len(batches[i].frames)
	}
	return n
}

func (l *link) takeBacklog() []batch {
	l.mu.Lock()
	n, size := 0, 0
	for n < len(l.backlog) && (n == 0 || size+len(l.backlog[n].frames) <= syncBytes) {
		size += len(l.backlog[n].frames)
		n++
	}
	todo := l.backlog[:n:n]
	l.backlog = l.backlog[n:]
	l.backlogBytes -= size
	if len(l.backlog) == 0 {
		l.backlog = nil
	}
	more := len(l.backlog) > 0
	l.mu.Unlock()
	if more {
		signal(l.writeWake)
	}
	var joined []batch
	for len(todo) > 0 {
		n, frames := join(todo)
		joined = append(joined, batch{frames: frames, prev: todo[0].prev, end: todo[n-1].end})
		if l.f.o.Tracer != nil {
			l.keepTraces(todo[:n])
		}
		todo = todo[n:]
	}
	return joined
}

func (l *link) append(todo []batch) error {
	l.f.io.begin()
	defer l.f.io.end()
	writes := partsOf(l.traces, "log write")
	for _, b := range todo {
		if err := l.f.o.Store.Append(b.frames, b.end); err != nil {
			endAll(writes, err)
			return fmt.Errorf("append: %w", err)
		}
	}
	endAll(writes, nil)
	syncs := partsOf(l.traces, "log sync")
	err := l.f.o.Store.Sync()
	endAll(syncs, err)
	if err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	l.durable.Store(todo[len(todo)-1].end.LSN)
	l.f.o.Store.NoteCommitted(l.commit.Load()) // the commit LSN may be beyond the log during catch-up
	return nil
}

// keepTraces records the traced batches among those about to be appended. writeMu is held.
func (l *link) keepTraces(batches []batch) {
	for i := range batches {
		if batches[i].trace != nil {
			l.traces = append(l.traces, batches[i])
		}
	}
}

// endTraces ends the traces of the current append. writeMu is held.
func (l *link) endTraces(err error) {
	for i := range l.traces {
		l.traces[i].trace.end(err)
	}
	clear(l.traces)
	l.traces = l.traces[:0]
}

// sendAck sends an acknowledgement with this node's fence (INV-1). With a zero position, it repeats the last
// acknowledged position.
func (l *link) sendAck(durable lsn.Position) error {
	have := l.f.o.Store.Identity().Fence
	l.sendMu.Lock()
	defer l.sendMu.Unlock()
	if durable.LSN > l.acked.LSN {
		l.acked = durable
	}
	l.sentApplied, l.lastSent = l.applied.Load(), time.Now()
	m := &StandbyMessage{Config: have.Config, Term: have.Term, Durable: l.acked, AppliedLSN: l.sentApplied}
	if err := l.stream.Send(m); err != nil {
		return fmt.Errorf("acknowledge: %w", err)
	}
	return nil
}

// apply applies records that are committed and durable on this node (INV-2, INV-5). It delays each round, to collect
// more records.
func (l *link) apply(ctx context.Context) error {
	t := time.NewTimer(time.Hour)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.applyWake:
		}
		t.Reset(l.f.o.CommitNotice)
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		for ctx.Err() == nil {
			applied := l.applied.Load()
			upTo := min(l.commit.Load(), l.durable.Load(), applied+applyStep)
			if mutate.Off("INV-5-standby-applies-uncommitted") {
				upTo = min(l.durable.Load(), applied+applyStep)
			}
			if upTo <= applied {
				break
			}
			err := l.f.o.Store.ApplyUntil(ctx.Done(), upTo, nil)
			if errors.Is(err, store.ErrInterrupted) {
				return nil
			}
			if err != nil && l.f.o.Store.Repair().Index() != nil {
				// Message IDs cannot be read. The store will be replaced (Resync), which ends this link.
				l.f.log.Warn("records are not applied until the store is replaced", zap.Error(err))
				<-ctx.Done()
				return nil
			}
			if err != nil {
				return fmt.Errorf("%w: apply: %w", errStore, err)
			}
			l.applied.Store(upTo)
		}
		if l.applied.Load() == l.durable.Load() {
			signal(l.heartbeatWake) // idle: the active may wait for this to complete a handover
		}
	}
}

// sendHeartbeat sends an ack if none was sent for a heartbeat interval, or soon after all records were applied, unless
// the log disk is stalled.
func (l *link) sendHeartbeat(ctx context.Context) error {
	t := time.NewTimer(l.f.o.Heartbeat)
	defer t.Stop()
	for {
		soon := false
		select {
		case <-ctx.Done():
			return nil
		case <-l.heartbeatWake:
			soon = true
		case <-t.C:
		}
		l.sendMu.Lock()
		wait := l.f.o.Heartbeat - time.Since(l.lastSent)
		if news := l.applied.Load() > l.sentApplied; news && soon {
			wait = min(wait, l.f.o.CommitNotice)
		} else if news {
			wait = 0
		}
		l.sendMu.Unlock()
		if wait <= 0 {
			if !l.f.io.stalled(l.f.o.DiskStallTimeout) { // a node with a stalled disk must not appear alive
				if err := l.sendAck(lsn.Position{}); err != nil {
					return err
				}
			}
			wait = l.f.o.Heartbeat
		}
		t.Reset(wait)
	}
}
