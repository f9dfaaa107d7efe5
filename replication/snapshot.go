// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/throttle"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// snapshotService tracks the current transfer and the last sent snapshot. The standby can resume the transfer of
// this snapshot, or continue with the log after it.
type snapshotService struct {
	mu      sync.Mutex // guards the fields below
	current *transfer  // nil if none
	// kept is the last snapshot sent, completely or in part. It retains the log after its position.
	kept *store.Snapshot
}

// transfer is the transfer of a snapshot to a node.
type transfer struct {
	node   uuid.UUID
	cancel context.CancelFunc
	ended  chan struct{} // closed when the transfer has ended
	// resumed is the highest LSN after which the node has continued with the log since the transfer began.
	// snapshotService.mu guards it.
	resumed uint64
}

// begin registers the caller's transfer as the only one. It cancels an older transfer and waits for its end. The
// caller must call end, and then transfer.cancel.
func (ss *snapshotService) begin(ctx context.Context, node uuid.UUID) (context.Context, *transfer, error) {
	for {
		ss.mu.Lock()
		if ss.current == nil {
			ctx, cancel := context.WithCancel(ctx)
			t := &transfer{node: node, cancel: cancel, ended: make(chan struct{})}
			ss.current = t
			ss.mu.Unlock()
			return ctx, t, nil
		}
		ss.current.cancel()
		ended := ss.current.ended
		ss.mu.Unlock()
		select {
		case <-ended:
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("wait for the previous snapshot transfer: %w", ctx.Err())
		}
	}
}

// end ends a transfer. It releases the snapshot if the node has already continued with the log after the snapshot.
func (ss *snapshotService) end(t *transfer) {
	ss.mu.Lock()
	ss.current = nil
	snap := ss.takeUpTo(t.resumed)
	ss.mu.Unlock()
	if snap != nil {
		snap.Close()
	}
	close(t.ended)
}

// takeUpTo removes and returns the retained snapshot. It returns nil if no snapshot is retained, or if the retained
// one is newer than LSN n. mu is held.
func (ss *snapshotService) takeUpTo(n uint64) *store.Snapshot {
	snap := ss.kept
	if snap == nil || snap.Header.Position.LSN > n {
		return nil
	}
	ss.kept = nil
	return snap
}

func (ss *snapshotService) keep(snap *store.Snapshot) {
	snap.Suspend()
	ss.mu.Lock()
	old := ss.kept
	ss.kept = snap
	ss.mu.Unlock()
	if old != nil && old != snap {
		old.Close()
	}
}

// releaseUpTo releases the snapshot if a node continues with the log after it. A snapshot in use is released when its
// transfer ends: the node can connect as soon as it has received the last chunk.
func (ss *snapshotService) releaseUpTo(at lsn.Position, node uuid.UUID) {
	ss.mu.Lock()
	if t := ss.current; t != nil {
		if t.node == node {
			t.resumed = max(t.resumed, at.LSN)
		}
		ss.mu.Unlock()
		return
	}
	snap := ss.takeUpTo(at.LSN)
	ss.mu.Unlock()
	if snap != nil {
		snap.Close()
	}
}

func (ss *snapshotService) close() {
	ss.mu.Lock()
	snap := ss.kept
	ss.kept = nil
	ss.mu.Unlock()
	if snap != nil {
		snap.Close()
	}
}

// FetchSnapshot sends a checkpoint. The log after the checkpoint is retained until the standby continues with it, but
// at most for two minutes after the transfer. A new transfer replaces the previous one.
func (p *Primary) FetchSnapshot(ctx context.Context, req SnapshotRequest, send func(*SnapshotChunk) error) error {
	if !p.enter() {
		return ErrNotActive
	}
	defer p.wg.Done()
	if id := p.o.Store.Identity(); req.Pair != id.PairID {
		return fmt.Errorf("%w: standby has pair %s, this node has pair %s", ErrOtherPair, req.Pair, id.PairID)
	}
	if err := p.refuseAhead(Member{Node: req.Node}, req.Config, 0); err != nil {
		return err
	}
	if err := p.checkBehind(req.Committed); err != nil {
		return err
	}
	p.recordFetch(req.Node)
	conn := ctx
	ctx, t, err := p.snapshots.begin(conn, req.Node)
	if err != nil {
		return err
	}
	// The transfer runs in a separate goroutine: a blocked send must not block this call.
	result := make(chan error, 1)
	p.wg.Go(func() {
		err := p.transfer(ctx, req, send)
		p.snapshots.end(t) // before the result: the node can connect as soon as FetchSnapshot returns
		result <- err
		t.cancel()
	})
	select {
	case err = <-result:
	case <-p.stopped:
		return ErrNotActive
	case <-ctx.Done():
		select {
		case err = <-result: // the transfer ended and canceled ctx
		default:
			err = fmt.Errorf("snapshot transfer: %w", ctx.Err())
		}
	}
	if replaced := errors.Is(err, context.Canceled) && conn.Err() == nil; err != nil && !replaced {
		p.lostInTransfer(req.Node, err)
	}
	return err
}

// awaitedFetch is a standby that was redirected to a snapshot. Its session has ended.
type awaitedFetch struct {
	member Member    // zero if none
	since  time.Time // of the redirect
	lost   bool      // reported
}

// fetchTimeouts is the number of StandbyTimeouts after which a missing snapshot request is reported. Primary.retain
// also uses it.
const fetchTimeouts = 20

// checkFetch reports once that a standby did not request its snapshot.
func (p *Primary) checkFetch(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &p.awaited
	if w.member == (Member{}) || w.lost || p.ended || p.session != nil ||
		now.Sub(w.since) < fetchTimeouts*p.o.StandbyTimeout {
		return
	}
	w.lost = true
	p.events.post(StandbyLost{
		Member: w.member, Cause: LostSilence, Err: errors.New("standby did not request its snapshot"),
	})
}

func (p *Primary) recordFetch(node uuid.UUID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.awaited.member.Node != node {
		return
	}
	if p.awaited.lost && p.session == nil && !p.ended {
		p.events.post(StandbyConnected{Member: p.awaited.member, Snapshot: true})
	}
	p.awaited = awaitedFetch{}
}

func (p *Primary) lostInTransfer(node uuid.UUID, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.session == nil && !p.ended {
		p.events.post(StandbyLost{Member: Member{Node: node}, Cause: causeOf(err), Err: err})
	}
}

func (p *Primary) transfer(ctx context.Context, req SnapshotRequest, send func(*SnapshotChunk) error) error {
	snap, offset, err := p.openSnapshot(req)
	if err != nil {
		return err
	}
	defer p.snapshots.keep(snap)
	h := snap.Header
	p.log.Info("sending a snapshot", zap.Stringer("to", req.Node), zap.String("id", snap.ID),
		zap.Uint64("bytes", h.DataBytes),
		zap.Uint64("from_offset", offset))
	p.mu.Lock()
	config := p.cfg.Config
	p.mu.Unlock()
	holds, _ := holdsCommitted(p.o.Store, req.Committed)
	pacer := throttle.New(throttle.Limits{Governor: p.o.Store.Governor()})
	err = send(&SnapshotChunk{Header: &SnapshotHeader{
		ID: snap.ID, Position: h.Position, FileBytes: h.FileBytes, DataBytes: h.DataBytes,
		PageSize: uint32(h.PageSize), Config: config, Term: p.o.Term, HoldsCommitted: holds,
	}})
	var buf []byte
	for err == nil {
		if err := p.interrupted(ctx); err != nil {
			return err
		}
		at, data, rerr := snap.ReadNext(offset, p.o.SnapshotChunkBytes, &buf)
		if errors.Is(rerr, io.EOF) {
			err = send(&SnapshotChunk{Offset: offset, Finished: true})
			break
		}
		if rerr != nil {
			return fmt.Errorf("send snapshot: %w", rerr)
		}
		err = send(&SnapshotChunk{Offset: at, Data: data, Checksum: crc32.Checksum(data, castagnoli)})
		offset = at + uint64(len(data))
		if err == nil {
			err = p.pause(ctx, pacer, len(data), send)
		}
	}
	if err != nil {
		return fmt.Errorf("send snapshot: %w", err)
	}
	return nil
}

// pause waits for the pacer, and sends heartbeats.
func (p *Primary) pause(ctx context.Context, pacer *throttle.Pacer, bytes int, send func(*SnapshotChunk) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	paused := make(chan error, 1)
	go func() { paused <- pacer.Did(ctx, bytes) }()
	t := time.NewTicker(p.o.Heartbeat)
	defer t.Stop()
	for {
		select {
		case err := <-paused:
			return err
		case <-t.C:
			if p.io.stalled(p.o.DiskStallTimeout) {
				continue // a node with a stalled disk must not appear alive
			}
			if err := send(&SnapshotChunk{}); err != nil {
				return err
			}
		}
	}
}

func (p *Primary) interrupted(ctx context.Context) error {
	select {
	case <-p.stopped:
		return ErrNotActive
	case <-ctx.Done():
		return fmt.Errorf("send snapshot: %w", ctx.Err())
	default:
		return nil
	}
}

func (p *Primary) openSnapshot(req SnapshotRequest) (*store.Snapshot, uint64, error) {
	if _, err := uuid.Parse(req.ResumeID); err == nil {
		snap, err := p.o.Store.ResumeSnapshot(req.ResumeID)
		if err == nil {
			return snap, req.ResumeOffset, nil
		}
		if !errors.Is(err, store.ErrSnapshotGone) {
			return nil, 0, fmt.Errorf("resume snapshot: %w", err)
		}
	}
	snap, err := p.o.Store.OpenSnapshot()
	if err != nil {
		return nil, 0, fmt.Errorf("open snapshot: %w", err)
	}
	return snap, 0, nil
}
