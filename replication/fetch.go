// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/lockstep-mq/lockstep/store"
)

const snapshotBurstBytes = 4 << 20

// fetch receives a snapshot and installs it. If the connection ends, the next call resumes after the received chunks,
// unless the active has closed the snapshot.
func (f *Follower) fetch(ctx context.Context, conn Conn) error {
	id := f.o.Store.Identity()
	req := SnapshotRequest{Pair: id.PairID, Node: id.NodeID, Config: id.Fence.Config}
	if !f.confirmed {
		req.Committed = f.committedPosition()
	}
	if f.install != nil {
		req.ResumeID, req.ResumeOffset = f.installID, f.install.Offset()
	}
	stream, err := conn.FetchSnapshot(ctx, req)
	if err != nil {
		return fmt.Errorf("fetch snapshot: %w", err)
	}
	first, err := stream.Recv()
	if err != nil {
		return fmt.Errorf("fetch snapshot: %w", err)
	}
	f.received.Store(true)
	h := first.Header
	if h == nil {
		return fmt.Errorf("%w: first chunk of the snapshot has no header", ErrProtocol)
	}
	if err := f.admit(h.Config, h.Term); err != nil {
		return err
	}
	if err := f.checkSnapshot(h); err != nil {
		return err
	}
	if err := f.beginInstall(h); err != nil {
		return err
	}
	f.connected(h.Config, h.Term)
	f.snapshotProgress(f.install.Offset(), h.FileBytes)
	defer f.snapshotProgress(0, 0)
	if err := f.receiveChunks(ctx, stream, h); err != nil {
		return err
	}
	f.busy.Store(true)
	defer f.busy.Store(false)
	if err := f.awaitApplier(ctx); err != nil { // the applier must not apply the old history to the new store
		return err
	}
	if err := f.saveDiscarded(); err != nil {
		return err
	}
	install := f.install
	f.install = nil
	if err := install.Commit(); err != nil {
		return fmt.Errorf("%w: install snapshot: %w", errStore, err)
	}
	f.events.post(SnapshotInstalled{Position: h.Position})
	return nil
}

func (f *Follower) beginInstall(h *SnapshotHeader) error {
	if f.install != nil && f.installID == h.ID {
		f.log.Info("snapshot transfer resumes", zap.String("id", h.ID), zap.Uint64("offset", f.install.Offset()))
		return nil
	}
	f.dropInstall()
	install, err := f.o.Store.BeginInstall(store.SnapshotHeader{
		Position: h.Position, FileBytes: h.FileBytes, DataBytes: h.DataBytes, PageSize: int(h.PageSize),
	})
	if err != nil {
		return fmt.Errorf("prepare to receive the snapshot: %w", err)
	}
	f.install, f.installID = install, h.ID
	f.log.Info("receiving a snapshot", zap.String("id", h.ID), zap.Stringer("position", h.Position),
		zap.Uint64("bytes", h.DataBytes))
	return nil
}

func (f *Follower) receiveChunks(ctx context.Context, stream SnapshotStream, h *SnapshotHeader) error {
	limiter := rate.NewLimiter(rate.Inf, 0)
	if bound := f.o.SnapshotBytesPerSecond; bound != nil {
		if limit := bound(); limit > 0 {
			limiter = rate.NewLimiter(rate.Limit(limit), snapshotBurstBytes)
		}
	}
	for {
		c, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("fetch snapshot: %w", io.ErrUnexpectedEOF)
		}
		if err != nil {
			return fmt.Errorf("fetch snapshot: %w", err)
		}
		f.received.Store(true)
		if err := f.writeChunk(ctx, c, h, limiter); err != nil {
			return err
		}
		if c.Finished {
			return nil
		}
	}
}

// writeChunk verifies and writes a chunk, and waits for the rate limit. It sets busy.
func (f *Follower) writeChunk(ctx context.Context, c *SnapshotChunk, h *SnapshotHeader, limiter *rate.Limiter) error {
	f.busy.Store(true)
	defer f.busy.Store(false)
	if crc32.Checksum(c.Data, castagnoli) != c.Checksum {
		return fmt.Errorf("%w: snapshot at offset %d", ErrChecksum, c.Offset)
	}
	if len(c.Data) == 0 {
		return nil // a heartbeat, or the end
	}
	if c.Offset+uint64(len(c.Data)) > h.FileBytes {
		return fmt.Errorf("%w: snapshot of %d bytes has data at offset %d", ErrProtocol, h.FileBytes, c.Offset)
	}
	if err := f.checkSpace(len(c.Data)); err != nil {
		return err
	}
	if err := f.install.WriteAt(c.Offset, c.Data); err != nil {
		return fmt.Errorf("receive snapshot: %w", err)
	}
	f.snapshotProgress(f.install.Offset(), h.FileBytes)
	for left := len(c.Data); left > 0; left -= snapshotBurstBytes {
		if err := limiter.WaitN(ctx, min(left, snapshotBurstBytes)); err != nil {
			return fmt.Errorf("fetch snapshot: %w", err)
		}
	}
	return nil
}

func (f *Follower) snapshotProgress(received, total uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.SnapshotBytes, f.status.SnapshotTotalBytes = received, total
}

func (f *Follower) dropInstall() {
	if f.install != nil {
		f.install.Abort()
		f.install = nil
	}
}
