// SPDX-License-Identifier: Apache-2.0

package site

import (
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/lsn"
)

// rateWindow is the time over which the rate of received bytes is averaged.
const rateWindow = 5 * time.Second

// Progress describes how far a replica is behind its primary.
type Progress struct {
	// Connected reports whether a stream from the primary is open.
	Connected bool
	// HeardAt is the time, by the clock of the primary, at which End was the end of the primary's log. It is zero if
	// this node has received no end in the current epoch.
	HeardAt time.Time
	End     lsn.Position
	// Lag is the age, at HeardAt, of the oldest record up to End that the replica lacks; 0 if it lacks none, or if the
	// age is unknown.
	Lag time.Duration
	// LagRecords and LagBytes are the number and the approximate size of the records up to End that the replica
	// lacks.
	LagRecords, LagBytes uint64
	BytesPerSecond       uint64 // rate of received bytes, compressed
	ReceivedBytes        uint64 // compressed, since the start of the node
	Connections          uint64 // streams opened since the start of the node
}

// progress tracks the progress of a replica. Times are from the primary's clock, except for those in received.
type progress struct {
	mu       sync.Mutex // guards the fields below
	is       Progress
	epoch    uint64
	behind   uint64    // bytes in the primary's log that it has not sent
	applied  uint64    // LSN, in the primary's log, of the last applied record
	pending  uint64    // bytes that are received and not applied
	batches  []batch   // submitted and not applied, oldest first
	written  time.Time // lower bound of the write times of records that were not submitted; zero if unknown
	received []received
}

// batch describes consecutive records that were submitted together.
type batch struct {
	end     uint64    // LSN of the last record
	written time.Time // when the primary wrote the first record
}

type received struct {
	bytes uint64
	at    time.Time
}

// reset begins a stream at a position. A changed epoch means that the log is that of another primary.
func (p *progress) reset(at lsn.Position, epoch uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.epoch != epoch {
		p.epoch, p.behind, p.batches, p.written = epoch, 0, nil, time.Time{}
		p.is.HeardAt, p.is.End = time.Time{}, lsn.Position{}
	}
	if len(p.batches) > 0 {
		p.written = p.batches[0].written // their records will be received again
	}
	p.applied, p.pending, p.batches = at.LSN, 0, nil
}

func (p *progress) connected(is bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.is.Connected = is; is {
		p.is.Connections++
	}
}

// heard records the end of the primary's log as of a time by the primary's clock. behind is the number of bytes that
// the primary has not sent.
func (p *progress) heard(end lsn.Position, at time.Time, behind uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.is.End.LSN <= p.applied && p.is.HeardAt.After(p.written) {
		p.written = p.is.HeardAt // no record was missing then, so the missing records are newer
	}
	p.is.HeardAt, p.is.End, p.behind = at, end, behind
}

// got records a response with log records: wire is its compressed size as received, frames the size of the
// decompressed log frames.
func (p *progress) got(wire, frames int, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pending += uint64(frames)
	p.is.ReceivedBytes += uint64(wire)
	p.received = append(p.received, received{uint64(wire), now})
	p.dropOld(now)
}

func (p *progress) dropOld(now time.Time) {
	for len(p.received) > 0 && now.Sub(p.received[0].at) > rateWindow {
		p.received = p.received[1:]
	}
}

// submitted records that a batch is submitted: the LSN of its last record, and the times at which the primary wrote
// its first and its last record.
func (p *progress) submitted(end uint64, first, last time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.batches, p.written = append(p.batches, batch{end, first}), last
}

// reached records that all records up to LSN n of the primary are applied. bytes is the size of the records
// applied by this call.
func (p *progress) reached(n uint64, bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.applied = max(p.applied, n)
	p.pending -= min(p.pending, uint64(bytes))
	for len(p.batches) > 0 && p.batches[0].end <= p.applied {
		p.batches = p.batches[1:]
	}
}

// now returns the current progress.
func (p *progress) now(now time.Time) Progress {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := p.is
	if out.HeardAt.IsZero() {
		return out
	}
	if out.End.LSN > p.applied {
		out.LagRecords, out.LagBytes = out.End.LSN-p.applied, p.behind+p.pending
		oldest := p.written
		if len(p.batches) > 0 {
			oldest = p.batches[0].written
		}
		if !oldest.IsZero() {
			out.Lag = max(0, out.HeardAt.Sub(oldest))
		}
	}
	p.dropOld(now)
	sum := uint64(0)
	for _, r := range p.received {
		sum += r.bytes
	}
	out.BytesPerSecond = sum / uint64(rateWindow/time.Second)
	return out
}

func (p *Progress) toProto() *pb.SiteReplication {
	out := &pb.SiteReplication{
		Connected: p.Connected, PrimaryEnd: positionToProto(p.End), LagRecords: p.LagRecords, LagBytes: p.LagBytes,
		Lag: durationpb.New(p.Lag), BytesPerSecond: p.BytesPerSecond, Connections: p.Connections,
	}
	if !p.HeardAt.IsZero() {
		out.HeardAt = timestamppb.New(p.HeardAt)
	}
	return out
}
