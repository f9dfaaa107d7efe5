// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"go.uber.org/zap"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/throttle"
)

// pieceBytes is the maximum size of the data in one response, unless a single page is larger.
const pieceBytes = 512 << 10

// maxPieceBytes is the maximum size of the data in one response.
const maxPieceBytes = max(pieceBytes, page.MaxPageBytes)

// Causes for the cancellation of a snapshot transfer.
var (
	errReplaced = fmt.Errorf("%w: a later request for a snapshot has replaced this one", ErrRole)
	errLowDisk  = fmt.Errorf("%w: the disk of the primary is nearly full, so it does not retain its log", ErrBehind)
)

func checksumOf(data []byte) uint32 { return crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)) }

// serveSnapshot sends a new checkpoint of a primary to a replica, and retains the log after the checkpoint. If the
// pair has no role, it becomes the primary of a new lineage. For a detached copy, it calls serveCopy instead.
func (m *Manager) serveSnapshot(
	ctx context.Context, req *pb.PullSnapshotRequest, send func(*pb.PullSnapshotResponse) error,
) error {
	primary, err := m.active()
	switch {
	case err != nil:
		return err
	case req.GetDetached():
		return m.serveCopy(ctx, primary, send)
	}
	if m.o.Name == "" || req.GetSite() == "" || req.GetSite() == m.o.Name {
		return fmt.Errorf("%w: site.name is %q on the primary, and %q on the replica", ErrRole, m.o.Name, req.GetSite())
	}
	st, err := m.beginLineage(ctx, primary)
	if err != nil {
		return err
	}
	if st.Role != queue.SitePrimary {
		return fmt.Errorf("%w: role of site %s is %s, must be primary", ErrRole, m.o.Name, st.Role)
	}
	ctx, cancel := whileActive(ctx, primary)
	defer cancel(nil)
	// Write a checkpoint first: the snapshot must contain the lineage and the promotion of this site.
	if _, err := m.o.Store.Checkpoint(ctx); err != nil {
		return fmt.Errorf("write a checkpoint: %w", err)
	}
	snap, err := m.o.Store.OpenSnapshot()
	if err != nil {
		return fmt.Errorf("open snapshot: %w", err)
	}
	defer snap.Close()
	defer context.AfterFunc(ctx, snap.Close)() // a blocked send must not retain the pages of the snapshot
	after := snap.Header.Position.LSN
	defer m.seed.suspend(m.seed.begin(m.o.Store.HoldLog(after+1), after, cancel))
	m.log.Info("sending a snapshot to a replica", zap.String("site", req.GetSite()),
		zap.Uint64("bytes", snap.Header.DataBytes), zap.Uint64("lsn", after))
	err = m.sendSnapshot(ctx, snap, send)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = fmt.Errorf("send snapshot: %w", cause)
	}
	m.log.Info("snapshot for a replica ended", zap.String("site", req.GetSite()), zap.Error(err))
	return err
}

// serveCopy sends a new checkpoint to the receiver of a detached copy, which does not become a replica.
func (m *Manager) serveCopy(
	ctx context.Context, primary *replication.Primary, send func(*pb.PullSnapshotResponse) error,
) error {
	ctx, cancel := whileActive(ctx, primary)
	defer cancel(nil)
	if _, err := m.o.Store.Checkpoint(ctx); err != nil {
		return fmt.Errorf("write a checkpoint: %w", err)
	}
	snap, err := m.o.Store.OpenSnapshot()
	if err != nil {
		return fmt.Errorf("open snapshot: %w", err)
	}
	defer snap.Close()
	defer context.AfterFunc(ctx, snap.Close)() // a blocked send must not retain the pages of the snapshot
	m.log.Info("sending a detached copy", zap.Uint64("bytes", snap.Header.DataBytes),
		zap.Uint64("lsn", snap.Header.Position.LSN))
	err = m.sendSnapshot(ctx, snap, send)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = fmt.Errorf("send snapshot: %w", cause)
	}
	m.log.Info("detached copy ended", zap.Error(err))
	return err
}

// whileActive returns a context that ends when this node is no longer active. The caller must cancel it.
func whileActive(
	ctx context.Context, primary *replication.Primary,
) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-primary.Stopped():
			cancel(replication.ErrNotActive)
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

func (m *Manager) sendSnapshot(
	ctx context.Context, snap *store.Snapshot, send func(*pb.PullSnapshotResponse) error,
) error {
	c, err := newCompressor()
	if err != nil {
		return err
	}
	h := snap.Header
	err = send(&pb.PullSnapshotResponse{Snapshot: &pb.SiteSnapshot{
		Primary: m.state(), Position: positionToProto(h.Position), FileBytes: h.FileBytes, DataBytes: h.DataBytes,
		PageSize: uint32(h.PageSize),
	}})
	pacer := throttle.New(throttle.Limits{Governor: m.o.Store.Governor()})
	var buf []byte
	for offset := uint64(0); err == nil; {
		at, data, rerr := snap.ReadNext(offset, pieceBytes, &buf)
		if errors.Is(rerr, io.EOF) {
			err = send(&pb.PullSnapshotResponse{Offset: offset, Finished: true})
			break
		}
		if rerr != nil {
			return fmt.Errorf("read snapshot: %w", rerr)
		}
		offset = at + uint64(len(data))
		resp := &pb.PullSnapshotResponse{Offset: at, Checksum: checksumOf(data)}
		resp.Data, resp.UncompressedBytes = c.compress(data)
		if err = send(resp); err == nil {
			err = pacer.Did(ctx, len(data))
		}
	}
	if err != nil {
		return fmt.Errorf("send snapshot: %w", err)
	}
	return nil
}

// ReleaseLog ends the transfer of a snapshot and releases the log that is retained for its receiver.
func (m *Manager) ReleaseLog() {
	if k := m.seed.last(); k != nil {
		m.log.Warn("disk nearly full: log after the snapshot for a replica is not retained",
			zap.Uint64("after", k.after))
		m.seed.drop(k, errLowDisk)
	}
}
