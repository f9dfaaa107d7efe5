// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"fmt"
	"strings"
	"time"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const preparedPerPage = 100

// preparedPage returns the page that shows the transactions that wait for the decision of their coordinator.
func preparedPage() Page {
	return Page{
		Path: "/prepared", Title: "Prepared transactions", Key: "x", Right: "operate", Template: "prepared", Live: true,
		Load: withQueues(loadPrepared),
		Actions: []Action{
			{
				Name: "commit", Title: "Commit", Right: "operate", Dialog: "commit", Danger: true, Confirm: true,
				Load: withQueues(mayDecide),
				Do:   withQueues(decide(true)),
			},
			{
				Name: "rollback", Title: "Roll back", Right: "operate", Dialog: "rollback", Danger: true, Confirm: true,
				Load: withQueues(mayDecide),
				Do:   withQueues(decide(false)),
			},
		},
	}
}

type preparedView struct {
	Rows  []preparedRow
	Total uint32
	Bytes uint64
	Next  string // address of the next page; may be empty
}

type preparedRow struct {
	*pb.PreparedTransaction

	At time.Time
}

func loadPrepared(ctx context.Context, v *View, queues pb.QueueServiceClient) (any, error) {
	resp, err := queues.ListPrepared(ctx, &pb.ListPreparedRequest{AfterLsn: v.number("after"), Limit: preparedPerPage})
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

// mayDecide returns an error if the session may not list the transactions.
func mayDecide(ctx context.Context, _ *View, queues pb.QueueServiceClient) (any, error) {
	return queues.ListPrepared(ctx, &pb.ListPreparedRequest{Limit: 1})
}

// decide returns a function that commits or rolls back a transaction in place of its coordinator.
func decide(commit bool) func(context.Context, *View, pb.QueueServiceClient) (Done, error) {
	return func(ctx context.Context, v *View, queues pb.QueueServiceClient) (Done, error) {
		if _, err := mayDecide(ctx, v, queues); err != nil {
			return Done{}, err
		}
		xid := v.Query.Get("xid")
		if strings.TrimSpace(v.Get("confirm")) != strings.TrimSpace(xid) {
			return Done{}, invalid("Type the name of the transaction to confirm.")
		}
		if commit {
			_, err := queues.CommitPrepared(ctx, &pb.CommitPreparedRequest{Xid: xid, Heuristic: true})
			return Done{Message: "Transaction " + xid + " committed."}, err
		}
		_, err := queues.RollbackPrepared(ctx, &pb.RollbackPreparedRequest{Xid: xid, Heuristic: true})
		return Done{Message: "Transaction " + xid + " rolled back."}, err
	}
}
