// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"
	grpcpeer "google.golang.org/grpc/peer"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/api/protoconv"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/lsn"
)

const (
	forceTimeout = 40 * time.Second
	// forceLeaseTime limits each of two waits: until the coordinator responds, and until the lease of an unresponsive
	// node has expired.
	forceLeaseTime = 10 * time.Second
	pollInterval   = 100 * time.Millisecond
	// maxTextBytes limits the size of the operator's name and of each reason.
	maxTextBytes = 200

	emptyWarning = "THIS NODE IS EMPTY: every message of the pair is lost. Prefer the store of the other node, or a backup"
)

// Reasons why ForceFailover refuses a forced failover. The error that it returns also matches failover.ErrForce.
var (
	errNotAccepted  = errors.New("accept_data_loss is not set: acknowledged messages may be lost")
	errPeerResponds = errors.New("it is running, so no forced failover is required; wait until it is active, or stop " +
		"it if it is broken and try again")
	// errEmptyResponds is the reason if neither the responding node nor this node is in the in-sync set.
	errEmptyResponds = errors.New("it is not the node that was in sync; the data of that node is lost if its data " +
		"directory was wiped or replaced. If the directory can be restored, restore it; otherwise stop the new node there " +
		"and try again")
	// errNewerResponds and errOlderResponds are the reasons if acknowledged messages may be missing on both nodes.
	// errNewerResponds means that the log of the other node is ahead of this node's log, and errOlderResponds that it
	// is not.
	errNewerResponds = errors.New("acknowledged messages may also be missing there, but it is ahead of this node; if " +
		"the missing data cannot be restored, stop this node and check the expected loss there: lockstep failover --dry-run")
	errOlderResponds = errors.New("acknowledged messages may also be missing there, and it is not ahead of this node; " +
		"if the missing data cannot be restored, stop that node and try again")
)

// ForceFailover makes this node active even if acknowledged messages are missing on it. In a dry run, it only
// returns the expected loss.
func (a *Service) ForceFailover(
	ctx context.Context, req *pb.ForceFailoverRequest,
) (*pb.ForceFailoverResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, forceTimeout)
	defer cancel()
	resp, err := a.force(ctx, req)
	return resp, apierror.ToStatus(err)
}

func (a *Service) force(ctx context.Context, req *pb.ForceFailoverRequest) (*pb.ForceFailoverResponse, error) {
	for _, text := range []string{req.GetBy(), req.GetReason()} {
		if len(text) > maxTextBytes {
			return nil, fmt.Errorf("%w: by and reason may have at most %d bytes each", apierror.ErrInvalid, maxTextBytes)
		}
	}
	if req.GetConfirm() && !req.GetAcceptDataLoss() {
		return nil, fmt.Errorf("%w: %w", failover.ErrForce, errNotAccepted)
	}
	plan, err := a.planForce(ctx, req)
	if err != nil || !req.GetConfirm() {
		return plan, err
	}
	by := req.GetBy()
	if p, ok := grpcpeer.FromContext(ctx); ok && by == "" {
		by = p.Addr.String()
	}
	rec, err := a.executeForce(ctx, failover.ForceRequest{Config: req.GetConfig(), By: by, Reason: req.GetReason()})
	if err != nil {
		return nil, err
	}
	plan.Done, plan.Config, plan.Term = true, rec.Config, rec.Term
	return plan, nil
}

func (a *Service) executeForce(ctx context.Context, req failover.ForceRequest) (failover.Record, error) {
	log := a.o.Logger.With(zap.String("by", req.By), zap.String("reason", req.Reason), zap.Uint64("config", req.Config))
	log.Warn("forced failover requested by an operator; data missing on this node will be lost",
		zap.Stringer("log_end", a.store.End()))
	req.Committed = a.store.Committed()
	rec, err := a.o.Runner.Force(ctx, req)
	if err != nil {
		log.Error("forced failover failed", zap.Error(err))
		return rec, fmt.Errorf("node %s: %w", a.o.Runner.Status().Self.Name, err)
	}
	log.Warn("forced failover done", zap.Uint64("new_config", rec.Config), zap.Uint64("term", rec.Term))
	return rec, nil
}

// planForce determines the expected loss. It returns an error if a forced failover is not permitted.
func (a *Service) planForce(ctx context.Context, req *pb.ForceFailoverRequest) (*pb.ForceFailoverResponse, error) {
	found, err := a.findRecord(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", failover.ErrForce, err)
	}
	lost, err := a.mayForce(ctx, req, found)
	if err != nil {
		return nil, err
	}
	st, id := a.o.State(), a.store.Identity()
	stats, err := a.store.Stats()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", failover.ErrForce, err)
	}
	rec := found.Record
	kept := failover.GuaranteedLSN(rec, stats.Durable, stats.Applied.LSN)
	p := &pb.ForceFailoverResponse{
		PairId: rec.PairID.String(), NodeId: id.NodeID.String(), NodeName: st.Pair.Self.Name, Config: rec.Config,
		Term: rec.Term, InSync: members(rec.InSync), LogEnd: protoconv.PositionToProto(stats.Durable), LostFromLsn: kept + 1,
		LostToLsn: kept, LostAddress: lost.GetAddress(),
	}
	if rec.Active != id.NodeID {
		n, _ := st.Pair.Node(rec.Active)
		p.LostNodeId, p.LostNodeName = rec.Active.String(), n.Name
	}
	if st.Follower != nil {
		p.HeardCommitLsn = st.Follower.ActiveCommitLSN
		if p.HeardCommitLsn > stats.Durable.LSN {
			p.LostToLsn = p.HeardCommitLsn
		}
	}
	p.Warnings = forceWarnings(id, &rec, p)
	return p, nil
}

// findRecord returns the cluster record. It retries while the coordinator is unreachable.
func (a *Service) findRecord(ctx context.Context) (failover.Found, error) {
	for deadline := time.Now().Add(forceLeaseTime); ; {
		found, err := a.find(ctx)
		if err == nil || !errors.Is(err, failover.ErrUnreachable) || !pollAgain(ctx, deadline) {
			return found, err
		}
	}
}

// pollAgain waits for the next poll. It returns false if the deadline has passed or ctx has ended.
func pollAgain(ctx context.Context, deadline time.Time) bool {
	if time.Now().After(deadline) {
		return false
	}
	select {
	case <-time.After(pollInterval):
		return true
	case <-ctx.Done():
		return false
	}
}

// mayForce returns an error unless the failover machine permits a forced failover and the other node does not
// respond. It waits until the lease of an unresponsive node expires, for about forceLeaseTime. The returned peer is
// nil if no address of the other node is known.
func (a *Service) mayForce(
	ctx context.Context, req *pb.ForceFailoverRequest, found failover.Found,
) (*pb.AdoptedPeer, error) {
	if a.o.Alone {
		return nil, fmt.Errorf("%w: standalone node is always active", failover.ErrForce)
	}
	config := found.Record.Config
	if req.GetConfirm() {
		config = req.GetConfig()
	}
	for deadline := time.Now().Add(forceLeaseTime); ; {
		st := a.o.State().Pair
		err := a.o.Runner.MayForce(ctx, config)
		late := st.Record == nil || st.Record.Config < found.Record.Config // wait until the watch delivers the newer record
		passes := late || errors.Is(err, failover.ErrOtherLives) || errors.Is(err, failover.ErrUnreachable)
		if err != nil && !passes {
			return nil, err
		}
		other, peer := a.queryPeer(ctx, req.GetOtherAddress(), &st, found)
		if other != nil {
			stats, err := a.store.Stats()
			if err != nil {
				return nil, fmt.Errorf("%w: %w", failover.ErrForce, err)
			}
			return nil, fmt.Errorf("%w: %w", failover.ErrForce,
				respondingError(other, peer, &found.Record, st.Self.ID, stats.Durable))
		}
		if err == nil {
			return peer, nil
		}
		if !pollAgain(ctx, deadline) {
			return nil, err
		}
	}
}

// respondingError returns the error for a node that responds although it should be lost. self is this node, and own is
// the end of this node's log. If the record lists only this node as in sync, the other node may lack acknowledged
// messages.
func respondingError(
	other *pb.GetStatusResponse, peer *pb.AdoptedPeer, rec *failover.Record, self uuid.UUID, own lsn.Position,
) error {
	id := other.GetNode().GetNodeId()
	// An active that has left the in-sync set (INV-6) may also have lost acknowledged messages.
	known := slices.ContainsFunc(rec.InSync, func(m failover.Member) bool { return m.Node.String() == id })
	_, selfInSync := rec.Member(self)
	reason := errPeerResponds
	switch {
	case known && !possibleLoss(other):
	case !known && !selfInSync:
		reason = errEmptyResponds
	default:
		reason = errOlderResponds
		if peers := other.GetStore().GetLogDurable(); peers.GetTerm() > own.Term ||
			peers.GetTerm() == own.Term && peers.GetLsn() > own.LSN {
			reason = errNewerResponds
		}
	}
	return fmt.Errorf("node %s, %s (%s), responds at %s: %w", other.GetNode().GetName(), id,
		failover.Role(other.GetRole()), peer.GetAddress(), reason)
}

func possibleLoss(s *pb.GetStatusResponse) bool {
	return slices.ContainsFunc(s.GetConditions(), func(c *pb.Condition) bool {
		k := conditions.Kind(c.GetKind())
		return c.GetNodeId() == s.GetNode().GetNodeId() &&
			(k == conditions.PossibleDataLoss || k == conditions.StoreRolledBack)
	})
}

func forceWarnings(id datadir.Identity, rec *failover.Record, p *pb.ForceFailoverResponse) []string {
	out := []string{
		"make sure that the other node is stopped: a node that is only partitioned from the coordinator and from here " +
			"continues to acknowledge messages to clients that reach it, and those messages are also lost",
	}
	end := p.GetLogEnd()
	switch {
	case end.GetLsn() == 0:
		out = append(out, emptyWarning)
	case rec.Active != id.NodeID && end.GetTerm() < rec.Term:
		out = append(out, fmt.Sprintf("log of this node ends in term %d, the pair is in term %d: it has no records of that "+
			"term, and its last records may differ from the acknowledged ones", end.GetTerm(), rec.Term))
	}
	if id.MayHaveLost {
		out = append(out, "acknowledged messages before the end of this node's log may also be missing")
	}
	if rec.MinInSync > 1 {
		out = append(out, "min_in_sync is 2: this node will be active, but rejects writes until the other node is "+
			"in sync, or until `lockstep settings set min-in-sync 1`")
	}
	if i := slices.IndexFunc(rec.InSync, func(m failover.Member) bool { return m.Node == id.NodeID }); i >= 0 &&
		rec.InSync[i].Node != uuid.Nil {
		out = append(out, "cluster record lists another store of this node as in sync: if its old data directory "+
			"can be restored, nothing is lost")
	}
	return out
}
