// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"errors"
	"iter"
	"time"

	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/internal/link"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Decided describes the decision on a prepared transaction.
type Decided struct {
	// Heuristic reports whether an operator or the timeout made the same decision before the transaction coordinator.
	Heuristic bool
}

// CommitPrepared commits a prepared transaction. The call is idempotent; call it again after
// [client.ErrOutcomeUnknown]. Errors include [ErrNoTransaction] if xid belongs neither to a prepared transaction nor
// to one of the last 10,000 decided transactions; [ErrDecided] if the transaction coordinator rolled back the
// transaction; [ErrHeuristic] if an operator or the timeout rolled it back.
func (c *Client) CommitPrepared(ctx context.Context, xid string) (Decided, error) {
	return decide(ctx, c, "commit the prepared transaction "+xid, &pb.CommitPreparedRequest{Xid: xid},
		pb.QueueServiceClient.CommitPrepared)
}

// RollbackPrepared rolls back a prepared transaction: nothing is published, and the messages that it would have
// acknowledged are redelivered. The call is idempotent. The errors correspond to those of [Client.CommitPrepared].
func (c *Client) RollbackPrepared(ctx context.Context, xid string) (Decided, error) {
	return decide(ctx, c, "roll back the prepared transaction "+xid, &pb.RollbackPreparedRequest{Xid: xid},
		pb.QueueServiceClient.RollbackPrepared)
}

// HeuristicCommitPrepared commits a prepared transaction in place of the transaction coordinator. A later
// CommitPrepared returns [Decided] with Heuristic, and a later RollbackPrepared returns [ErrHeuristic]. The call is
// idempotent. Errors are those of [Client.CommitPrepared].
func (c *Client) HeuristicCommitPrepared(ctx context.Context, xid string) (Decided, error) {
	return decide(ctx, c, "commit the prepared transaction "+xid, &pb.CommitPreparedRequest{Xid: xid, Heuristic: true},
		pb.QueueServiceClient.CommitPrepared)
}

// HeuristicRollbackPrepared is like [Client.HeuristicCommitPrepared], but rolls back the transaction.
func (c *Client) HeuristicRollbackPrepared(ctx context.Context, xid string) (Decided, error) {
	return decide(ctx, c, "roll back the prepared transaction "+xid,
		&pb.RollbackPreparedRequest{Xid: xid, Heuristic: true}, pb.QueueServiceClient.RollbackPrepared)
}

// decide sends a decision until a node responds. If a node reports an opposite decision, no attempt took effect, so
// the error does not match client.ErrOutcomeUnknown.
func decide[Req any, Resp interface{ GetHeuristic() bool }](
	ctx context.Context, c *Client, op string, req *Req,
	method func(pb.QueueServiceClient, context.Context, *Req, ...grpc.CallOption) (Resp, error),
) (Decided, error) {
	var resp Resp
	err := c.conns.Repeat(ctx, op, targetOf(req), func(ctx context.Context, cc *grpc.ClientConn) (err error) {
		resp, err = method(queues(cc), ctx, req)
		return err
	})
	var e *client.Error
	if errors.As(err, &e) && (errors.Is(e, ErrDecided) || errors.Is(e, ErrHeuristic)) {
		err = link.Wrap(op, e, e.Message)
	}
	return Decided{Heuristic: resp.GetHeuristic()}, err
}

// PreparedTransaction is a transaction that is prepared and not yet decided.
type PreparedTransaction struct {
	XID string
	// LSN is the LSN of the Prepare, or, for a pair with sites, its logical number, which is equal at all sites.
	LSN uint64
	// PreparedAt is the time of the Prepare, by the clock of the active node.
	PreparedAt time.Time
	// Queues contains the operations by queue, sorted by name.
	Queues []PreparedQueue
	// Bytes is the size of the transaction in the store.
	Bytes uint64
}

// PreparedQueue contains the operations of a prepared transaction in one queue.
type PreparedQueue struct {
	Queue string
	// Publishes is the number of messages to publish. Acks is the number of messages to acknowledge, over all
	// subscriptions.
	Publishes, Acks uint64
}

// ListPrepared returns an iterator over the prepared transactions of the home pair that are not yet decided, oldest
// first. The iteration ends after the first error.
func (c *Client) ListPrepared(ctx context.Context) iter.Seq2[PreparedTransaction, error] {
	return func(yield func(PreparedTransaction, error) bool) {
		for after := uint64(0); ; {
			resp, err := read(ctx, c, "list prepared transactions", &pb.ListPreparedRequest{AfterLsn: after},
				pb.QueueServiceClient.ListPrepared)
			if err != nil {
				yield(PreparedTransaction{}, err)
				return
			}
			for _, p := range resp.GetTransactions() {
				after = p.GetLsn()
				if !yield(preparedFromProto(p), nil) {
					return
				}
			}
			if !resp.GetMore() {
				return
			}
		}
	}
}

func preparedFromProto(p *pb.PreparedTransaction) PreparedTransaction {
	out := PreparedTransaction{
		XID: p.GetXid(), LSN: p.GetLsn(), PreparedAt: p.GetPreparedAt().AsTime(), Bytes: p.GetBytes(),
	}
	for _, q := range p.GetQueues() {
		out.Queues = append(out.Queues, PreparedQueue{
			Queue: q.GetQueue(), Publishes: q.GetPublishes(), Acks: q.GetAcks(),
		})
	}
	return out
}
