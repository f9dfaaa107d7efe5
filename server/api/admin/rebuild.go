// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/api/protoconv"
	"github.com/lockstep-mq/lockstep/server/observe/nodestatus"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/lsn"
)

// If the coordinator has lost the cluster record or was restored to an older state (INV-9), an operator can rebuild
// the record on one node.

const (
	rebuildTimeout       = 15 * time.Second
	rebuildQueryTimeout  = 2 * time.Second // for one address
	rebuildSearchTimeout = 4 * time.Second // for the wait for the announcement of the other node
)

// Reasons why AdoptRecord refuses to adopt a record. The error that it returns also matches failover.ErrAdopt.
var (
	// ErrPeerAhead is returned if the record must be adopted on the other node.
	ErrPeerAhead = errors.New("adopt on the other node instead")
	// ErrOtherUnknown is returned if the log position of the other node could not be determined.
	ErrOtherUnknown = errors.New("log position of the other node is unknown; start it, or specify its " +
		"address with --other; if it is permanently lost or certainly not ahead, use --without-other")
)

type rebuild struct {
	found failover.Found
	above failover.Fence // fence of the other node
	plan  *pb.AdoptRecordResponse
}

// AdoptRecord rebuilds the cluster record from the state of this node. Without confirmation, it only returns the
// record that it would write.
func (a *Service) AdoptRecord(ctx context.Context, req *pb.AdoptRecordRequest) (*pb.AdoptRecordResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, rebuildTimeout)
	defer cancel()
	p, err := a.planRebuild(ctx, req)
	if err != nil || !req.GetConfirm() {
		return p.plan, apierror.ToStatus(err)
	}
	alone := a.o.State().Primary == nil && !p.plan.GetOther().GetReached()
	if alone && !req.GetWithoutOther() {
		return nil, apierror.ToStatus(fmt.Errorf("%w: %w", failover.ErrAdopt, ErrOtherUnknown))
	}
	rec, err := a.rebuildRecord(ctx, failover.AdoptRequest{
		Found: p.found, Above: p.above, AcceptLoss: req.GetAcceptDataLoss(), WithoutOther: alone,
	})
	if err != nil {
		return nil, apierror.ToStatus(err)
	}
	p.plan.Done, p.plan.Config, p.plan.Term, p.plan.InSync = true, rec.Config, rec.Term, members(rec.InSync)
	return p.plan, nil
}

func (a *Service) find(ctx context.Context) (failover.Found, error) {
	found, err := a.o.Runner.Find(ctx)
	if err != nil {
		return found, fmt.Errorf("node %s: %w", a.o.Runner.Status().Self.Name, err)
	}
	return found, nil
}

func (a *Service) rebuildRecord(ctx context.Context, req failover.AdoptRequest) (failover.Record, error) {
	log := a.o.Logger
	log.Warn("adopting the cluster record, requested by an operator", zap.Uint64("found_config", req.Found.Record.Config),
		zap.Stringer("other_fence", req.Above), zap.Bool("accept_data_loss", req.AcceptLoss),
		zap.Bool("without_other", req.WithoutOther), zap.Stringer("log_end", a.store.End()))
	rec, err := a.o.Runner.Adopt(ctx, req)
	if err != nil {
		log.Error("adoption failed", zap.Error(err))
		return rec, fmt.Errorf("node %s: %w", a.o.Runner.Status().Self.Name, err)
	}
	log.Warn("cluster record adopted", zap.Uint64("config", rec.Config), zap.Uint64("term", rec.Term))
	return rec, nil
}

// planRebuild queries both nodes and returns the plan. It returns an error if a rebuild is unsafe.
func (a *Service) planRebuild(ctx context.Context, req *pb.AdoptRecordRequest) (rebuild, error) {
	found, err := a.find(ctx)
	if err != nil {
		return rebuild{}, fmt.Errorf("%w: %w", failover.ErrAdopt, err)
	}
	st, own, end := a.o.State(), a.store.Identity(), a.store.End()
	leads := st.Primary != nil && st.Pair.Record != nil
	fence := own.Fence
	p := rebuild{found: found, plan: &pb.AdoptRecordResponse{
		PairId: own.PairID.String(), NodeId: own.NodeID.String(), NodeName: st.Pair.Self.Name,
		FoundConfig: found.Record.Config, LogEnd: protoconv.PositionToProto(end), InSync: []string{own.NodeID.String()},
	}}
	if leads {
		fence = st.Pair.Record.Fence()
		p.plan.InSync = members(st.Pair.Record.InSync)
	}
	p.plan.OwnConfig = fence.Config
	if err := canRebuild(st, found, own, fence, leads); err != nil {
		return rebuild{}, fmt.Errorf("%w: %w", failover.ErrAdopt, err)
	}
	other, peer := a.findPeer(ctx, req, found)
	p.plan.Other = peer
	if other != nil {
		s := other.GetStore()
		pair := other.GetPair() // may be newer than the applied record, and the node accepts no older one
		p.above = failover.Fence{
			Config: max(s.GetFenceConfig(), pair.GetConfig()),
			Term:   max(s.GetFenceTerm(), s.GetLogEnd().GetTerm(), pair.GetTerm()),
		}
		if err := compare(own, end, leads, other, peer.GetAddress()); err != nil {
			return rebuild{}, fmt.Errorf("%w: %w", failover.ErrAdopt, err)
		}
	}
	next := failover.AdoptedFence(found.Record, end, fence, p.above)
	p.plan.Config, p.plan.Term = next.Config, next.Term
	if leads {
		p.plan.Term = fence.Term
	}
	p.plan.Warnings = warnings(own, end, leads, peer)
	return p, nil
}

// canRebuild returns an error if this node has no reason to rebuild the record, or must not rebuild it.
func canRebuild(
	st nodestatus.Node, found failover.Found, own datadir.Identity, fence failover.Fence, leads bool,
) error {
	switch {
	case st.Coordinator == "none":
		return errors.New("node is standalone (coordinator.type is none)")
	case own.PairID == uuid.Nil:
		return errors.New("store of this node was never part of a pair; it joins automatically")
	case found.Revision != 0 && found.Record.PairID != own.PairID:
		return fmt.Errorf("%w: store belongs to pair %s, cluster record to %s: check coordinator.etcd.prefix",
			failover.ErrOtherPair, own.PairID, found.Record.PairID)
	case found.Revision != 0 && found.Record.Config >= fence.Config:
		return fmt.Errorf("cluster record has config %d and this node's fence has %d: nothing to adopt",
			found.Record.Config, fence.Config)
	case st.Pair.Record != nil && !leads:
		return fmt.Errorf("%w: this node is running and not active; if no node is active, restart this one first",
			ErrPeerAhead)
	default:
		return nil
	}
}

// findPeer queries the other node until the node responds or rebuildSearchTimeout has passed. If the request sets
// without_other, it tries each known address only once.
func (a *Service) findPeer(
	ctx context.Context, req *pb.AdoptRecordRequest, found failover.Found,
) (*pb.GetStatusResponse, *pb.AdoptedPeer) {
	deadline := time.Now().Add(rebuildSearchTimeout)
	for {
		st := a.o.State().Pair
		other, peer := a.queryPeer(ctx, req.GetOtherAddress(), &st, found)
		if other != nil || req.GetWithoutOther() || !pollAgain(ctx, deadline) {
			return other, peer
		}
	}
}

// queryPeer queries the other node at the address given by the operator, and at the addresses in announcements
// and records. The status is nil if the node does not respond. The peer is nil if no address is known.
func (a *Service) queryPeer(
	ctx context.Context, hint string, st *failover.Status, found failover.Found,
) (*pb.GetStatusResponse, *pb.AdoptedPeer) {
	var addresses []string
	add := func(id uuid.UUID, address string) {
		if address != "" && id != st.Self.ID && !slices.Contains(addresses, address) {
			addresses = append(addresses, address)
		}
	}
	add(uuid.Nil, hint)
	for _, l := range st.Live {
		add(l.Node.ID, l.Node.Address)
	}
	for _, n := range found.Record.Nodes {
		add(n.ID, n.Address)
	}
	if st.Record != nil {
		for _, n := range st.Record.Nodes {
			add(n.ID, n.Address)
		}
	}
	for _, address := range addresses {
		ctx, cancel := context.WithTimeout(ctx, rebuildQueryTimeout)
		s, err := a.o.Peers.Status(ctx, address)
		cancel()
		if err != nil || s.GetNode().GetNodeId() == st.Self.ID.String() {
			continue
		}
		return s, &pb.AdoptedPeer{
			Address: address, Reached: true, NodeId: s.GetNode().GetNodeId(), Name: s.GetNode().GetName(), Role: s.GetRole(),
			LogEnd: s.GetStore().GetLogEnd(), Config: s.GetStore().GetFenceConfig(),
		}
	}
	if len(addresses) > 0 {
		return nil, &pb.AdoptedPeer{Address: addresses[0]}
	}
	return nil, nil
}

// compare returns an error if the record must be adopted on the other node, or if that node belongs to another pair.
// The log that contains all committed transactions is the longest log of the highest term.
func compare(own datadir.Identity, end lsn.Position, leads bool, other *pb.GetStatusResponse, address string) error {
	s := other.GetStore()
	peers := lsn.Position{Term: s.GetLogEnd().GetTerm(), LSN: s.GetLogEnd().GetLsn(), Chain: s.GetLogEnd().GetChain()}
	ahead := cmp.Or(cmp.Compare(peers.Term, end.Term), cmp.Compare(peers.LSN, end.LSN)) > 0
	if leads {
		ahead = peers.Term > end.Term // in the same term, the other node receives its log from this one
	}
	switch {
	case s.GetPairId() != "" && s.GetPairId() != own.PairID.String():
		return fmt.Errorf("%w: node at %s belongs to pair %s, this node to %s: check whether two pairs share a prefix",
			failover.ErrOtherPair, address, s.GetPairId(), own.PairID)
	case !leads && failover.Role(other.GetRole()).Acts():
		return fmt.Errorf("%w: node at %s is active (%s)", ErrPeerAhead, address, failover.Role(other.GetRole()))
	case ahead:
		return fmt.Errorf("%w: log of the node at %s ends at %s, log of this node at %s", ErrPeerAhead, address, peers, end)
	case !leads && own.MayHaveLost && !s.GetMayHaveLost() && s.GetPairId() != "":
		return fmt.Errorf("%w: acknowledged transactions may be missing here, but not on the node at %s",
			ErrPeerAhead, address)
	default:
		return nil
	}
}

func warnings(own datadir.Identity, end lsn.Position, leads bool, peer *pb.AdoptedPeer) []string {
	var out []string
	if !leads && end.LSN == 0 {
		out = append(out, emptyWarning)
	}
	if !leads && !peer.GetReached() {
		out = append(out, "other node is unreachable: before you use --without-other, verify that it is not active and "+
			"not ahead of this node; data that exists only there is discarded when it rejoins")
	}
	if own.MayHaveLost {
		out = append(out, "acknowledged transactions may be missing on this node")
	}
	return out
}

func members(list []failover.Member) []string {
	var out []string
	for _, m := range list {
		out = append(out, m.Node.String())
	}
	return out
}
