// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/klauspost/compress/zstd"
	"google.golang.org/grpc"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// maxEnvelopeBytes is the maximum size of an envelope without its transaction.
const maxEnvelopeBytes = 80

// errRoleChanged is returned if the state of this site no longer permits it to commit the transactions of the
// primary.
var errRoleChanged = errors.New("role of this site has changed")

// puller commits the transactions of one stream. It runs on the active of a replica.
type puller struct {
	primary  *replication.Primary // of this pair
	progress *progress
	decoder  *zstd.Decoder
	lineage  uuid.UUID
	epoch    uint64
	offset   uint64        // difference between the logical number of a record and its LSN in the primary's log
	wanted   chan struct{} // closed when the primary first requests reports of the position

	mu      sync.Mutex   // guards the fields below
	seen    lsn.Position // position of the last record that was submitted or skipped
	applied lsn.Position // position of the last applied transaction
	report  bool         // the primary requests position reports
	pending int          // number of transactions that are submitted and not applied
	limit   uint64       // LSN of the last record that may be submitted
	failed  error
	ended   bool          // the stream has ended, and all submitted transactions have an outcome
	reached chan struct{} // closed and replaced when one of the fields above changes
}

// noLimit permits the submission of all records.
const noLimit = math.MaxUint64

func newPuller(primary *replication.Primary, p *progress, st *queue.SiteState, at lsn.Position) (*puller, error) {
	d, err := newDecompressor()
	if err != nil {
		return nil, err
	}
	return &puller{
		primary: primary, progress: p, decoder: d, lineage: st.Lineage, epoch: st.Epoch, seen: at, applied: at,
		limit: noLimit, reached: make(chan struct{}), wanted: make(chan struct{}),
	}, nil
}

// run commits the transactions of a stream until the stream ends. It returns when all submitted transactions have
// an outcome.
func (p *puller) run(ctx context.Context, first *pb.PullLogResponse,
	stream grpc.ServerStreamingClient[pb.PullLogResponse],
) error {
	defer p.decoder.Close()
	p.offset = first.GetPrimary().GetLogicalOffset()
	resp, err := first, error(nil)
	for ; err == nil; resp, err = stream.Recv() {
		if err = p.take(ctx, resp); err != nil {
			break
		}
	}
	p.settle()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	p.wake()
	if p.failed != nil {
		return p.failed
	}
	return err
}

// settle waits until all submitted transactions have an outcome.
func (p *puller) settle() {
	for {
		p.mu.Lock()
		pending, reached := p.pending, p.reached
		p.mu.Unlock()
		if pending == 0 {
			return
		}
		<-reached
	}
}

// take submits the transactions of a response. It waits while a limit prevents that.
func (p *puller) take(ctx context.Context, resp *pb.PullLogResponse) error {
	frames, err := decompress(p.decoder, resp.GetFrames(), resp.GetUncompressedBytes())
	if err != nil {
		return err
	}
	if len(frames) > 0 {
		p.progress.got(len(resp.GetFrames()), len(frames), time.Now())
	}
	p.requestReports(resp.GetReport())
	for {
		limit := uint64(noLimit)
		if len(frames) > 0 {
			if limit, err = p.awaitLimit(ctx); err != nil {
				return err
			}
		}
		if frames, err = p.submit(ctx, frames, limit); err != nil {
			return err
		}
		if len(frames) == 0 {
			break
		}
	}
	p.progress.heard(positionFromProto(resp.GetEnd()), resp.GetNow().AsTime(), resp.GetBehindBytes())
	return nil
}

// awaitLimit waits until the next record may be submitted. It returns the LSN of the last record that may be
// submitted.
func (p *puller) awaitLimit(ctx context.Context) (uint64, error) {
	for {
		p.mu.Lock()
		seen, limit, failed, reached := p.seen, p.limit, p.failed, p.reached
		p.mu.Unlock()
		if failed != nil || seen.LSN < limit {
			return limit, failed
		}
		select {
		case <-reached:
		case <-ctx.Done():
			return 0, fmt.Errorf("records of the primary after %v: %w", seen, ctx.Err())
		}
	}
}

// setLimit permits the submission of records up to LSN n.
func (p *puller) setLimit(n uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit = n
	p.wake()
}

// hold prevents the submission of records after the last record seen.
func (p *puller) hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit = p.seen.LSN
}

// submit submits the transactions of frames up to LSN limit, and returns the remaining frames.
func (p *puller) submit(ctx context.Context, frames []byte, limit uint64) ([]byte, error) {
	p.mu.Lock()
	at, failed := p.seen, p.failed
	p.mu.Unlock()
	if failed != nil {
		return nil, failed
	}
	var (
		items       []replication.Item
		first, last time.Time
		all         = len(frames)
	)
	for len(frames) > 0 && at.LSN < limit {
		f, rest, err := wal.DecodeFrame(frames, at)
		if err != nil {
			return nil, fmt.Errorf("record of the primary after %v: %w", at, err)
		}
		frames, at = rest, f.Pos
		if f.Kind != wal.KindTxn {
			continue
		}
		if payload := p.envelope(f); payload != nil {
			last = writtenAt(f)
			if len(items) == 0 {
				first = last
			}
			items = append(items, replication.Item{Payload: payload, Site: true, Done: p.done(f.Pos)})
		}
	}
	p.mu.Lock()
	p.seen, p.pending = at, p.pending+len(items)
	p.wake()
	p.mu.Unlock()
	bytes := all - len(frames)
	if len(items) == 0 {
		p.progress.reached(0, bytes)
	} else {
		p.progress.submitted(at.LSN, first, last)
		end := &items[len(items)-1]
		done := end.Done
		end.Done = func(r *txn.Result, err error) {
			p.progress.reached(at.LSN, bytes)
			done(r, err)
		}
		if err := p.primary.SubmitAll(ctx, items); err != nil {
			err = fmt.Errorf("commit transactions of the primary: %w", err)
			p.mu.Lock()
			p.pending, p.failed = p.pending-len(items), err // awaitRecord must not count the rejected items as applied
			p.wake()
			p.mu.Unlock()
			return nil, err
		}
	}
	p.caughtUp(at)
	return frames, nil
}

// caughtUp advances the progress to a position if no transaction is pending, as after records without
// transactions.
func (p *puller) caughtUp(at lsn.Position) {
	p.mu.Lock()
	idle := p.pending == 0 && p.failed == nil
	p.mu.Unlock()
	if idle {
		p.progress.reached(at.LSN, 0)
	}
}

// envelope returns the payload to commit for a record of the primary, or nil for a record that had no effect.
func (p *puller) envelope(f wal.Frame) []byte {
	if len(f.Payload) > 0 && f.Payload[0] == txn.SiteVersion {
		return nil // the primary committed it before its promotion, and rejected it
	}
	s := txn.Site{Lineage: p.lineage, Epoch: p.epoch, Upstream: f.Pos, Logical: f.Pos.LSN + p.offset}
	return txn.AppendSite(make([]byte, 0, len(f.Payload)+maxEnvelopeBytes), &s, f.Payload)
}

// writtenAt returns the time of the transaction in a frame, by the clock of the primary. The precision is 1 ms.
func writtenAt(f wal.Frame) time.Time {
	var r txn.Reader
	if r.Reset(f.Payload) != nil {
		return time.Time{} // applying it will fail
	}
	return time.UnixMilli(r.TimeMS())
}

// done returns the completion callback for the transaction at a position.
func (p *puller) done(at lsn.Position) replication.Done {
	return func(r *txn.Result, err error) {
		if err == nil && (r.Code == txn.ErrReplica || r.Code == txn.ErrSitePosition) {
			err = fmt.Errorf("%w: record %d of the primary: %w", errRoleChanged, at.LSN, r.Code)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.pending--
		if err == nil {
			p.applied = at
		}
		if err != nil && p.failed == nil {
			p.failed = err
		}
		p.wake()
	}
}

// requestReports records whether the primary requests position reports.
func (p *puller) requestReports(is bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.report = is
	select {
	case <-p.wanted:
	default:
		if is {
			close(p.wanted)
		}
	}
}

// appliedAt returns the position in the primary's log up to which all records are applied. It also returns
// whether the primary requests reports of that position.
func (p *puller) appliedAt() (at lsn.Position, report bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pending == 0 && p.failed == nil {
		return p.seen, p.report
	}
	return p.applied, p.report
}

// wake wakes the functions that wait for a change. mu must be held.
func (p *puller) wake() {
	close(p.reached)
	p.reached = make(chan struct{})
}

// errEnded is returned by await if the stream has ended.
var errEnded = errors.New("stream with the primary has ended")

// await waits until all records up to LSN n of the primary are applied. It returns the position of the last
// received record.
func (p *puller) await(ctx context.Context, n uint64) (lsn.Position, error) {
	for {
		p.mu.Lock()
		seen, pending, failed, ended, reached := p.seen, p.pending, p.failed, p.ended, p.reached
		p.mu.Unlock()
		switch {
		case failed != nil:
			return seen, failed
		case seen.LSN >= n && pending == 0:
			return seen, nil
		case ended:
			return seen, errEnded
		}
		select {
		case <-reached:
		case <-ctx.Done():
			return seen, fmt.Errorf("record %d of the primary, after %v: %w", n, seen, ctx.Err())
		}
	}
}

// awaitRecord ends a hold and waits until all records up to a position of the primary are applied.
func (p *puller) awaitRecord(ctx context.Context, at lsn.Position) error {
	p.setLimit(noLimit)
	seen, err := p.await(ctx, at.LSN)
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("%w: the replica has not received record %v in time: %w", ErrSwitch, at, ctx.Err())
	case err != nil:
		return err
	default:
		return sameRecord(at, seen)
	}
}

// sameRecord returns ErrDiverged if the positions have the same LSN, but are not the same record.
func sameRecord(at, seen lsn.Position) error {
	if seen.LSN == at.LSN && seen != at {
		return fmt.Errorf("%w: record %v of the primary is %v here", ErrDiverged, at, seen)
	}
	return nil
}
