// SPDX-License-Identifier: Apache-2.0

package peerclient

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/protoconv"
	"github.com/lockstep-mq/lockstep/server/observe/history"
)

// History returns the history of the node at an address. It returns the points that end at since or later. since is
// rounded down to an interval. If since is zero, all points are returned.
func (p *Peers) History(ctx context.Context, address string, since time.Time) ([]history.Copied, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c, err := p.conn(address)
	if err != nil {
		return nil, err
	}
	req := &pb.CopyHistoryRequest{}
	if !since.IsZero() {
		req.Since = timestamppb.New(since)
	}
	in, err := pb.NewAdminServiceClient(c).CopyHistory(ctx, req)
	if err != nil {
		return nil, fromPeer(err)
	}
	var all []history.Copied
	for len(all) <= history.MaxQueues {
		resp, err := in.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fromPeer(err)
		}
		all = append(all, protoconv.HistoryFromProto(resp))
	}
	return all, nil
}
