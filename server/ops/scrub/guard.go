// SPDX-License-Identifier: Apache-2.0

// Package scrub implements the integrity checks of a pair. It reads all data from disk periodically (scrub), repairs
// corruption with data of the other node, and compares both nodes.
package scrub

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/server/delivery/session"
	"github.com/lockstep-mq/lockstep/server/ops/maintenance"
	"github.com/lockstep-mq/lockstep/server/ops/settings"
	"github.com/lockstep-mq/lockstep/server/peerclient"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/repair"
	"github.com/lockstep-mq/lockstep/store/throttle"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	// guardTick is the interval of the checks for a corrupt index.
	guardTick      = 100 * time.Millisecond
	repairInterval = 2 * time.Second
	// The first scrub and the first comparison are delayed.
	firstScrub    = time.Minute
	firstVerify   = 10 * time.Second
	handOverRetry = time.Second
	// maxDropped is the maximum number of messages that one transaction of DropDamaged acknowledges.
	maxDropped = 1000
)

// Options configures New.
type Options struct {
	Store    *store.Store
	Settings *settings.Settings
	Runner   *failover.Runner
	Manager  *maintenance.Manager
	Peers    *peerclient.Peers
	// Serving provides the session in which transactions are committed.
	Serving *session.Current
	// Resync starts to replace the node's store with a snapshot of the active. It returns false if this node does not
	// follow an active.
	Resync func(cause error) bool
	// HandOver makes the other node active.
	HandOver func(ctx context.Context) error
	Logger   *zap.Logger
}

// Guard checks the integrity of a node's data. It is safe for concurrent use.
type Guard struct {
	o   Options
	log *zap.Logger
}

// New creates a guard. The caller must call Run.
func New(o Options) *Guard { return &Guard{o: o, log: o.Logger} }

// Run scrubs, repairs and compares periodically until ctx ends.
func (g *Guard) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { g.watchIndex(ctx) })
	running.Go(func() { g.every(ctx, repairInterval, repairInterval, g.repair) })
	c := g.o.Settings.Live()
	if d := c.Scrub.Interval.Std(); d > 0 {
		running.Go(func() { g.every(ctx, min(d, firstScrub), d, g.scrubNow) })
	}
	if d := c.Verify.Interval.Std(); d > 0 && !g.alone() {
		running.Go(func() { g.every(ctx, min(d, firstVerify), d, g.verifyNow) })
	}
	running.Wait()
}

func (g *Guard) alone() bool { return g.o.Settings.Live().Alone() }

func (g *Guard) every(ctx context.Context, first, interval time.Duration, fn func(context.Context)) {
	timer := time.NewTimer(first)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		start := time.Now()
		fn(ctx)
		timer.Reset(max(interval-time.Since(start), time.Millisecond))
	}
}

func (g *Guard) repair(ctx context.Context) {
	st := g.o.Store.Repair().Status()
	if st.DamagedMessages > 0 || st.DamagedLogLSN != 0 || st.SuspectPages > 0 {
		if _, err := g.o.Store.Repair().RepairAll(ctx); err != nil && ctx.Err() == nil {
			g.log.Warn("repair of corrupt data failed", zap.Error(err))
		}
	}
}

func (g *Guard) scrubNow(ctx context.Context) {
	_, err := g.o.Store.Repair().Scrub(ctx, g.o.Store.Pace(ctx, g.o.Settings.Live().Scrub.Rate.Bytes()))
	if err != nil && ctx.Err() == nil {
		g.log.Warn("scrub not finished; it starts again at the next interval", zap.Error(err))
	}
}

// Scrub reads all data from disk and records corruption. In contrast to the periodic scrub, its rate is not limited to
// scrub.rate. Unless fullSpeed is set, it pauses for clients like other background work.
func (g *Guard) Scrub(ctx context.Context, fullSpeed bool) (repair.ScrubResult, error) {
	if fullSpeed {
		ctx = throttle.FullSpeed(ctx)
	}
	return g.o.Store.Repair().Scrub(ctx, g.o.Store.Pace(ctx, 0))
}

// watchIndex replaces a store that has a corrupt index. A standby installs a snapshot of the active. An active
// first switches over to the standby. While no standby is in sync, or on a standalone node, the store is not replaced.
func (g *Guard) watchIndex(ctx context.Context) {
	ticker := time.NewTicker(guardTick)
	defer ticker.Stop()
	var tried time.Time
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		corruption := g.o.Store.Repair().Index()
		if corruption == nil {
			continue
		}
		if g.o.Resync(corruption) {
			continue
		}
		if g.alone() || time.Since(tried) < handOverRetry {
			continue
		}
		if _, err := g.o.Manager.Partner(); err != nil {
			continue
		}
		tried = time.Now()
		g.log.Warn("handing over to replace the corrupt store", zap.Error(corruption))
		if err := g.o.HandOver(ctx); err != nil && ctx.Err() == nil {
			g.log.Error("handover failed", zap.Error(err))
		}
	}
}

// DropDamaged acknowledges the corrupt messages of a queue, also for the retention, and returns their sequences. In a
// pair, it acknowledges only messages of which the other node is known to have no intact copy. If only is not empty,
// other sequences are ignored. With dryRun, it only returns the sequences. After an error, a part of the messages may
// be acknowledged.
func (g *Guard) DropDamaged(ctx context.Context, name string, only []uint64, dryRun bool) ([]uint64, error) {
	session, err := g.o.Serving.Session()
	if err != nil {
		return nil, err
	}
	info, err := query.QueueByName(g.o.Store, name)
	if errors.Is(err, store.ErrNoQueue) {
		return nil, txn.ErrQueueNotFound
	}
	if err != nil {
		return nil, err
	}
	selected := make(map[uint64]bool, len(only))
	for _, seq := range only {
		selected[seq] = true
	}
	var sequences []uint64
	for _, m := range g.o.Store.Repair().Damaged(math.MaxInt) {
		if m.Queue == info.ID && m.Lost && (len(only) == 0 || selected[m.Sequence]) {
			sequences = append(sequences, m.Sequence)
		}
	}
	if dryRun {
		return sequences, nil
	}
	for dropped := range slices.Chunk(sequences, maxDropped) {
		if err := g.drop(ctx, session, &info, dropped); err != nil {
			return nil, fmt.Errorf("commit: %w", err)
		}
	}
	return sequences, nil
}

// drop acknowledges messages for all subscriptions of a queue, including the hidden one of the retention.
func (g *Guard) drop(ctx context.Context, s *session.Session, queue *query.QueueInfo, sequences []uint64) error {
	ranges := make([]txn.Range, len(sequences))
	for i, seq := range sequences {
		ranges[i] = txn.Range{First: seq, Last: seq}
	}
	subs := make([]uint32, 0, len(queue.Subscriptions)+1)
	for _, sub := range queue.Subscriptions {
		subs = append(subs, sub.ID)
	}
	if queue.Config.Retains() {
		subs = append(subs, txn.RetentionSub)
	}
	for acked := range slices.Chunk(subs, txn.MaxOps) {
		if _, err := txn.Propose(ctx, s.Primary, time.Now(), func(b *txn.Builder) {
			for _, sub := range acked {
				b.Ack(queue.ID, sub, ranges...)
			}
		}); err != nil {
			return err
		}
	}
	for _, sub := range queue.Subscriptions {
		s.Consumers.Settled(dispatch.Key{Queue: queue.ID, Sub: sub.ID}, ranges, nil)
	}
	g.log.Warn("messages discarded: no node has an intact copy", zap.String("queue", queue.Name),
		zap.Uint64s("sequences", sequences))
	return nil
}

// partnerOr returns the node to compare with, or an error with the reason why a comparison is impossible. If this
// node is not active, the error names the active.
func (g *Guard) partnerOr() (failover.NodeInfo, error) {
	if _, err := g.o.Serving.Session(); err != nil {
		return failover.NodeInfo{}, err
	}
	other, err := g.o.Manager.Partner()
	if err != nil {
		return other, err
	}
	return other, nil
}
