// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"context"
	"errors"
	"slices"

	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/wire"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/lsn"
)

// maxDigestBytes is above the digests of as many queues as there can be.
const maxDigestBytes = 64 << 20

// QueueDigests asks the node at an address for its rolling digests at exactly an LSN, and for what it knows to be
// damaged.
func (p *Peers) QueueDigests(
	ctx context.Context, address string, atLSN uint64,
) (store.QueueDigests, *pb.GetQueueDigestsResponse, error) {
	c, err := p.conn(address)
	if err != nil {
		return store.QueueDigests{}, nil, err
	}
	r, err := pb.NewAdminServiceClient(c).GetQueueDigests(ctx, &pb.GetQueueDigestsRequest{AtLsn: atLSN},
		grpc.MaxCallRecvMsgSize(maxDigestBytes))
	if err != nil {
		return store.QueueDigests{}, nil, fromPeer(err)
	}
	return wire.DigestsFromProto(r), r, nil
}

// Scrub has the node at an address read everything that it has.
func (p *Peers) Scrub(ctx context.Context, address string, fullSpeed bool) (*pb.ScrubResponse, error) {
	c, err := p.conn(address)
	if err != nil {
		return nil, err
	}
	r, err := pb.NewAdminServiceClient(c).Scrub(ctx, &pb.ScrubRequest{FullSpeed: fullSpeed})
	return r, fromPeer(err)
}

// FetchMessages asks the node at an address for good copies of messages. See store.MessageSource.
func (p *Peers) FetchMessages(
	ctx context.Context, address string, s *store.Store, queue, first, last uint64, applied lsn.Position,
) (store.FoundMessages, error) {
	c, err := p.conn(address)
	if err != nil {
		return store.FoundMessages{}, err
	}
	return replication.FetchMessages(ctx, c, s, queue, first, last, applied)
}

// MessageSource is where good copies of a node's messages come from: the other node, whatever its role.
type MessageSource struct {
	Peers  *Peers
	Runner *failover.Runner
	Store  *store.Store
}

var _ store.MessageSource = MessageSource{}

var errNoOther = errors.New("the other node is not known, or not there")

// FetchMessages asks the other node.
func (m MessageSource) FetchMessages(
	ctx context.Context, queue, first, last uint64, applied lsn.Position,
) (store.FoundMessages, error) {
	st := m.Runner.Status()
	if st.Record == nil {
		return store.FoundMessages{}, errNoOther
	}
	nodes := slices.Clone(st.Record.Nodes)
	for _, l := range st.Live {
		nodes = append(nodes, l.Node)
	}
	i := slices.IndexFunc(nodes, func(i failover.NodeInfo) bool { return i.ID != st.Self.ID })
	if i < 0 {
		return store.FoundMessages{}, errNoOther
	}
	other, ok := st.Node(nodes[i].ID)
	if !ok || other.Address == "" {
		return store.FoundMessages{}, errNoOther
	}
	return m.Peers.FetchMessages(ctx, other.Address, m.Store, queue, first, last, applied)
}
