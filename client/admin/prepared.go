// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// HeuristicCommitPrepared commits a prepared transaction instead of its coordinator. The coordinator is notified of it
// in the response to its own decision. It is idempotent. Errors are those of [client.Client.CommitPrepared].
func (c *Client) HeuristicCommitPrepared(ctx context.Context, xid string) (client.Decided, error) {
	var resp *pb.CommitPreparedResponse
	err := c.decide(ctx, "commit the prepared transaction "+xid,
		func(ctx context.Context, cc *grpc.ClientConn) (err error) {
			resp, err = queues(cc).CommitPrepared(ctx, &pb.CommitPreparedRequest{Xid: xid, Heuristic: true})
			return err
		})
	return client.Decided{Heuristic: resp.GetHeuristic()}, err
}

// HeuristicRollbackPrepared is [Client.HeuristicCommitPrepared] for a rollback.
func (c *Client) HeuristicRollbackPrepared(ctx context.Context, xid string) (client.Decided, error) {
	var resp *pb.RollbackPreparedResponse
	err := c.decide(ctx, "roll the prepared transaction "+xid+" back",
		func(ctx context.Context, cc *grpc.ClientConn) (err error) {
			resp, err = queues(cc).RollbackPrepared(ctx, &pb.RollbackPreparedRequest{Xid: xid, Heuristic: true})
			return err
		})
	return client.Decided{Heuristic: resp.GetHeuristic()}, err
}

// decide sends a decision until a node responds. An opposite earlier decision applies to every attempt, so it ends any
// doubt.
func (c *Client) decide(ctx context.Context, op string, call func(context.Context, *grpc.ClientConn) error) error {
	err := c.conns.Repeat(ctx, op, call)
	var e *client.Error
	if errors.As(err, &e) && (errors.Is(e, client.ErrDecided) || errors.Is(e, client.ErrHeuristic)) {
		return fmt.Errorf("%s: %w", op, e)
	}
	return err
}
