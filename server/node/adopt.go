package node

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Find reads what the coordinator has in place of the pair's record.
func (n *node) Find(ctx context.Context) (failover.Found, error) {
	found, err := n.runner.Find(ctx)
	if err != nil {
		return found, fmt.Errorf("node %s: %w", n.cfg.Node.Name, err)
	}
	return found, nil
}

// Adopt writes the pair's record anew.
func (n *node) Adopt(ctx context.Context, req failover.AdoptRequest) (failover.Record, error) {
	n.log.Warn("an operator has this node adopt its pair", zap.Uint64("found_config", req.Found.Record.Config),
		zap.Stringer("other_fence", req.Above),
		zap.Bool("accept_data_loss", req.AcceptLoss), zap.Bool("without_other", req.WithoutOther),
		zap.Stringer("log_end", n.store.End()))
	rec, err := n.runner.Adopt(ctx, req)
	if err != nil {
		n.log.Error("the pair was not adopted", zap.Error(err))
		return rec, fmt.Errorf("node %s: %w", n.cfg.Node.Name, err)
	}
	n.log.Warn("the pair is adopted", zap.Uint64("config", rec.Config), zap.Uint64("term", rec.Term))
	return rec, nil
}

// PeerStatus asks the node at an address.
func (n *node) PeerStatus(ctx context.Context, address string) (*pb.GetStatusResponse, error) {
	st, err := n.peers.Status(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", address, err)
	}
	return st, nil
}
