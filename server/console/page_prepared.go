// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const preparedPerPage = 100

// preparedPage shows the transactions that await the decision of their coordinator.
func preparedPage() Page {
	return Page{
		Path: "/prepared", Title: "Prepared transactions", Key: "x", Right: "operate", Template: "prepared", Live: true,
		Load: loadPrepared,
		Actions: []Action{
			{
				Name: "commit", Title: "Commit", Right: "operate", Dialog: "commit", Danger: true, Confirm: true,
				Load: mayDecide,
				Do:   func(ctx context.Context, v *View) (Done, error) { return decide(ctx, v, true) },
			},
			{
				Name: "rollback", Title: "Roll back", Right: "operate", Dialog: "rollback", Danger: true, Confirm: true,
				Load: mayDecide,
				Do:   func(ctx context.Context, v *View) (Done, error) { return decide(ctx, v, false) },
			},
		},
	}
}

type preparedView struct {
	Rows  []preparedRow
	Total uint32
	Bytes uint64
	Next  string // address; may be empty
}

type preparedRow struct {
	*pb.PreparedTransaction

	At time.Time
}

func loadPrepared(ctx context.Context, v *View) (any, error) {
	active, err := v.Active(ctx)
	if err != nil {
		return nil, err
	}
	after, _ := strconv.ParseUint(v.Query.Get("after"), 10, 64)
	resp, err := pb.NewQueueServiceClient(active).ListPrepared(ctx, &pb.ListPreparedRequest{
		AfterLsn: after, Limit: preparedPerPage,
	})
	if err != nil {
		return nil, err
	}
	d := &preparedView{Total: resp.GetTotal(), Bytes: resp.GetTotalBytes()}
	for _, t := range resp.GetTransactions() {
		d.Rows = append(d.Rows, preparedRow{t, t.GetPreparedAt().AsTime()})
		if resp.GetMore() {
			d.Next = fmt.Sprintf("/prepared?after=%d", t.GetLsn())
		}
	}
	return d, nil
}

// mayDecide fails for a session that may not list the transactions; it may not decide them either.
func mayDecide(ctx context.Context, v *View) (any, error) {
	active, err := v.Active(ctx)
	if err != nil {
		return nil, err
	}
	return pb.NewQueueServiceClient(active).ListPrepared(ctx, &pb.ListPreparedRequest{Limit: 1})
}

// decide commits or rolls back a transaction in place of its coordinator.
func decide(ctx context.Context, v *View, commit bool) (Done, error) {
	if _, err := mayDecide(ctx, v); err != nil {
		return Done{}, err
	}
	xid := v.Query.Get("xid")
	if strings.TrimSpace(v.Get("confirm")) != strings.TrimSpace(xid) {
		return Done{}, invalid("Type the name of the transaction to confirm.")
	}
	active, err := v.Active(ctx)
	if err != nil {
		return Done{}, err
	}
	queues := pb.NewQueueServiceClient(active)
	if commit {
		if _, err := queues.CommitPrepared(ctx, &pb.CommitPreparedRequest{Xid: xid, Heuristic: true}); err != nil {
			return Done{}, err
		}
		return Done{Message: "Transaction " + xid + " committed."}, nil
	}
	if _, err := queues.RollbackPrepared(ctx, &pb.RollbackPreparedRequest{Xid: xid, Heuristic: true}); err != nil {
		return Done{}, err
	}
	return Done{Message: "Transaction " + xid + " rolled back."}, nil
}
