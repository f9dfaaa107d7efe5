// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"context"
	"errors"
	"fmt"

	lockstepv1 "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Handshake exchanges identities with the process at the other end. Releases before 0.2.0 do not implement the call.
func (c *grpcConn) Handshake(ctx context.Context, me ProcessIdentity) (ProcessIdentity, error) {
	r, err := c.client.Handshake(ctx, &lockstepv1.HandshakeRequest{From: toProcessIdentity(me)})
	if err != nil {
		return ProcessIdentity{}, fromStatus(err)
	}
	return fromProcessIdentity(r.GetBy())
}

func (s *server) Handshake(_ context.Context, req *lockstepv1.HandshakeRequest) (*lockstepv1.HandshakeResponse, error) {
	from, err := fromProcessIdentity(req.GetFrom())
	if err != nil {
		return nil, toStatus(err)
	}
	if s.responder.Self == nil {
		return nil, toStatus(ErrNotActive)
	}
	me := s.responder.Self()
	if from.Pair != me.Pair {
		return nil, toStatus(fmt.Errorf("%w: node %s has pair %s, this node has pair %s", ErrOtherPair, from.Node,
			from.Pair, me.Pair))
	}
	s.responder.OnHandshake(from)
	return &lockstepv1.HandshakeResponse{By: toProcessIdentity(me)}, nil
}

func toProcessIdentity(i ProcessIdentity) *lockstepv1.ProcessIdentity {
	return &lockstepv1.ProcessIdentity{
		PairId: i.Pair.String(), NodeId: i.Node.String(), StoreId: i.Store.String(), Process: i.Process,
		Address: i.Address,
		LogEnd:  toPosition(i.End),
	}
}

const maxProcessBytes = 256

func fromProcessIdentity(p *lockstepv1.ProcessIdentity) (ProcessIdentity, error) {
	i := ProcessIdentity{Process: p.GetProcess(), Address: p.GetAddress(), End: fromPosition(p.GetLogEnd())}
	if len(i.Process) > maxProcessBytes || len(i.Address) > maxProcessBytes {
		return i, fmt.Errorf("%w: process or address of more than %d bytes", ErrProtocol,
			maxProcessBytes)
	}
	err := errors.Join(parseID(p.GetPairId(), &i.Pair), parseID(p.GetNodeId(), &i.Node),
		parseID(p.GetStoreId(), &i.Store))
	if err != nil {
		err = fmt.Errorf("process identity: %w", err)
	}
	return i, err
}
