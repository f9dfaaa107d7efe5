// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Verify compares what the two nodes of the pair hold; to be asked of the active node. A difference is part of the
// result, as are messages that cannot be read. Errors: ErrRefused when there is no standby in sync.
func (n *Node) Verify(ctx context.Context, req *pb.VerifyRequest) (*pb.VerifyResponse, error) {
	resp, err := n.admin().Verify(ctx, req)
	return resp, n.fail(ctx, "verify", err)
}

// Scrub has this node read every page and all of its log from the disk, and repair what it can. It takes as long as
// that takes with the node's scrub.rate, unless it is done at full speed.
func (n *Node) Scrub(ctx context.Context, req *pb.ScrubRequest) (*pb.ScrubResponse, error) {
	resp, err := n.admin().Scrub(ctx, req)
	return resp, n.fail(ctx, "scrub", err)
}

// DropDamaged acknowledges, for all subscriptions, the messages of a queue that are damaged on both nodes; to be asked
// of the active node. They are lost then, for good. Errors: ErrQueueNotFound.
func (n *Node) DropDamaged(ctx context.Context, req *pb.DropDamagedRequest) (*pb.DropDamagedResponse, error) {
	resp, err := n.admin().DropDamaged(ctx, req)
	return resp, n.fail(ctx, "drop damaged messages", err)
}
