// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"google.golang.org/grpc"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Prepare is the first phase of the transaction: it is checked, made durable on every in-sync node, and kept where no
// consumer sees it, until Client.CommitPrepared or Client.RollbackPrepared decides over it. xid names it: 1 to 128
// bytes of printable UTF-8, another one for each transaction. What it acknowledges is out of delivery, and is
// acknowledged on the condition that Transaction describes. It may publish and acknowledge, up to 16 MiB and 262,144
// messages.
//
// Errors, after which nothing was prepared unless ErrOutcomeUnknown is there, too: those of Commit; ErrProcessed;
// ErrAlreadyExists for an xid that is in use, or was lately; ErrLimit, also when too many transactions are prepared;
// ErrRefused while a node is of release 0.1.0. After ErrOutcomeUnknown, Prepare may be called again with the same xid.
func (t *Txn) Prepare(ctx context.Context, xid string) error {
	if err := t.ready("prepare"); err != nil {
		return err
	}
	if t.xid != "" && t.xid != xid {
		return fmt.Errorf("%w: the outcome of preparing it as %q is not known; prepare it under that xid", ErrInvalid, t.xid)
	}
	err := t.client.doAs(ctx, "prepare "+xid, &t.identity,
		func(ctx context.Context, cc *grpc.ClientConn, p *pb.Producer) error {
			_, err := queues(cc).Prepare(ctx, &pb.PrepareRequest{Xid: xid, Operations: t.ops, Producer: p})
			return err
		})
	t.xid = ""
	if err != nil {
		if t.identity.inDoubt() {
			t.xid = xid
		}
		return err
	}
	t.done()
	return nil
}

// Decided is what became of a prepared transaction.
type Decided struct {
	// Heuristic: an operator, or the time-out, had decided the same before the coordinator did.
	Heuristic bool
}

// CommitPrepared carries a prepared transaction out. It may be called any number of times.
//
// Errors: ErrNoTransaction when none of that xid is prepared, nor among the last 10,000 that were decided; ErrDecided
// when the coordinator has rolled it back; ErrHeuristic when an operator or the time-out has. After ErrUnavailable with
// ErrOutcomeUnknown it is to be called again.
func (c *Client) CommitPrepared(ctx context.Context, xid string) (Decided, error) {
	return c.commitPrepared(ctx, xid, false)
}

// HeuristicCommitPrepared is CommitPrepared by an operator, in the place of the coordinator, which will be told.
func (c *Client) HeuristicCommitPrepared(ctx context.Context, xid string) (Decided, error) {
	return c.commitPrepared(ctx, xid, true)
}

func (c *Client) commitPrepared(ctx context.Context, xid string, heuristic bool) (Decided, error) {
	var resp *pb.CommitPreparedResponse
	err := c.decide(ctx, "commit the prepared transaction "+xid,
		func(ctx context.Context, cc *grpc.ClientConn) (err error) {
			resp, err = queues(cc).CommitPrepared(ctx, &pb.CommitPreparedRequest{Xid: xid, Heuristic: heuristic})
			return err
		})
	return Decided{Heuristic: resp.GetHeuristic()}, err
}

// RollbackPrepared drops a prepared transaction: nothing is published, and what it would have acknowledged is delivered
// again. It may be called any number of times. Errors: as CommitPrepared, the other way round.
func (c *Client) RollbackPrepared(ctx context.Context, xid string) (Decided, error) {
	return c.rollbackPrepared(ctx, xid, false)
}

// HeuristicRollbackPrepared is RollbackPrepared by an operator, in the place of the coordinator, which will be told.
func (c *Client) HeuristicRollbackPrepared(ctx context.Context, xid string) (Decided, error) {
	return c.rollbackPrepared(ctx, xid, true)
}

func (c *Client) rollbackPrepared(ctx context.Context, xid string, heuristic bool) (Decided, error) {
	var resp *pb.RollbackPreparedResponse
	err := c.decide(ctx, "roll the prepared transaction "+xid+" back",
		func(ctx context.Context, cc *grpc.ClientConn) (err error) {
			resp, err = queues(cc).RollbackPrepared(ctx, &pb.RollbackPreparedRequest{Xid: xid, Heuristic: heuristic})
			return err
		})
	return Decided{Heuristic: resp.GetHeuristic()}, err
}

// decide sends a decision until it is answered. That it was decided otherwise is true of every attempt.
func (c *Client) decide(ctx context.Context, op string, fn func(context.Context, *grpc.ClientConn) error) error {
	err := c.do(ctx, op, new(doubt), fn)
	var e *Error
	if errors.As(err, &e) && (errors.Is(e, ErrDecided) || errors.Is(e, ErrHeuristic)) {
		return fmt.Errorf("%s: %w", op, e)
	}
	return err
}

// PreparedTransaction is one that waits for a decision.
type PreparedTransaction struct {
	// XID is its name.
	XID string
	// LSN of its Prepare in the store's log.
	LSN uint64
	// PreparedAt by the clock of the active.
	PreparedAt time.Time
	// Queues that it publishes to or acknowledges in, by name.
	Queues []PreparedQueue
	// Bytes that are kept for it.
	Bytes uint64
}

// PreparedQueue is what a prepared transaction will do in one queue.
type PreparedQueue struct {
	// Queue is its name.
	Queue string
	// Publishes and Acks are messages that will be published, and acknowledged in any subscription.
	Publishes, Acks uint64
}

// ListPrepared iterates over the transactions that wait for a decision, the oldest first. An error is the last element:
// ErrUnavailable.
func (c *Client) ListPrepared(ctx context.Context) iter.Seq2[PreparedTransaction, error] {
	return func(yield func(PreparedTransaction, error) bool) {
		for after := uint64(0); ; {
			var resp *pb.ListPreparedResponse
			err := c.do(ctx, "list prepared transactions", nil, func(ctx context.Context, cc *grpc.ClientConn) (err error) {
				resp, err = queues(cc).ListPrepared(ctx, &pb.ListPreparedRequest{AfterLsn: after})
				return err
			})
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
