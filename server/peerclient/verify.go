// SPDX-License-Identifier: Apache-2.0

package peerclient

import (
	"context"
	"errors"
	"slices"

	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/api/protoconv"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/repair"
)

// maxDigestBytes is the maximum size of a response with the digests of all queues.
const maxDigestBytes = 64 << 20

// QueueDigests returns a node's rolling digests at the record atLSN. The response also contains the known corruption
// of the node.
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
	return protoconv.DigestsFromProto(r), r, nil
}

// Scrub runs a scrub on the node at an address.
func (p *Peers) Scrub(ctx context.Context, address string, fullSpeed bool) (*pb.ScrubResponse, error) {
	c, err := p.conn(address)
	if err != nil {
		return nil, err
	}
	r, err := pb.NewAdminServiceClient(c).Scrub(ctx, &pb.ScrubRequest{FullSpeed: fullSpeed})
	return r, fromPeer(err)
}

// FetchMessages returns intact copies of messages of the node at an address, as defined in repair.Source.
func (p *Peers) FetchMessages(
	ctx context.Context, address string, s *store.Store, queue, first, last uint64, applied lsn.Position,
) (repair.FoundMessages, error) {
	c, err := p.conn(address)
	if err != nil {
		return repair.FoundMessages{}, err
	}
	return replication.FetchMessages(ctx, c, s, queue, first, last, applied)
}

// MessageSource fetches intact copies of messages from the other node, regardless of its role.
type MessageSource struct {
	Peers  *Peers
	Runner *failover.Runner
	Store  *store.Store
}

var _ repair.Source = MessageSource{}

var errNoOther = errors.New("other node is unknown or unreachable")

// FetchMessages implements repair.Source with a request to the other node.
func (m MessageSource) FetchMessages(
	ctx context.Context, queue, first, last uint64, applied lsn.Position,
) (repair.FoundMessages, error) {
	st := m.Runner.Status()
	if st.Record == nil {
		return repair.FoundMessages{}, errNoOther
	}
	nodes := slices.Clone(st.Record.Nodes)
	for _, l := range st.Live {
		nodes = append(nodes, l.Node)
	}
	i := slices.IndexFunc(nodes, func(i failover.NodeInfo) bool { return i.ID != st.Self.ID })
	if i < 0 {
		return repair.FoundMessages{}, errNoOther
	}
	other, ok := st.Node(nodes[i].ID)
	if !ok || other.Address == "" {
		return repair.FoundMessages{}, errNoOther
	}
	return m.Peers.FetchMessages(ctx, other.Address, m.Store, queue, first, last, applied)
}
