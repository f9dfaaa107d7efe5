// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"errors"
	"fmt"
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

// maxEnvelopeBytes is the size of an envelope without its transaction.
const maxEnvelopeBytes = 80

// errRoleChanged is returned if the state of this site no longer permits the transactions of the primary.
var errRoleChanged = errors.New("role of this site has changed")

// puller commits the transactions of one stream on the active of a replica.
type puller struct {
	primary  *replication.Primary // of this pair
	progress *progress
	decoder  *zstd.Decoder
	lineage  uuid.UUID
	epoch    uint64
	offset   uint64        // added to an LSN of the primary's log: the logical number
	wanted   chan struct{} // closed when the primary first requests reports of the position

	mu      sync.Mutex // guards the fields below
	seen    lsn.Position
	applied lsn.Position // the last transaction applied
	report  bool         // the primary requests reports
	pending int          // transactions submitted and not applied
	failed  error
	reached chan struct{} // closed and replaced when seen or pending changes, or after a failure
}

func newPuller(primary *replication.Primary, p *progress, st *queue.SiteState, at lsn.Position) (*puller, error) {
	d, err := newDecompressor()
	if err != nil {
		return nil, err
	}
	return &puller{
		primary: primary, progress: p, decoder: d, lineage: st.Lineage, epoch: st.Epoch, seen: at, applied: at,
		reached: make(chan struct{}), wanted: make(chan struct{}),
	}, nil
}

// run commits the transactions of a stream until it ends. It returns when all submitted transactions have an outcome.
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

// take submits the transactions of a response.
func (p *puller) take(ctx context.Context, resp *pb.PullLogResponse) error {
	frames, err := decompress(p.decoder, resp.GetFrames(), resp.GetUncompressedBytes())
	if err != nil {
		return err
	}
	if len(frames) > 0 {
		p.progress.got(len(resp.GetFrames()), len(frames), time.Now())
	}
	p.mu.Lock()
	at, failed := p.seen, p.failed
	p.mu.Unlock()
	if failed != nil {
		return failed
	}
	p.requestReports(resp.GetReport())
	var items []replication.Item
	bytes := len(frames)
	for len(frames) > 0 {
		f, rest, err := wal.DecodeFrame(frames, at)
		if err != nil {
			return fmt.Errorf("record of the primary after %v: %w", at, err)
		}
		frames, at = rest, f.Pos
		if f.Kind != wal.KindTxn {
			continue
		}
		if payload := p.envelope(f); payload != nil {
			items = append(items, replication.Item{Payload: payload, Site: true, Done: p.done(f.Pos)})
		}
	}
	p.mu.Lock()
	p.seen, p.pending = at, p.pending+len(items)
	p.wake()
	p.mu.Unlock()
	if len(items) == 0 {
		p.progress.reached(0, bytes)
	} else {
		last := &items[len(items)-1]
		done := last.Done
		last.Done = func(r *txn.Result, err error) {
			p.progress.reached(at.LSN, bytes)
			done(r, err)
		}
		if err := p.primary.SubmitAll(ctx, items); err != nil {
			err = fmt.Errorf("commit transactions of the primary: %w", err)
			p.mu.Lock()
			p.pending, p.failed = p.pending-len(items), err // awaitRecord must not count them as applied
			p.wake()
			p.mu.Unlock()
			return err
		}
	}
	p.caughtUp(at)
	p.progress.heard(positionFromProto(resp.GetEnd()), resp.GetNow().AsTime(), resp.GetBehindBytes())
	return nil
}

// caughtUp advances the progress over records without transactions.
func (p *puller) caughtUp(at lsn.Position) {
	p.mu.Lock()
	idle := p.pending == 0 && p.failed == nil
	p.mu.Unlock()
	if idle {
		p.progress.reached(at.LSN, 0)
	}
}

// envelope returns the payload to commit for a record of the primary, or nil for one without effect. The store handles
// changes of the role of the primary, and transactions that it refused while it was stopped.
func (p *puller) envelope(f wal.Frame) []byte {
	if len(f.Payload) > 0 && f.Payload[0] == txn.SiteVersion {
		return nil // it was committed before the promotion of the primary, and rejected
	}
	s := txn.Site{Lineage: p.lineage, Epoch: p.epoch, Upstream: f.Pos, Logical: f.Pos.LSN + p.offset}
	return txn.AppendSite(make([]byte, 0, len(f.Payload)+maxEnvelopeBytes), &s, f.Payload)
}

// done returns the callback for the transaction of a record.
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

// requestReports records whether the primary requests reports of the position.
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

// appliedAt returns the record of the primary up to which everything is applied, and whether the primary requests it.
func (p *puller) appliedAt() (at lsn.Position, report bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pending == 0 && p.failed == nil {
		return p.seen, p.report
	}
	return p.applied, p.report
}

// wake wakes awaitRecord and settle. mu is held.
func (p *puller) wake() {
	close(p.reached)
	p.reached = make(chan struct{})
}

// awaitRecord waits until everything up to a record of the primary is applied.
func (p *puller) awaitRecord(ctx context.Context, at lsn.Position) error {
	for {
		p.mu.Lock()
		seen, pending, failed, reached := p.seen, p.pending, p.failed, p.reached
		p.mu.Unlock()
		switch {
		case failed != nil:
			return failed
		case seen.LSN >= at.LSN && pending == 0:
			if seen.LSN == at.LSN && seen != at {
				return fmt.Errorf("%w: record %v of the primary is %v here", ErrDiverged, at, seen)
			}
			return nil
		}
		select {
		case <-reached:
		case <-ctx.Done():
			return fmt.Errorf("%w: the replica has not received record %v in time: %w", ErrSwitch, at, ctx.Err())
		}
	}
}
