// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Prepare executes the first phase of a two-phase commit. The transaction is validated and stored on every in-sync
// node. It has no visible effect until CommitPrepared or RollbackPrepared of package client/admin, but the messages
// that it acknowledges are not delivered in the meantime. xid identifies the transaction: 1 to 128 bytes of printable
// UTF-8, unique for each transaction. In a prepared transaction, [Txn.Ack] has the condition of [Txn.Take], and
// [Txn.Release] is not allowed. The limits are 16 MiB and 262,144 acknowledged messages.
//
// In a fleet, the client that has prepared the transaction sends the decision to the same pair. Another client must
// be configured with the addresses of that pair.
//
// After [ErrOutcomeUnknown], Prepare may be called again with the same xid. Errors include those of [Txn.Commit];
// [ErrAlreadyExists] for an xid that is in use or was used recently; [ErrLimit], also if too many transactions are
// prepared; [ErrRefused] while a node runs release 0.1.0.
func (t *Txn) Prepare(ctx context.Context, xid string) error {
	if err := t.ready("prepare"); err != nil {
		return err
	}
	if t.xid != "" && t.xid != xid {
		return fmt.Errorf("%w: the outcome of Prepare with xid %q is unknown: call it again", ErrInvalid, t.xid)
	}
	t.identity.attempts.check = t.check()
	err := t.prepare(ctx, xid)
	for t.again(err) {
		err = t.prepare(ctx, xid)
	}
	t.xid = ""
	if err == nil || t.identity.OutcomeUnknown() {
		t.client.owners.prepared(xid, t.identity.pair)
	}
	if err != nil {
		if t.identity.OutcomeUnknown() {
			t.xid = xid
		}
		return err
	}
	t.done(false)
	return nil
}

func (t *Txn) prepare(ctx context.Context, xid string) error {
	req := t.commitRequest()
	return t.client.doAs(ctx, "prepare "+xid, t.pair(req.ops), &t.identity,
		func(ctx context.Context, cc *grpc.ClientConn, p *pb.Producer) error {
			_, err := queues(cc).Prepare(ctx, &pb.PrepareRequest{Xid: xid, Operations: req.ops, Producer: p})
			return err
		})
}
