// SPDX-License-Identifier: Apache-2.0

package scrub

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/api/protoconv"
	"github.com/lockstep-mq/lockstep/server/ops/maintenance"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/throttle"
)

const (
	compareHeld = 10 * time.Second // maximum time that a node waits for the record
	// indexWait is the maximum time that a deep comparison waits for a standby that is disconnected or is replacing
	// its store. indexAgain is the poll interval.
	indexWait  = 20 * time.Second
	indexAgain = 100 * time.Millisecond
)

// QueueDigests returns the rolling digests of the queues after the record atLSN and before the next record, or the
// current digests if atLSN is 0.
func (g *Guard) QueueDigests(ctx context.Context, atLSN uint64) (store.QueueDigests, error) {
	return g.o.Store.QueueDigestsAt(ctx, atLSN, compareHeld)
}

// Verify compares both nodes. A deep comparison also reads all data and detects corruption. If a node then replaces
// its store, Verify waits for at most indexWait until the store is replaced, and restarts the comparison.
func (g *Guard) Verify(ctx context.Context, deep, fullSpeed bool) (*pb.VerifyResponse, error) {
	if g.alone() {
		return g.verifyAlone(ctx, deep, fullSpeed)
	}
	for start, replaced := time.Now(), false; ; {
		resp, err := g.verifyPair(ctx, deep, fullSpeed)
		replaced = replaced || errors.Is(err, index.ErrCorrupt) || errors.Is(err, maintenance.ErrNoPartner) &&
			g.isCatchingUp()
		if err == nil || !deep || !replaced || time.Since(start) > indexWait ||
			errors.Is(err, replication.ErrNotActive) {
			return resp, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(indexAgain):
		}
	}
}

func (g *Guard) isCatchingUp() bool {
	session := g.o.Serving.Get()
	if session == nil {
		return false
	}
	standby := session.Primary.Status().Standby
	return standby != nil && !standby.Required
}

func (g *Guard) verifyPair(ctx context.Context, deep, fullSpeed bool) (*pb.VerifyResponse, error) {
	other, err := g.partnerOr()
	if err != nil {
		return nil, err
	}
	resp := &pb.VerifyResponse{Deep: deep}
	if deep {
		if err := g.readBoth(ctx, other, fullSpeed, resp); err != nil {
			return nil, err
		}
	}
	stores := g.o.Manager.InSync()
	mine, theirs, reply, err := g.compare(ctx, other)
	if err != nil {
		return nil, err
	}
	resp.Lsn, resp.Queues = mine.LSN, uint64(len(mine.Queues))
	for _, q := range mine.Queues {
		resp.Messages += q.Messages
	}
	found := differences(mine, theirs)
	g.o.Manager.ComparedDigests(stores, mine.LSN, summary(found))
	resp.Differences = append(resp.Differences, found...)
	resp.Nodes = []*pb.NodeVerification{
		g.self(),
		{NodeId: other.ID.String(), Name: other.Name, Damage: reply.GetDamage(), Damaged: reply.GetDamaged()},
	}
	return resp, nil
}

// verifyAlone reports the content and the corruption of a standalone node. With deep, it first scrubs the node.
func (g *Guard) verifyAlone(ctx context.Context, deep, fullSpeed bool) (*pb.VerifyResponse, error) {
	if deep {
		if _, err := g.Scrub(ctx, fullSpeed); err != nil {
			return nil, fmt.Errorf("scrub: %w", err)
		}
	}
	stats, err := g.o.Store.Stats()
	if err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	return &pb.VerifyResponse{
		Deep: deep, Lsn: stats.Applied.LSN, Queues: stats.Queues, Messages: stats.Messages,
		Nodes: []*pb.NodeVerification{g.self()},
	}, nil
}

func (g *Guard) self() *pb.NodeVerification {
	self, repair := g.o.Runner.Status().Self, g.o.Store.Repair()
	return &pb.NodeVerification{
		NodeId: self.ID.String(), Name: self.Name, Damage: protoconv.DamageToProto(repair.Status()),
		Damaged: protoconv.DamagedToProto(repair.Damaged(protoconv.MaxListedDamage)),
	}
}

// readBoth scrubs both nodes, compares their content, and adds the result of the comparison to resp.
func (g *Guard) readBoth(ctx context.Context, other failover.NodeInfo, fullSpeed bool, resp *pb.VerifyResponse) error {
	var both sync.WaitGroup
	var mine, theirs error
	both.Go(func() { _, mine = g.Scrub(ctx, fullSpeed) })
	both.Go(func() { _, theirs = g.o.Peers.Scrub(ctx, other.Address, fullSpeed) })
	both.Wait()
	if err := errors.Join(mine, theirs); err != nil {
		return fmt.Errorf("scrub: %w", err)
	}
	if fullSpeed {
		ctx = throttle.FullSpeed(ctx)
	}
	switch err := g.compareContent(ctx); {
	case errors.Is(err, maintenance.ErrDiffer):
		resp.Differences = append(resp.Differences, &pb.QueueDifference{Reason: err.Error()})
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, maintenance.ErrNoPartner), errors.Is(err, replication.ErrNotActive):
		return err
	case err != nil: // usually corrupt messages, which resp lists
		resp.ContentError = err.Error()
	}
	return nil
}

// compareContent compares the content of both nodes. If the standby disconnected while the nodes read their data, it
// waits for the standby, for at most indexWait.
func (g *Guard) compareContent(ctx context.Context) error {
	for start := time.Now(); ; {
		_, err := g.partnerOr()
		if err == nil {
			_, err = g.o.Manager.CompareContent(ctx)
		}
		if !errors.Is(err, maintenance.ErrNoPartner) || time.Since(start) > indexWait {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(indexAgain):
		}
	}
}

func (g *Guard) compare(ctx context.Context, other failover.NodeInfo) (
	mine, theirs store.QueueDigests, reply *pb.GetQueueDigestsResponse, err error,
) {
	_, err = g.o.Manager.AtCommonRecord(ctx, func(ctx context.Context, at uint64) (err error) {
		mine, err = g.QueueDigests(ctx, at)
		return err
	}, func(ctx context.Context, at uint64) (err error) {
		theirs, reply, err = g.o.Peers.QueueDigests(ctx, other.Address, at)
		return err
	})
	return mine, theirs, reply, err
}

// differences returns the queues with different digests. If only the digest of the whole history differs, it returns
// one entry without the name of a queue.
func differences(mine, theirs store.QueueDigests) []*pb.QueueDifference {
	var out []*pb.QueueDifference
	add := func(name, format string, args ...any) {
		out = append(out, &pb.QueueDifference{Queue: name, Reason: fmt.Sprintf(format, args...)})
	}
	for _, d := range mine.Differences(&theirs) {
		q, o := d.Here, d.There
		switch {
		case o == nil:
			add(d.Name(), "missing on the standby")
		case q == nil:
			add(d.Name(), "missing on the active")
		default:
			add(d.Name(), "digest %016x, next sequence %d, %d messages on the active; %s, digest %016x, next sequence "+
				"%d, %d messages on the standby",
				q.Digest, q.NextSequence, q.Messages, o.Name, o.Digest, o.NextSequence, o.Messages)
		}
	}
	if len(out) == 0 && mine.Digest != theirs.Digest {
		add("", "digest of the whole history %016x on the active, %016x on the standby", mine.Digest, theirs.Digest)
	}
	return out
}

// summary returns a text with the first differences. It returns "" without differences.
func summary(found []*pb.QueueDifference) string {
	text := ""
	for i, d := range found {
		if i == 3 {
			text += fmt.Sprintf("; and %d more", len(found)-i)
			break
		}
		if i > 0 {
			text += "; "
		}
		if d.GetQueue() != "" {
			text += "queue " + d.GetQueue() + ": "
		}
		text += d.GetReason()
	}
	return text
}

func (g *Guard) verifyNow(ctx context.Context) {
	if _, err := g.partnerOr(); err != nil {
		return // only the active compares; this node checks its role at the next interval
	}
	resp, err := g.Verify(ctx, false, false)
	switch {
	case err != nil && ctx.Err() == nil:
		g.log.Warn("comparison of the two nodes failed", zap.Error(err))
	case err == nil && len(resp.GetDifferences()) == 0:
		g.log.Info("both nodes have the same digests", zap.Uint64("lsn", resp.GetLsn()),
			zap.Uint64("queues", resp.GetQueues()),
			zap.Uint64("messages", resp.GetMessages()))
	}
}
