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

// Prepare executes the first phase of a two-phase commit. The transaction is validated and made durable on every
// in-sync node, but it is invisible to consumers until [Client.CommitPrepared] or [Client.RollbackPrepared]. xid
// identifies it: 1 to 128 bytes of printable UTF-8, unique for each transaction. Messages that it acknowledges are not
// delivered in the meantime; they are acknowledged on the condition of [Txn.Take]. A prepared transaction
// may publish and acknowledge up to 16 MiB and 262,144 messages.
//
// After an error without [ErrOutcomeUnknown], nothing was prepared. Errors: those of [Txn.Commit]; [ErrProcessed];
// [ErrAlreadyExists] for an xid that is in use or was used recently; [ErrLimit], also if too many transactions are
// prepared; [ErrRefused] while a node runs release 0.1.0. After ErrOutcomeUnknown, Prepare may be called again with the
// same xid.
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
		if t.identity.InDoubt() {
			t.xid = xid
		}
		return err
	}
	t.done()
	return nil
}

// Decided describes the decision of a prepared transaction.
type Decided struct {
	// Heuristic reports that an operator or the timeout made the same decision before the coordinator.
	Heuristic bool
}

// CommitPrepared commits a prepared transaction. It is idempotent.
//
// Errors: [ErrNoTransaction] if no transaction of that xid is prepared or among the last 10,000 decided ones;
// [ErrDecided] if the coordinator rolled it back; [ErrHeuristic] if an operator or the timeout rolled it back. After
// [ErrUnavailable] with [ErrOutcomeUnknown] it must be called again.
func (c *Client) CommitPrepared(ctx context.Context, xid string) (Decided, error) {
	var resp *pb.CommitPreparedResponse
	err := c.decide(ctx, "commit the prepared transaction "+xid,
		func(ctx context.Context, cc *grpc.ClientConn) (err error) {
			resp, err = queues(cc).CommitPrepared(ctx, &pb.CommitPreparedRequest{Xid: xid})
			return err
		})
	return Decided{Heuristic: resp.GetHeuristic()}, err
}

// RollbackPrepared rolls back a prepared transaction: nothing is published, and the messages that it would have
// acknowledged are redelivered. It is idempotent. The errors correspond to those of [Client.CommitPrepared].
func (c *Client) RollbackPrepared(ctx context.Context, xid string) (Decided, error) {
	var resp *pb.RollbackPreparedResponse
	err := c.decide(ctx, "roll the prepared transaction "+xid+" back",
		func(ctx context.Context, cc *grpc.ClientConn) (err error) {
			resp, err = queues(cc).RollbackPrepared(ctx, &pb.RollbackPreparedRequest{Xid: xid})
			return err
		})
	return Decided{Heuristic: resp.GetHeuristic()}, err
}

// decide sends a decision until a node responds. An opposite earlier decision applies to every attempt, so it ends any
// doubt.
func (c *Client) decide(ctx context.Context, op string, fn func(context.Context, *grpc.ClientConn) error) error {
	err := c.do(ctx, op, new(doubt), fn)
	var e *Error
	if errors.As(err, &e) && (errors.Is(e, ErrDecided) || errors.Is(e, ErrHeuristic)) {
		return fmt.Errorf("%s: %w", op, e)
	}
	return err
}

// PreparedTransaction is a transaction that waits for a decision.
type PreparedTransaction struct {
	// XID identifies the transaction.
	XID string
	// LSN of its Prepare in the store's log.
	LSN uint64
	// PreparedAt is the time of its Prepare, by the clock of the active node.
	PreparedAt time.Time
	// Queues that it publishes to or acknowledges in, sorted by name.
	Queues []PreparedQueue
	// Bytes is the storage used by it.
	Bytes uint64
}

// PreparedQueue contains the operations of a prepared transaction in one queue.
type PreparedQueue struct {
	// Queue is the name of the queue.
	Queue string
	// Publishes is the number of messages to publish. Acks is the number of messages to acknowledge, over all
	// subscriptions.
	Publishes, Acks uint64
}

// ListPrepared iterates over the transactions that wait for a decision, oldest first. An error, such as
// [ErrUnavailable], is the last element.
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
