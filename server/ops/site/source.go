// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/wal"
)

const (
	// heartbeat is the interval between responses while the log does not grow.
	heartbeat = 250 * time.Millisecond
	// minInterval is the minimum time between a response that contains all applied records and the next one.
	minInterval = 10 * time.Millisecond
)

// source streams the applied log of a primary to a replica.
type source struct {
	primary  *replication.Primary
	store    *store.Store
	reader   *wal.Reader
	read     uint64       // LSN of the last frame read
	sent     lsn.Position // position of the last frame sent
	applied  uint64       // LSN of the last applied record at the last call of next
	rest     []byte       // frames that were read but not sent, because they were not applied
	compress *compressor
	send     func(*pb.PullLogResponse) error
	caughtUp func()      // called when all applied records were sent
	limited  func() bool // reports whether the replica must report its position

	records, bytes uint64 // number and size of the records sent
}

// serveLog streams the log after the position in the request until ctx or the role ends. If the pair has no role,
// it becomes the primary of a new lineage.
func (m *Manager) serveLog(ctx context.Context, req *pb.PullLogRequest, send func(*pb.PullLogResponse) error) error {
	primary, err := m.active()
	if err != nil {
		return err
	}
	if m.o.Name == "" {
		return fmt.Errorf("%w: site.name is not set on the primary", ErrRole)
	}
	st, err := m.beginLineage(ctx, primary)
	if err != nil {
		return err
	}
	after := positionFromProto(req.GetAfter())
	if err := m.checkFollower(req, &st, after); err != nil {
		return err
	}
	// Retain the log after the replica's snapshot until it was sent.
	kept := m.seed.resume(after)
	defer m.seed.suspend(kept)
	s := &source{
		primary: primary, store: m.o.Store, read: after.LSN, sent: after, send: send,
		caughtUp: func() { m.seed.release(kept) }, limited: m.lag.limited,
	}
	if s.compress, err = newCompressor(); err != nil {
		return err
	}
	m.log.Info("replica connected", zap.String("site", req.GetSite()), zap.Stringer("after", after))
	err = s.run(ctx, m.state())
	m.log.Info("replica disconnected", zap.String("site", req.GetSite()), zap.Error(err))
	return err
}

// beginLineage makes a pair without a role the primary of a new lineage, and returns the state of this site.
func (m *Manager) beginLineage(ctx context.Context, primary *replication.Primary) (queue.SiteState, error) {
	st := m.o.Store.Site()
	if st.Role != queue.SiteNone {
		return st, nil
	}
	if err := m.inNoFleet(); err != nil {
		return st, err
	}
	if err := m.lockRole(ctx); err != nil {
		return st, err
	}
	defer m.unlockRole()
	if st = m.o.Store.Site(); st.Role == queue.SiteNone {
		if err := m.change(ctx, primary, txn.SiteChange{Action: txn.SiteStart, Lineage: uuid.New()}); err != nil {
			return st, err
		}
		st = m.o.Store.Site()
		m.log.Info("this pair is the primary site of a new lineage", zap.Stringer("lineage", st.Lineage))
	}
	return st, nil
}

// inNoFleet returns an error if the pair is a member of a fleet, in which it would create no queues after a switch. The
// configuration check does not detect a member without fleet.pair.
func (m *Manager) inNoFleet() error {
	if f := query.Fleet(m.o.Store); f.Member() {
		return fmt.Errorf("%w: this pair is a member of a fleet as %s; restart it with fleet.pair and without site.name, "+
			"and run lockstep fleet leave", ErrRole, f.Pair)
	}
	return nil
}

// checkFollower returns an error unless the replica can continue in this log after the given position.
func (m *Manager) checkFollower(req *pb.PullLogRequest, st *queue.SiteState, after lsn.Position) error {
	lineage := st.Lineage.String()
	switch {
	case st.Role == queue.SiteReplica:
		return fmt.Errorf("%w: site %s is a replica", ErrRole, m.o.Name)
	case req.GetLineage() != "" && req.GetLineage() != lineage:
		return fmt.Errorf("%w: lineage of the replica is %s, that of the primary %s", ErrDiverged, req.GetLineage(), lineage)
	case req.GetEpoch() > st.Epoch:
		return fmt.Errorf("%w: site %s has epoch %d, the replica has epoch %d", ErrRole, m.o.Name, st.Epoch, req.GetEpoch())
	case after.LSN < st.PromotedLSN:
		return fmt.Errorf("%w: the replica continues after record %d, the primary was promoted at record %d", ErrBehind,
			after.LSN, st.PromotedLSN)
	}
	if have, ok := m.o.Store.PositionOf(after.LSN); ok {
		if have != after {
			return fmt.Errorf("%w: record %d is %v at the replica, and %v at the primary", ErrDiverged, after.LSN, after, have)
		}
		return nil
	}
	start := m.o.Store.LogStart()
	switch {
	case after == start:
		return nil
	case after.LSN > start.LSN:
		return fmt.Errorf("%w: the replica has record %v, the log of the primary ends at %v", ErrDiverged, after,
			m.o.Store.Applied())
	default:
		return fmt.Errorf("%w: it continues after record %d, the log begins after record %d", ErrBehind, after.LSN,
			start.LSN)
	}
}

// run sends responses until ctx or the role ends.
func (s *source) run(ctx context.Context, state *pb.SiteState) (err error) {
	if s.reader, err = s.store.ReadLog(s.sent.LSN + 1); err != nil {
		return logError(err)
	}
	for first := true; ; first = false {
		advanced := s.primary.Advanced()
		resp, err := s.next()
		if err != nil {
			return logError(err)
		}
		if first {
			resp.Primary = state
		}
		sent := len(resp.GetFrames()) > 0
		if sent || first || s.idle(ctx, advanced) {
			resp.Now = timestamppb.Now() // before End: all transactions acknowledged until then are applied
			resp.End = positionToProto(s.store.Applied())
			resp.Report = s.limited()
			if err := s.send(resp); err != nil {
				return fmt.Errorf("send log records: %w", err)
			}
		}
		if sent && s.sent.LSN == s.applied {
			s.collect(ctx)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("send log records: %w", ctx.Err())
		case <-s.primary.Stopped():
			return replication.ErrNotActive
		default:
		}
	}
}

// collect calls caughtUp, and waits for minInterval. It returns early if ctx or the role ends.
func (s *source) collect(ctx context.Context) {
	s.caughtUp()
	timer := time.NewTimer(minInterval)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.primary.Stopped():
	case <-ctx.Done():
	}
}

// idle calls caughtUp, and waits until further records are applied, a heartbeat is due, or ctx or the role ends. It
// reports whether a heartbeat is due.
func (s *source) idle(ctx context.Context, advanced <-chan struct{}) bool {
	s.caughtUp()
	timer := time.NewTimer(heartbeat)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-advanced:
	case <-s.primary.Stopped():
	case <-ctx.Done():
	}
	return false
}

// next returns a response with the next applied frames. It does not wait for frames.
func (s *source) next() (*pb.PullLogResponse, error) {
	applied := s.store.Applied().LSN
	s.applied = applied
	if s.read < applied && len(s.rest) < batchBytes {
		if err := s.readMore(); err != nil {
			return nil, err
		}
	}
	resp := &pb.PullLogResponse{}
	part, at := s.rest, s.sent
	for len(part) > 0 && at.LSN < applied {
		f, rest, err := wal.NextFrame(part, at)
		if err != nil {
			return nil, fmt.Errorf("record after %v: %w", at, err)
		}
		part, at = rest, f.Pos
	}
	if n := len(s.rest) - len(part); n > 0 {
		resp.Frames, resp.UncompressedBytes = s.compress.compressLog(s.rest[:n:n])
		s.records, s.bytes = s.records+at.LSN-s.sent.LSN, s.bytes+uint64(n)
		s.rest, s.sent = part, at
	}
	if behind := max(applied, s.sent.LSN) - s.sent.LSN; s.records > 0 {
		resp.BehindBytes = behind * (s.bytes / s.records)
	}
	return resp, nil
}

// readMore appends the next frames of the log to rest.
func (s *source) readMore() error {
	unsent := slices.Clone(s.rest) // ReadBatch overwrites them
	frames, last, _, err := s.reader.ReadBatch(batchBytes - len(unsent))
	switch {
	case errors.Is(err, io.EOF):
		s.rest = unsent
		return nil
	case err != nil:
		return err
	case len(unsent) > 0:
		frames = append(unsent, frames...)
	}
	s.rest, s.read = frames, last.LSN
	return nil
}

func logError(err error) error {
	if errors.Is(err, wal.ErrTrimmed) {
		return fmt.Errorf("%w: %w", ErrBehind, err)
	}
	return err
}
