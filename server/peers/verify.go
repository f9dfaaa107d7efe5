package peers

import (
	"context"

	"google.golang.org/grpc"

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
