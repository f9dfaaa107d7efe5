// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/api/protoconv"
)

// Switchover makes a node active: the node `to` or, if the node `from` is active, the other one. If the request names
// neither, it selects the standby. If no switchover is needed, the response contains Already. Both nodes accept the
// call.
func (a *Service) Switchover(ctx context.Context, req *pb.SwitchoverRequest) (*pb.SwitchoverResponse, error) {
	timeout := req.GetTimeout().AsDuration()
	if timeout < 0 {
		return nil, apierror.ToStatus(fmt.Errorf("%w: negative timeout", apierror.ErrInvalid))
	}
	if timeout == 0 {
		timeout = switchoverTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	result, err := a.switchover(ctx, req)
	if err != nil {
		return nil, apierror.ToStatus(err)
	}
	return &pb.SwitchoverResponse{
		ActiveNode: result.Active.ID.String(), ActiveAddress: result.Active.Address, Term: result.Term,
		Pause: durationpb.New(result.Pause), Already: result.Already,
	}, nil
}

func (a *Service) switchover(ctx context.Context, req *pb.SwitchoverRequest) (failover.SwitchoverResult, error) {
	if req.GetTo() == "" && req.GetFrom() == "" {
		return a.o.Switchover(ctx, uuid.Nil)
	}
	st := a.o.State().Pair
	if st.Record == nil {
		return failover.SwitchoverResult{}, fmt.Errorf("%w: cluster record is unknown to this node: %s",
			failover.ErrSwitchover, st.Reason)
	}
	to, err := wantedActive(&st, req.GetTo(), req.GetFrom())
	if err != nil {
		return failover.SwitchoverResult{}, err
	}
	if to == st.Record.Active {
		active, _ := st.ActiveNode()
		return failover.SwitchoverResult{Active: active, Term: st.Record.Term, Already: true}, nil
	}
	return a.o.Switchover(ctx, to)
}

func wantedActive(st *failover.Status, to, from string) (uuid.UUID, error) {
	if to != "" {
		return protoconv.FindNode(st, to)
	}
	leaves, err := protoconv.FindNode(st, from)
	if err != nil || leaves != st.Record.Active {
		return st.Record.Active, err
	}
	other, ok := st.Record.Other(leaves)
	if !ok {
		return uuid.Nil, fmt.Errorf("%w: no standby in sync", failover.ErrSwitchover)
	}
	return other.Node, nil
}
