// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"fmt"
	"iter"

	"google.golang.org/grpc"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

func (n *Node) fleet() pb.FleetServiceClient { return pb.NewFleetServiceClient(n.node.Conn()) }

// Fleet returns the node's copy of the directory of its fleet: state, pairs and placement rules. Errors include
// [client.ErrRefused] if the pair belongs to no fleet.
func (n *Node) Fleet(ctx context.Context) (*pb.GetFleetResponse, error) {
	var resp *pb.GetFleetResponse
	err := n.once(ctx, "fleet", func(cc *grpc.ClientConn) (err error) {
		resp, err = pb.NewFleetServiceClient(cc).GetFleet(ctx, &pb.GetFleetRequest{})
		return err
	})
	return resp, err
}

// PlacementOptions selects queues of a fleet.
type PlacementOptions struct {
	// Pair is the name of the pair with the queues; if empty, all pairs.
	Pair string
	// Pattern is a pattern of queue names, with the wildcards * and ?; if empty, all queues.
	Pattern string
}

// Placements returns an iterator over the queues of the fleet in the node's copy of the directory, sorted by name.
// The iteration ends after the first error. Errors include [client.ErrInvalid]; [client.ErrRefused] if the pair
// belongs to no fleet; [client.ErrUnavailable] if the node has no copy of the directory.
func (n *Node) Placements(ctx context.Context, o PlacementOptions) iter.Seq2[*pb.Placement, error] {
	return func(yield func(*pb.Placement, error) bool) {
		after := ""
		for {
			resp, err := n.fleet().ListPlacements(ctx, &pb.ListPlacementsRequest{
				After: after, Pair: o.Pair, Pattern: o.Pattern,
			})
			if err != nil {
				yield(nil, n.fail(ctx, "list placements", err))
				return
			}
			for _, p := range resp.GetPlacements() {
				if !yield(p, nil) {
					return
				}
			}
			if after = resp.GetNextAfter(); after == "" {
				return
			}
		}
	}
}

// PutPlacementRule writes the placement rule of a pattern of queue names. Existing queues are not moved. The call is
// idempotent. Errors include [client.ErrInvalid]; [client.ErrRefused] if the pair belongs to no fleet;
// [client.ErrUnavailable] if etcd does not respond, or the directory is lost.
func (n *Node) PutPlacementRule(ctx context.Context, rule *pb.PlacementRule) error {
	_, err := n.fleet().PutPlacementRule(ctx, &pb.PutPlacementRuleRequest{Rule: rule})
	return n.failChange(ctx, "put placement rule", err)
}

// DeletePlacementRule deletes the placement rule of a pattern, if it exists. Errors include those of
// [Node.PutPlacementRule].
func (n *Node) DeletePlacementRule(ctx context.Context, pattern string) error {
	_, err := n.fleet().DeletePlacementRule(ctx, &pb.DeletePlacementRuleRequest{Pattern: pattern})
	return n.failChange(ctx, "delete placement rule", err)
}

// SetPairState sets the state of a pair of the fleet to open or draining. The call is idempotent. Errors include
// those of [Node.PutPlacementRule], and [client.ErrRefused] if the pair is not registered, has not finished joining,
// or is being removed by [Node.ForgetPair].
func (n *Node) SetPairState(ctx context.Context, pair string, state pb.PairState) error {
	_, err := n.fleet().SetPairState(ctx, &pb.SetPairStateRequest{Pair: pair, State: state})
	return n.failChange(ctx, "set the state of pair "+pair, err)
}

// RebuildDirectory writes the registration and the queues of this node's pair to a lost or restored directory. pairs
// contains the names of all pairs of the fleet. The node must be the active of its pair. The call is idempotent.
// Errors include [client.ErrInvalid]; [client.ErrRefused] if the pair has not joined a fleet, or if another pair has
// its name; [client.ErrUnavailable] if etcd does not respond, or the directory belongs to another fleet.
func (n *Node) RebuildDirectory(ctx context.Context, pairs []string) (*pb.RebuildDirectoryResponse, error) {
	resp, err := n.fleet().RebuildDirectory(ctx, &pb.RebuildDirectoryRequest{Pairs: pairs})
	return resp, n.failChange(ctx, "rebuild the directory", err)
}

// LeaveFleet removes this node's pair from its fleet. The node must be the active of its pair. Errors include
// [client.ErrRefused] if the pair has queues and is not the last pair, or if a move from or to it has not ended;
// [client.ErrUnavailable] if etcd does not respond; [client.ErrOutcomeUnknown].
func (n *Node) LeaveFleet(ctx context.Context) error {
	_, err := n.fleet().LeaveFleet(ctx, &pb.LeaveFleetRequest{})
	return n.failChange(ctx, "leave the fleet", err)
}

// ForgetPair removes another pair, which is lost permanently, from the directory, with its queue names. If moves from
// the pair have not ended, the response contains their epochs: call ForgetPair again after they have ended. Errors
// include [client.ErrRefused] if the pair is live, or is neither registered nor has queue names;
// [client.ErrUnavailable] if etcd does not respond.
func (n *Node) ForgetPair(ctx context.Context, pair string) (*pb.ForgetPairResponse, error) {
	resp, err := n.fleet().ForgetPair(ctx, &pb.ForgetPairRequest{Pair: pair})
	return resp, n.failChange(ctx, "forget pair "+pair, err)
}

// MoveQueues begins a move of queues of another pair to this node's pair: either the given queues, or those of a
// placement group. It returns when the move has begun; [Node.Moves] shows its progress. The node must be the active
// of its pair. Errors include [client.ErrInvalid] if the queues do not belong to one other pair; [client.ErrRefused]
// if a queue is part of another move, if the fleet has 100 moves, or if a node does not support moves;
// [client.ErrUnavailable] if the pair is not open, or if etcd does not respond. In the latter case, and after
// [client.ErrOutcomeUnknown], the move may have begun.
func (n *Node) MoveQueues(ctx context.Context, queues []string, group string) (*pb.MoveQueuesResponse, error) {
	resp, err := n.fleet().MoveQueues(ctx, &pb.MoveQueuesRequest{Queues: queues, Group: group})
	return resp, n.failChange(ctx, "move queues", err)
}

// References returns the names of the queues to which the queue refers: the dead-letter queues that are set on the
// queue and its subscriptions, and the targets of its forwards. [Node.MoveQueues] requires that they are part of the
// same move. Dead-letter queues that policies set are not included.
func (q *Queue) References() (names []string) {
	if to := q.Own.Config.DeadLetter; to != "" {
		names = append(names, to)
	}
	for _, s := range q.Subscriptions {
		if to := s.Redelivery.DeadLetter; to != nil && *to != "" {
			names = append(names, *to)
		}
	}
	for _, f := range q.Forwards {
		names = append(names, f.To)
	}
	return names
}

// FixedQueue describes why a queue cannot be moved to another pair. One of the fields is set.
type FixedQueue struct {
	// Policy is the pattern of a policy with this dead-letter queue.
	Policy string
	// XID identifies a prepared transaction that uses the queue.
	XID string
}

// FixedQueues returns the queues of the home pair that cannot be moved to another pair because of a policy or a
// prepared transaction, by name.
func (c *Client) FixedQueues(ctx context.Context) (map[string]FixedQueue, error) {
	fixed := map[string]FixedQueue{}
	for t, err := range c.ListPrepared(ctx) {
		if err != nil {
			return nil, err
		}
		for _, q := range t.Queues {
			fixed[q.Queue] = FixedQueue{XID: t.XID}
		}
	}
	policies, err := c.Policies(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range policies {
		if to := p.Defaults.DeadLetter; to != "" {
			fixed[to] = FixedQueue{Policy: p.Pattern}
		}
	}
	return fixed, nil
}

// Moves returns the unfinished moves of queues. If the node is the active of its pair, it also returns the progress
// of the moves to this pair, and the last of them that have ended. Errors include [client.ErrRefused] if the pair
// belongs to no fleet.
func (n *Node) Moves(ctx context.Context) (*pb.ListMovesResponse, error) {
	resp, err := n.fleet().ListMoves(ctx, &pb.ListMovesRequest{})
	return resp, n.fail(ctx, "list moves", err)
}

// CancelMove cancels a move to this node's pair. The node must be the active of its pair. Errors include
// [client.ErrRefused] if there is no such move, or if the pair has already taken the queues;
// [client.ErrOutcomeUnknown].
func (n *Node) CancelMove(ctx context.Context, epoch uint64) error {
	_, err := n.fleet().CancelMove(ctx, &pb.CancelMoveRequest{Epoch: epoch})
	return n.failChange(ctx, fmt.Sprint("cancel move ", epoch), err)
}
