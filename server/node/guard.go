package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/server/admin"
	"github.com/lockstep-mq/lockstep/server/dispatch"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/lsn"
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

// guard looks after what the node holds: it scrubs, has damage repaired from the other node, compares both nodes, and
// says what is wrong.
type guard struct {
	n        *node
	scrubbed sync.Mutex // held during a scrub

	mu     sync.Mutex // guards what follows
	differ string     // what the last comparison found; empty: nothing
}

func newGuard(n *node) *guard { return &guard{n: n} }

// run does all of that until ctx ends.
func (g *guard) run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { g.watchIndex(ctx) })
	if !g.n.alone() {
		running.Go(func() { g.n.watchFailback(ctx) })
	}
	running.Go(func() { g.every(ctx, repairInterval, repairInterval, g.repair) })
	if d := g.n.cfg.Scrub.Interval.Std(); d > 0 {
		running.Go(func() { g.every(ctx, min(d, firstScrub), d, g.scrubNow) })
	}
	if d := g.n.cfg.Verify.Interval.Std(); d > 0 && !g.n.alone() {
		running.Go(func() { g.every(ctx, min(d, firstVerify), d, g.verifyNow) })
	}
	running.Wait()
}

// every calls fn after the first duration and then at the beginning of each interval, until ctx ends.
func (g *guard) every(ctx context.Context, first, interval time.Duration, fn func(context.Context)) {
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

func (g *guard) repair(ctx context.Context) {
	st := g.n.store.DamageStatus()
	if st.DamagedMessages > 0 || st.DamagedLogLSN != 0 || st.SuspectPages > 0 {
		if _, err := g.n.store.RepairAll(ctx); err != nil && ctx.Err() == nil {
			g.n.log.Warn("what is damaged cannot be repaired now", zap.Error(err))
		}
	}
}

func (g *guard) scrubNow(ctx context.Context) {
	if _, err := g.scrub(ctx, false); err != nil && ctx.Err() == nil {
		g.n.log.Warn("the scrub did not get to its end; it begins anew at its time", zap.Error(err))
	}
}

func (g *guard) scrub(ctx context.Context, fullSpeed bool) (store.ScrubResult, error) {
	rate := g.n.live().Scrub.Rate.Bytes()
	if fullSpeed {
		rate = 0
	} else { // two at once would be twice as fast
		g.scrubbed.Lock()
		defer g.scrubbed.Unlock()
	}
	return g.n.store.Scrub(ctx, rate)
}

// watchIndex has a store replaced whose index is damaged: that of a standby by a snapshot of the active. An active
// hands over first. One that has nobody to hand over to goes on for as long as what it has in memory suffices.
func (g *guard) watchIndex(ctx context.Context) {
	ticker := time.NewTicker(guardTick)
	defer ticker.Stop()
	var tried time.Time
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		damage := g.n.store.IndexDamage()
		if damage == nil {
			continue
		}
		g.n.plane.mu.Lock()
		follower := g.n.plane.follower
		g.n.plane.mu.Unlock()
		if follower != nil {
			follower.Resync(damage)
			continue
		}
		if g.n.alone() || time.Since(tried) < handOverAgain {
			continue
		}
		if _, err := g.n.maintenance.Partner(); err != nil {
			continue
		}
		tried = time.Now()
		g.n.log.Warn("handing over, to have the store replaced", zap.Error(damage))
		if _, err := g.n.Switchover(ctx, uuid.Nil); err != nil && ctx.Err() == nil {
			g.n.log.Error("the role cannot be handed over", zap.Error(err))
		}
	}
}

// difference is what the last comparison of the nodes found; empty: nothing.
func (g *guard) difference() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.differ
}

// otherNode is where good copies of messages come from.
type otherNode struct{ n *node }

var errNoOther = errors.New("the other node is not known, or not there")

// FetchMessages asks the other node, whatever its role.
func (o otherNode) FetchMessages(
	ctx context.Context, queue, first, last uint64, applied lsn.Position,
) (store.FoundMessages, error) {
	st := o.n.runner.Status()
	if st.Record == nil {
		return store.FoundMessages{}, errNoOther
	}
	nodes := slices.Clone(st.Record.Nodes)
	for _, l := range st.Live {
		nodes = append(nodes, l.Node)
	}
	i := slices.IndexFunc(nodes, func(i failover.NodeInfo) bool { return i.ID != st.Self.ID })
	if i < 0 {
		return store.FoundMessages{}, errNoOther
	}
	other, ok := st.Node(nodes[i].ID)
	if !ok || other.Address == "" {
		return store.FoundMessages{}, errNoOther
	}
	return o.n.peers.FetchMessages(ctx, other.Address, o.n.store, queue, first, last, applied)
}

// Scrub reads everything from the disk.
func (n *node) Scrub(ctx context.Context, fullSpeed bool) (store.ScrubResult, error) {
	return n.guard.scrub(ctx, fullSpeed)
}

// DropDamaged acknowledges the messages of a queue that are damaged on both nodes, or, alone, on this one.
// With sequences in only, no others.
func (n *node) DropDamaged(ctx context.Context, name string, only []uint64, dryRun bool) ([]uint64, error) {
	session, err := n.Session()
	if err != nil {
		return nil, err
	}
	info, err := n.store.QueueByName(name)
	if errors.Is(err, store.ErrNoQueue) {
		return nil, txn.ErrQueueNotFound
	}
	if err != nil {
		return nil, err
	}
	var sequences []uint64
	var ranges []txn.Range
	for _, m := range n.store.Damaged(txn.MaxOps) {
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
	n.log.Warn("messages that no node can read were given up", zap.String("queue", name),
		zap.Uint64s("sequences", sequences))
	return sequences, nil
}

// partnerOr explains why there is nobody to compare with: on a node that is not active, where to go.
func (n *node) partnerOr() (failover.NodeInfo, error) {
	if _, ok := (upkept{n}).Serving(); !ok {
		return failover.NodeInfo{}, n.NotActive()
	}
	other, err := n.maintenance.Partner()
	if err != nil {
		return other, err
	}
	return other, nil
}

var _ admin.Guard = (*node)(nil)
