// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/server/dispatch"
	"github.com/lockstep-mq/lockstep/server/maintenance"
	"github.com/lockstep-mq/lockstep/server/peers"
	"github.com/lockstep-mq/lockstep/server/serving"
	"github.com/lockstep-mq/lockstep/server/settings"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	// guardTick is how often the node looks whether its index is damaged: then every moment counts, since pages cannot
	// be written.
	guardTick = 100 * time.Millisecond
	// repairInterval is how often it is tried to repair what could not be repaired before.
	repairInterval = 2 * time.Second
	// firstScrub is when the first scrub begins after a start, firstVerify the first comparison: not in the middle of a
	// restart.
	firstScrub  = time.Minute
	firstVerify = 10 * time.Second
	// handOverAgain is how soon a hand-over that failed is tried again.
	handOverAgain = time.Second
)

// Options of New.
type Options struct {
	// Store of this node, and Settings that hold for it.
	Store    *store.Store
	Settings *settings.Settings
	// Runner, Manager and Peers of it.
	Runner  *failover.Runner
	Manager *maintenance.Manager
	Peers   *peers.Peers
	// Serving has the session that transactions are committed in.
	Serving *serving.Current
	// Resync has the node's store replaced by a snapshot of the active; false if this node does not follow one.
	Resync func(cause error) bool
	// HandOver makes the other node the active one.
	HandOver func(ctx context.Context) error
	// Compared is called after each comparison of the nodes; Difference then tells what it has found.
	Compared func()
	// Logger gets what is found.
	Logger *zap.Logger
}

// Guard looks after what the node holds. Its methods may be called from any goroutine.
type Guard struct {
	o        Options
	log      *zap.Logger
	scrubbed sync.Mutex // held during a scrub

	mu     sync.Mutex // guards what follows
	differ string     // what the last comparison found; empty: nothing
}

// New makes the guard of a node. Run runs it.
func New(o Options) *Guard { return &Guard{o: o, log: o.Logger} }

// Run scrubs, repairs and compares until ctx ends.
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

// alone tells whether the node is in no pair.
func (g *Guard) alone() bool { return g.o.Settings.Live().Alone() }

// every calls fn after the first duration and then at the beginning of each interval, until ctx ends.
func (g *Guard) every(ctx context.Context, first, interval time.Duration, fn func(context.Context)) {
	timer := time.NewTimer(first)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		began := time.Now()
		fn(ctx)
		timer.Reset(max(interval-time.Since(began), time.Millisecond))
	}
}

func (g *Guard) repair(ctx context.Context) {
	st := g.o.Store.DamageStatus()
	if st.DamagedMessages > 0 || st.DamagedLogLSN != 0 || st.SuspectPages > 0 {
		if _, err := g.o.Store.RepairAll(ctx); err != nil && ctx.Err() == nil {
			g.log.Warn("what is damaged cannot be repaired now", zap.Error(err))
		}
	}
}

func (g *Guard) scrubNow(ctx context.Context) {
	if _, err := g.Scrub(ctx, false); err != nil && ctx.Err() == nil {
		g.log.Warn("the scrub did not get to its end; it begins anew at its time", zap.Error(err))
	}
}

// Scrub reads everything from the disk.
func (g *Guard) Scrub(ctx context.Context, fullSpeed bool) (store.ScrubResult, error) {
	rate := g.o.Settings.Live().Scrub.Rate.Bytes()
	if fullSpeed {
		rate = 0
	} else { // two at once would be twice as fast
		g.scrubbed.Lock()
		defer g.scrubbed.Unlock()
	}
	return g.o.Store.Scrub(ctx, rate)
}

// watchIndex has a store replaced whose index is damaged: that of a standby by a snapshot of the active. An active
// hands over first. One that has no node to hand over to goes on for as long as what it has in memory suffices.
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
		damage := g.o.Store.IndexDamage()
		if damage == nil {
			continue
		}
		if g.o.Resync(damage) {
			continue
		}
		if g.alone() || time.Since(tried) < handOverAgain {
			continue
		}
		if _, err := g.o.Manager.Partner(); err != nil {
			continue
		}
		tried = time.Now()
		g.log.Warn("handing over, to have the store replaced", zap.Error(damage))
		if err := g.o.HandOver(ctx); err != nil && ctx.Err() == nil {
			g.log.Error("the role cannot be handed over", zap.Error(err))
		}
	}
}

// Difference is what the last comparison of the nodes found; empty: nothing.
func (g *Guard) Difference() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.differ
}

// DropDamaged acknowledges the messages of a queue that are damaged on both nodes, or, alone, on this one.
// With sequences in only, no others.
func (g *Guard) DropDamaged(ctx context.Context, name string, only []uint64, dryRun bool) ([]uint64, error) {
	session, err := g.o.Serving.Session()
	if err != nil {
		return nil, err
	}
	info, err := g.o.Store.QueueByName(name)
	if errors.Is(err, store.ErrNoQueue) {
		return nil, txn.ErrQueueNotFound
	}
	if err != nil {
		return nil, err
	}
	var sequences []uint64
	var ranges []txn.Range
	for _, m := range g.o.Store.Damaged(txn.MaxOps) {
		if m.Queue == info.ID && m.Lost && (len(only) == 0 || slices.Contains(only, m.Sequence)) {
			sequences = append(sequences, m.Sequence)
			ranges = append(ranges, txn.Range{First: m.Sequence, Last: m.Sequence})
		}
	}
	if dryRun || len(sequences) == 0 {
		return sequences, nil
	}
	var b txn.Builder
	b.Begin(nil, time.Now().UnixMilli(), nil)
	for _, sub := range info.Subscriptions {
		b.Ack(info.ID, sub.ID, ranges...)
	}
	payload, err := b.Finish()
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	result, err := session.Primary.Commit(ctx, payload)
	if err == nil {
		err = result.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("commit: %w", err)
	}
	for _, sub := range info.Subscriptions {
		session.Consumers.Settled(dispatch.Key{Queue: info.ID, Sub: sub.ID}, ranges, nil)
	}
	g.log.Warn("messages that no node can read were given up", zap.String("queue", name),
		zap.Uint64s("sequences", sequences))
	return sequences, nil
}

// partnerOr gives the node to compare with, or explains why there is none: on a node that is not active, where to go.
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
