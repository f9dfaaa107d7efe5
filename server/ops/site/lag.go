// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/queue"
)

const (
	// lagInterval is the interval at which a primary with a lag limit measures the lag of the replica. The replica
	// reports its position at the same interval.
	lagInterval = 100 * time.Millisecond
	// maxWriteWait is the maximum time that a write waits for the replica. After it, the write is refused.
	maxWriteWait = 5 * time.Second
	// lagSamples is the maximum number of samples while the lag is within the limit. While writes wait, at most
	// maxLagSamples samples are retained.
	lagSamples    = 64
	maxLagSamples = 4 * lagSamples
)

// Lag is the lag of the replica, as measured by a primary with a lag limit.
type Lag struct {
	// Held reports whether writes wait for the replica. They are refused after maxWriteWait.
	Held bool
	// Age is the age of the oldest transaction that the replica has not confirmed; 0 if it has confirmed all. Limit
	// is the configured limit.
	Age, Limit time.Duration
}

// sample is the end of the primary's log at a time.
type sample struct {
	end uint64
	at  time.Time
}

// lagLimit makes the writes of a primary wait while the lag of its replica exceeds the limit.
type lagLimit struct {
	wake chan struct{} // capacity 1

	mu      sync.Mutex // guards the fields below
	limit   time.Duration
	is      Lag
	primary *replication.Primary // the primary to which the fields below belong
	epoch   uint64
	// confirmed is the LSN of the last record that the replica has applied; 0 if unknown. begun is set by the first
	// report.
	confirmed uint64
	begun     bool
	samples   []sample // of the log end, oldest first; confirmed samples are removed
}

// SetMaxLag sets the lag limit; 0 means no limit.
func (m *Manager) SetMaxLag(limit time.Duration) {
	m.lag.mu.Lock()
	m.lag.limit = limit
	m.lag.mu.Unlock()
	m.lag.notify()
}

func (l *lagLimit) notify() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// limited reports whether a limit is set.
func (l *lagLimit) limited() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.limit > 0
}

func (l *lagLimit) now() Lag {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.is
}

// begin discards the samples if the primary or the epoch has changed. mu must be held.
func (l *lagLimit) begin(primary *replication.Primary, epoch uint64) {
	if l.primary != primary || l.epoch != epoch {
		l.primary, l.epoch, l.confirmed, l.begun, l.samples = primary, epoch, 0, false, nil
	}
}

// confirm records that the replica has applied all records up to LSN n.
func (l *lagLimit) confirm(primary *replication.Primary, epoch, n uint64) {
	l.mu.Lock()
	l.begin(primary, epoch)
	l.confirmed, l.begun = max(l.confirmed, n), true
	l.mu.Unlock()
	l.notify()
}

// measure updates the lag and returns it. applied is the LSN of the last record that this primary has applied.
func (l *lagLimit) measure(primary *replication.Primary, st *queue.SiteState, applied uint64, now time.Time) Lag {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.limit == 0 {
		l.samples = nil // if a limit is set later, it applies only to later records
	}
	if primary == nil || st.Role != queue.SitePrimary || l.limit == 0 {
		l.is = Lag{}
		return l.is
	}
	l.begin(primary, st.Epoch)
	if !l.begun && st.LossyEpoch == st.Epoch {
		l.is = Lag{Limit: l.limit} // the former primary may be lost: the limit applies when it has become the replica
		return l.is
	}
	for len(l.samples) > 0 && l.samples[0].end <= l.confirmed {
		l.samples = l.samples[1:]
	}
	last := len(l.samples) - 1
	if applied > l.confirmed && (last < 0 || applied > l.samples[last].end &&
		now.Sub(l.samples[last].at) >= l.limit/lagSamples) && len(l.samples) < maxLagSamples {
		l.samples = append(l.samples, sample{applied, now})
	}
	l.is = Lag{Limit: l.limit}
	if len(l.samples) > 0 {
		l.is.Age = now.Sub(l.samples[0].at)
	}
	l.is.Held = l.is.Age > l.limit
	return l.is
}

// limitLag makes the writes of this primary wait while the lag of the replica exceeds the limit, until ctx ends.
func (m *Manager) limitLag(ctx context.Context) {
	var held *replication.Primary // the primary with waiting writes; nil if no writes wait
	defer func() {
		if held != nil {
			held.HoldWrites(nil, 0)
		}
	}()
	for ctx.Err() == nil {
		changed := m.o.Store.SiteChanged()
		m.mu.Lock()
		primary, wake := m.primary, m.wake
		m.mu.Unlock()
		st := m.o.Store.Site()
		lag := m.lag.measure(primary, &st, m.o.Store.Applied().LSN, time.Now())
		if held != nil && (!lag.Held || held != primary) {
			held.HoldWrites(nil, 0)
			held = nil
			m.log.Info("writes are no longer refused because of site.max-lag")
			m.o.Changed()
		}
		if held == nil && lag.Held {
			held = primary
			held.HoldWrites(apierror.ErrSiteLag, maxWriteWait)
			m.log.Warn("lag of the replica exceeds site.max-lag: writes are refused", zap.Duration("lag", lag.Age),
				zap.Duration("limit", lag.Limit))
			m.o.Changed()
		}
		m.awaitLag(ctx, lag.Limit > 0, wake, changed)
	}
}

// awaitLag waits until the lag must be measured again: after lagInterval if limited, or when notified.
func (m *Manager) awaitLag(ctx context.Context, limited bool, wake, changed <-chan struct{}) {
	var again <-chan time.Time
	if limited {
		timer := time.NewTimer(lagInterval)
		defer timer.Stop()
		again = timer.C
	}
	select {
	case <-again:
	case <-m.lag.wake:
	case <-wake:
	case <-changed:
	case <-ctx.Done():
	}
}

// ReportPosition records the position up to which a replica has applied the log of this primary.
func (m *Manager) ReportPosition(req *pb.ReportPositionRequest) error {
	primary, err := m.active()
	if err != nil {
		return err
	}
	st, at := m.o.Store.Site(), positionFromProto(req.GetApplied())
	switch {
	case st.Role != queue.SitePrimary && st.Role != queue.SiteStopped:
		return fmt.Errorf("%w: site %s is not a primary", ErrRole, m.o.Name)
	case st.Lineage.String() != req.GetLineage() || st.Epoch != req.GetEpoch():
		return fmt.Errorf("%w: site %s has lineage %s and epoch %d, the replica %s and %d", ErrRole, m.o.Name, st.Lineage,
			st.Epoch, req.GetLineage(), req.GetEpoch())
	}
	if have, ok := m.o.Store.PositionOf(at.LSN); ok && have != at || at.LSN > m.o.Store.Applied().LSN {
		return fmt.Errorf("%w: the replica has record %v, which is not in this log", ErrDiverged, at)
	}
	m.lag.confirm(primary, st.Epoch, at.LSN)
	return nil
}

// reportPositions reports the applied position of a replica to its primary while the primary requests such
// reports. It returns when ctx ends.
func (m *Manager) reportPositions(ctx context.Context, p *puller, address string) {
	select {
	case <-p.wanted:
	case <-ctx.Done():
		return
	}
	var last lsn.Position
	ticker := time.NewTicker(lagInterval)
	defer ticker.Stop()
	for {
		if at, wanted := p.appliedAt(); wanted && at != last && m.report(ctx, p, address, at) == nil {
			last = at
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func (m *Manager) report(ctx context.Context, p *puller, address string, at lsn.Position) error {
	c, err := m.remote.client(address)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err = c.ReportPosition(ctx, &pb.ReportPositionRequest{
		Lineage: p.lineage.String(), Epoch: p.epoch, Applied: positionToProto(at),
	})
	return fromStatus(err)
}
